"""Dollars and the choice of machines."""

import pytest

from serving.capacity.choice import Fit, choose, machines_for
from serving.capacity.cost import ladder, per_million, per_month
from serving.hardware.instances import Instance, read_instances

TABLE = read_instances()


def test_a_million_costs_what_the_hours_cost_in_which_it_is_made() -> None:
    # At 278 a second a million takes an hour.
    assert per_million(5, 1_000_000 / 3600) == pytest.approx(5)
    assert per_month(1) == 730


@pytest.mark.parametrize(
    ("kind", "replicas", "gpus", "machines"),
    [
        ("g6.xlarge", 7, 1, 7), ("g6.12xlarge", 7, 1, 2), ("g6.12xlarge", 5, 2, 3),
        ("g6.12xlarge", 2, 4, 2), ("g6.xlarge", 7, 0.15, 2), ("g6.xlarge", 6, 1 / 6, 1),
        ("c7i.xlarge", 3, 1, 3), ("p5.48xlarge", 9, 1, 2),
    ],
)  # fmt: skip
def test_replicas_fill_machines_and_never_lie_across_two(
    kind: str, replicas: int, gpus: float, machines: int
) -> None:
    assert machines_for(TABLE.named(kind), Fit(replicas, gpus)) == machines


def test_the_cheapest_machine_comes_first_and_unpriced_ones_last() -> None:
    def fit(instance: Instance) -> Fit | str:
        return Fit(8, 1) if instance.gpu and instance.gpu.name in ("h200", "h100") else "no"

    choice = choose(TABLE.instances, fit)
    prices = [candidate.usd_per_hour for candidate in choice.candidates]
    assert prices[-1] is None
    priced = [price for price in prices if price is not None]
    assert priced == sorted(priced)
    assert choice.best is not None
    # Eight H100 one by one cost as much as eight in one machine, which has less to fail.
    assert (choice.best.instance.type, choice.best.instances) == ("p5.48xlarge", 1)
    assert len(choice.candidates) + len(choice.rejected) == len(TABLE.instances)
    assert {item.reason for item in choice.rejected} == {"no"}


def test_no_machine_that_will_do_is_no_best_one() -> None:
    assert choose(TABLE.instances, lambda _: "too small").best is None


def test_the_ladder_names_capacity_blocks_only_where_they_are_sold() -> None:
    names = [rung.name for rung in ladder(TABLE.named("p5.48xlarge"), 1, 3)]
    assert names == ["on demand", "capacity reservation", "spot", "capacity block"]
    assert "capacity block" not in [rung.name for rung in ladder(TABLE.named("g6.xlarge"), 1, 3)]


def test_a_reservation_costs_the_floor_and_on_demand_the_peak() -> None:
    rungs = {rung.name: rung.usd_per_hour for rung in ladder(TABLE.named("g6.xlarge"), 2, 7)}
    assert rungs["on demand"] == pytest.approx(7 * 0.8048)
    assert rungs["capacity reservation"] == pytest.approx(2 * 0.8048)
    assert rungs["spot"] is None
    assert ladder(TABLE.named("p5e.48xlarge"), 1, 1)[0].usd_per_hour is None
