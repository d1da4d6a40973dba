"""Envoy's routes for the prediction hops: each version by its path, and copies to a mirror."""

from collections.abc import Iterator

from serving.gateway import grpc
from serving.gateway.clusters import cluster_name, shadow_name, version_path
from serving.gateway.headers import SHADOW_HEADER, hash_policy, header, method
from serving.gateway.retries import model_retries, unsent_retries
from serving.gateway.routes import Gateway, Mirror, ModelRoute
from serving.gateway.xds import Json, seconds, set_header

ROUTES = "versions"


def render_inner(gateway: Gateway) -> Json:
    """The routes that prediction hops see."""
    routes = [
        route
        for model in gateway.models
        if model.limits.kind == "tensors"
        for route in _version_routes(model)
    ]
    routes += grpc.inner_routes(gateway)
    routes.append(
        {
            "match": {"prefix": "/"},
            "direct_response": {
                "status": 503,
                "body": {"inline_string": "this version is not served any more"},
            },
        }
    )
    return {
        "name": ROUTES,
        "virtual_hosts": [{"name": "versions", "domains": ["*"], "routes": routes}],
    }


def _version_routes(route: ModelRoute) -> Iterator[Json]:
    for version in route.versions:
        match = {
            "path": f"{version_path(route.model, version.number)}/infer",
            "headers": [method("POST")],
        }
        action = {
            "cluster": cluster_name(route.model, version.number),
            "timeout": seconds(route.limits.timeout_seconds),
            "retry_policy": model_retries(route.limits),
            **hash_policy(route.limits),
        }
        if route.mirror and version == route.main:
            yield _copy(route, match, route.mirror)
            yield _mirrored(route.model, match, action, route.mirror)
        yield {"match": match, "route": action}


def _copy(route: ModelRoute, match: Json, mirror: Mirror) -> Json:
    """Where copies go that come in again: they carry the path of the version they are copied of."""
    marked = header(SHADOW_HEADER, str(mirror.number))
    return {
        "match": {**match, "headers": [*match["headers"], marked]},
        "route": {
            "cluster": cluster_name(route.model, mirror.number),
            "regex_rewrite": {
                "pattern": {"regex": f"^{match['path']}$"},
                "substitution": f"{version_path(route.model, mirror.number)}/infer",
            },
            "timeout": seconds(route.limits.timeout_seconds),
            "retry_policy": unsent_retries(),
        },
    }


def _mirrored(model: str, match: Json, action: Json, mirror: Mirror) -> Json:
    size = {"start": 0, "end": mirror.max_request_bytes + 1}
    return {
        "match": {
            **match,
            "headers": [*match["headers"], {"name": "content-length", "range_match": size}],
        },
        "route": {
            **action,
            "request_mirror_policies": [
                {
                    "cluster": shadow_name(model, mirror.number),
                    "runtime_fraction": {
                        "default_value": {
                            "numerator": round(mirror.percent * 10_000),
                            "denominator": "MILLION",
                        }
                    },
                    "disable_shadow_host_suffix_append": True,
                    "request_headers_mutations": [
                        {"append": set_header(SHADOW_HEADER, str(mirror.number))}
                    ],
                }
            ],
        },
    }
