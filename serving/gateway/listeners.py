"""Envoy's two doors: the edge for clients, and the inner one for the prediction hops.

They are static, since replacing a listener cuts long streams; all that changes while it runs is in
the files of routes, clusters, endpoints and certificates.
"""

from pathlib import Path

from serving.gateway import edge, grpc, inner
from serving.gateway.filters import AUTH, BUFFER, RATE, RBAC
from serving.gateway.headers import CLIENT_HEADER, VERSION_HEADER
from serving.gateway.replies import local_replies
from serving.gateway.routes import Gateway
from serving.gateway.xds import EXTENSIONS, Json, address, http_filter, typed, watched

# Most connections of all clients together, so that they cannot use up the file handles.
MOST_CONNECTIONS = 10_000
SERVER_CERTIFICATE = "server"
TLS_FILE = "tls.json"


def edge_listener(gateway: Gateway, folder: Path) -> Json:
    """Where clients come in: TLS, keys, limits."""
    filters = [
        # No keys and no limits here: every route brings its own.
        http_filter(AUTH, "api_key_auth.v3.ApiKeyAuth"),
        *grpc.edge_filters(),
        http_filter(RBAC, "rbac.v3.RBAC"),
        http_filter(RATE, "local_ratelimit.v3.LocalRateLimit", stat_prefix="galley"),
        # After the limits, so that nobody uploads what is going to be refused.
        http_filter(BUFFER, "buffer.v3.Buffer", max_request_bytes=65_536),
        _router(),
    ]
    manager = {
        **_manager("gateway", edge.ROUTES, "rds.json", folder),
        "http_filters": filters,
        "access_log": [_access_log()],
        "local_reply_config": local_replies(),
        # What Envoy's own documentation asks of a proxy at the edge.
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "request_headers_timeout": "5s",
        "request_timeout": "15s",
        "max_request_headers_kb": 32,
        "always_set_request_id_in_response": True,
        "common_http_protocol_options": {
            "idle_timeout": "300s",
            "headers_with_underscores_action": "REJECT_REQUEST",
            "max_headers_count": 64,
        },
        "http2_protocol_options": {
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 64 * 1024,
            "initial_connection_window_size": 1024 * 1024,
        },
        "server_name": "galley",
    }
    chain = {"filters": [_network_filter(manager)], "transport_socket": _tls(folder)}
    return _listener("gateway", gateway.port, chain)


def inner_listener(gateway: Gateway, folder: Path) -> Json:
    """Where prediction hops send what they have checked: loopback, no keys."""
    manager = {
        **_manager("inner", inner.ROUTES, "inner-rds.json", folder),
        "http_filters": [
            # Or a body of more than the connection's buffer could not be sent a second time.
            http_filter(BUFFER, "buffer.v3.Buffer", max_request_bytes=grpc.MOST_BYTES),
            *grpc.inner_filters(),
            _router(),
        ],
        "local_reply_config": local_replies(),
    }
    listener = _listener("inner", gateway.inner_port, {"filters": [_network_filter(manager)]})
    return {**listener, "ignore_global_conn_limit": True}


def server_certificate(certificate: Path, key: Path) -> Json:
    """The watched file that names the edge's certificate."""
    return {
        "name": SERVER_CERTIFICATE,
        "tls_certificate": {
            "certificate_chain": {"filename": str(certificate)},
            "private_key": {"filename": str(key)},
        },
    }


def _manager(prefix: str, routes: str, file: str, folder: Path) -> Json:
    return {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": prefix,
        "rds": {"route_config_name": routes, "config_source": watched(folder, file)},
    }


def _router() -> Json:
    return http_filter("envoy.filters.http.router", "router.v3.Router")


def _network_filter(manager: Json) -> Json:
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}


def _listener(name: str, port: int, chain: Json) -> Json:
    return {
        "name": name,
        "address": address("127.0.0.1", port),
        "per_connection_buffer_limit_bytes": 32_768,
        "filter_chains": [chain],
    }


def _tls(folder: Path) -> Json:
    certificate = {"name": SERVER_CERTIFICATE, "sds_config": watched(folder, TLS_FILE)}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(
            "transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context={
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [certificate],
            },
        ),
    }


def _access_log() -> Json:
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": typed(
            "access_loggers.stream.v3.StdoutAccessLog",
            log_format={
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "client": f"%REQ({CLIENT_HEADER.upper()})%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ)%",
                    "status": "%RESPONSE_CODE%",
                    "flags": "%RESPONSE_FLAGS%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "duration_ms": "%DURATION%",
                    "version": f"%RESP({VERSION_HEADER.upper()})%",
                    "cache": "%RESP(X-GALLEY-CACHE)%",
                    "upstream": "%UPSTREAM_HOST%",
                    "cluster": "%UPSTREAM_CLUSTER%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                }
            },
        ),
    }
