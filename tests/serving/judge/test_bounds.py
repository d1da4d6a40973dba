"""Exact bounds: the published tables, and that they hold as often as they say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from serving.judge.bounds import (
    bound_rank,
    enough,
    least_bad_that_fails,
    lower_bound,
    most_bad_that_passes,
    smallest_sample,
    upper_bound,
)


@pytest.mark.parametrize(
    ("effective", "passes", "fails", "chances"),
    [
        (299, 0, 7, (0.55, 0.22, 0.12)),
        (1000, 4, 16, (0.95, 0.44, 0.17)),
        (2000, 12, 29, (1.0, 0.79, 0.36)),
        (5000, 38, 63, (1.0, 0.99, 0.73)),
        (10000, 83, 118, (1.0, 1.0, 0.94)),
        (50000, 463, 538, (1.0, 1.0, 1.0)),
    ],
)
def test_the_table_of_counts_for_p99_is_the_published_one(
    effective: int, passes: int, fails: int, chances: tuple[float, ...]
) -> None:
    assert most_bad_that_passes(effective, 0.01, 0.05) == passes
    assert least_bad_that_fails(effective, 0.01, 0.05) == fails
    for share, chance in zip((0.002, 0.005, 0.007), chances, strict=True):
        assert binom.cdf(passes, effective, share) == pytest.approx(chance, abs=0.006)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("allowed", [0.05, 0.01, 0.001])
def test_the_smallest_sample_is_the_first_that_can_pass(allowed: float, alpha: float) -> None:
    least = smallest_sample(allowed, alpha)
    assert most_bad_that_passes(least, allowed, alpha) == 0
    assert most_bad_that_passes(least - 1, allowed, alpha) is None


@pytest.mark.parametrize("size", [299, 500, 1000, 5000, 20000])
@pytest.mark.parametrize("allowed", [0.05, 0.01, 0.001])
def test_a_service_at_the_limit_passes_in_one_of_twenty_runs_at_most(
    size: int, allowed: float
) -> None:
    passes = most_bad_that_passes(size, allowed, 0.05)
    fails = least_bad_that_fails(size, allowed, 0.05)
    # Computed, not simulated: the sum over every outcome.
    assert passes is None or binom.cdf(passes, size, allowed) <= 0.05
    assert fails is None or binom.sf(fails - 1, size, allowed) <= 0.05


def test_the_bound_of_a_quantile_is_the_order_statistic_of_its_binomial() -> None:
    for size in (299, 1000, 5000):
        ranks = [r for r in range(1, size + 1) if binom.cdf(r - 1, size, 0.99) >= 0.95]
        assert bound_rank(size, 0.99, 0.05) == pytest.approx(min(ranks) / size)


def test_nothing_is_bounded_by_no_requests() -> None:
    assert upper_bound(0, 0, 0.05) == 1.0
    assert lower_bound(0, 0, 0.05) == 0.0
    assert upper_bound(5, 5, 0.05) == 1.0
    assert upper_bound(math.nan, math.nan, 0.05) == 1.0
    assert lower_bound(math.nan, math.nan, 0.05) == 0.0


@given(st.floats(0, 500), st.floats(1, 1e6), st.floats(0.001, 0.4))
def test_bounds_enclose_the_share_also_of_fractions_of_a_request(
    bad: float, attempted: float, alpha: float
) -> None:
    bad = min(bad, attempted)
    share = bad / attempted
    assert lower_bound(bad, attempted, alpha) <= share + 1e-9
    assert upper_bound(bad, attempted, alpha) >= share - 1e-9


@given(st.floats(0, 100), st.floats(0, 100), st.floats(500, 1e6))
def test_more_bad_requests_never_lower_a_bound(first: float, more: float, attempted: float) -> None:
    assert upper_bound(first + more, attempted, 0.05) >= upper_bound(first, attempted, 0.05) - 1e-9
    assert lower_bound(first + more, attempted, 0.05) >= lower_bound(first, attempted, 0.05) - 1e-9


def test_what_is_said_to_be_enough_is_enough_and_a_share_at_the_limit_never_is() -> None:
    needed = enough(0.005, 500, 0.01, 0.05)
    assert needed is not None
    assert upper_bound(0.005 * needed, needed, 0.05) <= 0.01
    assert upper_bound(0.005 * needed * 0.98, needed * 0.98, 0.05) > 0.01
    assert enough(0.01, 500, 0.01, 0.05) is None
