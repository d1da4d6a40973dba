"""Envoy's configuration, rendered from the gateway's routes.

The listener is static, since replacing a listener cuts long streams; routes (RDS), clusters (CDS)
and endpoints (EDS) are files that Envoy watches and takes over without touching connections.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from serving.gateway.routes import Endpoint, Gateway, ModelRoute

Json = dict[str, Any]

ROUTES = "models"
SERVERS_CLUSTER = "servers"
# What a request may be repeated for on another replica: only what cannot have run.
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
# Models that the answer to an unknown path names.
LISTED_MODELS = 50

# Turns Triton's wrong 500s into 400s.
CLIENT_ERRORS = Path(__file__).with_name("client_errors.lua")

_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_HTTP = f"{_EXTENSIONS}.filters.http"


def cluster_name(route: ModelRoute) -> str:
    """Name of the cluster of one model version, as it appears in Envoy's metrics."""
    return f"{route.model}-v{route.version}"


def render_bootstrap(gateway: Gateway, folder: Path) -> str:
    """Envoy's start-up file; `folder` holds the watched files."""
    return _yaml(
        {
            "node": {"id": "galley-local", "cluster": "galley"},
            "admin": {"address": _address("127.0.0.1", gateway.admin_port)},
            "dynamic_resources": {"cds_config": _file(folder, "cds.yaml")},
            "static_resources": {"listeners": [_listener(gateway.port, folder)]},
            "stats_config": {"stats_tags": []},
        }
    )


def render_watched(gateway: Gateway, folder: Path) -> dict[str, str]:
    """The watched files by name, in the order in which they may be replaced.

    Endpoints and clusters come before the routes that use them.
    """
    clusters = {SERVERS_CLUSTER: gateway.servers}
    clusters |= {cluster_name(model): model.endpoints for model in gateway.models}
    ready = {cluster_name(model): f"{_version_path(model)}/ready" for model in gateway.models}
    files = {
        f"eds-{name}.yaml": _resources("endpoint.v3.ClusterLoadAssignment", [_endpoints(name, at)])
        for name, at in clusters.items()
    }
    files["cds.yaml"] = _resources(
        "cluster.v3.Cluster",
        [_cluster(name, folder, ready.get(name, "/v2/health/ready")) for name in clusters],
    )
    files["rds.yaml"] = _resources("route.v3.RouteConfiguration", [_routes(gateway)])
    return files


def version_of(resources: str) -> str:
    """The version that Envoy reports once it has taken over these resources."""
    # Always the first line; reading all of it takes most of a second with many models.
    return resources.partition("\n")[0].removeprefix("version_info: ")


def _listener(port: int, folder: Path) -> Json:
    manager = {
        "@type": f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "rds": {"route_config_name": ROUTES, "config_source": _file(folder, "rds.yaml")},
        "http_filters": [
            _filter("envoy.filters.http.buffer", "buffer.v3.Buffer", max_request_bytes=65_536),
            _filter(
                "envoy.filters.http.lua",
                "lua.v3.Lua",
                default_source_code={"inline_string": CLIENT_ERRORS.read_text()},
            ),
            _filter("envoy.filters.http.router", "router.v3.Router"),
        ],
        "access_log": [_access_log()],
        "local_reply_config": _local_replies(),
        # Edge settings that Envoy's own documentation asks for.
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "request_headers_timeout": "5s",
        "request_timeout": "60s",
        "common_http_protocol_options": {
            "idle_timeout": "300s",
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        "server_name": "galley",
    }
    return {
        "name": "gateway",
        "address": _address("127.0.0.1", port),
        "per_connection_buffer_limit_bytes": 32_768,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _routes(gateway: Gateway) -> Json:
    routes = [route for model in gateway.models for route in _model_routes(model)]
    routes += [_server_route(path) for path in ("/v2", "/v2/health/live", "/v2/health/ready")]
    # Plain text: the listener makes JSON of everything that Envoy answers by itself.
    nothing = f"no such path or model at this gateway; models: {_deployed(gateway)}"
    routes.append(
        {
            "match": {"prefix": "/"},
            "direct_response": {"status": 404, "body": {"inline_string": nothing}},
        }
    )
    return {
        "name": ROUTES,
        "virtual_hosts": [{"name": "models", "domains": ["*"], "routes": routes}],
    }


def _deployed(gateway: Gateway) -> str:
    names = [model.model for model in gateway.models]
    # Envoy rejects all routes where an answer of its own is longer than 4,096 bytes.
    more = f" and {len(names) - LISTED_MODELS} more" if len(names) > LISTED_MODELS else ""
    return ", ".join(names[:LISTED_MODELS]) + more or "none"


def _version_path(model: ModelRoute) -> str:
    return f"/v2/models/{model.model}/versions/{model.version}"


def _model_routes(model: ModelRoute) -> list[Json]:
    return [
        _model_route(model, "/infer", "POST"),
        _model_route(model, "", "GET"),
        _model_route(model, "/ready", "GET"),
    ]


def _model_route(model: ModelRoute, suffix: str, method: str) -> Json:
    path = f"/v2/models/{model.model}"
    return {
        "match": {"path": f"{path}{suffix}", "headers": [_method(method)]},
        "route": {
            "cluster": cluster_name(model),
            # The version is chosen here, and not by whatever the model server has loaded.
            "regex_rewrite": {
                "pattern": {"regex": f"^{path}{suffix}$"},
                "substitution": f"{_version_path(model)}{suffix}",
            },
            "timeout": f"{model.timeout_seconds}s",
            "retry_policy": {
                "retry_on": RETRY_ON,
                "num_retries": 2,
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": f"{_EXTENSIONS}.retry.host.previous_hosts.v3"
                            ".PreviousHostsPredicate"
                        },
                    }
                ],
                # With two replicas three draws of four find the dead one: 50 never all do.
                "host_selection_retry_max_attempts": 50,
            },
        },
        "metadata": {
            "filter_metadata": {"galley": {"max_request_bytes": str(model.max_request_bytes)}}
        },
        "typed_per_filter_config": {
            "envoy.filters.http.buffer": {
                "@type": f"{_HTTP}.buffer.v3.BufferPerRoute",
                "buffer": {"max_request_bytes": model.max_request_bytes},
            }
        },
        "response_headers_to_add": [
            _header("x-galley-version", str(model.version)),
            _header("x-galley-digest", model.digest),
        ],
    }


