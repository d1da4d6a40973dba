"""`load_test`: one load test from its job to its verdict, followed from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest import oversight
from loadtest.calibration import calibration_of
from loadtest.concluding import Concluded, conclude
from loadtest.folders import new_run
from loadtest.judging import bound_to_fail, decided
from loadtest.oversight import Oversight
from loadtest.running import Progress, run_load
from loadtest.server_stats import Sampler, replicas_of

if TYPE_CHECKING:
    from loadtest.job import Job


def load_test(
    job: Job,
    *,
    folder: Path | None = None,
    processes: int = 1,
    calibrate: bool = True,
    watch: Callable[[str, Progress], None] = lambda _, __: None,
) -> Concluded:
    """Run a load test and judge it.

    A run of a length that was asked for is judged at its end, and broken off only where it has
    failed; any other goes on for as long as it takes to be sure, up to its schedule's end.

    Args:
        job: the load test.
        folder: where it is kept; a new one if not given.
        processes: how many share the load.
        calibrate: whether the generator is measured first, where it was not of late.
        watch: is told what goes on and how far it is.

    Raises:
        InfrastructureError: the generator did not start.
    """
    kept = new_run(job, folder)
    calibrated = None
    if calibrate:
        found = calibration_of(job, processes, lambda progress: watch("calibrating", progress))
        calibrated = found.rate_rps
    any_time = not (job.exact or job.workload.exact)
    with Sampler(replicas_of(job)) as sampler:
        ran = run_load(
            job,
            kept,
            processes=processes,
            enough=decided if any_time else bound_to_fail,
            watch=lambda progress: watch(progress.phase, progress),
        )
    made = ran.finished.account
    seen = Oversight(
        broken_off_at=ran.broken_off_at,
        decided_early=any_time,
        calibrated_rps=calibrated,
        samples=sampler.since(made.started_unix) if made is not None else (),
        restarts=sampler.restarts if replicas_of(job) else None,
    )
    oversight.write(kept, seen)
    return conclude(kept)
