"""The local stack as a whole: up, down, status."""

import random
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from serving.errors import GalleyError, InputError, StackError
from serving.local import probes
from serving.local.engines import find_engines
from serving.local.gateway import empty_gateway, write_gateway
from serving.local.home import Home, Secrets, State, is_own, write_atomically, write_json
from serving.local.ports import choose_ports, is_free
from serving.local.prediction import write_settings
from serving.local.processes import (
    Process,
    plan_processes,
    port_names,
    s3_identities,
    valkey_conf,
)
from serving.local.replica import prepare_backend, remove_shared_memory
from serving.local.supervisor import STACK_ID, Supervisor, render_conf
from serving.local.tls import write_certificate
from serving.paths import specs_folder
from serving.slo import LatencySlo
from serving.spec import load_spec

START_SECONDS = 60.0
CRASH_SECONDS = 8.0
STOP_SECONDS = 20.0
ATTEMPTS = 3
ALIVE = ("STARTING", "RUNNING")


@dataclass(frozen=True)
class ProcessStatus:
    """One process as it is now."""

    name: str
    server: str
    pid: int | None
    port: int | None
    version: str
    healthy: bool
    state: str
    uptime_seconds: int
    memory_bytes: int


Watcher = Callable[[tuple[ProcessStatus, ...]], None]


def up(
    home: Home,
    *,
    replicas: int = 2,
    gateway_port: int | None = None,
    watch: Watcher = lambda _: None,
) -> tuple[State, bool]:
    """Start the stack.

    Args:
        home: where it lives.
        replicas: number of Triton replicas.
        gateway_port: port for clients; a free one is chosen where it is None.
        watch: called with the status of every process while they start.

    Returns:
        The running stack, and whether it was started by this call.

    Raises:
        GalleyError: it could not be started; nothing of it is left running.
    """
    _check_folder(home)
    with home.lock():
        state = home.state()
        if state and _supervisor(home, state).alive():
            return state, False
        if state:
            _sweep(state)
        kept = home.store.exists()
        try:
            return _start_on_free_ports(home, replicas, gateway_port, watch), True
        except BaseException:
            _remove(home, keep_registry=kept)
            raise


def down(home: Home, *, keep_registry: bool = False) -> bool:
    """Stop the stack and remove everything it made.

    Args:
        home: where it lives.
        keep_registry: leave the object store and the clients' keys for the next `up`.

    Returns:
        Whether there was a stack.
    """
    if not home.root.exists():
        return False
    _check_folder(home)
    with home.lock():
        state = home.state()
        if state:
            _stop(home, state)
        _remove(home, keep_registry=keep_registry)
    return state is not None


def status(home: Home) -> tuple[ProcessStatus, ...]:
    """Every process of the stack, the supervisor first.

    Raises:
        StackError: no stack is running.
    """
    state = home.running_state()
    return _rows(home, state, plan_processes(home, state, find_engines()))


def _rows(home: Home, state: State, processes: tuple[Process, ...]) -> tuple[ProcessStatus, ...]:
    known = _supervisor(home, state).processes()
    pid = int(home.supervisor_pid.read_text())
    rows = [
        ProcessStatus(
            name="supervisord",
            server="Supervisor",
            pid=pid,
            port=state.ports["supervisor"],
            version=_supervisor_version(),
            healthy=True,
            state="RUNNING",
            uptime_seconds=int(time.time() - psutil.Process(pid).create_time()),
            memory_bytes=probes.memory_bytes(pid, children=False),
        )
    ]
    for process in processes:
        info = known[process.name]
        running = info["statename"] == "RUNNING"
        # Of one without a port, its state is all that is known.
        alive = info["statename"] in ALIVE
        version, healthy = probes.version_and_health(process.name, home, state)
        rows.append(
            ProcessStatus(
                name=process.name,
                server=process.server,
                pid=info["pid"] or None,
                port=process.port,
                version=version,
                healthy=alive and healthy,
                state=info["statename"],
                uptime_seconds=info["now"] - info["start"] if running else 0,
                memory_bytes=probes.memory_bytes(info["pid"]) if info["pid"] else 0,
            )
        )
    return tuple(rows)


def _start_on_free_ports(
    home: Home, replicas: int, gateway_port: int | None, watch: Watcher
) -> State:
    wanted = {} if gateway_port is None else {"gateway": gateway_port}
    for attempt in range(ATTEMPTS):
        state = _choose(replicas, wanted)
        try:
            _wait_until_healthy(home, state, _start(home, state), watch)
            _prepare_registry(home)
        except BaseException as error:
            taken = _stop(home, state)
            # Somebody took a port between choosing and binding: choose again. Not if interrupted.
            if taken and isinstance(error, GalleyError) and attempt + 1 < ATTEMPTS:
                continue
            raise
        return state
    raise AssertionError("the last attempt returns or raises")


