"""Which requests were bad by one objective: here each is good, bad or unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from serving.judge.autocorrelation import autocorrelation_time, cluster_time
from serving.judge.counts import Counts
from serving.judge.evidence import Counted
from serving.judge.objectives import TIMED, Objective
from serving.judge.run import NEVER, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Times = NDArray[np.int64]

FINE: Final = 1000
"""Steps of a clock that are finer than this part of the limit do not matter for a verdict."""
LEAST_VALUES: Final = 4
"""Different times around a limit that it takes to tell in which steps they were recorded."""
TAIL_POINTS: Final = 200


@dataclass(frozen=True)
class Ends:
    """When each request was due, which failed, and which were open when watching stopped."""

    due: Times
    failed: Flags
    still_open: Flags

    def since(self, moment: Times) -> Times:
        """Time from when each was due; NEVER for what failed or did not come."""
        return np.where(self.failed | (moment == NEVER), NEVER, moment - self.due)


def count(run: Run, ends: Ends, objective: Objective, tau: float, loosest: int) -> Counted | None:
    """The count of an objective; None for a time that the run did not record.

    Args:
        run: in the order in which requests were due.
        ends: what became of each request.
        objective: what is promised.
        tau: the autocorrelation time of requests in flight.
        loosest: the largest limit of all objectives in ns, after which nobody waits any more.
    """
    took = _took(run, ends, objective)
    if took is None and objective.metric in TIMED:
        return None
    age = run.last_seen - ends.due
    if took is None:
        bad = ends.failed | (ends.still_open & (age > loosest) & (loosest > 0))
        near = np.zeros(len(run), dtype=bool)
    else:
        bad, near = _beyond(took, ends, objective, age)
    unknown = near | (ends.still_open & ~bad)
    most = bad | unknown
    own = autocorrelation_time(most)
    return Counted(
        objective,
        Counts(len(run), int(bad.sum()), int(unknown.sum())),
        # Errors may come in bursts that leave the queue alone: the longer memory counts.
        tau=max(tau, own),
        tau_bad=own,
        cluster=cluster_time(most),
        observed_ms=None if took is None else quantile_ms(took, objective.quantile),
        sorted_tail_ms=() if took is None else _tail_ms(took, objective.quantile),
    )


def _took(run: Run, ends: Ends, objective: Objective) -> Times | None:
    """How long each took; NEVER for what came to nothing, None where it was not recorded."""
    if objective.metric == "inter_token_latency" and run.inter_token is not None:
        return np.where(ends.failed, NEVER, run.inter_token)
    moments = {"latency": run.ended, "time_to_first_token": run.first_token}.get(objective.metric)
    return None if moments is None else ends.since(moments)


def _beyond(took: Times, ends: Ends, objective: Objective, age: Times) -> tuple[Flags, Flags]:
    """Which requests took longer than the limit, and of which nobody can say."""
    limit = objective.limit_ns
    answered = ~ends.failed & ~ends.still_open
    bad = ends.failed | (answered & (took > limit))
    # A stream whose first token was late is bad however it ends, and one that waits for it longer
    # than the limit is so already. The mean time between tokens is known at the end alone.
    if objective.metric != "inter_token_latency":
        waited = np.where(took == NEVER, age, took)
        bad |= ends.still_open & (waited > limit)
    step = _step(took[answered], limit)
    if step * FINE <= limit:
        return bad, np.zeros(len(took), dtype=bool)
    near = answered & (took != NEVER) & (np.abs(took - limit) < step)
    return bad & ~near, near


def _step(took: Times, limit: int) -> int:
    """The decimal step in nanoseconds in which times around the limit were recorded.

    Only times that take several values can tell: a service may well take exactly 100 ms each time.
    """
    near = np.unique(took[(took > limit // 2) & (took < 2 * limit)])
    if len(near) < LEAST_VALUES:
        return 1
    common, step = int(np.gcd.reduce(near)), 1
    while common % (10 * step) == 0:
        step *= 10
    return step


def quantile_ms(values: Times, quantile: float) -> float | None:
    """A quantile of the sample in milliseconds: one of its values, inf where it never came.

    >>> quantile_ms(np.array([1_000_000, NEVER, 2_000_000, 3_000_000]), 0.75)
    3.0
    """
    if not len(values):
        return None
    rank = max(math.ceil(quantile * len(values) - 1e-9), 1) - 1
    return _ms(int(np.partition(values, rank)[rank]))


def _tail_ms(values: Times, quantile: float) -> tuple[tuple[float, float], ...]:
    size = len(values)
    if not size:
        return ()
    first = max(math.floor(quantile * size) - 1, 0)
    tail = np.sort(np.partition(values, first)[first:])
    picked = np.unique(np.linspace(0, len(tail) - 1, TAIL_POINTS).round().astype(int))
    return tuple(((first + int(n) + 1) / size, _ms(int(tail[n]))) for n in picked)


def _ms(nanoseconds: int) -> float:
    return math.inf if nanoseconds == NEVER else nanoseconds / 1e6
