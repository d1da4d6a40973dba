"""Whether a measurement can be trusted at all; asked before what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from serving.judge.evidence import Evidence
from serving.judge.objectives import TIMED, Objective
from serving.judge.verdict import Fault


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a measurement may be off. Each is a share or count; the reason stands beside it."""

    achieved_ratio: float = 0.99
    """Requests sent of those due: with fewer, the rate was not the one that was asked about."""
    lag_ratio: float = 0.05
    """p99 of late sending, of the limit: more is the generator's time taken for the server's."""
    cpu_ratio: float = 0.8
    """Of one core: above, the generator's own queue is what is measured."""
    cache_ratio: float = 0.01
    """Answers from a cache beyond what the workload repeats: inputs are left from another run."""
    growth_z: float = 3.3
    """Standard errors by which requests in flight may grow: by chance once in 2,000 runs."""
    growth_ratio: float = 0.2
    """Growth over the run that is too small to matter, of the mean in flight."""
    follows_ratio: float = 0.5
    """Requests due just after an answer: by chance about 0.05."""
    fastest_believable_ms: float | None = None
    """A median below it is no answer of this model: a cache, an error page, a wrong address."""


def faults_of(
    evidence: Evidence, objectives: tuple[Objective, ...], limits: Limits
) -> Iterator[Fault]:
    """Every reason not to trust the evidence."""
    if not objectives:
        yield Fault("objectives", "nothing was promised, so nothing can be kept; give an objective")
    if evidence.attempted == 0:
        yield Fault("requests", "no request was recorded; no data is never a PASS")
        return
    yield from _of_the_recording(evidence)
    yield from _of_the_load(evidence, objectives, limits)
    yield from _of_the_generator(evidence, objectives, limits)
    growth = evidence.growth
    if growth is not None and not (
        growth.z <= limits.growth_z or growth.per_run <= limits.growth_ratio * growth.mean
    ):
        yield Fault(
            "steady state",
            f"requests in flight grew by {growth.per_run:.1f} over the run ({growth.z:.1f} "
            "standard errors), so a longer run would be slower; lower the rate, or leave out the "
            "warm-up",
            spares_fail=True,
        )


def _of_the_recording(evidence: Evidence) -> Iterator[Fault]:
    law = evidence.law
    if law is not None and not law.holds:
        yield Fault(
            "Little's law",
            f"{law.counted:.3f} requests were open on average, yet rate x time in system is "
            f"{law.reckoned:.3f}; rows are missing, clocks disagree or a unit is wrong",
        )
    if evidence.early:
        yield Fault(
            "schedule",
            f"{evidence.early} requests were sent before they were due; the intended times are not "
            "those of this run, or come from another clock",
        )
    for name in ("tau", "seconds", "follows_answers"):
        if not math.isfinite(getattr(evidence, name)):
            yield Fault(
                name, f"{name}={getattr(evidence, name)} is no number; record the run again"
            )


def _of_the_load(
    evidence: Evidence, objectives: tuple[Objective, ...], limits: Limits
) -> Iterator[Fault]:
    sent = 1 - evidence.dropped / evidence.attempted
    if not sent >= limits.achieved_ratio:
        yield Fault(
            "achieved rate",
            f"only {sent:.1%} of the {evidence.attempted:,} requests that were due were sent "
            f"(limit {limits.achieved_ratio:.0%}); give the generator more workers, connections "
            "or open files",
        )
    if evidence.scheduled and evidence.follows_answers > limits.follows_ratio:
        yield Fault(
            "schedule",
            f"{evidence.follows_answers:.0%} of the requests were due just as an answer came in, "
            "so answers drove the load and no schedule did; send at a rate instead of from a fixed "
            "number of users",
            spares_fail=True,
        )
    timed = [one.limit_ms for one in objectives if one.metric in TIMED[:2] and one.limit_ms]
    if timed and evidence.scheduled:
        budget = limits.lag_ratio * min(timed)
        lag = evidence.lag_p99_ms
        if lag is not None and not lag <= budget:
            yield Fault(
                "dispatch lag",
                f"1% of the requests were sent {lag:.3g} ms late or later (limit {budget:.3g} ms, "
                f"{limits.lag_ratio:.0%} of the strictest promise); the generator was too slow, "
                "use more workers or a lower rate",
            )
    median, fastest = evidence.median_ms, limits.fastest_believable_ms
    if fastest is not None and not (median is not None and median >= fastest):
        yield Fault(
            "plausibility",
            f"half of the answers took {median} ms or less, below the {fastest:g} ms that are "
            "believable; check that the model itself answered",
        )


def _of_the_generator(
    evidence: Evidence, objectives: tuple[Objective, ...], limits: Limits
) -> Iterator[Fault]:
    said = evidence.generator
    if said.cpu_ratio is not None and not said.cpu_ratio < limits.cpu_ratio:
        yield Fault(
            "generator CPU",
            f"a generator process used {said.cpu_ratio:.0%} of a core (limit "
            f"{limits.cpu_ratio:.0%}); use more workers or a lower rate",
        )
    timed = [one.limit_ms for one in objectives if one.metric in TIMED and one.limit_ms]
    budget = limits.lag_ratio * min(timed, default=math.inf)
    if said.loop_lag_p99_ms is not None and not said.loop_lag_p99_ms <= budget:
        yield Fault(
            "event loop lag",
            f"the generator woke up {said.loop_lag_p99_ms:.3g} ms late at p99 (limit "
            f"{budget:.3g} ms); use more workers or a lower rate",
        )
    fastest = said.calibrated_rps
    if fastest is not None and not evidence.offered_rps <= fastest:
        yield Fault(
            "calibration",
            f"{evidence.offered_rps:,.0f} requests a second were due, and this generator is fast "
            f"enough for {fastest:,.0f} on this machine; use more workers or a lower rate",
        )
    hits = said.cache_hits_beyond
    if hits is not None and not hits <= limits.cache_ratio:
        yield Fault(
            "cache",
            f"{hits:.1%} more answers came from a cache than the workload repeats, so it was not "
            "the model that was measured; send inputs that nobody sent before (another salt)",
            spares_fail=True,
        )
    if said.workers_lost:
        yield Fault(
            "workers",
            f"{said.workers_lost} load generator workers were lost in the measured time; run again",
        )
    expected = said.expected_requests
    if expected is not None and expected != evidence.attempted:
        yield Fault(
            "reconciliation",
            f"{evidence.attempted:,} requests were recorded of {expected:,} in the schedule; a "
            "worker's samples are missing or doubled, run again",
        )
    if said.server_restarts:
        yield Fault(
            "server", f"the server restarted {said.server_restarts} times; mend that, then measure"
        )
    if said.overflowed:
        yield Fault(
            "overflow",
            f"{said.overflowed} samples are beyond the histogram's last bucket; widen its range",
            spares_fail=True,
        )
    if said.merged_percentiles:
        yield Fault(
            "percentiles",
            "percentiles of parts were averaged, which is the percentile of nothing; merge counts",
        )
