"""The processes of the local stack: how each server is started, as plain data."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.local.engines import Engines
from serving.local.home import Home, Secrets, State

BUCKET = "galley"
# Ports every stack has; each Triton replica adds its own three.
PORTS = (
    "gateway",
    "envoy-admin",
    "s3",
    "s3-grpc",
    "master",
    "master-grpc",
    "volume",
    "volume-grpc",
    "filer",
    "filer-grpc",
    "valkey",
    "supervisor",
)
TRITON_PORTS = ("http", "grpc", "metrics")


@dataclass(frozen=True)
class Process:
    """One supervised server. `port` is the one its clients use."""

    name: str
    server: str
    command: tuple[str, ...]
    port: int
    stop_signal: str = "TERM"
    stop_wait_seconds: int = 5
    environment: Mapping[str, str] = field(default_factory=dict)


def port_names(replicas: int) -> tuple[str, ...]:
    """Names of all ports of a stack with that many Triton replicas."""
    return PORTS + tuple(f"triton-{n}-{port}" for n in range(replicas) for port in TRITON_PORTS)


def plan_processes(home: Home, state: State, engines: Engines) -> tuple[Process, ...]:
    """Every server of the stack, in the order in which they are started."""
    return (
        _seaweedfs(home, state, engines),
        _valkey(home, state, engines),
        *(_triton(home, state, engines, name) for name in state.replica_names),
        _envoy(home, state, engines),
    )


def s3_identities(secrets: Secrets) -> str:
    """SeaweedFS's identity file: one user, who owns the registry."""
    credentials = {"accessKey": secrets.s3_access_key, "secretKey": secrets.s3_secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return json.dumps(
        {"identities": [{"name": "galley", "credentials": [credentials], "actions": actions}]}
    )


def _seaweedfs(home: Home, state: State, engines: Engines) -> Process:
    ports = {
        f"{part}.port{kind.replace('-', '.')}": state.ports[f"{part}{kind}"]
        for part in ("s3", "master", "volume", "filer")
        for kind in ("", "-grpc")
    }
    settings: dict[str, object] = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        # Relative to the home folder, in which it runs: a comma would part two folders.
        "dir": home.store.name,
        "s3.config": "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        # Or it sends usage statistics to its makers.
        "master.telemetry": "false",
        # No other masters, so no election to wait for.
        "master.peers": "none",
        # Volumes grow as they fill; auto-sized from the disk, not preallocated.
        "volume.max": 0,
        "master.volumeSizeLimitMB": 1024,
        # Otherwise it leaves sockets in the machine's temporary folder.
        "filer.localSocket": "filer.sock",
        "s3.localSocket": "s3.sock",
        **ports,
    }
    flags = tuple(f"-{name}={value}" for name, value in settings.items())
    return Process(
        name="seaweedfs",
        server="SeaweedFS",
        command=(str(engines.weed), "server", "-s3", "-filer", *flags),
        port=state.ports["s3"],
        # Its own shutdown hands volumes over to other servers and waits for them: 25 s here. What
        # it has acknowledged is in files already.
        stop_signal="KILL",
    )


def _valkey(home: Home, state: State, engines: Engines) -> Process:
    return Process(
        name="valkey",
        server="Valkey",
        command=(
            str(engines.valkey),
            *("--bind", "127.0.0.1", "--port", str(state.ports["valkey"])),
            # Its title would overwrite the environment, by which the stack's processes are known.
            *("--set-proc-title", "no"),
            *("--save", "", "--appendonly", "no", "--dir", str(home.root)),
            # A cache: when it is full, the least used entries make room.
            *("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"),
        ),
        port=state.ports["valkey"],
    )


def _triton(home: Home, state: State, engines: Engines, name: str) -> Process:
    return Process(
        name=name,
        server="Triton",
        command=(sys.executable, "-m", "serving.local.replica", name),
        port=state.ports[f"{name}-http"],
        # Longer than --exit-timeout-secs, in which requests in flight are finished.
        stop_wait_seconds=15,
        environment={"GALLEY_HOME": str(home.root), "GALLEY_ENGINES": str(engines.weed.parents[1])},
    )


def _envoy(home: Home, state: State, engines: Engines) -> Process:
    return Process(
        name="envoy",
        server="Envoy",
        command=(
            str(engines.envoy),
            *("-c", str(home.envoy / "bootstrap.yaml")),
            # One Envoy per stack, never handed over to a second one.
            "--disable-hot-restart",
            *("--concurrency", "2", "--log-level", "warning"),
            *("--drain-time-s", "2"),
        ),
        port=state.ports["gateway"],
    )
