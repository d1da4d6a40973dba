"""What `locust -f loadtest/locustfile.py` runs: an open-loop load test of a model of galley's.

Locust's own options work as ever: --headless, the web page, --processes, --master and --worker,
--csv, --html; save for numbers of users and their ramp, which an open loop does not have. What is
sent is a workload (--workload) for a model (--model); when, is its schedule, so users are no more
than hands: as many as may be busy at once.

In Locust's tables and pages, times count from the moment at which a request was due.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from locust import LoadTestShape, User, events, task

from loadtest import account
from loadtest.engine.agreement import Agreement
from loadtest.engine.askers import Asker
from loadtest.engine.open_loop import Answered
from loadtest.job import job_from
from serving.errors import GalleyError, InputError

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser
    from locust.env import Environment

N = TypeVar("N", int, float)
_log = logging.getLogger("galley.loadtest")
_agreements: dict[int, Agreement] = {}


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--model", default="filetype", help="name of it")
    parser.add_argument("--workload", default="steady", help="name of a workload, or its file")
    parser.add_argument("--rate-rps", type=float, default=None, help="instead of the spec's peak")
    parser.add_argument("--seconds", type=float, default=None, help="measured time")
    parser.add_argument("--seed", type=int, default=None, help="instead of the workload's")
    parser.add_argument("--max-in-flight", type=int, default=None, help="most open requests")
    parser.add_argument("--job", default="", include_in_web_ui=False, help="a settled load test")


@events.init.add_listener
def _init(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    agreement = Agreement(
        environment, _job_of, _concluded, follower=os.getppid() if options.job else None
    )
    _agreements[id(environment)] = agreement
    if not agreement.is_worker:
        try:
            environment.host = environment.host or _settled(environment)[0].url
        except GalleyError as error:
            raise SystemExit(f"galley: {error}") from None


def _settled(environment: Environment) -> tuple[Any, Path | None]:
    options: Any = environment.parsed_options
    if options.job:
        path = Path(options.job)
        return job_from(path.read_bytes()), path.parent
    from loadtest.settling import settle

    job = settle(
        options.model,
        options.workload,
        rate_rps=_number(options.rate_rps, float),
        seconds=_number(options.seconds, float),
        seed=_number(options.seed, int),
        max_in_flight=_number(options.max_in_flight, int),
    )
    return job, None


def _number(given: Any, kind: Callable[[Any], N]) -> N | None:
    """A number as the command line or Locust's page gives it; both leave it out in their way."""
    if given is None or given == "":
        return None
    try:
        return kind(given)
    except ValueError:
        raise InputError(f"{given!r:.40} is no number; give one, or leave it empty") from None


def _job_of(environment: Environment) -> tuple[Any, Path]:
    job, folder = _settled(environment)
    if folder is None:
        from loadtest.folders import new_run

        folder = new_run(job)
    environment.host = job.url
    return job, folder


def _concluded(folder: Path, environment: Environment) -> None:
    """Judge a run that Locust was asked for itself; `galley loadtest` judges its own."""
    options: Any = environment.parsed_options
    if options.job:
        return
    from loadtest.concluding import conclude

    try:
        found = conclude(folder)
    except GalleyError:
        _log.exception("the run could not be judged")
        environment.process_exit_code = 5
        return
    environment.process_exit_code = found.verdict.exit_code
    _log.info("verdict: %s; see %s", found.verdict.answer.value, folder / account.REPORT_PAGE)


class OpenLoopUser(User):
    """A pair of hands: takes what is due, asks, writes down what came of it."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        side = _agreements[id(environment)].side
        assert side is not None  # noqa: S101 - a run is settled before there are users
        self._side = side
        self._connection = side.connection()
        self._asker: Asker = side.asker_of(self._connection)

    def on_start(self) -> None:
        """Connect now: a handshake is no part of what is measured."""
        with contextlib.suppress(OSError):
            self._connection.connect()

    @task
    def live(self) -> None:
        """Serve until stopped."""
        fire, name, method = self.environment.events.request.fire, self._asker.name, None
        method = self._asker.method

        def told(latency_ns: int, answered: Answered) -> None:
            fire(
                request_type=method,
                name=name,
                response_time=latency_ns / 1e6,
                response_length=answered.size_bytes,
                exception=None if answered.why is None else Refused(answered.why),
                context={},
            )

        self._side.loop.serve(self._asker.ask, told)


class Refused(Exception):
    """An answer that does not count as one, in Locust's table of failures."""


class OpenLoop(LoadTestShape):
    """All users at once, until every worker is done."""

    def tick(self) -> tuple[int, float] | None:
        """How many users there are to be; None ends the run."""
        runner: Any = self.runner
        agreement = _agreements[id(runner.environment)]
        if agreement.finished:
            return None
        try:
            users = _settled(runner.environment)[0].users
        except GalleyError as error:
            # On Locust's page it can be put right, and tried again.
            _log.error("%s", error)
            return None
        return users, users
