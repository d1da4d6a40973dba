"""Searching the highest rate of a served model: each probe is a load test of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from loadtest.maximum import CONFIRMATIONS, WIDTH, Search
from loadtest.testing import load_test

if TYPE_CHECKING:
    from loadtest.job import Job
    from loadtest.running import Progress

LOOSE_ERRORS: Final = 0.01
"""Errors allowed while searching: a stricter ratio would take ten times as long at each rate, and
is what the confirmation is for."""
START_RATIO: Final = 0.5
SEED_STEP: Final = 1_000


@dataclass(frozen=True)
class Maximum:
    """What was found: the SLO is kept at this rate, with 1 - alpha; None where at none."""

    rate_rps: float | None
    alpha: float
    search: Search
    folders: tuple[str, ...]


def find_maximum(
    job: Job,
    *,
    processes: int = 1,
    width: float = WIDTH,
    calibrate: bool = True,
    watch: Callable[[str, Progress], None] = lambda _, __: None,
    told: Callable[[str], None] = lambda _: None,
) -> Maximum:
    """Search, then confirm.

    A probe ends when no request of it is open any more, so that the next one finds an idle service.

    Args:
        job: the load test whose rate is searched; its own rate is where the search begins.
        processes: how many share the load.
        width: how close the search comes, of the rate; a wider one takes fewer runs.
        calibrate: whether the generator is measured first, where it was not of late.
        watch: is told how far the run is that goes on.
        told: is told of each rate and its verdict.

    Raises:
        InfrastructureError: the generator did not start.
    """
    search, folders = Search(START_RATIO * job.peak_rps, width=width), []
    while (following := search.next) is not None:
        rate, confirms = following
        number = len(search.probes)
        probe = _probe(job, rate, number, confirms=confirms)
        doing = "confirming" if confirms else "trying"
        text = f"{doing} {rate:,.4g} rps"

        def follow(_: str, progress: Progress, text: str = text) -> None:
            watch(text, progress)

        found = load_test(probe, processes=processes, calibrate=calibrate, watch=follow)
        search = search.told(found.verdict.answer)
        folders.append(str(found.run.folder))
        why = found.verdict.faults[0].message if found.verdict.faults else ""
        told(f"{text}: {found.verdict.answer.value}{f' ({why})' if why else ''}")
    return Maximum(search.confirmed_rps, job.alpha, search, tuple(folders))


def _probe(job: Job, rate: float, number: int, *, confirms: bool) -> Job:
    # Each rate meets other arrivals and other inputs, or luck would be searched for as well.
    changes = {
        "peak_rps": rate,
        "seed": job.seed + SEED_STEP * (number + 1),
        "salt": job.salt + number + 1,
    }
    if confirms:
        return job.changed(**changes, alpha=job.alpha / CONFIRMATIONS)
    allowed = max(one.allowed_ratio for one in job.objectives)
    return job.changed(**changes, error_ratio=max(allowed, LOOSE_ERRORS))
