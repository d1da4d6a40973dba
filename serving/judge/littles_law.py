"""Little's law held against the measurement itself: requests open = rate x time in system.

It holds for any server, so where a recording breaks it the recording is wrong: rows are missing,
clocks disagree, a column is in another unit than it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from serving.judge.autocorrelation import autocorrelation_time
from serving.judge.run import NEVER, Run, in_flight_at

TOLERANCE: Final = 0.02
ERRORS: Final = 3.0


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """Mean number of open requests, found in two ways, and how far they may differ by chance."""

    counted: float
    """By watching: the sender's own count, or the time that requests were seen open."""
    reckoned: float
    """From rate and mean time in system (L = lambda W)."""
    error: float
    """Standard error of the difference."""
    independent: bool
    """Whether two clocks or counters were at work; else the stamps are only held against them."""

    @property
    def holds(self) -> bool:
        """Whether both agree within 2%, or within three of their standard errors."""
        apart = abs(self.counted - self.reckoned)
        allowed = TOLERANCE * max(self.counted, self.reckoned) + ERRORS * self.error
        return bool(math.isfinite(apart) and apart <= allowed)


def littles_law(run: Run) -> LittlesLaw | None:
    """The law on a run; None where nobody can say (fewer than two requests were completed).

    Independent where the sender counted open requests itself (`in_flight`) or timed them with a
    second clock (`service`).
    """
    done = (run.sent != NEVER) & (run.ended != NEVER)
    if run.service is not None:
        done &= run.service != NEVER
    if int(done.sum()) < 2:
        return None
    if run.in_flight is not None:
        return _by_count(run)
    sent, ended = run.sent[done], run.ended[done]
    first, last = int(sent.min()), int(sent.max())
    window = float(last - first)
    if not window > 0:
        return None
    times = (ended - sent if run.service is None else run.service[done]).astype(np.float64)
    if not bool(np.isfinite(times).all()):
        return None
    open_for = (ended - sent).astype(np.float64)
    return LittlesLaw(
        counted=float(open_for.sum()) / window,
        reckoned=len(sent) / window * float(times.mean()),
        error=_rounding(run, sent) * len(sent) / window,
        independent=run.service is not None,
    )


def _by_count(run: Run) -> LittlesLaw | None:
    was_sent = run.sent != NEVER
    assert run.in_flight is not None  # noqa: S101
    order = np.argsort(run.sent[was_sent], kind="stable")
    sent = run.sent[was_sent][order]
    counted = run.in_flight[was_sent][order].astype(np.float64)
    reckoned = in_flight_at(sent, sent, run.ended[was_sent]).astype(np.float64)
    apart = counted - reckoned
    error = math.sqrt(float(np.var(apart)) * autocorrelation_time(apart) / len(apart))
    # Two sends in one moment have no order: either may have counted the other.
    return LittlesLaw(
        float(counted.mean()), float(reckoned.mean()), error + 1 / len(apart), independent=True
    )


def _rounding(run: Run, sent: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Nanoseconds by which the mean of two clocks may differ since both are read in steps."""
    if run.service is None:
        return 0.0
    step = float(np.gcd.reduce(np.diff(np.sort(sent))) or 1)
    return step if step >= 1e6 else 0.0
