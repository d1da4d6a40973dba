"""`measure`: from the columns of a run to its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from serving.judge.autocorrelation import autocorrelation_time
from serving.judge.counting import Ends, count, quantile_ms
from serving.judge.evidence import Evidence, Generator, Growth
from serving.judge.littles_law import littles_law
from serving.judge.objectives import TIMED, Objective
from serving.judge.run import COLUMNS, NEVER, Run, in_flight_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Times = NDArray[np.int64]

REGULAR: Final = 0.05
"""Spread of the gaps of a schedule, of their mean, below which it is a constant rate."""
LONGEST_RAMP: Final = 10
"""One part in so many of a run may be left out of what is said about its queue."""


def measure(
    run: Run, objectives: Sequence[Objective], generator: Generator | None = None
) -> Evidence:
    """The evidence that a run holds about `objectives`.

    Bad is whatever was not answered well in time: failures, drops, broken streams, answers that
    contradict themselves, and what was still open at the end and older than the limit.
    """
    run = _in_order(run)
    due = np.minimum(run.intended, run.sent)
    impossible = _impossible(run, due)
    failed = ~run.ok & (run.ended != NEVER) | (run.sent == NEVER) | impossible
    still_open = (run.sent != NEVER) & (run.ended == NEVER) & ~impossible
    limits = [one.limit_ns for one in objectives if one.metric in TIMED[:2]]
    strictest, loosest = min(limits, default=0), max(limits, default=0)
    ends = Ends(due, failed, still_open)
    latency = ends.since(run.ended)
    flight = _in_flight(run, due, latency, loosest)[_filled(due, latency) :]
    tau = autocorrelation_time(flight)
    lag = (run.sent - due)[run.sent != NEVER]
    early = (run.intended - run.sent)[run.sent < run.intended]
    return Evidence(
        attempted=len(run),
        failed=int(failed.sum()),
        open=int(still_open.sum()),
        dropped=int((run.sent == NEVER).sum()),
        scheduled=run.scheduled,
        follows_answers=_follows_answers(run),
        seconds=float(due.max() - due.min()) / 1e9 if len(run) else 0.0,
        tau=tau,
        counted=tuple(
            counted
            for one in objectives
            if (counted := count(run, ends, one, tau, loosest)) is not None
        ),
        median_ms=quantile_ms(latency, 0.5),
        lag_p99_ms=quantile_ms(lag, 0.99),
        early=int((early > max(1_000_000, strictest // 20)).sum()),
        impossible=int(impossible.sum()),
        growth=_growth(flight),
        law=littles_law(run),
        generator=generator or Generator(),
    )


def _in_order(run: Run) -> Run:
    """The run in the order in which requests were due, whatever order its parts came in."""
    if len(run) < 2 or bool((np.diff(run.intended) > 0).all()):
        return run
    order = np.lexsort((run.ok, run.ended, run.sent, run.intended))
    held = {name: getattr(run, name) for name in COLUMNS if getattr(run, name) is not None}
    return replace(run, **{name: column[order] for name, column in held.items()})


def _impossible(run: Run, due: Times) -> Flags:
    wrong = (run.ended < due) | ((run.sent == NEVER) & (run.ended != NEVER) & run.ok)
    wrong |= (run.ended < run.sent) & (run.sent != NEVER)
    if run.first_token is not None:
        came = run.first_token != NEVER
        wrong |= came & ((run.first_token < run.sent) | (run.first_token > run.ended))
    if run.inter_token is not None:
        wrong |= run.inter_token < 0
    return np.asarray(wrong, dtype=bool)


def _in_flight(run: Run, due: Times, latency: Times, loosest: int) -> Times:
    ends = run.ended.copy()
    # What never ends would be a queue that grows for ever, and hide that the service answers the
    # rest: it counts as long as the longest answer took, or as anybody would have waited.
    longest = int(latency[latency != NEVER].max(initial=loosest))
    lost = (ends == NEVER) & (run.sent != NEVER)
    ends[lost] = due[lost] + longest
    # A dropped request was never in anybody's queue.
    ends[run.sent == NEVER] = due[run.sent == NEVER]
    return in_flight_at(due, due, ends)


def _filled(due: Times, latency: Times) -> int:
    """How many of the first requests met a service that this recording shows emptier than it was.

    What was sent in the warm-up is not in it, so the first p99 of latency is a ramp of its own.
    """
    took = quantile_ms(latency, 0.99)
    if took is None or not math.isfinite(took):
        return 0
    first = int(np.searchsorted(due, due[0] + round(took * 1e6), side="left"))
    return first if first * LONGEST_RAMP <= len(due) else 0


def _growth(flight: Times) -> Growth | None:
    count = len(flight)
    if count < 100:
        return None
    place = np.linspace(-0.5, 0.5, count)
    slope = float(place @ flight) / float(place @ place)
    rest = flight - flight.mean() - slope * place
    spread = float(np.var(rest))
    error = math.sqrt(spread * autocorrelation_time(rest) / float(place @ place))
    z = slope / error if error > 0 else (math.inf if slope > 0 else 0.0)
    return Growth(slope, float(flight.mean()), min(z, 1e9))


def _follows_answers(run: Run) -> float:
    """Share of requests that were due just after an answer: chance makes it about one in twenty.

    Nearly all are where a fixed number of users wait for their answers, whatever the recording
    calls the moments at which it sent.
    """
    ends = np.sort(run.ended[run.ended != NEVER])
    gaps = np.diff(run.intended).astype(np.float64)
    # A regular schedule may fall in with regular answers, and owes them nothing.
    if len(ends) < 20 or len(run) < 20 or not gaps.std() > REGULAR * gaps.mean():
        return 0.0
    window = float(run.intended[-1] - run.intended[0]) / len(run) / 20
    before = np.searchsorted(ends, run.intended, side="right")
    had = before > 0
    since = run.intended[had] - ends[before[had] - 1]
    return float((since <= window).sum()) / len(run)
