"""A process of arrivals is what its name says, and a pure function of its seed."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadtest.arrivals import (
    Arrivals,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Replay,
    Step,
    Steps,
    mean_ratio,
    moments,
)
from serving.errors import InputError

STEPS = Steps(
    kind="step",
    steps=(
        Step(seconds=10, rate_ratio=1),
        Step(seconds=10, rate_ratio=0),
        Step(seconds=1, rate_ratio=3),
    ),
)
DRAWN: tuple[Arrivals, ...] = (
    Poisson(kind="poisson"),
    Gamma(kind="gamma", burstiness=0.25),
    Gamma(kind="gamma", burstiness=4),
    Ramp(kind="ramp", from_ratio=0.2, to_ratio=1.8),
    STEPS,
)


def name_of(arrivals: Arrivals) -> str:
    return f"{arrivals.kind} {getattr(arrivals, 'burstiness', '')}"


@pytest.mark.parametrize("arrivals", DRAWN, ids=name_of)
def test_a_seed_gives_the_same_moments_and_another_seed_others(arrivals: Arrivals) -> None:
    first, again, other = (
        moments(arrivals, peak_rps=50, seconds=30, seed=seed) for seed in (1, 1, 2)
    )
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


@pytest.mark.parametrize("arrivals", [Constant(kind="constant"), *DRAWN], ids=name_of)
@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 500), st.floats(0.5, 40), st.integers(0, 2**32))
def test_moments_are_in_order_and_within_the_time(
    arrivals: Arrivals, peak: float, seconds: float, seed: int
) -> None:
    found = moments(arrivals, peak_rps=peak, seconds=seconds, seed=seed)
    assert (np.diff(found) >= 0).all()
    if len(found):
        assert found[0] >= 0
        assert found[-1] < seconds * 1e9


@pytest.mark.parametrize("arrivals", DRAWN, ids=name_of)
def test_the_mean_rate_is_the_one_that_is_named(arrivals: Arrivals) -> None:
    ratio = mean_ratio(arrivals, 30)
    assert ratio is not None
    counts = [len(moments(arrivals, peak_rps=100, seconds=30, seed=seed)) for seed in range(1, 41)]
    expected = ratio * 3000
    # Clumps make the number vary more than Poisson's does.
    error = math.sqrt(expected / min(getattr(arrivals, "burstiness", 1.0), 1.0) / len(counts))
    assert abs(np.mean(counts) - expected) < 4 * error


@pytest.mark.parametrize(
    ("arrivals", "gaps"),
    [
        (Poisson(kind="poisson"), stats.expon(scale=1 / 200)),
        (Gamma(kind="gamma", burstiness=0.25), stats.gamma(0.25, scale=4 / 200)),
        (Gamma(kind="gamma", burstiness=4), stats.gamma(4, scale=1 / 800)),
    ],
    ids=["poisson", "gamma 0.25", "gamma 4"],
)
def test_gaps_are_distributed_as_the_name_says(arrivals: Arrivals, gaps: object) -> None:
    found = moments(arrivals, peak_rps=200, seconds=60, seed=5)
    assert stats.kstest(np.diff(found) / 1e9, gaps.cdf).pvalue > 1e-3  # type: ignore[attr-defined]


# P15: what is called constant elsewhere has random gaps.


def test_constant_gaps_are_equal_and_need_no_seed() -> None:
    found = moments(Constant(kind="constant", rate_ratio=0.5), peak_rps=100, seconds=10, seed=1)
    assert len(found) == 500
    assert set(np.diff(found).tolist()) == {20_000_000}
    again = moments(Constant(kind="constant", rate_ratio=0.5), peak_rps=100, seconds=10, seed=2)
    assert again.tobytes() == found.tobytes()


def test_a_step_without_a_rate_sends_nothing_and_the_last_one_goes_on() -> None:
    found = moments(STEPS, peak_rps=100, seconds=40, seed=1) / 1e9
    inside, edges = np.histogram(found, bins=[0, 10, 20, 30, 40])
    assert inside[1] == 0
    assert inside[2] == pytest.approx(3000, rel=0.1)
    assert inside[3] == pytest.approx(3000, rel=0.1)
    assert len(edges) == 5


def test_a_ramp_rises_evenly_also_from_nothing() -> None:
    ramp = Ramp(kind="ramp", from_ratio=0, to_ratio=2)
    found = moments(ramp, peak_rps=1000, seconds=10, seed=1) / 1e9
    inside, _ = np.histogram(found, bins=[0, 2.5, 5, 7.5, 10])
    assert inside == pytest.approx([625, 1875, 3125, 4375], rel=0.12)


def test_a_trace_is_replayed_as_it_was_and_faster(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("# moments\n5.0\n5.5\n\n7.25 # the last\n")
    replay = Replay(kind="replay", trace=str(trace))
    assert moments(replay, peak_rps=1, seconds=10, seed=1).tolist() == [0, 500000000, 2250000000]
    fast = Replay(kind="replay", trace=str(trace), speed=2)
    assert moments(fast, peak_rps=1, seconds=1, seed=1).tolist() == [0, 250000000]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no moments"), ("1\n0\n", "no moments"), ("nan\n", "no moments"), ("x\n", ":1: 'x'")],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(text)
    with pytest.raises(InputError, match=said):
        moments(Replay(kind="replay", trace=str(trace)), peak_rps=1, seconds=10, seed=1)


@pytest.mark.parametrize("arrivals", [Constant(kind="constant"), *DRAWN[:4]], ids=name_of)
def test_more_requests_than_a_run_can_hold_are_refused_before_they_are_drawn(
    arrivals: Arrivals,
) -> None:
    with pytest.raises(InputError, match="at most 20,000,000"):
        moments(arrivals, peak_rps=1e9, seconds=1000, seed=1)


def test_an_unknown_trace_is_an_error_of_one_line() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        moments(Replay(kind="replay", trace="no/such"), peak_rps=1, seconds=1, seed=1)
