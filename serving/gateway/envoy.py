"""Envoy's files, rendered from the gateway's routes.

    bootstrap.json   listeners, admin, histogram edges; read once
    tls.json         the server's certificate (SDS)
    eds-*.json       endpoints of a cluster (EDS)
    cds.json         clusters (CDS)
    inner-rds.json   routes that prediction hops see (RDS)
    rds.json         routes that clients see, with their keys (RDS)

All but the first are watched: Envoy takes them over without touching connections.
"""

from collections.abc import Iterable
from pathlib import Path

from serving.gateway.clusters import Cluster, clusters, render_cluster, render_endpoints
from serving.gateway.edge import Keys, render_edge
from serving.gateway.inner import render_inner
from serving.gateway.listeners import (
    MOST_CONNECTIONS,
    TLS_FILE,
    edge_listener,
    inner_listener,
    server_certificate,
)
from serving.gateway.routes import Gateway
from serving.gateway.xds import EXTENSIONS, Json, address, resources, text, watched

# Edges of latency histograms in milliseconds, beside those that SLOs name.
EDGES_MS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
HEAP = "envoy.resource_monitors.fixed_heap"
MOST_HEAP_BYTES = 1024 * 1024 * 1024
PRIVATE = "rds.json"
"""The watched file that holds clients' keys."""


def render_bootstrap(gateway: Gateway, folder: Path, slo_edges_ms: Iterable[float] = ()) -> str:
    """Envoy's start-up file; `folder` holds the watched files.

    Histograms have an edge at each SLO, so that the share within it is counted and not guessed.
    """
    edges = sorted({*EDGES_MS, *slo_edges_ms})
    return text(
        {
            "node": {"id": "galley-local", "cluster": "galley"},
            "admin": {"address": address("127.0.0.1", gateway.admin_port)},
            "dynamic_resources": {"cds_config": watched(folder, "cds.json")},
            "static_resources": {
                "listeners": [edge_listener(gateway, folder), inner_listener(gateway, folder)]
            },
            "stats_config": {
                "stats_tags": [],
                "histogram_bucket_settings": [
                    {"match": {"suffix": "_rq_time"}, "buckets": edges},
                ],
            },
            "overload_manager": _overload_manager(),
        }
    )


def _overload_manager() -> Json:
    """Refuses what would take all file handles, or all memory: bodies are held back for checks."""
    monitors = f"{EXTENSIONS}.resource_monitors"
    connections = {
        "@type": f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": MOST_CONNECTIONS,
    }
    heap = {
        "@type": f"{monitors}.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": MOST_HEAP_BYTES,
    }
    actions = {"shrink_heap": 0.9, "stop_accepting_requests": 0.95}
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": connections,
            },
            {"name": HEAP, "typed_config": heap},
        ],
        "actions": [
            {
                "name": f"envoy.overload_actions.{name}",
                "triggers": [{"name": HEAP, "threshold": {"value": share}}],
            }
            for name, share in actions.items()
        ],
    }


def render_clusters(every: Iterable[Cluster], folder: Path) -> dict[str, str]:
    """The files of endpoints and clusters by name, in the order in which they may be replaced."""
    every = tuple(every)
    files = {
        f"eds-{cluster.name}.json": resources(
            "config.endpoint.v3.ClusterLoadAssignment", [render_endpoints(cluster)]
        )
        for cluster in every
    }
    rendered = [render_cluster(cluster, folder) for cluster in every]
    return {**files, "cds.json": resources("config.cluster.v3.Cluster", rendered)}


def render_inner_routes(gateway: Gateway) -> dict[str, str]:
    """The file of the routes that prediction hops see."""
    return {"inner-rds.json": _route_file(render_inner(gateway))}


def render_edge_routes(gateway: Gateway, keys: Keys) -> dict[str, str]:
    """The file of the routes that clients see."""
    return {PRIVATE: _route_file(render_edge(gateway, keys))}


def render_watched(gateway: Gateway, folder: Path, keys: Keys) -> dict[str, str]:
    """All watched files of a gateway but the certificate's, clusters before what uses them."""
    return {
        **render_clusters(clusters(gateway), folder),
        **render_inner_routes(gateway),
        **render_edge_routes(gateway, keys),
    }


def render_certificate(certificate: Path, key: Path) -> dict[str, str]:
    """The watched file that names the server's certificate."""
    secret = server_certificate(certificate, key)
    return {TLS_FILE: resources("extensions.transport_sockets.tls.v3.Secret", [secret])}


def _route_file(routes: Json) -> str:
    return resources("config.route.v3.RouteConfiguration", [routes])
