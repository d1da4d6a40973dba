"""Envoy's routes for gRPC (KServe v2).

A request names its model inside its message. At the edge a script reads that name into a header,
by which routes, keys and limits apply; behind it, another one writes the model and the version
that the gateway chose into the message, so that nothing else can be run than was allowed.

    edge ──name in a header──► route of the model ──► inner listener ──pinned──► model servers

Streams of several requests (ModelStreamInfer) are refused: each of them could name another model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.gateway.clusters import INNER, SERVERS_GRPC, grpc_name
from serving.gateway.filters import AUTH, BUFFER, GRPC_BUFFER, GRPC_SCRIPT, RATE, RBAC
from serving.gateway.headers import MODEL_HEADER, VERSION_HEADER, hash_policy, header, of_version
from serving.gateway.rates import counts_for
from serving.gateway.retries import unsent_retries
from serving.gateway.routes import Gateway, ModelRoute, Version
from serving.gateway.xds import HTTP_FILTERS, Json, http_filter, off, seconds

SERVICE = "/inference.GRPCInferenceService/"
# As over HTTP: how a model is configured is nobody's business outside.
MODEL_METHODS = ("ModelInfer", "ModelReady", "ModelMetadata")
SERVER_METHODS = ("ServerLive", "ServerReady")
# Triton's own limit. The limit of a model is not known before its name is.
MOST_BYTES = 64 * 1024 * 1024

_NAME, _PIN = "name", "pin"


def edge_filters() -> list[Json]:
    """The filters that read names; they run on the routes below alone."""
    return [_holding(), _scripts(_NAME, "grpc_name.lua")]


def inner_filters() -> list[Json]:
    """The filter that pins a model and version; it runs on the routes below alone."""
    return [_scripts(_PIN, "grpc_pin.lua")]


def edge_routes(gateway: Gateway, allowed: dict[str, Json]) -> Iterator[Json]:
    """What clients may call; `allowed` says who may call each model."""
    for route in gateway.models:
        if route.limits.kind == "tensors" and _speaks_grpc(route):
            yield _of_model(route, allowed[route.model])
    # Before the name is read, and for names that have no route.
    for method in MODEL_METHODS:
        yield {
            "match": {"path": f"{SERVICE}{method}", "grpc": {}},
            "direct_response": {
                "status": 404,
                "body": {"inline_string": "no such model at this gateway"},
            },
            "typed_per_filter_config": _reading(),
        }
    for method in SERVER_METHODS:
        yield {
            "match": {"path": f"{SERVICE}{method}", "grpc": {}},
            "route": {"cluster": SERVERS_GRPC, "timeout": "5s", "retry_policy": unsent_retries()},
            "typed_per_filter_config": {AUTH: off(), RATE: off()},
        }
    yield {
        "match": {"prefix": SERVICE},
        "direct_response": {
            "status": 501,
            "body": {"inline_string": "not offered by this gateway"},
        },
    }


def inner_routes(gateway: Gateway) -> Iterator[Json]:
    """Each version of each model, by the headers that the edge has set."""
    for route in gateway.models:
        if route.limits.kind != "tensors" or not _speaks_grpc(route):
            continue
        for version in route.versions:
            yield {
                "match": {
                    **_methods(),
                    "headers": [
                        header(MODEL_HEADER, route.model),
                        header(VERSION_HEADER, str(version.number)),
                    ],
                },
                "route": {
                    "cluster": grpc_name(route.model, version.number),
                    "timeout": seconds(route.limits.timeout_seconds),
                    # Not checked by a hop, so never tried again once it was sent.
                    "retry_policy": unsent_retries(),
                    **hash_policy(route.limits),
                },
                "typed_per_filter_config": {GRPC_SCRIPT: _script(_PIN)},
            }


def _of_model(route: ModelRoute, allowed: Json) -> Json:
    return {
        "match": {**_methods(), "headers": [header(MODEL_HEADER, route.model)]},
        "metadata": {
            "filter_metadata": {
                GRPC_SCRIPT: {"max_request_bytes": route.limits.max_request_bytes},
            }
        },
        "route": {
            "weighted_clusters": {
                "clusters": [_weighted(version) for version in route.versions],
            },
            "timeout": seconds(route.limits.timeout_seconds),
            "retry_policy": unsent_retries(),
            "rate_limits": counts_for(route.model),
        },
        # The script also here: a client may send the header itself, to be on this route at once.
        "typed_per_filter_config": {RBAC: allowed, **_reading()},
    }


def _methods() -> Json:
    """Nothing but these: a client may send the header of a model with any path."""
    return {"safe_regex": {"regex": f"{SERVICE}({'|'.join(MODEL_METHODS)})"}, "grpc": {}}


def _weighted(version: Version) -> Json:
    return {
        "name": INNER,
        "weight": version.weight,
        "request_headers_to_add": of_version(version),
        "response_headers_to_add": of_version(version),
    }


def _speaks_grpc(route: ModelRoute) -> bool:
    return all(at.grpc_port for version in route.versions for at in version.endpoints)


def _reading() -> Json:
    return {**_buffer(), GRPC_SCRIPT: _script(_NAME), BUFFER: off()}


def _buffer() -> Json:
    kind = f"{HTTP_FILTERS}.buffer.v3.BufferPerRoute"
    return {GRPC_BUFFER: {"@type": kind, "buffer": {"max_request_bytes": MOST_BYTES}}}


def _holding() -> Json:
    buffer = http_filter(GRPC_BUFFER, "buffer.v3.Buffer", max_request_bytes=MOST_BYTES)
    return {**buffer, "disabled": True}


def _script(name: str) -> Json:
    return {"@type": f"{HTTP_FILTERS}.lua.v3.LuaPerRoute", "name": name}


def _scripts(name: str, file: str) -> Json:
    source: dict[str, Any] = {"inline_string": Path(__file__).with_name(file).read_text()}
    return http_filter(GRPC_SCRIPT, "lua.v3.Lua", source_codes={name: source})
