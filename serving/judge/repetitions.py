"""Several runs of one test, judged as one.

A run cannot show what changes from run to run: another node, another cache, another hour. So a
release takes two at least. Counts add up, effective sizes add up, and of everything that can make a
run untrustworthy the worst counts. Percentiles are not averaged; there is none of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serving.errors import InputError
from serving.judge.counts import total
from serving.judge.evidence import Counted, Evidence, Generator, Growth
from serving.judge.littles_law import LittlesLaw
from serving.judge.objectives import Objective


def pooled(runs: Sequence[Evidence]) -> Evidence:
    """The evidence of all runs together.

    Raises:
        InputError: for no runs.
    """
    if not runs:
        raise InputError("repetitions: there is no run; give the evidence of one at least")
    objectives = [one.objective for one in runs[0].counted]
    attempted = sum(run.attempted for run in runs)
    return Evidence(
        attempted=attempted,
        failed=sum(run.failed for run in runs),
        open=sum(run.open for run in runs),
        dropped=sum(run.dropped for run in runs),
        scheduled=all(run.scheduled for run in runs),
        follows_answers=max(run.follows_answers for run in runs),
        seconds=sum(run.seconds for run in runs),
        tau=_tau([(run.attempted, run.tau) for run in runs]),
        counted=tuple(
            counted for one in objectives if (counted := _pooled_count(runs, one)) is not None
        ),
        median_ms=_extreme(min, [run.median_ms for run in runs]),
        lag_p99_ms=_extreme(max, [run.lag_p99_ms for run in runs]),
        early=sum(run.early for run in runs),
        impossible=sum(run.impossible for run in runs),
        growth=_steepest([run.growth for run in runs if run.growth is not None]),
        law=_worst_law([run.law for run in runs if run.law is not None]),
        generator=_pooled_generator([run.generator for run in runs]),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def _pooled_count(runs: Sequence[Evidence], objective: Objective) -> Counted | None:
    parts = [run.of(objective) for run in runs]
    counted = [part for part in parts if part is not None]
    # A run that did not record it leaves requests out of the denominator.
    if len(counted) < len(runs):
        return None
    sizes = [part.counts.attempted for part in counted]
    return Counted(
        objective,
        total(part.counts for part in counted),
        tau=_tau(list(zip(sizes, (part.tau for part in counted), strict=True))),
        tau_bad=_tau(list(zip(sizes, (part.tau_bad for part in counted), strict=True))),
        cluster=max(part.cluster for part in counted),
    )


def _tau(parts: Sequence[tuple[int, float]]) -> float:
    """Tau of the whole, whose effective size is the sum of those of its parts."""
    effective = sum(size / tau for size, tau in parts if tau > 0)
    return sum(size for size, _ in parts) / effective if effective > 0 else 1.0


def _extreme(
    pick: Callable[[Sequence[float]], float], values: Sequence[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None


def _steepest(found: Sequence[Growth]) -> Growth | None:
    return max(found, key=lambda growth: growth.z, default=None)


def _worst_law(found: Sequence[LittlesLaw]) -> LittlesLaw | None:
    return min(found, key=lambda law: (law.holds, law.independent), default=None)


def _pooled_generator(said: Sequence[Generator]) -> Generator:
    def added(name: str) -> int | None:
        values = [getattr(one, name) for one in said]
        return None if any(value is None for value in values) else sum(values)

    return Generator(
        cpu_ratio=_extreme(max, [one.cpu_ratio for one in said]),
        loop_lag_p99_ms=_extreme(max, [one.loop_lag_p99_ms for one in said]),
        workers_lost=sum(one.workers_lost or 0 for one in said),
        expected_requests=added("expected_requests"),
        server_restarts=sum(one.server_restarts or 0 for one in said),
        overflowed=sum(one.overflowed or 0 for one in said),
        calibrated_rps=_extreme(min, [one.calibrated_rps for one in said]),
        cache_hits_beyond=_extreme(max, [one.cache_hits_beyond for one in said]),
        merged_percentiles=any(one.merged_percentiles for one in said),
    )
