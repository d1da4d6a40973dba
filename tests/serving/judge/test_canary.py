"""Canary against stable: a test that may be looked at after every window."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from serving.errors import InputError, IntegrityError
from serving.judge.canary import (
    WORSE,
    Rule,
    State,
    Step,
    Window,
    calibrated,
    combined_step,
    mean_of_logs,
    step_of,
    updated,
)
from serving.judge.stored import as_text, state_from
from serving.judge.traffic_split import split_evidence

RULE = Rule(allowed_ratio=0.05)
QUARTER_HOUR = 90
WEIGHTS = (0.05, 0.25)


def windows(
    made: np.random.Generator, times: float, base: float = 0.005, rps: float = 100
) -> list[tuple[Window, float]]:
    """Two stages of fifteen minutes in windows of ten seconds."""
    found = []
    for weight in WEIGHTS:
        for _ in range(QUARTER_HOUR):
            canary, stable = made.poisson([rps * 10 * weight, rps * 10 * (1 - weight)]).tolist()
            bad = int(made.binomial(canary, min(base * times, 1)))
            found.append((Window(canary, stable, bad, int(made.binomial(stable, base))), weight))
    return found


def outcome(seen: list[tuple[Window, float]], rule: Rule = RULE) -> tuple[Step, int]:
    """The first step that is one, and after how many windows."""
    state = State()
    for place, (window, weight) in enumerate(seen, start=1):
        state = updated(state, window, rule, weight)
        step = step_of(state, rule)
        if step is not Step.GO_ON:
            return step, place
    return Step.GO_ON, len(seen)


def outcomes(times: float, runs: int, seed: int, **how: float) -> list[tuple[Step, int]]:
    made = np.random.default_rng(seed)
    return [outcome(windows(made, times, **how)) for _ in range(runs)]


def test_a_canary_like_stable_is_rolled_back_in_one_of_a_hundred_rollouts_at_most() -> None:
    """Looked at 180 times. A z-test at 1% on each look rolls back one in five."""
    made = np.random.default_rng(1)
    rolled_back = 0
    for _ in range(300):
        state = State()
        for window, weight in windows(made, 1.0):
            state = updated(state, window, RULE, weight)
            if mean_of_logs(state.rollback) >= math.log(1 / RULE.alpha):
                rolled_back += 1
                break
    assert rolled_back <= binom.ppf(0.999, 300, RULE.alpha)


def test_a_canary_like_stable_is_promoted() -> None:
    steps = [step for step, _ in outcomes(1.0, 60, seed=2)]
    assert steps.count(Step.ADVANCE) >= 55


def test_three_times_the_errors_are_found_within_minutes() -> None:
    found = outcomes(3.0, 60, seed=3)
    assert all(step is Step.ROLL_BACK for step, _ in found)
    assert np.median([place for _, place in found]) <= 36


def test_a_canary_worse_by_the_margin_is_promoted_in_one_of_twenty_rollouts_at_most() -> None:
    steps = [step for step, _ in outcomes(2.0, 200, seed=4)]
    assert steps.count(Step.ADVANCE) <= binom.ppf(0.999, 200, RULE.beta)


def test_a_canary_that_fails_half_its_requests_is_rolled_back_at_low_traffic_too() -> None:
    found = outcomes(100.0, 20, seed=5, rps=5)
    assert all(step is Step.ROLL_BACK for step, _ in found)


def test_with_hardly_any_traffic_nothing_is_decided() -> None:
    """P25: neither a roll-back on one error nor a promotion on none."""
    quiet = [(Window(1, 19, int(n == 3), 0), 0.05) for n in range(20)]
    assert outcome(quiet) == (Step.GO_ON, 20)


def test_no_requests_are_no_evidence() -> None:
    """P22, P23, P33: an empty window changes nothing and never advances."""
    empty = [(Window(0, 0, 0, 0), 0.05)] * 1000
    assert outcome(empty) == (Step.GO_ON, 1000)
    alone = [(Window(100, 0, 0, 0), None)] * 100
    state = State()
    for window, weight in alone:
        state = updated(state, window, RULE, weight)
    assert step_of(state, RULE) is Step.GO_ON
    assert combined_step([]) is Step.INVALID


def test_a_shock_that_hits_both_arms_is_no_evidence_against_the_canary() -> None:
    """P27: common causes cancel."""
    made = np.random.default_rng(6)
    seen = []
    for n in range(180):
        share = 0.2 if 60 <= n < 70 else 0.004
        canary, stable = made.poisson([250, 750]).tolist()
        seen.append(
            (
                Window(
                    canary,
                    stable,
                    int(made.binomial(canary, share)),
                    int(made.binomial(stable, share)),
                ),
                0.25,
            )
        )
    state = State()
    for window, weight in seen:
        state = updated(state, window, RULE, weight)
        assert mean_of_logs(state.rollback) < math.log(1 / RULE.alpha)


def test_traffic_that_is_not_split_by_its_weight_is_invalid() -> None:
    steered = [(Window(80, 920, 0, 4), 0.05)] * 30
    step, place = outcome(steered)
    assert step is Step.INVALID
    assert place < 10


def test_a_split_by_its_weight_is_believed_through_every_stage() -> None:
    made = np.random.default_rng(7)
    fooled = 0
    for _ in range(200):
        state = State()
        for window, weight in windows(made, 1.0, base=0.0):
            state = updated(state, window, RULE, weight)
        fooled += split_evidence(state.split) >= math.log(1000)
    assert fooled <= 2


def test_rolling_back_a_disaster_does_not_wait_for_a_valid_comparison() -> None:
    assert outcome([(Window(80, 920, 60, 4), 0.05)])[0] is Step.ROLL_BACK


def test_a_canary_beyond_its_slo_is_rolled_back_though_stable_is_as_bad() -> None:
    both = [(Window(250, 750, 25, 75), 0.25)] * 30
    assert outcome(both, Rule(allowed_ratio=0.01))[0] is Step.ROLL_BACK


def test_bursts_in_stable_make_the_same_difference_count_for_less() -> None:
    steady, bursty = State(), State()
    for n in range(40):
        steady = updated(steady, Window(250, 750, 1, 4), RULE)
        bursty = updated(bursty, Window(250, 750, 1, 40 if n % 10 == 0 else 0), RULE)
    assert steady.dispersion.phi == 1.0
    assert bursty.dispersion.phi > 5
    worse = Window(250, 750, 10, 4)
    gains = [
        updated(state, worse, RULE).rollback[3] - state.rollback[3] for state in (steady, bursty)
    ]
    assert gains[0] > 5 * gains[1] > 0


def test_a_window_is_not_tempered_by_what_it_brings_itself() -> None:
    """Only the past may set the stake, or the bet is none."""
    quiet, loud = Window(250, 750, 5, 4), Window(250, 750, 5, 400)
    state = State()
    for _ in range(5):
        state = updated(state, Window(250, 750, 1, 4), RULE)
    assert updated(state, quiet, RULE).dispersion.phi < updated(state, loud, RULE).dispersion.phi
    q = 2.0 * 0.25 / (2.0 * 0.25 + 0.75)
    expected = 5 * math.log(q / 0.25) + 400 * math.log((1 - q) / 0.75)
    gained = updated(state, loud, RULE).rollback[3] - state.rollback[3]
    assert WORSE[3] == 2.0
    assert gained == pytest.approx(expected)


def test_halves_of_stable_that_differ_stop_a_rollout_before_it_begins() -> None:
    alike = [Window(500, 500, 3, 3)] * 30
    differ = [Window(500, 500, 30, 3)] * 30
    started = calibrated(alike, RULE)
    assert started is not None
    assert (started.rollback, started.canary) == (State().rollback, 0)
    assert started.dispersion.windows == 30
    assert calibrated(differ, RULE) is None


def test_a_promoter_that_is_restarted_after_every_window_decides_the_same() -> None:
    seen = windows(np.random.default_rng(8), 2.0)
    kept, through_text = State(), State()
    for window, weight in seen:
        kept = updated(kept, window, RULE, weight)
        through_text = state_from(as_text(updated(through_text, window, RULE, weight)))
        assert through_text == kept
    assert step_of(through_text, RULE) is step_of(kept, RULE)
    with pytest.raises(IntegrityError, match="stored state"):
        state_from(as_text(kept).replace('"canary":', '"canari":'))


def test_any_metric_rolls_back_and_all_must_advance() -> None:
    assert combined_step([Step.ADVANCE, Step.ADVANCE]) is Step.ADVANCE
    assert combined_step([Step.ADVANCE, Step.GO_ON]) is Step.GO_ON
    assert combined_step([Step.ADVANCE, Step.INVALID, Step.GO_ON]) is Step.INVALID
    assert combined_step([Step.INVALID, Step.ROLL_BACK, Step.ADVANCE]) is Step.ROLL_BACK


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1), st.floats(0, 1)),
        max_size=20,
    )
)
def test_every_state_is_of_numbers_and_more_bad_canary_requests_never_help_it(
    shapes: list[tuple[int, int, float, float]],
) -> None:
    state = worse = State()
    for canary, stable, canary_bad, stable_bad in shapes:
        window = Window(canary, stable, int(canary * canary_bad), int(stable * stable_bad))
        state = updated(state, window, RULE, 0.5)
        most = replace(window, canary_bad=canary)
        worse = updated(worse, most, RULE, 0.5)
        assert all(math.isfinite(log) for log in (*state.rollback, *state.promote))
        assert mean_of_logs(worse.rollback) >= mean_of_logs(state.rollback) - 1e-9


@pytest.mark.parametrize(
    "counts", [(1, 1, 2, 0), (1, 1, -1, 0), (1, 1, math.nan, 0), (-1, 1, 0, 0)]
)
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError, match="window: "):
        Window(*counts)


@pytest.mark.parametrize(
    "wrong", [{"allowed_ratio": 0.0}, {"margin": 1.0}, {"alpha": 0.0}, {"beta": 0.7}]
)
def test_rules_that_cannot_decide_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="rule: "):
        Rule(**{"allowed_ratio": 0.01, **wrong})
