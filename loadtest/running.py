"""`run_load`: starts the generator, follows it, and breaks it off where enough was seen.

The generator is Locust in a process of its own: gevent never enters this one, and what is done here
takes nothing from its processor but what the machine has to spare.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest import account
from loadtest.job import Job
from loadtest.judging import Finished, read
from loadtest.records import ROW
from serving.errors import InfrastructureError
from serving.local.ports import choose_ports

LOCUSTFILE: Final = Path(__file__).parent / "locustfile.py"
LOOK_SECONDS: Final = 0.25
FIRST_LOOK_SECONDS: Final = 5.0
MORE: Final = 1.2
"""A run is looked at again when it holds so many times the rows of the last look."""
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 15.0
OVERDUE_SECONDS: Final = 90.0
"""After the last request must have ended: a generator that still runs is broken."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: requests that have ended, of all; and the seconds that are left."""

    ended: int
    total: int
    seconds_left: float
    phase: str


Enough = Callable[[Finished, int], bool]
"""Whether a run that goes on has shown enough, by what was due up to a moment in ns; all of that is
recorded by then."""


@dataclass(frozen=True)
class Ran:
    """A run that is over. `broken_off_at` is set where it was not let run to its end, in ns."""

    finished: Finished
    broken_off_at: int | None


def run_load(
    job: Job,
    folder: Path,
    *,
    processes: int = 1,
    enough: Enough = lambda _, __: False,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Ran:
    """Run the job in its folder; returns when the generator is done.

    Args:
        job: the load test; its text is in the folder already (see `folders.new_run`).
        folder: of the run.
        processes: how many share the load.
        enough: is asked now and then whether to break off.
        watch: is told how far it is, a few times a second.

    Raises:
        InfrastructureError: the generator did not start.
    """
    with (folder / account.LOG).open("wb") as log:
        child = subprocess.Popen(
            command(folder, processes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            # A signal of the terminal is for this process, which then ends the other in order.
            start_new_session=True,
        )
    follower = _Follower(job, folder, child, enough, watch)
    try:
        cut = follower.follow()
    finally:
        _end(child, folder)
    if not follower.started:
        raise InfrastructureError(f"the load generator did not start: {_last_words(folder)}")
    return Ran(read(folder), cut)


def command(folder: Path, processes: int) -> list[str]:
    """How Locust is started for a run that is kept in `folder`."""
    words = [
        *(
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(LOCUSTFILE),
            "--job",
            str(folder / account.JOB),
        ),
        *("--headless", "--only-summary", "--loglevel", "WARNING"),
    ]
    if processes > 1:
        port = choose_ports(("master",), {}, random.Random())["master"]  # noqa: S311 - any port
        words += [
            *("--processes", str(processes), "--master-bind-host", "127.0.0.1"),
            *("--master-bind-port", str(port), "--master-host", "127.0.0.1"),
            *("--master-port", str(port)),
        ]
    return words


class _Follower:
    def __init__(
        self,
        job: Job,
        folder: Path,
        child: subprocess.Popen[bytes],
        enough: Enough,
        watch: Callable[[Progress], None],
    ) -> None:
        self._job, self._folder, self._child = job, folder, child
        self._enough, self._watch = enough, watch
        self._begun = time.monotonic()
        self._looked_at = 0
        self._longest = job.schedule.until / 1e9 + job.timeout_seconds + OVERDUE_SECONDS
        self.started = False

    def follow(self) -> int | None:
        """Until the generator is done; the moment at which it was broken off, None for not."""
        path = self._folder / account.RECORDS
        first = 0.0
        while self._child.poll() is None:
            rows = path.stat().st_size // ROW.itemsize if path.exists() else 0
            now = time.monotonic()
            if rows and not self.started:
                self.started, first = True, now
            if not self.started and now - self._begun > START_SECONDS:
                return None
            self._tell(rows, now - first if self.started else 0.0)
            if self.started and now - first >= FIRST_LOOK_SECONDS:
                cut = self._look(rows, now - first)
                if cut is not None:
                    (self._folder / account.STOP).touch()
                    # One that does not stop is made to; then it gives no account, and is INVALID.
                    with suppress(subprocess.TimeoutExpired):
                        self._child.wait(STOP_SECONDS)
                    return cut
            if self.started and now - first > self._longest:
                return None
            time.sleep(LOOK_SECONDS)
        self.started = self.started or path.exists()
        return None

    def _tell(self, rows: int, since: float) -> None:
        schedule = self._job.schedule
        phase = "starting"
        if self.started:
            warm = since * 1e9 < schedule.warmup_until
            phase = "warming up" if warm else "measuring"
        left = max(schedule.until / 1e9 - since, 0.0)
        self._watch(Progress(rows, len(schedule.intended), left, phase))

    def _look(self, rows: int, since: float) -> int | None:
        if rows < MORE * self._looked_at:
            return None
        self._looked_at = rows
        # What was due before is decided by now, whether it was answered or given up.
        cut = round((since - self._job.timeout_seconds - 1.0) * 1e9)
        if cut <= self._job.schedule.warmup_until or cut >= self._job.schedule.until:
            return None
        run = read(self._folder)
        # The account is written at the end; until then nobody is missed.
        quiet = account.Account(0.0, 0.0, 1, (), ())
        so_far = Finished(run.folder, run.job, quiet, run.records)
        return cut if self._enough(so_far, cut) else None


def _end(child: subprocess.Popen[bytes], folder: Path) -> None:
    """The generator and all of its workers are gone after this."""
    if child.poll() is None:
        (folder / account.STOP).touch()
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_words(folder: Path) -> str:
    lines = (folder / account.LOG).read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-3:]) or "it said nothing"
