"""`Schedule`: when each request of a run is due, a pure function of workload and seed.

    0 ── warm-up: Poisson at the first rate ── warmup_until ── measured: the workload ── until

Its digest stands in the report: who has the same one sent at the same moments.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from loadtest.arrivals import Poisson, first_ratio, moments, seconds_for
from loadtest.trace import bounded
from serving.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadtest.arrivals import Arrivals
    from loadtest.workload import Workload

LONGEST_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True)
class Schedule:
    """All arrivals of a run.

    Attributes:
        intended: when each request is due, ns after the start, in order.
        warmup_until: what is due before it, in ns, is warm-up.
        until: end of the measured time, in ns.
    """

    intended: NDArray[np.int64]
    warmup_until: int
    until: int

    def __len__(self) -> int:
        return len(self.intended)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the moments, in hexadecimal digits."""
        head = f"galley schedule 1\n{self.warmup_until}\n{self.until}\n".encode()
        return hashlib.sha256(head + self.intended.astype("<i8").tobytes()).hexdigest()

    @cached_property
    def measured(self) -> NDArray[np.bool_]:
        """Which requests count."""
        return np.asarray(self.intended >= self.warmup_until)

    def share(self, worker: int, workers: int) -> NDArray[np.int64]:
        """The places in the schedule that one of several workers has.

        They take turns, so that a Poisson process stays close to one for each.
        """
        return np.arange(worker, len(self.intended), workers, dtype=np.int64)


def schedule_of(
    workload: Workload,
    *,
    peak_rps: float,
    seed: int,
    seconds: float | None = None,
    least_requests: int = 0,
) -> Schedule:
    """The schedule of a workload.

    Args:
        workload: what is to be sent.
        peak_rps: what its ratios are of, requests a second.
        seed: all that is drawn is drawn from it.
        seconds: measured time; the workload's own if not given.
        least_requests: go on for as long as so many take at the workload's mean rate.

    Raises:
        InputError: for a run that is too long or too large.
    """
    lasts = measured_seconds(workload, peak_rps, seconds, least_requests)
    warm = workload.warmup_seconds
    if lasts + warm > LONGEST_SECONDS:
        raise InputError(
            f"{workload.name}: would take {(lasts + warm) / 3600:.1f} h, a run may take "
            f"{LONGEST_SECONDS / 3600:.0f}; raise the rate, or give --seconds"
        )
    # Two streams of one seed: the warm-up's length moves nothing in the measured part.
    seeds = np.random.SeedSequence(seed).generate_state(2)
    due = moments(workload.arrivals, peak_rps=peak_rps, seconds=lasts, seed=int(seeds[1]))
    warmup_until = round(warm * 1e9)
    parts = [warmup_until + due]
    if warm and (rate := _first_rate(workload.arrivals, due, peak_rps, warm)):
        alike = Poisson(kind="poisson")
        parts.insert(0, moments(alike, peak_rps=rate, seconds=warm, seed=int(seeds[0])))
    bounded(sum(map(len, parts)))
    return Schedule(np.concatenate(parts), warmup_until, warmup_until + round(lasts * 1e9))


def measured_seconds(
    workload: Workload, peak_rps: float, seconds: float | None, least_requests: int
) -> float:
    """How long is measured: as asked, or for as long as it takes to say anything."""
    asked = workload.seconds if seconds is None else seconds
    if workload.exact:
        return asked
    needed = seconds_for(workload.arrivals, peak_rps=peak_rps, requests=least_requests)
    return max(asked, math.ceil(needed) if needed < math.inf else needed)


def _first_rate(arrivals: Arrivals, due: NDArray[np.int64], peak_rps: float, warm: float) -> float:
    """What to warm up at, requests a second; a trace tells by its moments alone how it begins."""
    ratio = first_ratio(arrivals)
    return int((due < warm * 1e9).sum()) / warm if ratio is None else ratio * peak_rps