def _choose(replicas: int, wanted: dict[str, int]) -> State:
    rng = random.Random(uuid.uuid4().int)  # noqa: S311 - spreads ports, guards nothing
    return State(
        stack_id=uuid.uuid4().hex[:12],
        replicas=replicas,
        ports=choose_ports(port_names(replicas), wanted, rng),
    )


def _start(home: Home, state: State) -> tuple[Process, ...]:
    engines = find_engines()
    secrets = Secrets.generate()
    for folder in (home.logs, home.prediction_logs, home.store, home.artifacts, home.backends):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(home.secrets_file, secrets.model_dump_json(), private=True)
    write_atomically(home.root / "s3.json", s3_identities(secrets), private=True)
    write_atomically(home.valkey_conf, valkey_conf(state, secrets), private=True)
    write_settings(home, state, secrets)
    write_certificate(home.tls)
    write_gateway(home, empty_gateway(state), _slo_edges_ms())
    prepare_backend(home, engines)
    # Last, since it is what says that there is a stack.
    write_json(home.state_file, state.model_dump())
    processes = plan_processes(home, state, engines)
    Supervisor(home, state, secrets).start(render_conf(home, state, secrets, processes))
    return processes


def _slo_edges_ms() -> set[float]:
    """The latencies that specs promise, as far as specs can be read; `galley check` tells why not.

    Envoy's histograms have an edge at each, which is set when it starts.
    """
    edges = set()
    for path in specs_folder().glob("*.yaml"):
        try:
            slo = load_spec(path).slo
        except GalleyError:
            continue
        if isinstance(slo, LatencySlo):
            edges.add(slo.latency_p99_ms)
    return edges


def _wait_until_healthy(
    home: Home, state: State, processes: tuple[Process, ...], watch: Watcher
) -> None:
    start = time.monotonic()
    while True:
        rows = _rows(home, state, processes)
        watch(rows)
        waiting = [row for row in rows if not row.healthy]
        if not waiting:
            return
        waited = time.monotonic() - start
        # What still crashes after some restarts will go on to.
        dead = [row for row in waiting if row.state == "BACKOFF" and waited > CRASH_SECONDS]
        if dead or waited > START_SECONDS:
            row = (dead or waiting)[0]
            raise StackError(
                f"{row.name} did not become healthy (state={row.state}, port={row.port}): "
                f"{last_lines(home, row.name, 1).strip() or 'it printed nothing'}"
            )
        time.sleep(0.1)


def _prepare_registry(home: Home) -> None:
    from serving.environments import local_store
    from serving.registry.probing import check_conditional_writes

    with local_store(home) as store:
        store.ensure_bucket()
        check_conditional_writes(store)


def last_lines(home: Home, name: str, count: int) -> str:
    """Newest lines that a process printed."""
    path = home.logs / f"{name}.log"
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(0, 2)
        # 400 bytes a line is generous; Triton's tables are the longest here.
        log.seek(max(0, log.tell() - 400 * count - 4096))
        lines = log.read().decode(errors="replace").splitlines()
    return "".join(f"{line}\n" for line in lines[-count:])


def _stop(home: Home, state: State) -> bool:
    """Stop every process; whether one of the stack's ports is held by somebody else after that."""
    try:
        _supervisor(home, state).shutdown()
    except (GalleyError, FileNotFoundError):
        pass  # Not running, or killed: what it started is found below.
    else:
        psutil.wait_procs(_members(state), timeout=STOP_SECONDS)
    _sweep(state)
    home.state_file.unlink(missing_ok=True)
    return not all(is_free(port) for port in state.ports.values())


def _sweep(state: State) -> None:
    """Kill what is left of a stack, and remove its shared memory."""
    left = _members(state)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=5)
    remove_shared_memory(f"galley-{state.stack_id}-")


def _members(state: State) -> list[psutil.Process]:
    """Every process that carries the stack's mark, whoever its parent is by now."""
    return [process for process in psutil.process_iter() if _mark(process) == state.stack_id]


def _mark(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(STACK_ID)
    except (psutil.Error, OSError):
        return None
    return mark


def _check_folder(home: Home) -> None:
    """Refuse a folder that holds anything but a stack, since `down` removes what is in it."""
    if not home.root.exists():
        return
    if not home.root.is_dir():
        raise InputError(f"home={home.root} is a file; name a folder, or one to be made")
    foreign = sorted(path.name for path in home.root.iterdir() if not is_own(path.name))
    if foreign:
        raise InputError(
            f"home={home.root} holds {', '.join(foreign[:3])}, which is not part of a stack; name "
            "an empty folder, or one to be made"
        )


def _remove(home: Home, *, keep_registry: bool) -> None:
    for entry in home.root.iterdir():
        if not (keep_registry and entry in (home.store, home.clients_file)):
            _delete(entry)
    if not keep_registry:
        home.root.rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _supervisor(home: Home, state: State) -> Supervisor:
    return Supervisor(home, state, home.secrets())


def _supervisor_version() -> str:
    from importlib.metadata import version

    return version("supervisor")
