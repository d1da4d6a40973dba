"""Drives the stack's Envoy: swaps its watched files and waits until it has taken them over."""

import re
import time
from dataclasses import asdict, replace
from typing import Any

import httpx
from pydantic import TypeAdapter

from serving.errors import StackError
from serving.gateway.envoy import (
    ROUTES,
    cluster_name,
    render_bootstrap,
    render_watched,
    version_of,
)
from serving.gateway.routes import Endpoint, Gateway, ModelRoute
from serving.local.home import Home, State, write_atomically, write_json

_GATEWAY = TypeAdapter(Gateway)
CONFIRM_SECONDS = 10.0
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 0.1


def empty_gateway(state: State) -> Gateway:
    """A gateway in front of the stack's replicas that serves no model yet."""
    return Gateway(
        port=state.ports["gateway"],
        admin_port=state.ports["envoy-admin"],
        servers=tuple(endpoint(state, name) for name in state.replica_names),
        models=(),
    )


def endpoint(state: State, replica: str) -> Endpoint:
    """Address of one Triton replica."""
    return Endpoint("127.0.0.1", state.ports[f"{replica}-http"])


def read_gateway(home: Home) -> Gateway:
    """The gateway as it was last written."""
    return _GATEWAY.validate_json((home.envoy / "gateway.json").read_bytes())


def write_gateway(home: Home, gateway: Gateway) -> None:
    """Write all of Envoy's files for its start."""
    folder = home.envoy / "xds"
    write_atomically(home.envoy / "bootstrap.yaml", render_bootstrap(gateway, folder))
    _write_watched(home, gateway)
    write_json(home.envoy / "gateway.json", asdict(gateway))


def _write_watched(home: Home, gateway: Gateway) -> None:
    folder = home.envoy / "xds"
    for name, text in render_watched(gateway, folder).items():
        write_atomically(folder / name, text)


def swap(home: Home, state: State, after: Gateway) -> None:
    """Move Envoy to `after` without cutting a connection.

    Clusters of both sides exist while the routes change, and those that nothing points to any more
    go last.

    Raises:
        StackError: Envoy rejected a file, or did not take it over in time; it goes on with what
            it had.
    """
    before = read_gateway(home)
    try:
        _swap(home, state, before, after)
    except BaseException:
        # Also for an Envoy that restarts: it is to find what it had, not what it refused.
        _write_watched(home, before)
        raise
    write_json(home.envoy / "gateway.json", asdict(after))


def _swap(home: Home, state: State, before: Gateway, after: Gateway) -> None:
    folder = home.envoy / "xds"
    kept = {cluster_name(model) for model in after.models}
    leaving = tuple(model for model in before.models if cluster_name(model) not in kept)
    both = replace(after, models=after.models + leaving)
    final = render_watched(after, folder)
    steps = {
        name: text for name, text in render_watched(both, folder).items() if name != "rds.yaml"
    }
    _replace(home, state, steps)
    _replace(home, state, {"rds.yaml": final["rds.yaml"]})
    if leaving:
        for model in leaving:
            wait_until_idle(state, model)
        _replace(home, state, {"cds.yaml": final["cds.yaml"]})
        for model in leaving:
            (folder / f"eds-{cluster_name(model)}.yaml").unlink(missing_ok=True)


def wait_until_idle(state: State, route: ModelRoute, at: Endpoint | None = None) -> None:
    """Wait until what was sent under this route, to one endpoint or to any, is answered.

    A bounded wait: a request that takes longer is the model server's to finish.
    """
    # Worker threads take a change over a moment after the main thread has confirmed it.
    time.sleep(SETTLE_SECONDS)
    deadline = time.monotonic() + IDLE_SECONDS
    while _in_flight(state, route, at) and time.monotonic() < deadline:
        time.sleep(0.02)


def _in_flight(state: State, route: ModelRoute, at: Endpoint | None) -> int:
    clusters = _admin(state, "/clusters", {"format": "json"}).json()["cluster_statuses"]
    return sum(
        int(stat.get("value", 0))
        for cluster in clusters
        if cluster["name"] == cluster_name(route)
        for host in cluster.get("host_statuses", ())
        if at is None or host["address"]["socket_address"]["port_value"] == at.port
        for stat in host["stats"]
        if stat["name"] == "rq_active"
    )


def _replace(home: Home, state: State, files: dict[str, str]) -> None:
    rejected = _rejections(state)
    for name, text in files.items():
        write_atomically(home.envoy / "xds" / name, text)
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
    if file == "rds.yaml":
        return f"http.gateway.rds.{ROUTES}.version_text"
    if file == "cds.yaml":
        return "cluster_manager.cds.version_text"
    return f"cluster.{file.removeprefix('eds-').removesuffix('.yaml')}.version_text"


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
