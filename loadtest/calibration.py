"""How fast this generator can go on this machine, measured against a server that does nothing.

    rate ▲            ┌── what the generator still sends on time and hears of at once
         │        ┌───┘
         │    ┌───┘       the last step at which 99% of the requests were sent and answered within
         │────┘           the budget is what it can do
         └──────────────► time

One run climbs in steps until nearly everything is late. Beyond what it found a run is INVALID:
nobody could say whose the latency was.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from loadtest import account
from loadtest.arrivals import Step, Steps
from loadtest.folders import new_run, runs_folder
from loadtest.job import Job
from loadtest.judging import Finished
from loadtest.records import Records
from loadtest.running import Progress, run_load
from loadtest.workload import Workload
from serving.errors import InfrastructureError
from serving.judge.bounds import lower_bound
from serving.judge.run import NEVER
from serving.judge.validity import Limits
from serving.local.home import write_atomically
from serving.local.ports import choose_ports

FIRST_RPS: Final = 100.0
GROWTH: Final = 1.25
STEPS: Final = 24
STEP_SECONDS: Final = 0.75
WARMUP_SECONDS: Final = 1.0
KEPT_SECONDS: Final = 24 * 3600.0
START_SECONDS: Final = 20.0
LATE_RATIO: Final = 0.01
HOPELESS_RATIO: Final = 0.5
USERS: Final = 256


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found.

    Attributes:
        rate_rps: rate up to which the generator is to be believed; 0 where it never was.
        budget_ms: how late 99% of the requests may be.
        processes: how many shared the load.
        measured_unix: when.
    """

    rate_rps: float
    budget_ms: float
    processes: int
    measured_unix: float


def budget_of(job: Job) -> float:
    """How late a generator may be in ms, so that it does not matter for what is promised."""
    limits = [one.limit_ms for one in job.objectives if one.limit_ms]
    return Limits().lag_ratio * min(limits, default=1000.0)


def calibration_of(
    job: Job, processes: int = 1, watch: Callable[[Progress], None] = lambda _: None
) -> Calibration:
    """The calibration for this kind of load on this machine, from the last day or measured now.

    Raises:
        InfrastructureError: neither server nor generator started.
    """
    path = runs_folder() / "calibration" / f"{_identity(job, processes)}.json"
    kept = _kept(path)
    if kept is not None and 0 <= time.time() - kept.measured_unix < KEPT_SECONDS:
        return kept
    found = calibrate(job, processes, watch)
    _keep(path, found)
    return found


def calibrate(
    job: Job, processes: int = 1, watch: Callable[[Progress], None] = lambda _: None
) -> Calibration:
    """Measure it; takes about twenty seconds.

    Raises:
        InfrastructureError: neither server nor generator started.
    """
    budget = budget_of(job)
    with tempfile.TemporaryDirectory(prefix="galley-calibration-") as name:
        folder = Path(name)
        port = choose_ports(("null",), {}, random.Random())["null"]  # noqa: S311 - any port
        against = _against(job, f"http://127.0.0.1:{port}")
        new_run(against, folder)
        server = subprocess.Popen(
            [sys.executable, "-m", "loadtest.null_server", str(folder / account.JOB), str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port, server)

            def too_much(run: Finished, cut: int) -> bool:
                return climbed(steps_of(run.records, budget, cut))[1]

            ran = run_load(against, folder, processes=processes, enough=too_much, watch=watch)
        finally:
            server.terminate()
            server.wait()
        best, _ = climbed(steps_of(ran.finished.records, budget, None))
        return Calibration(best, budget, processes, time.time())


@dataclass(frozen=True, slots=True)
class Climbed:
    """One step: its rate, its requests, and how many were sent or answered beyond the budget."""

    rate_rps: float
    requests: int
    late: int

    @property
    def too_much(self) -> bool:
        """Whether more than 1% were late, and not by a hiccup of the machine alone."""
        return lower_bound(self.late, self.requests, 0.05) > LATE_RATIO


def steps_of(records: Records, budget_ms: float, until: int | None) -> list[Climbed]:
    """What the rows say of each step that was over by `until`, in ns; None for all that began."""
    rows = records.rows
    took = np.where(rows["ok"] == 1, rows["ended"] - rows["intended"], NEVER)
    found = []
    for number, rate in enumerate(rates()):
        begun = round((WARMUP_SECONDS + number * STEP_SECONDS) * 1e9)
        ended = begun + round(STEP_SECONDS * 1e9)
        inside = (rows["intended"] >= begun) & (rows["intended"] < ended)
        if (until is not None and ended > until) or not inside.any():
            break
        late = int((took[inside] > budget_ms * 1e6).sum())
        found.append(Climbed(rate, int(inside.sum()), late))
    return found


def climbed(steps: list[Climbed]) -> tuple[float, bool]:
    """The highest rate that was borne, and whether there is no point in going on.

    What is on time at one rate is so at lower ones: a step that the machine spoilt on the way up
    counts for nothing. The end is where two steps in a row were mostly late.

    >>> climbed([Climbed(10, 100, 0), Climbed(20, 100, 9), Climbed(40, 100, 1)])
    (40, False)
    >>> climbed([Climbed(10, 100, 0), Climbed(20, 100, 9), Climbed(40, 100, 90), Climbed(80, 9, 9)])
    (10, True)
    """
    best, missed = 0.0, 0
    for step in steps:
        best = best if step.too_much else step.rate_rps
        missed = missed + 1 if step.late > HOPELESS_RATIO * step.requests else 0
        if missed == 2:
            break
    return best, missed == 2


def rates() -> tuple[float, ...]:
    """The rates of all steps in requests a second."""
    return tuple(FIRST_RPS * GROWTH**number for number in range(STEPS))


def _against(job: Job, url: str) -> Job:
    steps = tuple(Step(seconds=STEP_SECONDS, rate_ratio=rate / FIRST_RPS) for rate in rates())
    workload = Workload(
        name="calibration",
        because="what the generator itself can do bounds what may be believed of it",
        arrivals=Steps(kind="step", steps=steps),
        warmup_seconds=WARMUP_SECONDS,
        seconds=STEPS * STEP_SECONDS,
        request=job.workload.request,
        timeout_seconds=0.5,
    )
    return Job(
        spec=job.spec,
        workload=workload,
        url=url,
        environment="calibration",
        seed=0,
        peak_rps=FIRST_RPS,
        exact=True,
        max_in_flight=USERS,
    )


def _identity(job: Job, processes: int) -> str:
    said = (
        "galley calibration 1",
        job.spec.model_dump_json(include={"inputs", "outputs"}),
        job.workload.request.model_dump_json(),
        f"{budget_of(job):.6g}",
        str(processes),
        platform.node(),
        str(os.cpu_count()),
        str(len(os.sched_getaffinity(0))),
        sys.version,
    )
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _kept(path: Path) -> Calibration | None:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Calibration).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(path: Path, found: Calibration) -> None:
    from pydantic import TypeAdapter

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, TypeAdapter(Calibration).dump_json(found, indent=2).decode())


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise InfrastructureError("the server that calibrates the load generator did not start")
