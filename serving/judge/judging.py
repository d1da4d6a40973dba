"""`judge`: from evidence and promises to a verdict. Pure: the same evidence gives the same verdict.

validity ──any fault──► INVALID
│
each objective: bad of attempted, n = N/tau ──► PASS, FAIL or INCONCLUSIVE
│
all PASS ► PASS    one FAIL ► FAIL    else INCONCLUSIVE
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from serving.errors import InputError
from serving.judge.bounds import bound_rank, enough, lower_bound, smallest_sample, upper_bound
from serving.judge.evalues import log_e_fail, log_e_pass
from serving.judge.evidence import Counted, Evidence
from serving.judge.objectives import Objective, objectives_of
from serving.judge.validity import Limits, faults_of
from serving.judge.verdict import Answer, Gate, Verdict, combined

if TYPE_CHECKING:
    from serving.slo import LatencySlo, TokenSlo

Looks = Literal["once", "anytime"]

LEAST_EFFECTIVE: Final = 50
"""Effective requests below which tau itself is too uncertain to rest a PASS on."""
RATE_TOLERANCE: Final = 0.01


def judge(
    evidence: Evidence,
    slo: LatencySlo | TokenSlo | Sequence[Objective],
    *,
    alpha: float = 0.05,
    looks: Looks = "once",
    limits: Limits | None = None,
    accept_closed_loop: bool = False,
) -> Verdict:
    """The verdict on `evidence`; a PASS is wrong with probability `alpha` at most.

    So is a FAIL about the service, as long as errors do not come in bursts; about the run it judges
    it is right in any case.

    Args:
        evidence: what a run came to, counted at exactly these objectives.
        slo: what was promised.
        alpha: how often a service just beyond an objective may PASS, and one just within it FAIL.
        looks: `once` for a run of a length that was fixed before; `anytime` for a run that is
            judged again and again while it goes on, and may stop at the first verdict.
        limits: how far the measurement may be off.
        accept_closed_loop: take latency from the moment of sending where no schedule was kept.
            Slow answers then held back the very requests that would have been slow too.

    Raises:
        InputError: for an alpha that is no probability.
    """
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha={alpha} is no error rate; give a number between 0 and 0.5")
    objectives = objectives_of(slo)
    faults = tuple(faults_of(evidence, objectives, limits or Limits()))
    gates = tuple(_gate(evidence, one, alpha, looks) for one in objectives)
    closed = not evidence.scheduled
    if closed and not accept_closed_loop:
        gates = tuple(_not_believed(gate) for gate in gates)
    return Verdict(combined(gates, faults), gates, faults, tuple(_notes(evidence, closed)), alpha)


def _gate(evidence: Evidence, objective: Objective, alpha: float, looks: Looks) -> Gate:
    counted = evidence.of(objective)
    if counted is None or counted.counts.attempted == 0:
        return Gate(
            objective,
            Answer.INVALID,
            f"the run holds no {objective.metric.replace('_', ' ')} counted at this limit",
            would_help="record it, or do not promise it",
        )
    times = (counted.tau, counted.tau_bad, counted.cluster)
    if not all(1 <= time < math.inf for time in times):
        return Gate(objective, Answer.INVALID, f"tau={times} are no autocorrelation times")
    if counted.counts.attempted != evidence.attempted:
        return Gate(
            objective,
            Answer.INVALID,
            f"counted {counted.counts.attempted} requests of {evidence.attempted} attempted",
            would_help="count every attempted request; there is one denominator",
        )
    if objective.metric != "rate":
        return _by_counts(counted, objective.allowed_ratio, alpha, looks, evidence)
    return _rate(evidence, counted, objective, alpha, looks)


def _rate(
    evidence: Evidence, counted: Counted, objective: Objective, alpha: float, looks: Looks
) -> Gate:
    offered, wanted = evidence.offered_rps, objective.limit_rps or 0.0
    needed = (1 - RATE_TOLERANCE) * wanted
    if not offered >= needed:
        return Gate(
            objective,
            Answer.INCONCLUSIVE,
            f"{offered:.1f} requests a second were offered, so nothing is known of {wanted:g}",
            n=counted.counts.attempted,
            would_help=f"run again at {wanted:g} requests a second",
        )
    allowed = max(1 - needed / offered, 1e-9)
    gate = _by_counts(counted, min(allowed, 1 - 1e-9), alpha, looks, evidence)
    answered = offered * (1 - (gate.observed_ratio or 0))
    seen = f"{offered:.1f} offered and {answered:.1f} answered well a second"
    return replace(gate, reason=f"{seen}; {gate.reason}")


def _by_counts(
    counted: Counted, allowed: float, alpha: float, looks: Looks, evidence: Evidence
) -> Gate:
    counts, tau = counted.counts, counted.tau
    # PASS rests on what was hardly seen, so it takes the longest memory there is: that of the
    # queue, and events instead of requests. FAIL rests on bad requests that are there, whose own
    # memory can be measured; twice over, since it is measured too short where they are few. A burst
    # of failures that leaves the queue alone counts in full: this run broke its promise.
    careful = max(tau, counted.cluster)
    plain = min(evidence.tau, 2 * counted.tau_bad - 1)
    size, fail_size = counts.attempted / careful, counts.attempted / plain
    lower = lower_bound(counts.bad / plain, fail_size, alpha)
    upper = upper_bound(counts.most / careful, size, alpha)
    if looks == "once":
        passes, fails = upper <= allowed, lower > allowed
        rule = f"Clopper-Pearson at {1 - alpha:.4g} on n/tau"
    else:
        passes = log_e_pass(counts.most / careful, size, allowed) >= math.log(1 / alpha)
        fails = log_e_fail(counts.bad / plain, fail_size, allowed) >= math.log(1 / alpha)
        rule = f"e-value of {1 / alpha:.4g} on n/tau, however often looked at"
    passes = passes and size >= LEAST_EFFECTIVE
    answer = Answer.FAIL if fails else Answer.PASS if passes else Answer.INCONCLUSIVE
    if fails:
        careful, size = plain, fail_size
    share = counts.most / counts.attempted
    return Gate(
        counted.objective,
        answer,
        _reason(counted, answer, share, allowed, lower, upper),
        n=counts.attempted,
        bad=counts.most,
        n_eff=size,
        tau=careful,
        observed_ratio=share,
        lower=lower,
        upper=upper,
        allowed_ratio=allowed,
        observed_ms=counted.observed_ms,
        bound_ms=_bound_ms(counted, size, alpha),
        rule=rule,
        would_help=_would_help(counted, answer, allowed, alpha, evidence),
    )


def _reason(
    counted: Counted, answer: Answer, share: float, allowed: float, lower: float, upper: float
) -> str:
    counts = counted.counts
    seen = f"{counts.most:,} of {counts.attempted:,} bad ({share:.3%})"
    if counts.unknown:
        seen += f", {counts.unknown:,} of them unknown"
    if answer is Answer.PASS:
        return f"{seen}; at most {upper:.3%} are, {allowed:.3%} may be"
    if answer is Answer.FAIL:
        return f"{seen}; at least {lower:.3%} are, {allowed:.3%} may be"
    return f"{seen}; between {lower:.3%} and {upper:.3%} are, {allowed:.3%} may be"


def _bound_ms(counted: Counted, size: float, alpha: float) -> float | None:
    if not counted.sorted_tail_ms:
        return None
    rank = bound_rank(size, counted.objective.quantile, alpha)
    if rank is None:
        return None
    return next((ms for share, ms in counted.sorted_tail_ms if share >= rank - 1e-12), None)


def _would_help(
    counted: Counted, answer: Answer, allowed: float, alpha: float, evidence: Evidence
) -> str:
    if answer is not Answer.INCONCLUSIVE:
        return ""
    counts, tau = counted.counts, max(counted.tau, counted.cluster)
    size = counts.attempted / tau
    if counts.unknown and (
        upper_bound(counts.bad / tau, size, alpha) <= allowed
        or lower_bound(counts.most / tau, size, alpha) > allowed
    ):
        return (
            f"{counts.unknown:,} requests can be taken either way; record finer times, and go on "
            "watching for the limit after the last request"
        )
    least = max(smallest_sample(allowed, alpha), LEAST_EFFECTIVE)
    wanted = enough(counts.most / counts.attempted, size, allowed, alpha)
    if wanted is None:
        return "no number of requests tells a share this close to the limit from the limit"
    more = math.ceil(max(wanted, least) * tau) - counts.attempted
    if more <= 0:
        return "go on; the evidence needed to stop early is larger"
    seconds = more / evidence.offered_rps if evidence.offered_rps > 0 else None
    time = f" ({seconds:,.0f} s at this rate)" if seconds is not None else ""
    dependent = f", each worth 1/{tau:.1f} of an independent one" if tau > 1.05 else ""
    return f"at least {more:,} more requests{time}{dependent}"


def _not_believed(gate: Gate) -> Gate:
    """Without a schedule a service looks better than it is: FAIL stands, PASS does not."""
    if gate.answer is not Answer.PASS:
        return gate
    return replace(
        gate,
        answer=Answer.INCONCLUSIVE,
        reason=f"{gate.reason}; but no schedule was kept, and slow answers held back requests that "
        "would have been slow too (coordinated omission)",
        would_help="record when each request was due, and send at a rate",
    )


def _notes(evidence: Evidence, closed: bool) -> list[str]:
    notes = list(evidence.notes)
    if closed:
        notes.append(
            "no intended time is recorded: latency counts from the moment of sending, and is too "
            "low wherever an answer delayed the next request"
        )
    if evidence.law is None or not evidence.law.independent:
        notes.append(
            "Little's law was not held against a second clock or counter; none was recorded"
        )
    if evidence.impossible:
        notes.append(f"{evidence.impossible:,} requests contradict themselves and count as bad")
    if evidence.dropped:
        notes.append(f"{evidence.dropped:,} requests were never sent and count as bad")
    return notes
