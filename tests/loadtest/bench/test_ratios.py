from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench.ratios import (
    Limit,
    Part,
    Ratio,
    joined,
    over_rounds,
    percentile,
    ratio_of,
)

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


def test_a_ratio_is_taken_within_each_round_and_not_of_two_medians() -> None:
    # The machine got three times slower in the last round, on both sides.
    ratio = ratio_of([2.0, 4.0, 12.0], [1.0, 1.0, 6.0])
    assert ratio == Ratio(value=2.0, low=2.0, high=4.0, rounds=3)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=20))
def test_the_median_is_between_the_lowest_and_the_highest(pairs: list[tuple[float, float]]) -> None:
    ratio = ratio_of([above for above, _ in pairs], [below for _, below in pairs])
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.rounds == len(pairs)


@given(st.lists(POSITIVE, min_size=1, max_size=200), st.floats(min_value=0.01, max_value=1.0))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) * (1 - 1e-12)
    # And no smaller one would do.
    assert sum(value < found for value in values) < share * len(values) * (1 + 1e-12)


def test_a_limit_is_kept_at_its_edge() -> None:
    assert Limit(at_most=1.05).keeps(1.05)
    assert not Limit(at_most=1.05).keeps(1.0501)
    assert Limit(at_least=50).keeps(50)
    assert not Limit(at_least=50).keeps(49.99)


def test_parts_become_one() -> None:
    one, two = over_rounds([1.0]), over_rounds([2.0])
    whole = joined(
        [
            Part(ratios={"a": one}, skipped={"b": "not here"}),
            Part(ratios={"c": two}, absolute={"d": two}, versions={"envoy": "1"}),
        ]
    )
    assert whole == Part(
        ratios={"a": one, "c": two},
        absolute={"d": two},
        skipped={"b": "not here"},
        versions={"envoy": "1"},
    )
