"""A cluster is sized by its model's limits, and is the same whatever its servers are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.clusters import (
    Cluster,
    clusters,
    render_cluster,
    render_endpoints,
)
from serving.gateway.routes import Endpoint, Gateway, Mirror

FOLDER = Path("/galley/xds")
MIRROR = Mirror(2, "sha256:b", (Endpoint("127.0.0.1", 12_003),), percent=5.0, max_in_flight=6)


@pytest.fixture
def found(gateway: Gateway) -> dict[str, Cluster]:
    """Every cluster of a gateway of two models, of which the first is mirrored."""
    gateway = gateway.with_route(replace(gateway.models[0], mirror=MIRROR))
    return {cluster.name: cluster for cluster in clusters(gateway)}


def breaker(cluster: Cluster) -> Any:
    [only] = render_cluster(cluster, FOLDER)["circuit_breakers"]["thresholds"]
    return only


def protocol(cluster: Cluster) -> Any:
    [only] = render_cluster(cluster, FOLDER)["typed_extension_protocol_options"].values()
    return only


def test_a_version_has_one_cluster_for_http_and_one_for_grpc(found: dict[str, Cluster]) -> None:
    assert {name for name in found if name.startswith("filetype")} == {
        *("filetype-v1", "filetype-v1-grpc", "filetype-v2", "filetype-v2-shadow")
    }
    http, grpc = protocol(found["filetype-v1"]), protocol(found["filetype-v1-grpc"])
    assert http["explicit_http_config"] == {"http_protocol_options": {}}
    assert grpc["explicit_http_config"] == {"http2_protocol_options": {}}


def test_servers_without_a_port_for_grpc_have_no_cluster_for_it(gateway: Gateway) -> None:
    route = gateway.models[0]
    plain = replace(route.main, endpoints=(Endpoint("127.0.0.1", 12_003), route.main.endpoints[0]))
    names = {each.name for each in clusters(gateway.with_route(replace(route, versions=(plain,))))}
    assert "filetype-v1-grpc" not in names


def test_grpc_goes_to_its_own_port_and_health_is_asked_at_the_other(
    found: dict[str, Cluster],
) -> None:
    [first, _] = render_endpoints(found["filetype-v1-grpc"])["endpoints"][0]["lb_endpoints"]
    assert first["endpoint"]["address"]["socket_address"]["port_value"] == 12_011
    assert first["endpoint"]["health_check_config"] == {"port_value": 12_001}


def test_a_draining_server_is_sent_nothing_new(gateway: Gateway) -> None:
    route = gateway.models[0]
    one, two = route.main.endpoints
    left = replace(route.main, endpoints=(replace(one, draining=True), two))
    cluster = clusters(gateway.with_route(replace(route, versions=(left,))))[4]
    rendered = render_endpoints(cluster)["endpoints"][0]["lb_endpoints"]
    assert [each["health_status"] for each in rendered] == ["DRAINING", "UNKNOWN"]


def test_no_set_of_servers_changes_the_cluster_or_they_would_all_start_at_full_share(
    found: dict[str, Cluster],
) -> None:
    for cluster in found.values():
        other = replace(cluster, endpoints=(Endpoint("10.0.0.1", 1, 2, draining=True),))
        assert render_cluster(other, FOLDER) == render_cluster(cluster, FOLDER)
        assert render_endpoints(other) != render_endpoints(cluster)


def test_a_server_that_came_back_takes_its_share_bit_by_bit(found: dict[str, Cluster]) -> None:
    for cluster in found.values():
        [policy] = render_cluster(cluster, FOLDER)["load_balancing_policy"]["policies"]
        least = policy["typed_extension_config"]["typed_config"]
        assert least["slow_start_config"] == {"slow_start_window": "10s"}


def test_half_of_the_servers_stay_whatever_they_answer(found: dict[str, Cluster]) -> None:
    for cluster in found.values():
        ejection = render_cluster(cluster, FOLDER)["outlier_detection"]
        assert ejection["max_ejection_percent"] == 50
        assert ejection["enforcing_consecutive_5xx"] == 0
        assert ejection["enforcing_consecutive_gateway_failure"] == 0
        assert "always_eject_one_host" not in ejection


def test_a_version_may_hold_what_its_model_bears_on_either_way(found: dict[str, Cluster]) -> None:
    for name in ("filetype-v1", "filetype-v1-grpc"):
        limits = breaker(found[name])
        most = ("max_connections", "max_pending_requests", "max_requests")
        assert [limits[each] for each in most] == [24, 24, 24]
        assert limits["retry_budget"]["min_retry_concurrency"] == 12


def test_a_mirror_bounds_requests_alone_and_gives_each_up(found: dict[str, Cluster]) -> None:
    # With a bound on connections a copy can wait for one, and Envoy would die of that at its end.
    for name in ("filetype-v2", "filetype-v2-shadow"):
        assert breaker(found[name]) == {"max_requests": 6, "track_remaining": True}
        limit = protocol(found[name])["common_http_protocol_options"]
        assert limit == {"max_stream_duration": "30s"}


def test_the_version_of_a_cluster_is_what_its_health_is_about(found: dict[str, Cluster]) -> None:
    for name, path in (
        ("filetype-v1", "/v2/models/filetype/versions/1/ready"),
        ("filetype-v2", "/v2/models/filetype/versions/2/ready"),
        ("ranker-v12-grpc", "/v2/models/ranker/versions/12/ready"),
        ("prediction", "/live"),
    ):
        [check] = render_cluster(found[name], FOLDER)["health_checks"]
        assert check["http_health_check"]["path"] == path
