"""Envoys that the gateway is measured against: one that only passes requests on."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.servers import Server, running
from serving.gateway.xds import EXTENSIONS, Json, address, http_filter, typed
from serving.local.engines import Engines
from serving.local.home import write_atomically

# As many as the local stack's gateway has.
CONCURRENCY: Final = 2


@dataclass(frozen=True)
class Certificate:
    """A server's certificate and its key, as files."""

    chain: Path
    key: Path


@contextmanager
def envoy(
    engines: Engines, name: str, port: int, folder: Path, bootstrap: Path
) -> Iterator[Server]:
    """An Envoy with this configuration, run as the local stack runs its own."""
    command = (
        engines.envoy,
        *("-c", bootstrap, "--disable-hot-restart", "--concurrency", str(CONCURRENCY)),
        *("--log-level", "warning", "--component-log-level", "misc:error"),
    )
    with running(name, command, port, folder) as server:
        yield server


@contextmanager
def bare_envoy(
    engines: Engines,
    folder: Path,
    port: int,
    backends: Sequence[int],
    certificate: Certificate | None,
) -> Iterator[Server]:
    """One listener, one route without a deadline, one cluster by least request; nothing else."""
    name = f"bare-envoy-{port}"
    bootstrap = folder / f"{name}.json"
    write_atomically(bootstrap, json.dumps(bare_bootstrap(port, backends, certificate)))
    with envoy(engines, name, port, folder, bootstrap) as server:
        yield server


def bare_bootstrap(port: int, backends: Sequence[int], certificate: Certificate | None) -> Json:
    """The start-up file of a bare Envoy."""
    router = http_filter("envoy.filters.http.router", "router.v3.Router")
    route = {"match": {"prefix": "/"}, "route": {"cluster": "backends", "timeout": "0s"}}
    manager = {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "http_filters": [router],
        "route_config": {
            "name": "bare",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
        },
    }
    chain: Json = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    if certificate:
        chain["transport_socket"] = _tls(certificate)
    endpoints = [{"endpoint": {"address": address("127.0.0.1", each)}} for each in backends]
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "bare",
                    "address": address("127.0.0.1", port),
                    "filter_chains": [chain],
                }
            ],
            "clusters": [
                {
                    "name": "backends",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "lb_policy": "LEAST_REQUEST",
                    "load_assignment": {
                        "cluster_name": "backends",
                        "endpoints": [{"lb_endpoints": endpoints}],
                    },
                }
            ],
        }
    }


def _tls(certificate: Certificate) -> Json:
    pair = {
        "certificate_chain": {"filename": str(certificate.chain)},
        "private_key": {"filename": str(certificate.key)},
    }
    context = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [pair],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(
            "transport_sockets.tls.v3.DownstreamTlsContext", common_tls_context=context
        ),
    }
