"""Drives the stack's Envoy: swaps its watched files and waits until it has taken them over."""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import httpx
from pydantic import TypeAdapter

from serving.errors import StackError
from serving.gateway import edge, inner
from serving.gateway.clusters import cluster_name, clusters, grpc_name
from serving.gateway.envoy import (
    PRIVATE,
    render_bootstrap,
    render_certificate,
    render_clusters,
    render_edge_routes,
    render_inner_routes,
    render_watched,
)
from serving.gateway.routes import Endpoint, Gateway
from serving.gateway.xds import version_of
from serving.local.home import Home, State, write_atomically, write_json
from serving.local.keys import gateway_keys
from serving.local.prediction import held_by_hop

_GATEWAY = TypeAdapter(Gateway)
CONFIRM_SECONDS = 10.0
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 0.1


def empty_gateway(state: State) -> Gateway:
    """A gateway in front of the stack's replicas that serves no model yet."""
    return Gateway(
        port=state.ports["gateway"],
        inner_port=state.ports["inner"],
        admin_port=state.ports["envoy-admin"],
        servers=tuple(endpoint(state, name) for name in state.replica_names),
        hops=tuple(Endpoint("127.0.0.1", state.ports[name]) for name in state.hop_names),
        models=(),
    )


def endpoint(state: State, replica: str) -> Endpoint:
    """Address of one Triton replica."""
    return Endpoint("127.0.0.1", state.ports[f"{replica}-http"], state.ports[f"{replica}-grpc"])


def read_gateway(home: Home) -> Gateway:
    """The gateway as it was last written."""
    return _GATEWAY.validate_json((home.envoy / "gateway.json").read_bytes())


def write_gateway(home: Home, gateway: Gateway, slo_edges_ms: Iterable[float]) -> None:
    """Write all of Envoy's files for its start."""
    bootstrap = render_bootstrap(gateway, home.xds, slo_edges_ms)
    write_atomically(home.envoy / "bootstrap.json", bootstrap)
    _write(home, render_certificate(home.tls / "server.pem", home.tls / "server.key"))
    _write(home, render_watched(gateway, home.xds, gateway_keys(home)))
    write_json(home.envoy / "gateway.json", asdict(gateway))


