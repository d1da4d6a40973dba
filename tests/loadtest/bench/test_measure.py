import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench.load import Outcome
from loadtest.bench.measure import checked, constant_schedule, interleaved, poisson_schedule
from serving.errors import InfrastructureError

RATES = st.floats(min_value=1.0, max_value=1000.0)
SEEDS = st.integers(min_value=0, max_value=2**32)


@given(RATES, SEEDS)
def test_a_schedule_is_a_pure_function_of_its_seed(rate: float, seed: int) -> None:
    assert poisson_schedule(rate, 2.0, seed) == poisson_schedule(rate, 2.0, seed)


@given(RATES, SEEDS)
def test_a_schedule_is_in_order_and_ends_in_time(rate: float, seed: int) -> None:
    schedule = poisson_schedule(rate, 2.0, seed)
    assert schedule == sorted(schedule)
    assert all(0.0 < moment < 2.0 for moment in schedule)


def test_schedules_of_other_seeds_are_other_ones() -> None:
    assert poisson_schedule(100.0, 1.0, 1) != poisson_schedule(100.0, 1.0, 2)


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    # 10,000 are expected, with a standard deviation of 100.
    assert abs(len(poisson_schedule(100.0, 100.0, 7)) - 10_000) < 500
    assert len(constant_schedule(500, 4.0)) == 2000


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str) -> int:
        order.append(name)
        return len(order)

    found = interleaved(3, lambda _: side("a"), lambda _: side("b"))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == [[1, 4, 5], [2, 3, 6]]


def test_a_load_that_failed_measures_nothing() -> None:
    fine = Outcome(1.0, (0.1,), (0.1,), (0.0,), 0)
    assert checked(fine, "hop") is fine
    with pytest.raises(InfrastructureError, match=r"hop: 3 requests failed \(status 503\)"):
        checked(Outcome(1.0, (0.1,), (0.1,), (0.0,), 3, "status 503"), "hop")
