"""Envoy's routes for clients: who may call what, how often, and which version answers.

All of it is in RDS, since a change of the listener cuts long streams and a change of routes does
not. The file holds the clients' keys, so it is its owner's alone.
"""

from collections.abc import Iterator, Mapping, Sequence

from serving.gateway import grpc
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
from serving.gateway.routes import OPERATOR, Gateway, Limits, ModelRoute
from serving.gateway.xds import ALWAYS, EXTENSIONS, HTTP_FILTERS, Json, off, seconds

ROUTES = "models"
# Models that the answer to an unknown path names.
LISTED_MODELS = 50
# Buckets for values that no descriptor names. There are none, and Envoy's 20 would let a client
# empty another's bucket if there were.
MOST_BUCKETS = 10_000

Keys = Mapping[str, Sequence[str]]
"""The keys of each client."""


def render_edge(gateway: Gateway, keys: Keys) -> Json:
    """The routes that clients see."""
    guards = {model.model: _guards(model.limits) for model in gateway.models}
    routes = [route for model in gateway.models for route in _model_routes(model)]
    routes += grpc.edge_routes(gateway, guards)
    routes += [_server_route(path) for path in ("/v2/health/live", "/v2/health/ready")]
    routes.append(_server_route("/v2", open_to_all=False))
    # Plain text: the listener makes JSON of everything that Envoy answers by itself.
    nothing = f"no such path or model at this gateway; models: {_deployed(gateway)}"
    routes += [
        # Without the filters, one of which would wait for a body that CONNECT never sends.
        {
            "match": {"connect_matcher": {}},
            "direct_response": {"status": 405},
            "typed_per_filter_config": {AUTH: off(), BUFFER: off()},
        },
        {
            "match": {"prefix": "/"},
            "direct_response": {"status": 404, "body": {"inline_string": nothing}},
        },
    ]
    return {
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": "models",
                "domains": ["*"],
                "typed_per_filter_config": {AUTH: _keys(keys)},
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
        yield _stream(route)
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
            "retry_policy": hop_retries(),
        },
        "metadata": {
            "filter_metadata": {"galley": {"max_request_bytes": str(limits.max_request_bytes)}}
        },
        "typed_per_filter_config": {
            **_guards(limits),
            BUFFER: {
                "@type": f"{HTTP_FILTERS}.buffer.v3.BufferPerRoute",
                "buffer": {"max_request_bytes": limits.max_request_bytes},
            },
        },
    }


def _stream(route: ModelRoute) -> Json:
    """A stream goes straight to a model server, without a deadline but never silent for long."""
    limits = route.limits
    return {
        "match": {
            "path": f"/v2/models/{route.model}/generate_stream",
            "headers": [method("POST")],
        },
        "route": {
            "weighted_clusters": {
                "clusters": [
                    {
                        "name": cluster_name(route.model, version.number),
                        "weight": version.weight,
                        "response_headers_to_add": of_version(version),
                    }
                    for version in route.versions
                ]
            },
            "timeout": "0s",
            "idle_timeout": seconds(limits.idle_timeout_seconds),
            "retry_policy": unsent_retries(),
        },
        "request_headers_to_remove": [VERSION_HEADER, DIGEST_HEADER],
        "typed_per_filter_config": {**_guards(limits), BUFFER: off()},
    }


def _about(route: ModelRoute, suffix: str) -> Json:
    """Metadata and readiness, of the version that answers most."""
    path = f"/v2/models/{route.model}{suffix}"
    version = route.main
    return {
        "match": {"path": path, "headers": [method("GET")]},
        "route": {
            "cluster": cluster_name(route.model, version.number),
            "regex_rewrite": {
                "pattern": {"regex": f"^{path}$"},
                "substitution": f"{version_path(route.model, version.number)}{suffix}",
            },
            "timeout": seconds(route.limits.timeout_seconds),
            "retry_policy": unsent_retries(),
        },
        "response_headers_to_add": of_version(version),
        "typed_per_filter_config": _guards(route.limits),
    }


def _server_route(path: str, *, open_to_all: bool = True) -> Json:
    route: Json = {
        "match": {"path": path, "headers": [method("GET")]},
        "route": {"cluster": SERVERS, "timeout": "5s", "retry_policy": unsent_retries()},
    }
    if open_to_all:
        # Load balancers ask for health, and have no key.
        route["typed_per_filter_config"] = {AUTH: off()}
        route["request_headers_to_remove"] = [CLIENT_HEADER, VERSION_HEADER, DIGEST_HEADER]
    return route


def _guards(limits: Limits) -> Json:
    """Who may call the model, and how often."""
    return {RBAC: _allowed(limits), RATE: _rates(limits)}


def _allowed(limits: Limits) -> Json:
    names = [caller.name for caller in limits.callers] + [OPERATOR]
    policy = {
        "permissions": [{"any": True}],
        "principals": [{"header": header(CLIENT_HEADER, name)} for name in names],
    }
    return {
        "@type": f"{HTTP_FILTERS}.rbac.v3.RBACPerRoute",
        "rbac": {"rules": {"action": "ALLOW", "policies": {"callers": policy}}},
    }


def _rates(limits: Limits) -> Json:
    """A bucket for each client and one for the model; both must have a token.

    The operator has neither, so that checks can be made of a model that is at its limit.
    """
    everyone = _bucket(limits.rate_rps)
    return {
        "@type": f"{EXTENSIONS}.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "galley",
        # Used where no descriptor matches, which is the operator alone.
        "token_bucket": _bucket(MOST_BUCKETS),
        "always_consume_default_token_bucket": False,
        "filter_enabled": ALWAYS,
        "filter_enforced": ALWAYS,
        "max_dynamic_descriptors": MOST_BUCKETS,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "enable_retry_after_header": True,
        "rate_limited_as_resource_exhausted": True,
        "rate_limits": [
            {
                "actions": [
                    {"request_headers": {"header_name": CLIENT_HEADER, "descriptor_key": "client"}}
                ]
            },
            {
                "actions": [
                    {
                        "header_value_match": {
                            "descriptor_key": "model",
                            "descriptor_value": "all",
                            "expect_match": False,
                            "headers": [header(CLIENT_HEADER, OPERATOR)],
                        }
                    }
                ]
            },
        ],
        "descriptors": [
            {
                "entries": [{"key": "client", "value": caller.name}],
                "token_bucket": _bucket(caller.rate_rps),
            }
            for caller in limits.callers
        ]
        + [{"entries": [{"key": "model", "value": "all"}], "token_bucket": everyone}],
    }


def _bucket(rate_rps: int) -> Json:
    return {"max_tokens": rate_rps, "tokens_per_fill": rate_rps, "fill_interval": "1s"}
