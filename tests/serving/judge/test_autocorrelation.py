"""For how many requests one independent request stands."""

import numpy as np
import pytest
from scipy.signal import lfilter

from serving.judge import autocorrelation
from serving.judge.autocorrelation import autocorrelation_time, cluster_time


def autoregressive(memory: float, size: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=size)
    return np.asarray(lfilter([1.0], [1.0, -memory], noise))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.98])
def test_it_is_what_theory_says_of_a_series_with_known_memory(memory: float) -> None:
    found = autocorrelation_time(autoregressive(memory, 400_000, seed=3))
    assert found == pytest.approx((1 + memory) / (1 - memory), rel=0.12)


def test_a_series_that_is_averaged_in_blocks_first_comes_out_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series = autoregressive(0.9, 400_000, seed=4)
    whole = autocorrelation_time(series)
    monkeypatch.setattr(autocorrelation, "MOST_POINTS", 50_000)
    assert autocorrelation_time(series) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("series", [[], [1.0], [2.0] * 50])
def test_a_series_that_says_nothing_of_dependence_counts_in_full(series: list[float]) -> None:
    assert autocorrelation_time(np.array(series)) == 1.0


def test_it_is_never_less_than_one_also_where_values_alternate() -> None:
    assert autocorrelation_time(np.array([0.0, 1.0] * 500)) == 1.0


def test_a_series_shorter_than_its_memory_counts_for_a_handful() -> None:
    ramp = np.arange(5_000.0)
    assert len(ramp) / autocorrelation_time(ramp) < 20


def test_independent_bad_requests_count_almost_in_full() -> None:
    bad = np.random.default_rng(5).random(50_000) < 0.01
    assert cluster_time(bad) < 1.25


def test_bad_requests_in_a_row_are_one_event() -> None:
    bad = np.zeros(10_000, dtype=bool)
    for start in range(500, 10_000, 1_000):
        bad[start : start + 20] = True
    assert cluster_time(bad) >= 20
    assert cluster_time(np.zeros(100, dtype=bool)) == 1.0
