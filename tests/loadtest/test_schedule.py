"""A schedule is a pure function of workload and seed, and its digest says which one it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.schedule import Schedule, schedule_of
from loadtest.workload import workload_of
from serving.errors import InputError

STEADY = workload_of("steady")


def test_the_digest_is_known() -> None:
    found = schedule_of(workload_of("constant"), peak_rps=10, seed=7, seconds=5)
    assert found.digest == "fea75cd9648c2ad6f6531b1204372ace26158bf8dae0688b3f7b27305d544cee"


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


def test_a_run_of_more_than_a_day_is_refused() -> None:
    with pytest.raises(InputError, match="raise the rate"):
        schedule_of(STEADY, peak_rps=0.001, seed=1, least_requests=3000)


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_a_partition_whatever_the_number_of_workers(size: int, workers: int) -> None:
    schedule = Schedule(np.arange(size, dtype=np.int64), 0, size)
    shares = [schedule.share(worker, workers).tolist() for worker in range(workers)]
    assert sorted(place for share in shares for place in share) == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