def _server_route(path: str) -> Json:
    return {
        "match": {"path": path, "headers": [_method("GET")]},
        "route": {"cluster": SERVERS_CLUSTER, "timeout": "5s"},
    }


def _cluster(name: str, folder: Path, ready_path: str) -> Json:
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _file(folder, f"eds-{name}.yaml")},
        "connect_timeout": "1s",
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": {
                            "@type": f"{_EXTENSIONS}.load_balancing_policies.least_request.v3"
                            ".LeastRequest",
                            # Not FULL_SCAN: it would choose a dead replica, which has the
                            # fewest requests, again for every retry. Of two random ones, some
                            # draw soon finds another.
                            "choice_count": {"value": 2},
                        },
                    }
                }
            ]
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "circuit_breakers": {
            "thresholds": [
                {
                    # By default a fourth request that is refused at the same time is not retried.
                    # What is retried here has not run, so no model works twice for it.
                    "retry_budget": {
                        "budget_percent": {"value": 100},
                        "min_retry_concurrency": 64,
                    }
                }
            ]
        },
        # A dead replica has the fewest requests, so it would be chosen first until two health
        # checks have failed. One refused connection takes it out at once.
        "outlier_detection": {
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
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": ready_path},
            }
        ],
    }


def _endpoints(cluster: str, endpoints: tuple[Endpoint, ...]) -> Json:
    return {
        "cluster_name": cluster,
        "endpoints": [
            {
                "lb_endpoints": [
                    {
                        "endpoint": {"address": _address(at.address, at.port)},
                        "health_status": "DRAINING" if at.draining else "UNKNOWN",
                    }
                    for at in endpoints
                ]
            }
        ],
    }


def _local_replies() -> Json:
    """Errors that Envoy answers by itself, as JSON like the model server's own."""
    too_large = (
        "request body is larger than the %METADATA(ROUTE:galley:max_request_bytes)% bytes that a "
        "full batch needs"
    )
    return {
        "mappers": [
            _reply(413, too_large),
            # Envoy's own body of these is empty.
            _reply(400, "the gateway refuses the request: %RESPONSE_CODE_DETAILS%"),
        ],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _reply(status: int, error: str) -> Json:
    code = {"default_value": status, "runtime_key": f"galley.reply_{status}"}
    return {
        "filter": {"status_code_filter": {"comparison": {"op": "EQ", "value": code}}},
        "body_format_override": {"json_format": {"error": error}},
    }


def _access_log() -> Json:
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": f"{_EXTENSIONS}.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ)%",
                    "status": "%RESPONSE_CODE%",
                    "flags": "%RESPONSE_FLAGS%",
                    "duration_ms": "%DURATION%",
                    "upstream": "%UPSTREAM_HOST%",
                    "cluster": "%UPSTREAM_CLUSTER%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                }
            },
        },
    }


def _filter(name: str, kind: str, **settings: Any) -> Json:
    return {"name": name, "typed_config": {"@type": f"{_HTTP}.{kind}", **settings}}


def _file(folder: Path, name: str) -> Json:
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": str(folder / name),
            "watched_directory": {"path": str(folder)},
        },
    }


def _resources(kind: str, resources: list[Json]) -> str:
    typed = [{"@type": f"type.googleapis.com/envoy.config.{kind}", **each} for each in resources]
    version = hashlib.sha256(json.dumps(typed, sort_keys=True).encode()).hexdigest()[:16]
    # A leading letter, or YAML reads some of these as numbers.
    return _yaml({"version_info": f"v{version}", "resources": typed})


def _address(address: str, port: int) -> Json:
    return {"socket_address": {"address": address, "port_value": port}}


def _method(method: str) -> Json:
    return {"name": ":method", "string_match": {"exact": method}}


def _header(name: str, value: str) -> Json:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def _yaml(value: Json) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, width=100)
    return text
