"""A schedule is a pure function of workload and seed, and its digest says which one it is."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import Arrivals, Constant, Poisson, Replay, Step, Steps
from loadtest.schedule import Schedule, schedule_of
from loadtest.trace import MOST
from loadtest.workload import Workload, workload_of
from serving.errors import InputError

STEADY = workload_of("steady")


def with_arrivals(arrivals: Arrivals) -> Workload:
    return STEADY.model_copy(update={"arrivals": arrivals})


# Who changes one of these has changed what every report of it was about; numpy's streams are in it.
@pytest.mark.parametrize(
    ("workload", "digest"),
    [
        ("constant", "fea75cd9648c2ad6f6531b1204372ace26158bf8dae0688b3f7b27305d544cee"),
        ("steady", "96196c62ed488ba677eea19d7e1f3c89d662607ab28f815f200c0013fd5fcb3a"),
        ("burst", "0470409815cb633947e38ff651f2013814b8ed75b4ddc397b1f1a56c99d7bc75"),
        ("ramp", "63891be32bcaf73c903a3b1961bd62e8adae903ed71b5154dd7e1274d0e97d47"),
        ("surge", "b4b617ca261f4f872b8472000aacff65de70f91c980484168fad2096e88dc36c"),
        ("replay", "bd41b5c4dc6f120e84cbdae41284fb7e9eb6e149a33f1091f552d1a61c5d76e6"),
    ],
)
def test_the_digest_is_known(workload: str, digest: str) -> None:
    found = schedule_of(workload_of(workload), peak_rps=10, seed=7, seconds=5)
    assert found.digest == digest


def test_the_same_seed_gives_the_same_schedule_and_another_gives_another() -> None:
    one, same, other = (schedule_of(STEADY, peak_rps=40, seed=seed) for seed in (1, 1, 2))
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize("changed", ["intended", "warmup_until", "until"])
def test_the_digest_covers_all_of_it(changed: str) -> None:
    kept = {"intended": np.array([1, 2, 3]), "warmup_until": 2, "until": 9}
    other = {**kept, changed: np.array([1, 2, 4]) if changed == "intended" else 4}
    assert Schedule(**kept).digest != Schedule(**other).digest  # type: ignore[arg-type]


def test_the_length_of_the_warm_up_moves_nothing_in_the_measured_time() -> None:
    short, long = (
        schedule_of(STEADY.model_copy(update={"warmup_seconds": warm}), peak_rps=40, seed=3)
        for warm in (1.0, 10.0)
    )
    measured = [found.intended[found.measured] - found.warmup_until for found in (short, long)]
    assert measured[0].tolist() == measured[1].tolist()


def test_it_goes_on_for_as_long_as_the_least_requests_take() -> None:
    found = schedule_of(STEADY, peak_rps=10, seed=1, least_requests=3000)
    assert found.until - found.warmup_until == 300 * 10**9
    assert found.measured.sum() == pytest.approx(3000, rel=0.1)


def test_a_workload_whose_length_is_part_of_it_keeps_it() -> None:
    found = schedule_of(workload_of("ramp"), peak_rps=1, seed=1, least_requests=10_000)
    assert found.until - found.warmup_until == 120 * 10**9


def test_steps_go_on_at_the_last_rate_until_there_are_enough() -> None:
    steps = tuple(Step(seconds=30, rate_ratio=ratio) for ratio in (2, 0.5))
    found = schedule_of(
        with_arrivals(Steps(kind="step", steps=steps)), peak_rps=100, seed=1, least_requests=9000
    )
    assert found.until - found.warmup_until == 90 * 10**9
    assert found.measured.sum() == pytest.approx(9000, rel=0.05)


@pytest.mark.parametrize("peak", [0.001, 1e-320])
def test_a_run_of_more_than_a_day_is_refused(peak: float) -> None:
    with pytest.raises(InputError, match="raise the rate"):
        schedule_of(STEADY, peak_rps=peak, seed=1, least_requests=3000)


def test_warm_up_and_measured_time_are_bounded_together() -> None:
    constant = with_arrivals(Constant(kind="constant"))
    with pytest.raises(InputError, match="at most 20,000,000"):
        schedule_of(constant, peak_rps=MOST / 60, seed=1)


def test_the_warm_up_is_poisson_at_the_first_rate_also_where_nothing_else_is() -> None:
    found = schedule_of(workload_of("constant"), peak_rps=400, seed=1)
    before = found.intended[~found.measured]
    assert len(before) == pytest.approx(2000, rel=0.1)
    gaps = np.diff(before)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_a_trace_is_warmed_up_at_the_rate_at_which_it_begins(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f"{place / 100}\n" for place in range(500)) + "30\n")
    found = schedule_of(with_arrivals(Replay(kind="replay", trace=str(trace))), peak_rps=1, seed=1)
    assert (~found.measured).sum() == pytest.approx(500, rel=0.15)
    assert found.measured.sum() == 501
    assert found.intended[found.measured][0] == found.warmup_until


def test_without_a_warm_up_all_of_it_counts() -> None:
    none = STEADY.model_copy(update={"warmup_seconds": 0.0})
    found = schedule_of(none, peak_rps=40, seed=1)
    assert found.warmup_until == 0
    assert found.measured.all()


def test_nothing_is_drawn_twice_by_neighbouring_seeds() -> None:
    drawn = [schedule_of(STEADY, peak_rps=40, seed=seed).intended for seed in range(8)]
    gaps = [np.diff(one) for one in drawn]
    for one, other in itertools.combinations(gaps, 2):
        assert len(np.intersect1d(one, other)) < len(one) / 20


@pytest.mark.parametrize("workers", [2, 8])
def test_each_worker_of_a_poisson_process_has_its_part_of_the_rate(workers: int) -> None:
    found = schedule_of(with_arrivals(Poisson(kind="poisson")), peak_rps=800, seed=2, seconds=20)
    for worker in range(workers):
        own = found.intended[found.share(worker, workers)]
        per_second = np.bincount(own // 10**9)[:25]
        assert per_second.mean() == pytest.approx(800 / workers, rel=0.1)


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_a_partition_whatever_the_number_of_workers(size: int, workers: int) -> None:
    schedule = Schedule(np.arange(size, dtype=np.int64), 0, size)
    shares = [schedule.share(worker, workers).tolist() for worker in range(workers)]
    assert sorted(place for share in shares for place in share) == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
