"""Requests in flight and replicas, exactly as on paper."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.capacity.exact import exact, spelled_number
from serving.capacity.littles_law import InFlight


def test_the_ranker_of_the_textbook_has_100_in_flight_on_5_replicas() -> None:
    law = InFlight(2000, 50, 20, 1)
    assert (float(law.in_flight), law.replicas, float(law.replica_rps)) == (100, 5, 400)


@pytest.mark.parametrize(("headroom", "replicas"), [(1.0, 5), (1.2, 6), (1.25, 7), (2.0, 10)])
def test_headroom_is_multiplied_before_rounding_up(headroom: float, replicas: int) -> None:
    assert InFlight(2000, 50, 20, headroom).replicas == replicas


def test_a_whole_result_is_not_rounded_up_by_binary_fractions() -> None:
    assert math.ceil(100 * 1.1) == 111
    assert InFlight(1000, 100, 1, 1.1).replicas == 110


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 500), st.integers(100, 300))
def test_replicas_are_the_least_that_bear_the_load(
    rate: int, time: int, each: int, percent: int
) -> None:
    law = InFlight(rate, time, each, percent / 100)
    need = Fraction(rate * time, 1000) * Fraction(percent, 100)
    assert law.replicas * each >= need
    assert law.replicas == 1 or (law.replicas - 1) * each < need


@given(st.decimals(min_value="0.0001", max_value="100000", places=4).map(float))
def test_a_decimal_stays_the_decimal_that_was_written(number: float) -> None:
    assert float(exact(number)) == number
    assert exact(number).denominator <= 10**4 or "e" in repr(number)


def test_the_sum_shows_every_step() -> None:
    law = InFlight(40, 50, 8, 1.5)
    times, over = "\N{MULTIPLICATION SIGN}", "\N{DIVISION SIGN}"
    assert law.sum == (
        f"40 rps {times} 0.05 s = 2 in flight; {over} 8 = 0.25; {times} 1.5 = 0.375, so 1 replica"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1e6, "1,000,000"), (0.00012, "0.00012"), (12.3456, "12.346")]
)
def test_numbers_are_spelled_with_the_digits_that_they_need(number: float, text: str) -> None:
    assert spelled_number(number) == text
