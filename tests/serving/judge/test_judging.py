"""What is said of a run: each way in which a verdict was ever taken from too little or wrong data.

P1 and the like are the known ways in which load generators and canary judges went wrong.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from serving.errors import InputError
from serving.judge.counts import Counts, total
from serving.judge.evidence import Evidence, Generator
from serving.judge.judging import judge
from serving.judge.measuring import measure
from serving.judge.objectives import (
    Objective,
    objectives_of,
    quantile_objective,
    rate_objective,
    smallest_run,
)
from serving.judge.run import NEVER, Run, merged, run_of_seconds
from serving.judge.validity import Limits
from serving.judge.verdict import Answer, Gate, Verdict
from serving.slo import LatencySlo, TokenSlo

P99_50 = quantile_objective("latency", 0.99, 50)
ERRORS = Objective("errors", 0.01)


def run_of(milliseconds: object, rps: float = 10.0, **other: object) -> Run:
    """Requests at a constant rate that took these times, apart from each other."""
    took = np.asarray(milliseconds, dtype=np.float64) / 1e3
    due = np.arange(len(took)) / rps
    return run_of_seconds(due, due + took, **other)  # type: ignore[arg-type]


def quick(count: int, seed: int = 1) -> np.ndarray:
    """Times around 20 ms that are never near 50."""
    return np.random.default_rng(seed).uniform(15, 25, count)


def with_slow(count: int, slow: int, milliseconds: float = 80) -> np.ndarray:
    """Quick requests, `slow` of them slow and far apart."""
    took = quick(count)
    took[np.linspace(5, count - 5, slow).astype(int)] = milliseconds
    return took


def verdict(run: Run, *objectives: Objective, **how: object) -> Verdict:
    promised = objectives or (P99_50, ERRORS)
    return judge(measure(run, promised), promised, **how)  # type: ignore[arg-type]


def answer(run: Run, *objectives: Objective, **how: object) -> Answer:
    return verdict(run, *objectives, **how).answer


def gate(run: Run, objective: Objective = P99_50, **how: object) -> Gate:
    return verdict(run, objective, **how).gates[0]


# P1: exceedances are counted exactly, before anything is rounded.


@pytest.mark.parametrize(
    ("true_ms", "limit_ms"), [(104.9, 100), (1049, 1000), (10_499, 10_000), (804, 800), (805, 800)]
)
def test_a_time_just_over_the_limit_fails_though_two_digits_of_it_would_not(
    true_ms: float, limit_ms: float
) -> None:
    slo = quantile_objective("latency", 0.99, limit_ms)
    run = run_of(np.full(1000, true_ms) + np.arange(1000) * 1e-5, rps=0.05)
    assert answer(run, slo) is Answer.FAIL


def test_a_time_just_within_the_limit_passes_though_two_digits_of_it_would_not() -> None:
    run = run_of(796 + np.arange(1000) * 1e-5, rps=0.5)
    assert answer(run, quantile_objective("latency", 0.99, 799)) is Answer.PASS


def test_the_limit_itself_is_kept_and_a_nanosecond_more_is_not() -> None:
    assert answer(run_of(np.full(1000, 50.0)), P99_50) is Answer.PASS
    assert answer(run_of(np.full(1000, 50.000001)), P99_50) is Answer.FAIL


def test_times_that_were_rounded_around_the_limit_are_inconclusive_and_never_pass() -> None:
    made = np.random.default_rng(3)
    true = made.normal(804, 1.5, 2000)
    spread = made.uniform(500, 790, 2000)
    exact = np.where(np.arange(2000) % 20 == 0, true, spread)
    slo = quantile_objective("latency", 0.99, 800)
    assert answer(run_of(exact, rps=0.5), slo) is Answer.FAIL
    rounded = gate(run_of(np.round(exact, -1), rps=0.5), slo)
    assert rounded.answer is Answer.INCONCLUSIVE
    assert "finer times" in rounded.would_help


def test_rounding_that_is_far_from_the_limit_does_not_matter() -> None:
    rounded = np.round(np.random.default_rng(4).uniform(500, 690, 2000), -1)
    assert answer(run_of(rounded, rps=0.5), quantile_objective("latency", 0.99, 800)) is Answer.PASS


# P2, P3: latency counts from when a request was due.


def test_waiting_in_the_generator_counts_as_latency() -> None:
    due = np.arange(1000) / 10
    late = run_of_seconds(due, due + 0.060, sent=due + 0.050)
    assert gate(late).answer is Answer.FAIL
    assert gate(late).observed_ms == pytest.approx(60)


def test_without_a_schedule_the_best_verdict_is_inconclusive_and_says_why() -> None:
    closed = replace(run_of(quick(5000)), scheduled=False)
    found = verdict(closed)
    assert found.answer is Answer.INCONCLUSIVE
    assert all("coordinated omission" in one.reason for one in found.gates)
    assert any("no intended time" in note for note in found.notes)
    accepted = verdict(closed, accept_closed_loop=True)
    assert accepted.answer is Answer.PASS
    assert any("no intended time" in note for note in accepted.notes)


def test_without_a_schedule_a_service_that_is_too_slow_fails_all_the_same() -> None:
    closed = replace(run_of(quick(5000) + 100), scheduled=False)
    assert answer(closed) is Answer.FAIL


def test_sends_that_follow_answers_are_no_schedule_whatever_they_are_called() -> None:
    """Eight users that wait for their answers, recorded as if each send had been due just then."""
    made, users = np.random.default_rng(5), np.zeros(8)
    due, ended = np.empty(5000), np.empty(5000)
    for n in range(5000):
        user = users.argmin()
        due[n] = users[user]
        ended[n] = due[n] + made.uniform(0.015, 0.025)
        users[user] = ended[n] + 1e-5
    found = verdict(run_of_seconds(due, ended))
    assert found.answer is Answer.INVALID
    assert "schedule" in [fault.what for fault in found.faults]
    assert verdict(run_of_seconds(due, ended + 0.1)).answer is not Answer.PASS


# P4, P5: the generator attests of itself, or the run is INVALID.


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (Generator(cpu_ratio=0.97), "generator CPU"),
        (Generator(cpu_ratio=math.nan), "generator CPU"),
        (Generator(loop_lag_p99_ms=8.0), "event loop lag"),
        (Generator(loop_lag_p99_ms=math.nan), "event loop lag"),
        (Generator(workers_lost=1), "workers"),
        (Generator(calibrated_rps=4.0), "calibration"),
        (Generator(cache_hits_beyond=0.4), "cache"),
        (Generator(cache_hits_beyond=math.nan), "cache"),
        (Generator(calibrated_rps=math.nan), "calibration"),
        (Generator(expected_requests=5001), "reconciliation"),
        (Generator(server_restarts=1), "server"),
        (Generator(overflowed=3), "overflow"),
        (Generator(merged_percentiles=True), "percentiles"),
    ],
)
def test_a_generator_that_was_not_well_makes_the_run_invalid(said: Generator, what: str) -> None:
    evidence = replace(measure(run_of(quick(5000)), [P99_50]), generator=said)
    found = judge(evidence, [P99_50])
    assert found.answer is Answer.INVALID
    assert [fault.what for fault in found.faults] == [what]


def test_a_generator_that_was_well_is_no_reason_against_a_pass() -> None:
    said = Generator(cpu_ratio=0.3, loop_lag_p99_ms=0.2, workers_lost=0, expected_requests=5000)
    evidence = measure(run_of(quick(5000)), [P99_50], said)
    assert judge(evidence, [P99_50]).answer is Answer.PASS


def test_requests_that_were_sent_late_make_the_run_invalid() -> None:
    due = np.arange(5000) / 10
    late = np.where(np.arange(5000) % 50 == 0, 0.004, 0.0)
    found = verdict(run_of_seconds(due, due + 0.02, sent=due + late), P99_50)
    assert found.answer is Answer.INVALID
    assert [fault.what for fault in found.faults] == ["dispatch lag"]


def test_requests_that_were_sent_before_they_were_due_make_the_run_invalid() -> None:
    due = np.arange(5000) / 10
    # An offset between two clocks would take 30 ms off each latency.
    found = verdict(run_of_seconds(due + 0.030, due + 0.060, sent=due), P99_50)
    assert found.answer is Answer.INVALID
    assert found.gates[0].observed_ms == pytest.approx(60)


# P6: no steady state, no verdict.


def test_a_queue_that_keeps_growing_never_passes() -> None:
    due = np.arange(20_000) / 100
    growing = due + 0.001 + np.linspace(0, 0.045, 20_000)
    found = verdict(run_of_seconds(due, growing), P99_50)
    assert found.answer is Answer.INVALID
    assert [fault.what for fault in found.faults] == ["steady state"]


def test_an_overloaded_service_fails_rather_than_being_called_invalid() -> None:
    due = np.arange(20_000) / 100
    found = verdict(run_of_seconds(due, due + 0.001 + np.linspace(0, 60, 20_000)), P99_50)
    assert found.answer is Answer.FAIL
    assert [fault.what for fault in found.faults] == ["steady state"]


# P7: what was still open at the end.


def test_requests_still_open_at_the_end_and_older_than_the_limit_are_bad() -> None:
    run = run_of(quick(5000))
    ended = run.ended.copy()
    ended[100::50] = NEVER
    hung = replace(run, ended=ended, observed_until=int(run.intended[-1]) + 10**9)
    assert gate(hung).bad == 98
    assert answer(hung, P99_50) is Answer.FAIL
    assert answer(hung, P99_50, ERRORS) is Answer.FAIL


def test_a_stream_that_is_open_is_bad_once_its_first_token_is_late() -> None:
    run = stream(1000)
    assert run.first_token is not None
    hung, later = np.arange(1000) % 10 == 0, np.arange(1000) % 20 == 0
    ended = np.where(hung, NEVER, run.ended)
    first = np.where(later, NEVER, run.first_token)
    waiting = replace(run, ended=ended, first_token=np.where(later | ~hung, first, first + 10**8))
    counts = measure(waiting, [TTFT]).counted[0].counts
    assert (counts.bad, counts.unknown) == (100, 0)
    # Its first token came in time, and how it ends nobody knows.
    unsure = measure(replace(run, ended=ended), [TTFT, ITL]).counted
    assert [(one.counts.bad, one.counts.unknown) for one in unsure] == [(0, 100), (0, 100)]


def test_requests_still_open_and_younger_than_the_limit_neither_pass_nor_fail_a_service() -> None:
    run = run_of(quick(400), rps=10_000)
    ended = run.ended.copy()
    ended[-20:] = NEVER
    cut = replace(run, ended=ended, observed_until=int(run.intended[-1]) + 10**6)
    counts = measure(cut, [P99_50]).counted[0].counts
    assert (counts.bad, counts.unknown) == (0, 20)
    assert gate(cut).answer is Answer.INCONCLUSIVE


# P8, P20: one denominator.


@pytest.mark.parametrize("quick_failures", [True, False])
def test_failures_are_bad_however_fast_they_are(quick_failures: bool) -> None:
    took = quick(2000)
    failed = np.arange(2000) % 40 == 0
    took[failed] = 0.5 if quick_failures else 5_000
    found = verdict(run_of(took, ok=~failed))
    assert [one.answer for one in found.gates] == [Answer.FAIL, Answer.FAIL]
    assert [(one.bad, one.n) for one in found.gates] == [(50, 2000), (50, 2000)]
    assert found.gates[0].observed_ms == math.inf


def test_dropped_requests_were_attempted_and_are_bad() -> None:
    run = run_of(quick(10_000))
    dropped = np.zeros(10_000, dtype=bool)
    dropped[::200] = True
    never = np.where(dropped, NEVER, run.sent), np.where(dropped, NEVER, run.ended)
    found = gate(replace(run, sent=never[0], ended=never[1], ok=~dropped))
    assert (found.bad, found.n) == (50, 10_000)


def test_a_run_of_which_more_than_one_percent_was_never_sent_is_invalid() -> None:
    run = run_of(quick(10_000))
    dropped = np.arange(10_000) % 30 == 0
    never = np.where(dropped, NEVER, run.sent), np.where(dropped, NEVER, run.ended)
    found = verdict(replace(run, sent=never[0], ended=never[1], ok=~dropped))
    assert found.answer is Answer.INVALID
    assert [fault.what for fault in found.faults] == ["achieved rate"]


def test_one_failure_in_ten_thousand_is_within_one_percent() -> None:
    ok = np.ones(10_000, dtype=bool)
    ok[17] = False
    assert answer(run_of(quick(10_000), ok=ok)) is Answer.PASS


# P9: few samples.


@pytest.mark.parametrize("count", [1, 12, 50, 298])
def test_too_few_requests_are_inconclusive_and_the_verdict_says_how_many_it_takes(
    count: int,
) -> None:
    found = gate(run_of(quick(count)))
    assert found.answer is Answer.INCONCLUSIVE
    assert f"at least {299 - count:,} more requests" in found.would_help


def test_the_smallest_sample_passes_with_nothing_bad_and_not_with_one_bad() -> None:
    assert gate(run_of(quick(299))).answer is Answer.PASS
    assert gate(run_of(with_slow(299, 1))).answer is Answer.INCONCLUSIVE
    assert gate(run_of(quick(458)), alpha=0.01).answer is Answer.INCONCLUSIVE
    assert gate(run_of(quick(459)), alpha=0.01).answer is Answer.PASS


def test_a_service_that_is_always_too_slow_fails_with_few_requests() -> None:
    assert answer(run_of(np.full(50, 80.0)), P99_50) is Answer.FAIL


def test_a_share_at_the_limit_is_told_from_it_by_no_number_of_requests() -> None:
    found = gate(run_of(with_slow(2000, 20)))
    assert found.answer is Answer.INCONCLUSIVE
    assert "no number of requests" in found.would_help


@pytest.mark.parametrize("slow", [0, 4, 5, 15, 16, 60])
def test_the_printed_bound_of_the_quantile_agrees_with_the_verdict(slow: int) -> None:
    found = gate(run_of(with_slow(1000, slow)))
    assert found.bound_ms is not None
    assert (found.bound_ms <= 50) == (found.answer is Answer.PASS)
    assert found.lower is not None
    assert (found.lower > 0.01) == (found.answer is Answer.FAIL)


# P10: dependent requests count for less.


def test_slow_requests_that_come_together_count_as_fewer_events() -> None:
    apart, together = with_slow(5000, 20), quick(5000)
    together[2000:2020] = 80
    assert gate(run_of(apart)).answer is Answer.PASS
    assert gate(run_of(together)).answer is Answer.INCONCLUSIVE
    assert gate(run_of(together)).tau > 10


@pytest.mark.parametrize("where", [slice(0, 50), slice(475, 525), slice(950, 1000)])
def test_five_percent_of_failures_in_one_piece_fail_a_run_wherever_they_are(where: slice) -> None:
    ok = np.ones(1000, dtype=bool)
    ok[where] = False
    assert answer(run_of(quick(1000), ok=ok)) is Answer.FAIL


def test_a_queue_makes_the_effective_sample_smaller_and_the_verdict_says_so() -> None:
    swing = lfilter([1.0], [1.0, -0.99], np.random.default_rng(6).normal(size=5000))
    took = 20 + 20 * np.abs(swing) / np.abs(swing).max()
    found = gate(run_of(took, rps=1000))
    assert found.tau > 20
    assert found.n_eff < 250
    assert found.answer is Answer.INCONCLUSIVE
    assert "independent one" in found.would_help


# P11, P12: counts add up, percentiles do not.


def test_workers_are_merged_by_their_requests_and_not_by_their_percentiles() -> None:
    run = run_of(with_slow(3000, 60))
    share = np.arange(3000) % 3
    parts = [
        Run(run.intended[at], run.sent[at], run.ended[at], run.ok[at], scheduled=True)
        for at in (share == 0, share == 1, share == 2)
    ]
    # One worker had all the luck: the mean of three percentiles is not the percentile.
    assert measure(merged(parts[::-1]), [P99_50]).counted == measure(run, [P99_50]).counted


def test_counts_of_windows_make_the_count_of_the_run() -> None:
    assert total([Counts(10, 1, 1), Counts(5, 0), Counts(0, 0)]) == Counts(15, 1, 1)


def test_evidence_whose_counts_leave_out_requests_is_invalid() -> None:
    evidence = measure(run_of(quick(1000)), [P99_50])
    fewer = replace(evidence.counted[0], counts=Counts(990, 0))
    found = judge(replace(evidence, counted=(fewer,)), [P99_50])
    assert found.answer is Answer.INVALID
    assert "one denominator" in found.gates[0].would_help


# P13: values beyond the last bucket.


def test_samples_beyond_the_histogram_never_let_a_run_pass_and_never_save_it() -> None:
    good, bad = run_of(quick(1000)), run_of(np.full(1000, 80.0))
    for run, expected in ((good, Answer.INVALID), (bad, Answer.FAIL)):
        evidence = replace(measure(run, [P99_50]), generator=Generator(overflowed=2))
        assert judge(evidence, [P99_50]).answer is expected


# P14: streams.


TTFT = quantile_objective("time_to_first_token", 0.99, 50)
ITL = quantile_objective("inter_token_latency", 0.99, 10)


def stream(count: int = 2000) -> Run:
    """Streams of a second, first token after 30 ms, 5 ms between tokens."""
    run = run_of(np.full(count, 1000.0))
    first = run.intended + 30_000_000
    return replace(run, first_token=first, inter_token=np.full(count, 5_000_000))


def changed(run: Run, name: str, value: int, every: int = 20) -> Run:
    column = getattr(run, name).copy()
    column[::every] = value if name != "first_token" else run.intended[::every] + value
    return replace(run, **{name: column})


def test_streams_within_their_limits_pass() -> None:
    assert answer(stream(), TTFT, ITL, ERRORS) is Answer.PASS


@pytest.mark.parametrize("after_ms", [-5, 60, 1001])
def test_a_first_token_that_is_late_or_cannot_be_is_bad(after_ms: int) -> None:
    found = gate(changed(stream(), "first_token", after_ms * 1_000_000), TTFT)
    assert found.answer is Answer.FAIL
    assert found.bad == 100


def test_a_first_token_that_never_came_is_bad() -> None:
    run = stream()
    assert run.first_token is not None
    first = np.where(np.arange(2000) % 20 == 0, NEVER, run.first_token)
    assert gate(replace(run, first_token=first), TTFT).bad == 100


@pytest.mark.parametrize("gap", [11_000_000, NEVER, -1])
def test_tokens_that_come_too_slowly_or_nobody_knows_how_are_bad(gap: int) -> None:
    assert gate(changed(stream(), "inter_token", gap), ITL).answer is Answer.FAIL


def test_a_broken_stream_is_bad_though_its_first_token_was_in_time() -> None:
    broken = replace(stream(), ok=np.arange(2000) % 20 != 0)
    assert [one.answer for one in verdict(broken, TTFT, ITL, ERRORS).gates] == [Answer.FAIL] * 3


# P16, P18, P19, P22, P23, P26: no data is no verdict.


@pytest.mark.parametrize("objectives", [(P99_50,), (ERRORS,), (rate_objective(10),), (TTFT,)])
def test_no_requests_are_invalid(objectives: tuple[Objective, ...]) -> None:
    found = verdict(run_of([]), *objectives)
    assert found.answer is Answer.INVALID
    assert "no data" in found.faults[0].message


@pytest.mark.parametrize("objective", [TTFT, ITL])
def test_a_metric_that_was_not_recorded_never_passes(objective: Objective) -> None:
    assert answer(run_of(quick(5000)), objective) is Answer.INVALID
    unmeasured = judge(measure(run_of(quick(5000)), [ERRORS]), [ERRORS, objective])
    assert unmeasured.answer is Answer.INVALID
    assert objective.metric.replace("_", " ") in unmeasured.gates[1].reason


def test_a_count_at_another_limit_is_none_at_this_one() -> None:
    evidence = measure(run_of(quick(5000)), [quantile_objective("latency", 0.99, 60)])
    assert judge(evidence, [P99_50]).answer is Answer.INVALID


def test_nothing_promised_is_not_kept() -> None:
    assert judge(measure(run_of(quick(5000)), []), []).answer is Answer.INVALID


@pytest.mark.parametrize("name", ["tau", "seconds", "follows_answers", "lag_p99_ms"])
def test_a_number_that_is_none_makes_the_evidence_invalid(name: str) -> None:
    evidence: Evidence = measure(run_of(quick(5000)), [P99_50])
    wrong: dict[str, Any] = {name: math.nan}
    assert judge(replace(evidence, **wrong), [P99_50]).answer is Answer.INVALID


@pytest.mark.parametrize("tau", [math.nan, 0.0, -1.0, math.inf])
def test_an_autocorrelation_time_that_cannot_be_makes_the_gate_invalid(tau: float) -> None:
    evidence = measure(run_of(quick(5000)), [P99_50])
    broken = replace(evidence, counted=(replace(evidence.counted[0], tau=tau),))
    assert judge(broken, [P99_50]).answer is Answer.INVALID


@pytest.mark.parametrize("bad", [math.nan, -1, 1.5, 11])
def test_counts_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="counts: "):
        Counts(10, bad)  # type: ignore[arg-type]


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        run_of_seconds([0.0, math.nan], [1.0, 2.0])


# P21: too good to be true.


def test_a_median_that_no_such_model_can_have_is_invalid() -> None:
    limits = Limits(fastest_believable_ms=5)
    assert answer(run_of(quick(1000) / 10), limits=limits) is Answer.INVALID
    assert answer(run_of(quick(1000)), limits=limits) is Answer.PASS


# P28: looking often.


def test_a_run_that_is_looked_at_again_and_again_needs_more_evidence() -> None:
    just_enough = run_of(quick(299))
    assert gate(just_enough, looks="once").answer is Answer.PASS
    again = gate(just_enough, looks="anytime")
    assert again.answer is Answer.INCONCLUSIVE
    assert again.would_help
    assert gate(run_of(quick(1000)), looks="anytime").answer is Answer.PASS
    assert gate(run_of(with_slow(1000, 40)), looks="anytime").answer is Answer.FAIL


# Rate, SLOs, and how parts make a whole.


def test_a_rate_that_was_not_offered_is_not_proven() -> None:
    found = gate(run_of(quick(5000), rps=10), rate_objective(20))
    assert found.answer is Answer.INCONCLUSIVE
    assert "20" in found.would_help


def test_a_rate_that_was_offered_and_answered_passes_and_one_that_was_refused_fails() -> None:
    assert gate(run_of(quick(5000), rps=20), rate_objective(20)).answer is Answer.PASS
    refused = run_of(quick(5000), rps=20, ok=np.arange(5000) % 20 != 0)
    assert gate(refused, rate_objective(20)).answer is Answer.FAIL


def test_a_spec_says_which_gates_there_are() -> None:
    because = "the slot is dropped at 60 ms"
    plain = LatencySlo(latency_p99_ms=50.0, error_ratio=0.01, because=because)
    tokens = TokenSlo(
        time_to_first_token_p99_ms=500.0,
        inter_token_latency_p99_ms=50.0,
        error_ratio=0.001,
        because=because,
    )
    assert objectives_of(plain) == (P99_50, ERRORS)
    assert [one.name for one in objectives_of(tokens)] == [
        "time_to_first_token_p99_ms",
        "inter_token_latency_p99_ms",
        "error_ratio",
    ]
    assert smallest_run(objectives_of(tokens), 0.05) == 2995
    evidence = measure(run_of(quick(5000)), objectives_of(plain))
    assert judge(evidence, plain).answer is Answer.PASS


def test_one_gate_that_fails_fails_the_whole_and_one_that_is_unsure_keeps_it_from_passing() -> None:
    strict = quantile_objective("latency", 0.99, 10)
    unsure = Objective("errors", 0.0001)
    run = run_of(quick(5000))
    assert answer(run, P99_50, ERRORS) is Answer.PASS
    assert answer(run, P99_50, unsure) is Answer.INCONCLUSIVE
    assert answer(run, P99_50, unsure, strict) is Answer.FAIL


def test_each_answer_has_its_exit_code() -> None:
    codes = {one.value: one.exit_code for one in Answer}
    assert codes == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, math.nan, -0.1])
def test_an_error_rate_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        verdict(run_of(quick(10)), alpha=alpha)


@pytest.mark.parametrize(
    ("metric", "allowed", "limit"),
    [
        ("latency", 0.01, None),
        ("latency", 0.01, math.nan),
        ("latency", 0.01, -5.0),
        ("latency", 0.0, 50.0),
        ("errors", 1.0, None),
        ("errors", math.nan, None),
    ],
)
def test_a_promise_that_no_measurement_can_meet_or_miss_is_refused(
    metric: str, allowed: float, limit: float | None
) -> None:
    with pytest.raises(InputError, match=metric):
        Objective(metric, allowed, limit_ms=limit)  # type: ignore[arg-type]
