"""Envoy's clusters (CDS) and their endpoints (EDS)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.gateway.routes import Endpoint, Gateway, Limits, ModelRoute
from serving.gateway.xds import Json, address, typed, watched

SERVERS = "servers"
SERVERS_GRPC = "servers-grpc"
HOPS = "prediction"
# The inner listener, where gRPC requests go on.
INNER = "inner"
# A hop holds bodies in memory by a budget of its own; this only bounds sockets.
HOP_REQUESTS = 4096
# A server that came back takes its share of the requests bit by bit.
SLOW_START_SECONDS = 10
# A shadow that never answers is given up, or it would fill the mirror's breaker for good.
SHADOW_SECONDS = 30


def cluster_name(model: str, version: int) -> str:
    """Name of the cluster of one model version, as it appears in Envoy's metrics."""
    return f"{model}-v{version}"


def grpc_name(model: str, version: int) -> str:
    """Name of the cluster of the same servers' gRPC ports."""
    return f"{cluster_name(model, version)}-grpc"


def shadow_name(model: str, version: int) -> str:
    """Name of the cluster that only mirrored requests go to."""
    return f"{cluster_name(model, version)}-shadow"


@dataclass(frozen=True)
class Cluster:
    """Servers that take each other's place, and how many requests they may hold."""

    name: str
    endpoints: tuple[Endpoint, ...]
    ready_path: str | None
    max_in_flight: int
    retries_in_flight: int
    grpc: bool = False
    shadow: bool = False
    hashed: bool = False


def clusters(gateway: Gateway) -> tuple[Cluster, ...]:
    """Every cluster of the gateway."""
    itself = Endpoint("127.0.0.1", gateway.inner_port, gateway.inner_port)
    shared = (
        Cluster(SERVERS, gateway.servers, "/v2/health/ready", 64, 16),
        Cluster(SERVERS_GRPC, gateway.servers, "/v2/health/ready", 64, 16, grpc=True),
        Cluster(HOPS, gateway.hops, "/live", HOP_REQUESTS, HOP_REQUESTS),
        Cluster(INNER, (itself,), None, HOP_REQUESTS, HOP_REQUESTS, grpc=True),
    )
    return shared + tuple(each for route in gateway.models for each in _of_model(route, itself))


def _of_model(route: ModelRoute, inner: Endpoint) -> Iterator[Cluster]:
    limits = route.limits
    for version in route.versions:
        name = cluster_name(route.model, version.number)
        yield _cluster(name, route.model, version.number, version.endpoints, limits)
        if all(at.grpc_port for at in version.endpoints):
            name = grpc_name(route.model, version.number)
            yield _cluster(name, route.model, version.number, version.endpoints, limits, grpc=True)
    mirror = route.mirror
    if mirror:
        # Copies go once more through the inner listener, which gives them the path of their
        # version and takes in all of a body, whether or not the mirror reads it.
        name = shadow_name(route.model, mirror.number)
        yield Cluster(name, (inner,), None, mirror.max_in_flight, 0, shadow=True)
        if mirror.number in {version.number for version in route.versions}:
            return
        yield Cluster(
            name=cluster_name(route.model, mirror.number),
            endpoints=mirror.endpoints,
            ready_path=f"{version_path(route.model, mirror.number)}/ready",
            max_in_flight=mirror.max_in_flight,
            retries_in_flight=0,
            shadow=True,
        )


def _cluster(
    name: str,
    model: str,
    version: int,
    endpoints: tuple[Endpoint, ...],
    limits: Limits,
    *,
    grpc: bool = False,
) -> Cluster:
    return Cluster(
        name=name,
        endpoints=endpoints,
        ready_path=f"{version_path(model, version)}/ready",
        max_in_flight=limits.max_in_flight,
        retries_in_flight=limits.retries_in_flight,
        grpc=grpc,
        hashed=limits.hash_header is not None,
    )


def version_path(model: str, version: int) -> str:
    """Path of one version of a model at a model server."""
    return f"/v2/models/{model}/versions/{version}"


def render_cluster(cluster: Cluster, folder: Path) -> Json:
    """The cluster, whose endpoints are in a watched file of their own.

    Nothing in here changes with the endpoints: a cluster that is replaced has new servers only,
    and so no slow start.
    """
    return {
        "name": cluster.name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": watched(folder, f"eds-{cluster.name}.json")},
        "connect_timeout": "1s",
        "load_balancing_policy": {
            "policies": [
                {"typed_extension_config": _maglev() if cluster.hashed else _least_request()}
            ]
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "circuit_breakers": {"thresholds": [_breaker(cluster)]},
        "outlier_detection": _ejection(),
        "health_checks": [_health_check(cluster.ready_path)] if cluster.ready_path else [],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _protocol(cluster)
        },
    }


def render_endpoints(cluster: Cluster) -> Json:
    """The cluster's servers."""
    return {
        "cluster_name": cluster.name,
        "endpoints": [{"lb_endpoints": [_endpoint(at, cluster) for at in cluster.endpoints]}],
    }


def _endpoint(at: Endpoint, cluster: Cluster) -> Json:
    port = at.grpc_port if cluster.grpc and at.grpc_port else at.port
    endpoint: Json = {"address": address(at.address, port)}
    if port != at.port:
        # Health of a version is asked over HTTP.
        endpoint["health_check_config"] = {"port_value": at.port}
    return {"endpoint": endpoint, "health_status": "DRAINING" if at.draining else "UNKNOWN"}


def _maglev() -> Json:
    # One server more or less moves few of the others' requests.
    return {
        "name": "envoy.load_balancing_policies.maglev",
        "typed_config": typed("load_balancing_policies.maglev.v3.Maglev"),
    }


def _least_request() -> Json:
    return {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": typed(
            "load_balancing_policies.least_request.v3.LeastRequest",
            # Not FULL_SCAN: it would choose a dead replica, which has the fewest requests, again
            # for every retry. Of two random ones, some draw soon finds another.
            choice_count={"value": 2},
            slow_start_config={"slow_start_window": f"{SLOW_START_SECONDS}s"},
        ),
    }


def _breaker(cluster: Cluster) -> Json:
    most = cluster.max_in_flight
    if cluster.shadow:
        # With a limit of connections, Envoy crashes if it is stopped while a shadow waits for one.
        return {"max_requests": most, "track_remaining": True}
    return {
        "max_connections": most,
        "max_pending_requests": most,
        "max_requests": most,
        # By default a fourth request that is refused at the same time is not retried.
        "retry_budget": {
            "budget_percent": {"value": 20},
            "min_retry_concurrency": cluster.retries_in_flight,
        },
        "track_remaining": True,
    }


def _ejection() -> Json:
    # A dead replica has the fewest requests, so it would be chosen first until two health checks
    # have failed. One refused connection takes it out at once, but never more than half of all.
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        # What a model answers takes nobody out: that is for whoever judges versions.
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "base_ejection_time": "5s",
        "max_ejection_percent": 50,
    }


def _health_check(path: str) -> Json:
    return {
        "timeout": "1s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {"path": path, "codec_client_type": "HTTP1"},
    }


def _protocol(cluster: Cluster) -> Json:
    protocol = "http2_protocol_options" if cluster.grpc else "http_protocol_options"
    options: dict[str, Any] = {"explicit_http_config": {protocol: {}}}
    if cluster.shadow:
        limit = {"max_stream_duration": f"{SHADOW_SECONDS}s"}
        options["common_http_protocol_options"] = limit
    return typed("upstreams.http.v3.HttpProtocolOptions", **options)
