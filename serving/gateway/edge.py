"""Envoy's routes for clients: who may call what, how often, and which version answers.

All of it is in RDS, since a change of the listener cuts long streams and a change of routes does
not. The file holds the clients' keys, so it is its owner's alone.
"""

from collections.abc import Iterator, Mapping, Sequence

from serving.gateway import grpc, rates
from serving.gateway.clusters import HOPS, SERVERS, cluster_name, version_path
from serving.gateway.filters import AUTH, BUFFER, RATE, RBAC
from serving.gateway.headers import (
    CLIENT_HEADER,
    DIGEST_HEADER,
    VERSION_HEADER,
    header,
    method,
    of_version,
)
from serving.gateway.retries import hop_retries, unsent_retries
from serving.gateway.routes import OPERATOR, Gateway, Limits, ModelRoute, Version
from serving.gateway.xds import HTTP_FILTERS, Json, off, seconds

ROUTES = "models"
# Models that the answer to an unknown path names.
LISTED_MODELS = 50

Keys = Mapping[str, Sequence[str]]
"""The keys of each client."""


def render_edge(gateway: Gateway, keys: Keys) -> Json:
    """The routes that clients see."""
    allowed = {model.model: _allowed(model.limits) for model in gateway.models}
    routes = [route for model in gateway.models for route in _model_routes(model)]
    routes += grpc.edge_routes(gateway, allowed)
    routes += [_server_route(path) for path in ("/v2/health/live", "/v2/health/ready")]
    routes.append(_server_route("/v2", open_to_all=False))
    # Plain text: the listener makes JSON of everything that Envoy answers by itself.
    nothing = f"no such path or model at this gateway; models: {_deployed(gateway)}"
    routes += [
        # Refused for what it is, whatever key it carries.
        {
            "match": {"connect_matcher": {}},
            "direct_response": {"status": 403},
            "typed_per_filter_config": {AUTH: off(), RATE: off(), BUFFER: off()},
        },
        {
            "match": {"prefix": "/"},
            "direct_response": {"status": 404, "body": {"inline_string": nothing}},
            "typed_per_filter_config": {RATE: off(), BUFFER: off()},
        },
    ]
    return {
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": "models",
                "domains": ["*"],
                "typed_per_filter_config": {AUTH: _keys(keys), RATE: rates.buckets(gateway)},
                "routes": routes,
            }
        ],
    }


def _keys(keys: Keys) -> Json:
    return {
        "@type": f"{HTTP_FILTERS}.api_key_auth.v3.ApiKeyAuthPerRoute",
        "credentials": [
            {"key": key, "client": client} for client in sorted(keys) for key in keys[client]
        ],
        "key_sources": [{"header": "authorization"}, {"header": "x-api-key"}],
        "forwarding": {"header": CLIENT_HEADER, "hide_credentials": True},
    }


def _deployed(gateway: Gateway) -> str:
    names = [model.model for model in gateway.models]
    # Envoy rejects all routes where an answer of its own is longer than 4,096 bytes.
    more = f" and {len(names) - LISTED_MODELS} more" if len(names) > LISTED_MODELS else ""
    return ", ".join(names[:LISTED_MODELS]) + more or "none"


def _model_routes(route: ModelRoute) -> Iterator[Json]:
    if route.limits.kind == "tensors":
        yield _infer(route)
    else:
        yield from _streams(route)
    yield _about(route, "")
    yield _about(route, "/ready")


def _infer(route: ModelRoute) -> Json:
    """Tensors go through a prediction hop, which is told which version is to answer."""
    limits = route.limits
    path = f"/v2/models/{route.model}/infer"
    return {
        "match": {"path": path, "headers": [method("POST")]},
        "route": {
            "weighted_clusters": {
                "clusters": [
                    {
                        "name": HOPS,
                        "weight": version.weight,
                        "request_headers_to_add": of_version(version),
                    }
                    for version in route.versions
                ]
            },
            "timeout": seconds(limits.timeout_seconds),
            "retry_policy": hop_retries(limits),
            "rate_limits": rates.counts_for(route.model),
        },
        "metadata": _told(limits),
        "typed_per_filter_config": {RBAC: _allowed(limits), BUFFER: _held(limits)},
    }


