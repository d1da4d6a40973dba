"""What holds of every run."""

import json
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.judge.evidence import Evidence
from serving.judge.judging import judge
from serving.judge.measuring import measure
from serving.judge.objectives import Objective, quantile_objective
from serving.judge.run import NEVER, Run, merged
from serving.judge.stored import as_text, evidence_from
from serving.judge.verdict import Answer

MS = 1_000_000
ERRORS = Objective("errors", 0.05)


def p95(limit_ms: float = 50) -> Objective:
    return quantile_objective("latency", 0.95, limit_ms)


@st.composite
def runs(draw: st.DrawFn, least: int = 0, most: int = 400) -> Run:
    """Runs of any shape: failures, drops, open requests, late sends, ties, bursts."""
    count = draw(st.integers(least, most))
    made = np.random.default_rng(draw(st.integers(0, 2**32)))
    step = draw(st.sampled_from([0, 1, 7 * MS, 100 * MS]))
    due = np.sort(made.integers(0, max(count * step, 1) + 1, count))
    late = np.where(made.random(count) < draw(st.sampled_from([0, 0.2])), 3 * MS, 0)
    took = made.integers(1, draw(st.sampled_from([40, 60, 1000])) * MS, count)
    sent, ended = due + late, due + late + took
    share = draw(st.sampled_from([0.0, 0.03, 0.5]))
    ok, still_open, dropped = (made.random(count) < p for p in (1 - share, share / 4, share / 4))
    ended = np.where(still_open | dropped, NEVER, ended)
    return Run(
        intended=due,
        sent=np.where(dropped, NEVER, sent),
        ended=ended,
        ok=ok & ~still_open & ~dropped,
        scheduled=draw(st.booleans()),
        observed_until=int(due.max(initial=0)) + 100 * MS,
    )


def with_one(run: Run, *, slow: bool) -> Run:
    """The run and one more request after it, bad in latency and as a whole."""
    due = int(run.intended.max(initial=0)) + 1
    end = due + (10_000 * MS if slow else 1)
    at, ended = np.array([due]), np.array([end])
    more = Run(intended=at, sent=at, ended=ended, ok=np.array([False]), scheduled=True)
    return replace(merged([run, more]), scheduled=run.scheduled, observed_until=run.observed_until)


def gates(run: Run, *objectives: Objective) -> list[Answer]:
    verdict = judge(measure(run, objectives), objectives, accept_closed_loop=True)
    return [gate.answer for gate in verdict.gates]


@given(runs(least=1), st.booleans())
@settings(max_examples=150, deadline=None)
def test_one_more_bad_request_never_turns_a_fail_into_a_pass(run: Run, slow: bool) -> None:
    before = gates(run, p95(), ERRORS)
    after = gates(with_one(run, slow=slow), p95(), ERRORS)
    for was, now in zip(before, after, strict=True):
        assert not (was is Answer.FAIL and now is Answer.PASS)


@given(runs(least=1), st.integers(2, 5), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_parts_in_any_order_make_the_same_evidence_as_the_whole(
    run: Run, workers: int, random: object
) -> None:
    made = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    of, order = made.integers(0, workers, len(run)), made.permutation(len(run))
    parts = []
    for worker in range(workers):
        at = order[of[order] == worker]
        parts.append(
            Run(
                intended=run.intended[at],
                sent=run.sent[at],
                ended=run.ended[at],
                ok=run.ok[at],
                scheduled=run.scheduled,
                observed_until=run.observed_until,
            )
        )
    objectives = (p95(), ERRORS)
    assert measure(merged(parts), objectives) == measure(merged([run]), objectives)


@given(runs(least=1), st.integers(1, 100), st.integers(1, 100))
@settings(max_examples=150, deadline=None)
def test_a_wider_limit_never_has_more_bad_requests_and_never_turns_a_pass_into_a_fail(
    run: Run, one: int, other: int
) -> None:
    narrow, wide = p95(min(one, other)), p95(max(one, other))
    counts = [counted.counts for counted in measure(run, (narrow, wide)).counted]
    assert counts[1].bad <= counts[0].bad
    assert counts[1].most <= counts[0].most
    answers = gates(run, narrow) + gates(run, wide)
    assert answers != [Answer.PASS, Answer.FAIL]


@given(runs(), st.integers(-(10**17), 10**17))
@settings(max_examples=100, deadline=None)
def test_the_zero_of_the_clock_does_not_matter(run: Run, zero: int) -> None:
    moved = {
        name: np.where(column == NEVER, NEVER, column + zero)
        for name, column in (("intended", run.intended), ("sent", run.sent), ("ended", run.ended))
    }
    until = None if run.observed_until is None else run.observed_until + zero
    later = replace(run, observed_until=until, **moved)  # type: ignore[arg-type]
    assert measure(later, (p95(), ERRORS)) == measure(run, (p95(), ERRORS))


@given(runs())
@settings(max_examples=100, deadline=None)
def test_a_pass_takes_requests_a_schedule_and_a_share_below_the_allowed(run: Run) -> None:
    verdict = judge(measure(run, (p95(), ERRORS)), (p95(), ERRORS))
    json.dumps(verdict.as_json(), allow_nan=False)
    if verdict.answer is Answer.PASS:
        assert run.scheduled
        assert len(run) >= 59
        assert (~run.ok).mean() < 0.05


@given(runs())
@settings(max_examples=60, deadline=None)
def test_stored_evidence_is_judged_the_same(run: Run) -> None:
    evidence: Evidence = measure(run, (p95(), ERRORS))
    again = evidence_from(as_text(evidence))
    assert again == evidence
    assert judge(again, (p95(), ERRORS)) == judge(evidence, (p95(), ERRORS))
