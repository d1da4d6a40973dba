"""Routes replace one another by model."""

from dataclasses import replace

from serving.gateway.routes import Gateway, ModelRoute, Version


def test_a_new_route_takes_the_place_of_the_old_one_of_its_model(gateway: Gateway) -> None:
    old = gateway.models[0]
    new = replace(old, versions=(replace(old.main, number=2),))
    after = gateway.with_route(new)
    assert after.route("filetype") == new
    assert after.route("ranker") == gateway.route("ranker")
    assert len(after.models) == 2
    assert after.with_route(old) == gateway


def test_routes_are_in_order_of_model_whatever_the_order_they_came_in(gateway: Gateway) -> None:
    first, second = gateway.models
    empty = replace(gateway, models=())
    assert empty.with_route(second).with_route(first) == gateway
    assert empty.with_route(first).with_route(second) == gateway


def test_a_removed_model_has_no_route(gateway: Gateway) -> None:
    after = gateway.without("filetype")
    assert after.route("filetype") is None
    assert after.route("ranker") is not None
    assert after.without("nobody") == after


def test_the_main_version_is_the_one_with_the_most_weight(gateway: Gateway) -> None:
    route = gateway.models[0]
    stable = replace(route.main, weight=95)
    canary = Version(2, "sha256:" + "c" * 64, (), weight=5)
    assert ModelRoute(route.model, route.limits, (canary, stable)).main == stable


def test_replicas_are_those_that_are_sent_requests(gateway: Gateway) -> None:
    route = gateway.models[0]
    first, second = route.main.endpoints
    left = replace(route.main, endpoints=(replace(first, draining=True), second))
    assert (route.replicas, replace(route, versions=(left,)).replicas) == (2, 1)
