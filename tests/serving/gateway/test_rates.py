"""Rates are counted per client and model, over all ways to the model, and never the operator's."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.gateway.edge import render_edge
from serving.gateway.filters import RATE, RBAC
from serving.gateway.rates import buckets, counts_for
from serving.gateway.routes import OPERATOR, Gateway
from tests.serving.gateway.envoy_process import HTTP, KEYS, Envoy
from tests.serving.gateway.models import ADS


def named(gateway: Gateway) -> dict[tuple[str, ...], int]:
    """What each bucket is for, and how many tokens it gets in a second."""
    found = {}
    for each in buckets(gateway)["descriptors"]:
        bucket = each["token_bucket"]
        assert (bucket["max_tokens"], bucket["fill_interval"]) == (bucket["tokens_per_fill"], "1s")
        found[tuple(entry["value"] for entry in each["entries"])] = bucket["tokens_per_fill"]
    return found


def test_each_client_of_a_model_has_a_bucket_and_the_model_has_one(gateway: Gateway) -> None:
    assert named(gateway) == {
        ("uploads", "filetype"): 40,
        ("scanner", "filetype"): 10,
        ("filetype",): 60,
        ("ads", "ranker"): 500,
        ("ranker",): 2500,
    }


def test_the_operator_has_none_and_falls_to_one_that_never_is_empty(gateway: Gateway) -> None:
    assert not any(OPERATOR in names for names in named(gateway))
    assert buckets(gateway)["token_bucket"]["tokens_per_fill"] >= 10**9


def test_no_bucket_makes_room_for_another(gateway: Gateway) -> None:
    assert buckets(gateway)["max_dynamic_descriptors"] == 10_000  # Envoy's own is 20


def test_every_way_to_a_model_draws_from_its_buckets_and_no_other_does(gateway: Gateway) -> None:
    [host] = render_edge(gateway, {})["virtual_hosts"]
    assert host["typed_per_filter_config"][RATE] == buckets(gateway)
    for model in gateway.models:
        counting = [
            route
            for route in host["routes"]
            if route.get("route", {}).get("rate_limits") == counts_for(model.model)
        ]
        assert len(counting) == 4  # inference, metadata, readiness, gRPC
        assert not any(RATE in route["typed_per_filter_config"] for route in counting)
    guarded = [route for route in host["routes"] if RBAC in str(route)]
    assert all(route["route"]["rate_limits"] for route in guarded)
    assert len(guarded) == 4 * len(gateway.models)


# In the real Envoy


@pytest.mark.live
def test_a_client_over_its_rate_is_refused_and_no_other_ones_requests_give_it_more(
    envoy: Envoy,
) -> None:
    path = "/v2/models/scarce"  # scanner: 2 a second
    first = envoy.send("GET", path, key="key-of-scanner")
    assert first.headers["x-ratelimit-limit"].startswith("2")
    found = envoy.burst(path, ["key-of-scanner"], 25)
    assert found.count(429) >= 5
    # Envoy's own 20 buckets would be full after so many; a 21st value empties none here.
    for number in range(25):
        envoy.send("GET", path, headers={"x-galley-client": f"c{number}", "x-forwarded-for": "9"})
    again = envoy.burst(path, ["key-of-scanner"], 25, **{"x-forwarded-for": "203.0.113.7"})
    assert again.count(429) >= 5
    refused = next(
        reply
        for reply in (envoy.send("GET", path, key="key-of-scanner") for _ in range(30))
        if reply.status == 429
    )
    assert {"retry-after", "x-ratelimit-remaining", "x-ratelimit-reset"} <= set(refused.headers)
    assert "rate limit" in refused.json["error"]
    assert envoy.burst(path, ["key-of-uploads"], 4) == [200] * 4


@pytest.mark.live
def test_a_client_with_two_keys_has_one_rate(envoy: Envoy) -> None:
    time.sleep(1.1)
    found = envoy.burst("/v2/models/scarce", KEYS["uploads"], 24)
    assert found.count(429) >= 10  # 4 a second


@pytest.mark.live
def test_all_paths_of_a_model_draw_from_one_rate(envoy: Envoy) -> None:
    path = "/v2/models/counted"  # 3 a second
    assert 429 in envoy.burst(path, ["key-of-ads"], 20)
    assert 429 in envoy.burst(f"{path}/ready", ["key-of-ads"], 3)
    replies = [envoy.send("POST", f"{path}/infer", b"x", key="key-of-ads") for _ in range(3)]
    assert 429 in {reply.status for reply in replies}


@pytest.mark.live
def test_all_clients_together_have_the_models_rate_and_the_operator_has_none(envoy: Envoy) -> None:
    path = "/v2/models/limited"  # 3 a second, of which each client may send 40
    found = envoy.burst(path, ["key-of-uploads", "key-of-ads"], 60)
    assert found.count(429) >= 10
    assert envoy.burst(path, ["key-of-operator"], 60) == [200] * 60


@pytest.mark.live
def test_more_in_flight_than_the_servers_bear_is_refused_as_busy_and_not_as_broken(
    envoy: Envoy,
) -> None:
    # The route of a version on the inner listener, where its breaker is.
    url = f"http://127.0.0.1:{envoy.gateway.inner_port}/v2/models/ranker/versions/12/infer"
    with ThreadPoolExecutor(80) as pool:
        replies = list(pool.map(lambda _: HTTP.post(url, content=b"sleep:1"), range(80)))
    found = [reply.status_code for reply in replies]
    assert set(found) == {200, 429}
    assert found.count(200) >= ADS.max_in_flight
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert "in flight" in refused.json()["error"]
