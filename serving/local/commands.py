"""galley up, down, status, logs, deploy."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.console import (
    Json,
    mebibytes,
    print_json,
    print_line,
    print_table,
    say,
    short,
    step_progress,
)

if TYPE_CHECKING:
    from serving.gateway.routes import ModelRoute
    from serving.local.home import Home
    from serving.local.stack import ProcessStatus

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Folder of the stack; another one is another stack.")
]
FOLLOW_SECONDS = 0.2


def up(
    home: HomeOption = None,
    replicas: Annotated[int, typer.Option(min=1, max=8, help="Number of Triton replicas.")] = 2,
    gateway_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for clients; a free one if not given."),
    ] = None,
    json: Json = False,
) -> None:
    """Start the local stack: object store, cache, two Tritons, gateway; all real, all loopback."""
    from serving.local.serve import serve_released
    from serving.local.stack import up as start

    where = home_of(home)
    with step_progress("up", replicas + 7) as tell:

        def watch(rows: "tuple[ProcessStatus, ...]") -> None:
            waiting = [row.name for row in rows if not row.healthy]
            text = f"waiting for {', '.join(waiting)}" if waiting else "all healthy"
            tell(len(rows) - len(waiting), text)

        state, started = start(where, replicas=replicas, gateway_port=gateway_port, watch=watch)
    served = serve_released(where, tell=say) if started else ()
    if json:
        print_json(
            {
                "started": started,
                "home": str(where.root),
                "gateway": state.gateway_url,
                "ca": str(where.tls / "ca.pem"),
                "models": {route.model: route.main.number for route in served},
            }
        )
        return
    if started:
        print_line(f"the local stack is up; gateway {state.gateway_url}")
    else:
        print_line(f"a local stack is running already at {where.root}; gateway {state.gateway_url}")
    print_line(f"clients trust {where.tls / 'ca.pem'} and need a key: galley client add <client>")
    print_line("see: galley status    stop: galley down")


def down(
    home: HomeOption = None,
    keep_registry: Annotated[
        bool, typer.Option(help="Keep the published versions for the next `galley up`.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop the local stack and remove all it made, published versions included."""
    from serving.local.stack import down as stop

    where = home_of(home)
    stopped = stop(where, keep_registry=keep_registry)
    if json:
        print_json({"stopped": stopped, "home": str(where.root), "kept_registry": keep_registry})
    elif stopped:
        kept = f"; the registry is kept in {where.store}" if keep_registry else ""
        print_line(f"the local stack is stopped and {where.root} is removed{kept}")
    else:
        print_line(f"no local stack at {where.root}")


def status(home: HomeOption = None, json: Json = False) -> None:
    """Show every process of the local stack and every model behind its gateway; 1 if one is ill."""
    from dataclasses import asdict

    from serving.local.gateway import read_gateway
    from serving.local.stack import status as read_status

    where = home_of(home)
    rows = read_status(where)
    state = where.running_state()
    routes = read_gateway(where).models
    healthy = all(row.healthy for row in rows)
    if json:
        print_json(
            {
                "home": str(where.root),
                "gateway": state.gateway_url,
                "ca": str(where.tls / "ca.pem"),
                "healthy": healthy,
                "memory_bytes": sum(row.memory_bytes for row in rows),
                "processes": [asdict(row) for row in rows],
                "models": [
                    {
                        "model": route.model,
                        "version": route.main.number,
                        "digest": route.main.digest,
                        "replicas": route.replicas,
                    }
                    for route in routes
                ],
            }
        )
    else:
        _print_status(rows, routes, state.gateway_url)
    if not healthy:
        raise typer.Exit(1)


def _print_status(
    rows: "tuple[ProcessStatus, ...]", routes: "tuple[ModelRoute, ...]", gateway_url: str
) -> None:
    print_table(
        ("process", "server", "version", "pid", "port", "healthy", "state", "up", "memory"),
        [
            (
                row.name,
                row.server,
                row.version or "?",
                # Pids and ports are names, not quantities.
                str(row.pid or "-"),
                str(row.port or "-"),
                "yes" if row.healthy else "NO",
                row.state.lower(),
                f"{row.uptime_seconds} s",
                mebibytes(row.memory_bytes),
            )
            for row in rows
        ],
    )
    print_line(f"memory {mebibytes(sum(row.memory_bytes for row in rows))} (PSS)")
    print_line(f"gateway {gateway_url}")
    if not routes:
        print_line("no model is served; run: galley push filetype && galley deploy filetype")
        return
    print_table(
        ("model", "version", "digest", "replicas"),
        [(r.model, r.main.number, short(r.main.digest), r.replicas) for r in routes],
    )


def logs(
    name: Annotated[str, typer.Argument(help="Process; all of them if not given.")] = "",
    home: HomeOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Newest lines.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    json: Json = False,
) -> None:
    """Show what the local stack's processes print."""
    from serving.errors import InputError
    from serving.local.stack import last_lines

    where = home_of(home)
    where.running_state()
    known = sorted(path.stem for path in where.logs.glob("*.log"))
    if name and name not in known:
        raise InputError(f"process={name} has no log; use one of {', '.join(known)}")
    chosen = [name] if name else known
    found = {each: last_lines(where, each, lines) for each in chosen}
    if json:
        print_json({each: text.splitlines() for each, text in found.items()})
        return
    for each, text in found.items():
        for line in text.splitlines():
            print_line(line if name else f"{each}: {line}")
    if follow:
        _follow(where.logs, chosen, prefix=not name)


def deploy(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    version: Annotated[
        int | None, typer.Argument(help="Number of the version; the newest if not given.")
    ] = None,
    home: HomeOption = None,
    json: Json = False,
) -> None:
    """Serve a published version on the local stack, replica by replica; also the way back."""
    from serving.local.serve import release
    from serving.paths import specs_folder
    from serving.publish import spec_of

    where = home_of(home)
    spec = spec_of(model, specs_folder())
    replicas = where.running_state().replica_names
    with step_progress(f"deploy {model}", len(replicas)) as tell:
        done: list[str] = []

        def told(text: str) -> None:
            done.extend(name for name in replicas if text.startswith(f"{name} serves"))
            tell(len(done), text)

        route = release(where, spec, version, tell=told)
    if json:
        print_json({"model": model, "version": route.main.number, "digest": route.main.digest})
    else:
        print_line(
            f"{model} version {route.main.number} ({short(route.main.digest)}) is served by "
            f"{len(replicas)} replicas"
        )


def _follow(folder: Path, names: list[str], *, prefix: bool) -> None:
    """Print what is added to the logs until interrupted; a rotated log is read from its start."""
    positions = {name: (folder / f"{name}.log").stat().st_size for name in names}
    while folder.exists():
        for name, position in positions.items():
            path = folder / f"{name}.log"
            if not path.exists():
                continue
            size = path.stat().st_size
            with path.open("rb") as log:
                log.seek(position if size >= position else 0)
                # Only whole lines: the rest is printed when it has come.
                text, newline, _ = log.read().rpartition(b"\n")
            positions[name] = (position if size >= position else 0) + len(text) + len(newline)
            for line in text.decode(errors="replace").splitlines() if newline else ():
                print_line(f"{name}: {line}" if prefix else line)
        time.sleep(FOLLOW_SECONDS)


def home_of(given: Path | None) -> "Home":
    """The stack that a command is about."""
    from serving.local.home import Home
    from serving.paths import home_folder

    return Home(given.absolute() if given else home_folder())


def add_to(app: typer.Typer) -> None:
    """Add the local stack's commands."""
    for command in (up, down, status, logs, deploy):
        app.command()(command)
