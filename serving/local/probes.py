"""Asks each server whether it is healthy and what version it is."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import psutil

from serving.local.home import Home, State
from serving.local.processes import PROBE_USER
from serving.local.replica import read_deployments

TIMEOUT_SECONDS = 2.0


def version_and_health(name: str, home: Home, state: State) -> tuple[str, bool]:
    """Version and health of one server, by its own word; unreachable is unhealthy."""
    kind, dash, number = name.rpartition("-")
    probe = _PROBES[kind if dash and number.isdigit() else name]
    try:
        return probe(name, home, state)
    except Exception:
        # Whatever a half-started server answers, it is not healthy yet.
        return "", False


def _seaweedfs(_: str, __: Home, state: State) -> tuple[str, bool]:
    healthy = _get(state, "s3", "/healthz").is_success
    version = _get(state, "master", "/dir/status").json()["Version"]
    # "8000GB 4.48 pypi": the largest volume it was built for comes first.
    return version.split()[1], healthy


def _valkey(_: str, home: Home, state: State) -> tuple[str, bool]:
    import valkey

    client = valkey.Valkey(
        port=state.ports["valkey"],
        username=PROBE_USER,
        password=home.secrets().probe_password,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
    )
    with client:
        info: Any = client.info("server")
        return str(info["valkey_version"]), bool(client.ping())


def _triton(name: str, home: Home, state: State) -> tuple[str, bool]:
    # Whether all its models are ready is asked of each: Triton's own word for it stays "no" for
    # good once a load has failed, also after another version was loaded in its place.
    paths = ["/v2/health/ready"]
    paths += [
        f"/v2/models/{each.model}/versions/{each.version}/ready"
        for each in read_deployments(home, name)
    ]
    healthy = all(_get(state, f"{name}-http", path).is_success for path in paths)
    version: str = _get(state, f"{name}-http", "/v2").json()["version"]
    return version, healthy


def _prediction(name: str, __: Home, state: State) -> tuple[str, bool]:
    return metadata.version("galley"), _get(state, name, "/live").is_success


def _shipper(_: str, __: Home, ___: State) -> tuple[str, bool]:
    # It has no port: that it runs is all that is asked. A store that is down is not its fault.
    return metadata.version("galley"), True


def _envoy(_: str, __: Home, state: State) -> tuple[str, bool]:
    info = _get(state, "envoy-admin", "/server_info").json()
    # "<commit>/1.40.0/Clean/RELEASE/BoringSSL"
    return info["version"].split("/")[1], info["state"] == "LIVE"


def _get(state: State, port: str, path: str) -> httpx.Response:
    url = f"http://{state.address(port)}{path}"
    return httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False)


_PROBES: dict[str, Callable[[str, Home, State], tuple[str, bool]]] = {
    "seaweedfs": _seaweedfs,
    "valkey": _valkey,
    "triton": _triton,
    "prediction": _prediction,
    "shipper": _shipper,
    "envoy": _envoy,
}


def memory_bytes(pid: int, *, children: bool = True) -> int:
    """Memory of a process and its children, shared pages counted once (PSS), in bytes."""
    try:
        process = psutil.Process(pid)
        family = [process, *(process.children(recursive=True) if children else ())]
    except psutil.NoSuchProcess:
        return 0
    return sum(_pss(member.pid) for member in family)


def _pss(pid: int) -> int:
    # One line of smaps_rollup costs a tenth of what psutil's walk over every mapping does.
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ProcessLookupError):
        pass
    return 0
