"""The autoscaler's numbers, and models that may not be turned off."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest

from serving.capacity.littles_law import InFlight
from serving.capacity.scaling import (
    METRIC_SECONDS,
    Autoscaling,
    ColdStart,
    cold_start,
    plan_scaling,
    target_in_flight,
    warm_floor,
    zero_faults,
)
from serving.hardware.instances import read_instances
from serving.spec import ModelSpec, parse_spec
from serving.strict import sentence

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
START = ColdStart(90, 90, 20)


@pytest.fixture
def ranker(stated: Stated) -> Callable[..., ModelSpec]:
    """The shipped ranker with changes by path, dots as double underscores."""

    def change(**changes: object) -> ModelSpec:
        return parse_spec(
            stated({path.replace("__", "."): value for path, value in changes.items()}), "ranker"
        )

    return change


def law_of(spec: ModelSpec) -> InFlight:
    traffic = spec.traffic
    return InFlight(
        traffic.peak_rps,
        traffic.service_time_ms,
        traffic.concurrency_per_replica,
        traffic.headroom_ratio,
    )


def scaled(spec: ModelSpec, start: ColdStart, ramp: float) -> Autoscaling:
    return plan_scaling(spec, law_of(spec), start, ramp)


def bears(spec: ModelSpec, floor: int, reaction: float, ramp: float) -> bool:
    """Whether load may start to grow at any rate without outrunning what already runs."""
    traffic = spec.traffic
    each = Fraction(traffic.concurrency_per_replica)
    time = Fraction(str(traffic.service_time_ms)) / 1000
    grown = Fraction(str(traffic.peak_rps)) / Fraction(str(ramp)) * Fraction(str(reaction))
    steps = 400
    for step in range(steps + 1):
        rate = Fraction(str(traffic.peak_rps)) * step / steps
        running = max(Fraction(floor), rate * time / each * Fraction(str(traffic.headroom_ratio)))
        later: Fraction = min(Fraction(str(traffic.peak_rps)), rate + grown)
        if running * each < later * time:
            return False
    return True


@pytest.mark.parametrize("headroom", [1.1, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("ramp", [300.0, 900.0, 3600.0, 86_400.0])
def test_the_warm_floor_bears_growth_from_any_rate(
    ranker: Callable[..., ModelSpec], headroom: float, ramp: float
) -> None:
    spec = ranker(traffic__headroom_ratio=headroom)
    floor = warm_floor(law_of(spec), 200, ramp)
    assert bears(spec, floor, 200, ramp)


@pytest.mark.parametrize(("headroom", "ramp"), [(1.25, 1800.0), (1.5, 900.0), (2.0, 600.0)])
def test_one_replica_fewer_than_the_warm_floor_does_not(
    ranker: Callable[..., ModelSpec], headroom: float, ramp: float
) -> None:
    spec = ranker(traffic__headroom_ratio=headroom)
    floor = warm_floor(law_of(spec), 200, ramp)
    assert floor > 1
    assert not bears(spec, floor - 1, 200, ramp)


def test_without_headroom_the_floor_is_the_peak(ranker: Callable[..., ModelSpec]) -> None:
    assert warm_floor(law_of(ranker(traffic__headroom_ratio=1.0)), 200, 3600) == 5


@pytest.mark.parametrize(
    ("per_replica", "headroom", "target"), [(20, 1.25, 16), (20, 1.0, 20), (8, 1.5, 5), (1, 3.0, 1)]
)
def test_the_target_leaves_the_headroom_free(
    per_replica: int, headroom: float, target: int
) -> None:
    assert target_in_flight(per_replica, headroom) == target


def test_the_target_makes_as_many_replicas_as_the_plan(ranker: Callable[..., ModelSpec]) -> None:
    # The autoscaler asks for in-flight over target, rounded up.
    scaling = scaled(ranker(), START, 3600)
    assert math.ceil(100 / scaling.target_in_flight) == 7


def test_what_was_just_started_is_not_stopped_at_once(ranker: Callable[..., ModelSpec]) -> None:
    assert scaled(ranker(), START, 3600).scale_down_window_seconds == 400
    short = ColdStart(10, 10, 0)
    assert scaled(ranker(), short, 3600).scale_down_window_seconds == 300


def test_the_floor_is_the_more_of_what_is_stated_and_what_is_needed(
    ranker: Callable[..., ModelSpec],
) -> None:
    scaling = scaled(ranker(), START, 600)
    assert scaling.warm_floor == scaling.min_replicas == 5
    assert scaled(ranker(scaling__min_replicas=9), START, 600).min_replicas == 9


def test_weights_take_their_time_over_the_network() -> None:
    instance = read_instances().named("p5.48xlarge")
    assert cold_start(None, instance).seconds == cold_start(10**9, None).seconds == 180
    assert cold_start(320 * 10**9, instance).weights_seconds == pytest.approx(1)


ZERO = {"scaling__min_replicas": 0}


def told(spec: ModelSpec) -> list[str]:
    return [sentence(spec.name, fault) for fault in zero_faults(spec, START)]


def test_a_model_that_is_never_off_may_start_slowly(ranker: Callable[..., ModelSpec]) -> None:
    assert told(ranker()) == []


def test_a_cold_start_above_its_budget_is_refused_with_a_budget_that_works(
    ranker: Callable[..., ModelSpec],
) -> None:
    (text,) = told(ranker(**ZERO, scaling__cold_start_budget_seconds=60.0))
    assert "ranker: scaling.min_replicas=0 makes the first request wait about 230 s" in text
    assert "above cold_start_budget_seconds=60" in text
    assert "use min_replicas: 1, or cold_start_budget_seconds: 230 or more" in text
    assert told(ranker(**ZERO, scaling__cold_start_budget_seconds=230.0)) == []


def test_a_request_that_is_cut_off_before_the_model_wakes_is_refused(
    ranker: Callable[..., ModelSpec],
) -> None:
    waking = ZERO | {"scaling__cold_start_budget_seconds": 300.0}
    (text,) = told(ranker(**waking, routing={"timeout_ms": 60_000.0}))
    assert "routing.timeout_ms=60000 ends the request that wakes the model" in text
    assert "use min_replicas: 1, or timeout_ms: 230000 or more" in text
    assert told(ranker(**waking, routing={"timeout_ms": 230_000.0})) == []


def test_noticing_takes_a_scrape_and_a_look() -> None:
    assert METRIC_SECONDS == 15 + 15