def _write(home: Home, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_atomically(home.xds / name, text, private=name == PRIVATE)


def swap(home: Home, state: State, after: Gateway) -> None:
    """Move Envoy to `after` without cutting a connection.

    Clusters and inner routes of both sides exist while the routes of clients change; those that
    nothing points to any more go last.

    Raises:
        StackError: Envoy rejected a file, or did not take it over in time; it goes on with what
            it had.
    """
    before = read_gateway(home)
    try:
        _swap(home, state, before, after)
    except BaseException:
        # Also for an Envoy that restarts: it is to find what it had, not what it refused.
        _write(home, render_watched(before, home.xds, gateway_keys(home)))
        raise
    write_json(home.envoy / "gateway.json", asdict(after))


def _swap(home: Home, state: State, before: Gateway, after: Gateway) -> None:
    arriving = {cluster.name for cluster in clusters(after)}
    leaving = [cluster for cluster in clusters(before) if cluster.name not in arriving]
    _replace(home, state, render_clusters((*clusters(after), *leaving), home.xds))
    _replace(home, state, render_inner_routes(_joined(before, after)))
    _replace(home, state, render_edge_routes(after, gateway_keys(home)))
    if leaving:
        _wait_until_left(home, state, before, after)
        _replace(home, state, render_inner_routes(after))
        _replace(home, state, render_clusters(clusters(after), home.xds))
        for cluster in leaving:
            (home.xds / f"eds-{cluster.name}.json").unlink(missing_ok=True)


def _joined(before: Gateway, after: Gateway) -> Gateway:
    """Every version of either side, for the hops: what they hold may still be for the old one."""
    joined = after
    for old in before.models:
        new = after.route(old.model)
        if new is None:
            joined = joined.with_route(old)
            continue
        numbers = {version.number for version in new.versions}
        left = tuple(each for each in old.versions if each.number not in numbers)
        joined = joined.with_route(replace(new, versions=(*new.versions, *left)))
    return joined


def _wait_until_left(home: Home, state: State, before: Gateway, after: Gateway) -> None:
    for old in before.models:
        new = after.route(old.model)
        numbers = {version.number for version in new.versions} if new else set()
        for version in old.versions:
            if version.number not in numbers:
                wait_until_idle(state, old.model, version.number)


def refresh_keys(home: Home, state: State) -> None:
    """Let Envoy take over the keys as they are now; streams of a revoked one go on.

    Raises:
        StackError: Envoy did not take them over.
    """
    _replace(home, state, render_edge_routes(read_gateway(home), gateway_keys(home)))


def wait_until_idle(state: State, model: str, version: int, at: Endpoint | None = None) -> None:
    """Wait until what was sent to a version, at one endpoint or at any, is answered.

    A bounded wait: a request that takes longer is the model server's to finish.
    """
    # Worker threads take a change over a moment after the main thread has confirmed it.
    time.sleep(SETTLE_SECONDS)
    deadline = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < deadline:
        # Hops first: what one of them holds is yet to come to the model servers.
        hops = state.hop_names if at is None else ()
        held = sum(held_by_hop(state, hop, model, version) for hop in hops)
        if not held and not _in_flight(state, model, version, at):
            return
        time.sleep(0.02)


def _in_flight(state: State, model: str, version: int, at: Endpoint | None) -> int:
    names = {cluster_name(model, version), grpc_name(model, version)}
    ports = {at.port, at.grpc_port} if at else None
    found = _admin(state, "/clusters", {"format": "json"}).json()["cluster_statuses"]
    return sum(
        int(stat.get("value", 0))
        for cluster in found
        if cluster["name"] in names
        for host in cluster.get("host_statuses", ())
        if ports is None or host["address"]["socket_address"]["port_value"] in ports
        for stat in host["stats"]
        if stat["name"] == "rq_active"
    )


def _replace(home: Home, state: State, files: dict[str, str]) -> None:
    rejected = _rejections(state)
    _write(home, files)
    deadline = time.monotonic() + CONFIRM_SECONDS
    waiting = dict(files)
    while True:
        texts = _stats(state, "version_text$", "TextReadouts")
        waiting = {
            name: text
            for name, text in waiting.items()
            if texts.get(_stat(name)) != version_of(text)
        }
        if not waiting:
            return
        if _rejections(state) != rejected:
            raise StackError(
                f"envoy rejected {', '.join(waiting)}: {_reason(state)}; it goes on with the "
                "routes it had"
            )
        if time.monotonic() > deadline:
            raise StackError(
                f"envoy did not take over {', '.join(waiting)} in {CONFIRM_SECONDS:g} s; see: "
                "galley logs envoy"
            )
        time.sleep(0.02)


def _stat(file: str) -> str:
    """Name of the statistic in which Envoy tells the version of a watched file."""
    if file == "rds.json":
        return f"http.gateway.rds.{edge.ROUTES}.version_text"
    if file == "inner-rds.json":
        return f"http.inner.rds.{inner.ROUTES}.version_text"
    if file == "cds.json":
        return "cluster_manager.cds.version_text"
    return f"cluster.{file.removeprefix('eds-').removesuffix('.json')}.version_text"


def _rejections(state: State) -> int:
    return sum(_stats(state, "update_rejected$", "Counters").values())


def _reason(state: State) -> str:
    dump = _admin(state, "/config_dump", {"resource": "", "mask": ""}).text
    found = re.findall(r'"details":\s*"([^"]*)"', dump)
    return found[-1] if found else "see: galley logs envoy"


def _stats(state: State, pattern: str, kind: str) -> dict[str, Any]:
    query = {"format": "json", "filter": pattern, "type": kind}
    stats = _admin(state, "/stats", query).json()["stats"]
    return {each["name"]: each["value"] for each in stats if "name" in each}


def _admin(state: State, path: str, query: dict[str, str]) -> httpx.Response:
    url = f"http://{state.address('envoy-admin')}{path}"
    try:
        return httpx.get(url, params=query, timeout=5, trust_env=False)
    except httpx.HTTPError as error:
        raise StackError(f"envoy does not answer ({error}); see: galley logs envoy") from error