def _streams(route: ModelRoute) -> Iterator[Json]:
    """A stream goes straight to a model server, without a deadline but never silent for long.

    One route for each version, since weighted clusters cannot each have a path. Envoy draws one
    number for a request and holds it against each route in turn, so shares add up.
    """
    total = sum(version.weight for version in route.versions)
    below = 0
    for version in route.versions:
        below += version.weight
        share = {"numerator": round(below / total * 1_000_000), "denominator": "MILLION"}
        routed = _to_version(route, version, "/generate_stream", "POST")
        routed["match"]["runtime_fraction"] = {"default_value": share}
        routed["route"]["timeout"] = "0s"
        routed["route"]["idle_timeout"] = seconds(route.limits.idle_timeout_seconds)
        routed["request_headers_to_remove"] = [VERSION_HEADER, DIGEST_HEADER]
        # Only what comes from the client is held: for its size, and to be sent a second time.
        routed["metadata"] = _told(route.limits)
        routed["typed_per_filter_config"][BUFFER] = _held(route.limits)
        yield routed


def _about(route: ModelRoute, suffix: str) -> Json:
    """Metadata and readiness, of the version that answers most."""
    return _to_version(route, route.main, suffix, "GET")


def _to_version(route: ModelRoute, version: Version, suffix: str, verb: str) -> Json:
    """What needs no hop: a path of the model goes on as that of one of its versions."""
    path = f"/v2/models/{route.model}{suffix}"
    return {
        "match": {"path": path, "headers": [method(verb)]},
        "route": {
            "cluster": cluster_name(route.model, version.number),
            "regex_rewrite": {
                "pattern": {"regex": f"^{path}$"},
                "substitution": f"{version_path(route.model, version.number)}{suffix}",
            },
            "timeout": seconds(route.limits.timeout_seconds),
            "retry_policy": unsent_retries(),
            "rate_limits": rates.counts_for(route.model),
        },
        "response_headers_to_add": of_version(version),
        "typed_per_filter_config": {RBAC: _allowed(route.limits)},
    }


def _server_route(path: str, *, open_to_all: bool = True) -> Json:
    route: Json = {
        "match": {"path": path, "headers": [method("GET")]},
        "route": {"cluster": SERVERS, "timeout": "5s", "retry_policy": unsent_retries()},
        "typed_per_filter_config": {RATE: off()},
    }
    if open_to_all:
        # Load balancers ask for health, and have no key.
        route["typed_per_filter_config"][AUTH] = off()
        route["request_headers_to_remove"] = [CLIENT_HEADER, VERSION_HEADER, DIGEST_HEADER]
    return route


def _held(limits: Limits) -> Json:
    kind = f"{HTTP_FILTERS}.buffer.v3.BufferPerRoute"
    return {"@type": kind, "buffer": {"max_request_bytes": limits.max_request_bytes}}


def _told(limits: Limits) -> Json:
    """What the answer to a body that is too large says."""
    return {"filter_metadata": {"galley": {"max_request_bytes": str(limits.max_request_bytes)}}}


def _allowed(limits: Limits) -> Json:
    """Who may call the model."""
    names = [caller.name for caller in limits.callers] + [OPERATOR]
    policy = {
        "permissions": [{"any": True}],
        "principals": [{"header": header(CLIENT_HEADER, name)} for name in names],
    }
    return {
        "@type": f"{HTTP_FILTERS}.rbac.v3.RBACPerRoute",
        "rbac": {"rules": {"action": "ALLOW", "policies": {"callers": policy}}},
    }
