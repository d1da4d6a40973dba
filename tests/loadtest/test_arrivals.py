"""A process of arrivals is what its name says, and a pure function of its seed."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
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
    moments,
    seconds_for,
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
def test_as_many_come_as_the_time_was_reckoned_for(arrivals: Arrivals) -> None:
    seconds = seconds_for(arrivals, peak_rps=100, requests=3000)
    counts = [
        len(moments(arrivals, peak_rps=100, seconds=seconds, seed=seed)) for seed in range(40)
    ]
    # Clumps make the number vary more than Poisson's does.
    error = math.sqrt(3000 / min(getattr(arrivals, "burstiness", 1.0), 1.0) / len(counts))
    assert abs(np.mean(counts) - 3000) < 4 * error


@pytest.mark.parametrize("arrivals", [DRAWN[0], DRAWN[3], STEPS], ids=name_of)
def test_where_less_than_one_request_is_due_on_average_one_comes_now_and_then(
    arrivals: Arrivals,
) -> None:
    # Ten seconds at a mean ratio of 1, also of the ramp and of the first step.
    counts = [len(moments(arrivals, peak_rps=0.03, seconds=10, seed=n)) for n in range(4000)]
    assert abs(np.mean(counts) - 0.3) < 4 * math.sqrt(0.3 / len(counts))


@pytest.mark.parametrize(
    ("steps", "requests", "seconds"),
    [
        (((10, 1.0), (5, 0.5)), 50, 5),
        (((10, 1.0), (5, 0.5)), 100, 10),
        (((10, 1.0), (5, 0.5)), 110, 12),
        (((10, 1.0), (5, 0.5)), 200, 30),
        (((10, 0.0), (5, 0.5)), 50, 20),
        (((10, 1.0), (5, 0.0)), 100, 10),
        (((10, 1.0), (5, 0.0)), 101, 0),
        (((10, 1.0), (5, 0.5)), 0, 0),
    ],
)
def test_steps_take_as_long_as_each_of_them_says(
    steps: tuple[tuple[float, float], ...], requests: int, seconds: float
) -> None:
    made = tuple(Step(seconds=lasts, rate_ratio=ratio) for lasts, ratio in steps)
    found = seconds_for(Steps(kind="step", steps=made), peak_rps=10, requests=requests)
    assert found == pytest.approx(seconds)


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


@pytest.mark.parametrize(("shape", "spread"), [(0.25, 4.0), (1.0, 1.0), (4.0, 0.25)])
def test_counts_vary_as_much_as_the_shape_says(shape: float, spread: float) -> None:
    arrivals = Gamma(kind="gamma", burstiness=shape)
    found = moments(arrivals, peak_rps=1000, seconds=400, seed=3)
    counts = np.bincount(found // 10**9, minlength=400)
    assert counts.var() / counts.mean() == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize(
    ("arrivals", "times", "rates"),
    [
        (Ramp(kind="ramp", from_ratio=0.2, to_ratio=1.8), (0, 30), (0.2, 1.8)),
        (Ramp(kind="ramp", from_ratio=2, to_ratio=0), (0, 30), (2, 0)),
        (Ramp(kind="ramp", from_ratio=0, to_ratio=1), (0, 30), (0, 1)),
        (STEPS, (0, 10, 10, 20, 20, 30), (1, 1, 0, 0, 3, 3)),
    ],
    ids=["up", "down", "from nothing", "steps"],
)
def test_a_process_whose_rate_changes_is_poisson_by_its_own_clock(
    arrivals: Arrivals, times: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    found = moments(arrivals, peak_rps=200, seconds=30, seed=8) / 1e9
    # The area under the rate up to each arrival, summed up finely, not by the code's own formula.
    fine = np.linspace(0, 30, 300_001)
    rate = np.interp(fine, times, np.array(rates) * 200.0)
    area = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * 1e-4)])
    assert stats.kstest(np.diff(np.interp(found, fine, area)), stats.expon.cdf).pvalue > 1e-3


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
    [
        ("", "holds no moments; write"),
        ("# only words\n\n", "holds no moments; write"),
        ("1\n0\n", "line 2 is '0', which does not go on"),
        ("1\nnan\n", "line 2 is 'nan', which does not go on"),
        ("inf\n", "line 1 is 'inf', which does not go on"),
        ("1\n2 s\n", "line 2 is '2 s'; write"),
        ("x\n", "holds no moments in seconds, and as a log of requests"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(text)
    with pytest.raises(InputError, match=said) as told:
        moments(Replay(kind="replay", trace=str(trace)), peak_rps=1, seconds=10, seed=1)
    assert "\n" not in str(told.value)


def test_a_trace_of_bytes_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.bin"
    trace.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        moments(Replay(kind="replay", trace=str(trace)), peak_rps=1, seconds=10, seed=1)


@pytest.mark.parametrize("trace", ["no/such", ".", "/dev/zero"])
def test_a_trace_that_is_no_file_is_refused_and_not_read(trace: str) -> None:
    with pytest.raises(InputError, match="is no file"):
        moments(Replay(kind="replay", trace=trace), peak_rps=1, seconds=1, seed=1)


def test_the_log_of_a_run_is_replayed_in_the_order_in_which_its_requests_were_due(
    tmp_path: Path,
) -> None:
    # Dates in nanoseconds, which a float would round by hundreds of them; written as they ended.
    log = tmp_path / "requests.csv"
    start = 1_764_600_000_000_000_000
    rows = [(start + 7_000_001, 10), (start, 90_000_000), (start + 7_000_003, 99_000_000)]
    lines = [f"{due},{due},{due + lasts},200" for due, lasts in rows]
    log.write_text("\n".join(["intended_start_ns,start_ns,end_ns,status", *lines]) + "\n")
    replay = Replay(kind="replay", trace=str(log), speed=0.5)
    found = moments(replay, peak_rps=1, seconds=10, seed=1)
    assert found.tolist() == [0, 14_000_002, 14_000_006]


@pytest.mark.parametrize("arrivals", [Constant(kind="constant"), *DRAWN[:4]], ids=name_of)
def test_more_requests_than_a_run_can_hold_are_refused_before_they_are_drawn(
    arrivals: Arrivals,
) -> None:
    with pytest.raises(InputError, match="at most 20,000,000"):
        moments(arrivals, peak_rps=1e9, seconds=1000, seed=1)


@pytest.mark.parametrize("arrivals", [Constant(kind="constant", rate_ratio=1e200), *DRAWN[:4]])
def test_a_rate_beyond_all_numbers_is_refused_alike(arrivals: Arrivals) -> None:
    with pytest.raises(InputError, match="at most 20,000,000"):
        moments(arrivals, peak_rps=1e308, seconds=1e9, seed=1)


@pytest.mark.parametrize("burstiness", [0.0, 1e-9, 1e308])
def test_a_shape_that_is_no_traffic_is_refused_before_it_is_drawn(burstiness: float) -> None:
    with pytest.raises(ValidationError, match="burstiness"):
        Gamma(kind="gamma", burstiness=burstiness)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "ramp", "from_ratio": 0.0, "to_ratio": 0.0},
        {"kind": "step", "steps": [{"seconds": 5.0, "rate_ratio": 0.0}]},
    ],
    ids=["ramp", "step"],
)
def test_what_never_sends_a_request_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="never send"):
        (Ramp if data["kind"] == "ramp" else Steps).model_validate(data)
