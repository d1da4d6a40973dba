"""Asks each server whether it is healthy and what version it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from serving.local.home import State

TIMEOUT_SECONDS = 2.0


def version_and_health(name: str, state: State) -> tuple[str, bool]:
    """Version and health of one server, by its own word; unreachable is unhealthy."""
    probe = _PROBES["triton" if name.startswith("triton-") else name]
    try:
        return probe(name, state)
    except Exception:
        # Whatever a half-started server answers, it is not healthy yet.
        return "", False


def _seaweedfs(_: str, state: State) -> tuple[str, bool]:
    healthy = _get(state, "s3", "/healthz").is_success
    version = _get(state, "master", "/dir/status").json()["Version"]
    # "8000GB 4.48 pypi": the largest volume it was built for comes first.
    return version.split()[1], healthy


def _valkey(_: str, state: State) -> tuple[str, bool]:
    import valkey

    client = valkey.Valkey(
        port=state.ports["valkey"],
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
    )
    with client:
        info: Any = client.info("server")
        return str(info["valkey_version"]), bool(client.ping())


def _triton(name: str, state: State) -> tuple[str, bool]:
    healthy = _get(state, f"{name}-http", "/v2/health/ready").is_success
    version: str = _get(state, f"{name}-http", "/v2").json()["version"]
    return version, healthy


def _envoy(_: str, state: State) -> tuple[str, bool]:
    info = _get(state, "envoy-admin", "/server_info").json()
    # "<commit>/1.40.0/Clean/RELEASE/BoringSSL"
    return info["version"].split("/")[1], info["state"] == "LIVE"


def _get(state: State, port: str, path: str) -> httpx.Response:
    url = f"http://{state.address(port)}{path}"
    return httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False)


_PROBES: dict[str, Callable[[str, State], tuple[str, bool]]] = {
    "seaweedfs": _seaweedfs,
    "valkey": _valkey,
    "triton": _triton,
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
