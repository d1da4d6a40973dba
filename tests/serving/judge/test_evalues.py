"""Evidence that may be looked at at any time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc, betaincc

from serving.judge.evalues import NO_EVIDENCE, log_e_fail, log_e_pass

ENOUGH = math.log(1 / 0.05)


def by_quadrature(bad: int, attempted: int, allowed: float, low: float, high: float) -> float:
    """The mixture by its definition: likelihood ratios, averaged over the cut prior."""
    b = (1 - allowed) / allowed
    edges = np.linspace(low, high, 2_000_001)
    shares = (edges[1:] + edges[:-1]) / 2
    prior = b * (1 - shares) ** (b - 1)
    ratio = bad * np.log(shares / allowed) + (attempted - bad) * np.log(
        (1 - shares) / (1 - allowed)
    )
    most = ratio.max()
    mean = (np.exp(ratio - most) * prior).sum() / prior.sum()
    return float(most + math.log(mean))


@pytest.mark.parametrize(("bad", "attempted"), [(0, 100), (3, 1000), (10, 1000), (40, 1000)])
def test_the_closed_form_is_the_mixture_it_stands_for(bad: int, attempted: int) -> None:
    passing = by_quadrature(bad, attempted, 0.01, 0, 0.01)
    failing = by_quadrature(bad, attempted, 0.01, 0.01, 1)
    assert log_e_pass(bad, attempted, 0.01) == pytest.approx(passing, abs=1e-3)
    assert log_e_fail(bad, attempted, 0.01) == pytest.approx(failing, abs=1e-3)


def test_where_the_difference_from_one_would_be_rounding_no_service_fails() -> None:
    # Well within the limit: what 1 - betainc leaves is 2e-16 or 0, and its log decides a verdict.
    for attempted in (10**5, 10**6, 10**7, 10**8):
        bad = attempted // 200
        assert betaincc(bad + 1, attempted - bad + 99, 0.01) < 1e-16
        assert 1 - betainc(bad + 1, attempted - bad + 99, 0.01) < 1e-15
        assert log_e_fail(bad, attempted, 0.01) < 0
        assert log_e_pass(bad, attempted, 0.01) > ENOUGH


@given(st.integers(0, 10**8), st.floats(0, 1), st.sampled_from([0.05, 0.01, 0.001, 0.0001]))
def test_it_is_a_number_up_to_a_hundred_million_requests(
    attempted: int, share: float, allowed: float
) -> None:
    bad = int(attempted * share)
    for value in (log_e_pass(bad, attempted, allowed), log_e_fail(bad, attempted, allowed)):
        assert math.isfinite(value)
    # Never evidence for both.
    assert min(log_e_pass(bad, attempted, allowed), log_e_fail(bad, attempted, allowed)) < ENOUGH


@given(st.integers(0, 300), st.integers(1, 20_000))
def test_one_more_bad_request_is_never_evidence_for_passing(bad: int, good: int) -> None:
    before = log_e_pass(bad, bad + good, 0.01)
    assert log_e_pass(bad + 1, bad + good + 1, 0.01) <= before + 1e-9


def test_no_data_is_no_evidence() -> None:
    assert log_e_pass(0, 0, 0.01) == pytest.approx(0.0, abs=1e-12)
    assert log_e_fail(0, 0, 0.01) == pytest.approx(0.0, abs=1e-12)
    assert log_e_pass(math.nan, math.nan, 0.01) == NO_EVIDENCE
    assert log_e_fail(2, 1, 0.01) == NO_EVIDENCE


def looked_at_after_each(share: float, runs: int, size: int, seed: int) -> tuple[float, float]:
    """How often PASS and FAIL are reached at any of 200 looks."""
    made = np.random.default_rng(seed)
    looks = np.unique(np.geomspace(50, size, 200).astype(int))
    passed = failed = 0
    for _ in range(runs):
        seen = np.cumsum(made.random(size) < share)[looks - 1]
        for bad, attempted in zip(seen.tolist(), looks.tolist(), strict=True):
            if log_e_pass(bad, attempted, 0.01) >= ENOUGH:
                passed += 1
                break
            if log_e_fail(bad, attempted, 0.01) >= ENOUGH:
                failed += 1
                break
    return passed / runs, failed / runs


def test_looking_two_hundred_times_does_not_let_a_service_at_the_limit_pass() -> None:
    passed, failed = looked_at_after_each(0.01, runs=300, size=20_000, seed=7)
    # 300 runs at a true 5% exceed 9.4% once in a thousand times.
    assert passed <= 0.094
    assert failed <= 0.094


def test_a_service_well_within_the_limit_passes_early_and_a_bad_one_fails_early() -> None:
    assert looked_at_after_each(0.002, runs=60, size=5_000, seed=8)[0] > 0.9
    assert looked_at_after_each(0.05, runs=60, size=1_000, seed=9)[1] > 0.9
