"""The processes of the local stack: how each server is started, as plain data."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.gateway.prediction.cache import KEY_PREFIX
from serving.local.engines import Engines
from serving.local.home import HOPS, Home, Secrets, State

BUCKET = "galley"
CACHE_USER = "prediction"
PROBE_USER = "probe"
CACHE_MEMORY = "64mb"
# Ports every stack has; each Triton replica adds its own three.
PORTS = (
    "gateway",
    "inner",
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
    """One supervised server. `port` is the one its clients use, where it has any."""

    name: str
    server: str
    command: tuple[str, ...]
    port: int | None
    stop_signal: str = "TERM"
    stop_wait_seconds: int = 5
    environment: Mapping[str, str] = field(default_factory=dict)


def port_names(replicas: int) -> tuple[str, ...]:
    """Names of all ports of a stack with that many Triton replicas."""
    hops = tuple(f"prediction-{n}" for n in range(HOPS))
    return PORTS + hops + tuple(f"triton-{n}-{p}" for n in range(replicas) for p in TRITON_PORTS)


def plan_processes(home: Home, state: State, engines: Engines) -> tuple[Process, ...]:
    """Every server of the stack, in the order in which they are started."""
    return (
        _seaweedfs(home, state, engines),
        _valkey(home, state, engines),
        # They stop in the opposite order: it ships what the hops close when they end.
        _shipper(home),
        *(_triton(home, state, engines, name) for name in state.replica_names),
        *(_hop(home, state, name) for name in state.hop_names),
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


def valkey_conf(state: State, secrets: Secrets) -> str:
    """Valkey's configuration; of the passwords it holds the hashes only."""
    settings = {
        "bind": "127.0.0.1",
        "port": state.ports["valkey"],
        # Its title would overwrite the environment, by which the stack's processes are known.
        "set-proc-title": "no",
        "save": '""',
        "appendonly": "no",
        # A cache: when it is full, the least used entries make room.
        "maxmemory": CACHE_MEMORY,
        "maxmemory-policy": "allkeys-lru",
    }
    users = (
        "default off",
        f"{CACHE_USER} on #{_hash(secrets.cache_password)} resetkeys ~{KEY_PREFIX.decode()}* "
        "resetchannels -@all +set +del",
        f"{PROBE_USER} on #{_hash(secrets.probe_password)} resetkeys resetchannels "
        "-@all +ping +info +client|setinfo",
    )
    lines = [f"{name} {value}" for name, value in settings.items()]
    return "".join(f"{line}\n" for line in (*lines, *(f"user {user}" for user in users)))


def _hash(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def _valkey(home: Home, state: State, engines: Engines) -> Process:
    return Process(
        name="valkey",
        server="Valkey",
        # In the home folder, where nothing of it is written.
        command=(str(engines.valkey), home.valkey_conf.name),
        port=state.ports["valkey"],
    )


def _hop(home: Home, state: State, name: str) -> Process:
    return Process(
        name=name,
        server="galley",
        command=(
            *(sys.executable, "-m", "serving.gateway.prediction.server"),
            str(home.prediction / f"{name}.json"),
        ),
        port=state.ports[name],
        # Longer than it takes to finish what is in flight.
        stop_wait_seconds=12,
    )


def _shipper(home: Home) -> Process:
    return Process(
        name="shipper",
        server="galley",
        command=(sys.executable, "-m", "serving.local.shipper"),
        # It asks, and is asked nothing.
        port=None,
        environment={"GALLEY_HOME": str(home.root)},
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
            *("-c", str(home.envoy / "bootstrap.json")),
            # One Envoy per stack, never handed over to a second one.
            "--disable-hot-restart",
            *("--concurrency", "2", "--log-level", "warning"),
            # It would say at every change that its filter of keys is a work in progress.
            *("--component-log-level", "misc:error"),
            *("--drain-time-s", "2"),
        ),
        port=state.ports["gateway"],
    )
