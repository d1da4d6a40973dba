"""A second attempt comes where it does no harm, and there alone."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.edge import render_edge
from serving.gateway.grpc import SERVICE
from serving.gateway.inner import render_inner
from serving.gateway.retries import hop_retries, model_retries, unsent_retries
from serving.gateway.routes import Endpoint, Gateway, Limits, ModelRoute, Version
from tests.serving.gateway.backend import Backend, backends
from tests.serving.gateway.envoy_process import Envoy, gateway_of, running, until
from tests.serving.gateway.models import LIMITS

ONCE = replace(LIMITS, per_try_timeout_seconds=None)


def conditions(policy: Any) -> set[str]:
    return set(policy["retry_on"].split(","))


def test_what_may_run_twice_is_given_a_time_and_a_second_server(limits: Limits) -> None:
    policy = model_retries(limits)
    assert conditions(policy) - conditions(unsent_retries()) == {"gateway-error"}
    assert policy["per_try_timeout"] == "1.25s"
    assert "reset" in conditions(hop_retries(limits))


def test_what_must_not_run_twice_is_asked_again_only_if_it_was_never_sent() -> None:
    assert model_retries(ONCE) == hop_retries(ONCE) == unsent_retries()
    assert conditions(unsent_retries()) == {
        *("connect-failure", "refused-stream", "reset-before-request")
    }


def test_there_is_one_second_attempt_and_it_goes_to_another_server(limits: Limits) -> None:
    for policy in (unsent_retries(), hop_retries(limits), model_retries(limits)):
        assert policy["num_retries"] == 1
        [other] = policy["retry_host_predicate"]
        assert other["name"] == "envoy.retry_host_predicates.previous_hosts"
        # Of two servers a draw finds the dead one three times of four.
        assert 0.75 ** policy["host_selection_retry_max_attempts"] < 1e-6


def test_no_route_is_left_to_what_envoy_does_by_itself(gateway: Gateway) -> None:
    streams = replace(gateway.models[0], model="tale", limits=replace(LIMITS, kind="stream"))
    gateway = gateway.with_route(streams)
    for rendered in (render_edge(gateway, {}), render_inner(gateway)):
        for route in rendered["virtual_hosts"][0]["routes"]:
            if "route" in route:
                assert {"timeout", "retry_policy"} <= set(route["route"]), route["match"]


def test_streams_and_grpc_have_been_checked_by_nobody_and_are_never_sent_twice(
    gateway: Gateway,
) -> None:
    streams = replace(gateway.models[0], model="tale", limits=replace(LIMITS, kind="stream"))
    unchecked = [
        route
        for rendered in (render_edge(gateway.with_route(streams), {}), render_inner(gateway))
        for route in rendered["virtual_hosts"][0]["routes"]
        if route.get("route")
        and ("generate_stream" in str(route["match"]) or SERVICE in str(route["match"]))
    ]
    assert len(unchecked) == 1 + 2 + 2 + 2  # a stream, models at both ends, ServerLive and -Ready
    assert all(route["route"]["retry_policy"] == unsent_retries() for route in unchecked)


# The hops


HOPS = 2


@pytest.fixture(scope="module")
def hops() -> Iterator[list[Backend]]:
    with backends(HOPS) as found:
        yield found


@pytest.fixture(scope="module")
def envoy(hops: list[Backend], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    versions = (Version(1, "sha256:a", ()),)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and never listens
        dead = Endpoint("127.0.0.1", reserved.getsockname()[1])
        gateway = gateway_of(
            (
                ModelRoute("ranker", replace(LIMITS, rate_rps=1000), versions),
                ModelRoute("memory", replace(ONCE, rate_rps=1000), versions),
            ),
            [],
            [*(hop.endpoint for hop in hops), dead],
        )
        with running(gateway, tmp_path_factory.mktemp("hops")) as found:
            found.until_healthy("prediction", HOPS)
            yield found


@pytest.mark.live
@pytest.mark.parametrize(("model", "times"), [("ranker", 2), ("memory", 1)])
def test_what_a_hop_held_when_it_died_is_asked_again_only_if_it_may_run_twice(
    envoy: Envoy, hops: list[Backend], model: str, times: int
) -> None:
    for hop in hops:
        hop.asked.clear()
    # Whoever was asked last is out for a while, unless too few would be left.
    until(lambda: envoy.stat("cluster.prediction.outlier_detection.ejections_active") == 0)
    envoy.until_healthy("prediction", HOPS)
    path = f"/v2/models/{model}/infer"
    assert envoy.send("POST", path, b"die:").status == 503
    assert sum(len(hop.requests(path)) for hop in hops) == times


@pytest.mark.live
def test_a_hop_that_is_gone_costs_no_answer(envoy: Envoy) -> None:
    found = {envoy.send("POST", "/v2/models/memory/infer", b"x").status for _ in range(30)}
    assert found == {200}


@pytest.mark.live
@pytest.mark.parametrize("body", [b"500:{}", b"503:{}"])
def test_what_a_hop_answers_is_the_answer(envoy: Envoy, hops: list[Backend], body: bytes) -> None:
    for hop in hops:
        hop.asked.clear()
    path = "/v2/models/ranker/infer"
    assert envoy.send("POST", path, body).status == int(body[:3])
    assert sum(len(hop.requests(path)) for hop in hops) == 1
