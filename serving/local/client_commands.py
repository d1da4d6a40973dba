"""galley client add, list, revoke."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.console import Json, print_json, print_line, print_table, say
from serving.local.commands import HomeOption, home_of

if TYPE_CHECKING:
    from serving.local.home import Home
    from serving.local.keys import Clients
    from serving.spec import ModelSpec

Client = Annotated[str, typer.Argument(help="Name of the client, as specs list it.")]

app = typer.Typer(no_args_is_help=True, help="Keys of clients: make, list, revoke.")


@app.command()
def add(client: Client, home: HomeOption = None, json: Json = False) -> None:
    """Make a key for a client and show it, this once; its older keys stay good until revoked."""
    from serving.local.keys import read_clients, with_key

    where = home_of(home)
    models = _models_of(client)
    with where.lock():
        where.running_state()
        clients, key = with_key(read_clients(where), client, datetime.now(UTC))
        _take_over(where, clients)
    if json:
        print_json({"client": client, "id": key.id, "key": key.secret, "models": models})
        return
    say("this key is shown once; keep it where secrets are kept")
    print_line(key.secret)
    say(f"it opens {', '.join(models)}; take it back with: galley client revoke {client} {key.id}")


@app.command("list")
def list_clients(home: HomeOption = None, json: Json = False) -> None:
    """Show every client, the models and rates that specs give it, and the ids of its keys."""
    from serving.local.keys import read_clients

    where = home_of(home)
    where.running_state()
    keys = read_clients(where)
    specs = _specs()
    names = sorted({c.name for spec in specs for c in spec.clients} | set(keys))
    rows: list[dict[str, Any]] = [
        {
            "client": name,
            "models": {
                spec.name: each.rate_limit_rps
                for spec in specs
                for each in spec.clients
                if each.name == name
            },
            "keys": [
                {"id": key.id, "created": key.created.isoformat(timespec="seconds")}
                for key in keys.get(name, ())
            ],
        }
        for name in names
    ]
    if json:
        print_json(rows)
        return
    print_table(
        ("client", "models (requests a second)", "keys (id, created)"),
        [
            (
                row["client"],
                ", ".join(f"{model} ({rate})" for model, rate in row["models"].items()) or "none",
                "\n".join(f"{key['id']} {key['created']}" for key in row["keys"]) or "none",
            )
            for row in rows
        ],
    )


@app.command()
def revoke(
    client: Client,
    key: Annotated[str, typer.Argument(help="Id of the key: see galley client list.")],
    home: HomeOption = None,
    json: Json = False,
) -> None:
    """Take a key back: requests with it are refused from now on, streams that run go on."""
    from serving.local.keys import read_clients, without_key

    where = home_of(home)
    with where.lock():
        where.running_state()
        left = without_key(read_clients(where), client, key)
        _take_over(where, left)
    remaining = [each.id for each in left[client]]
    if json:
        print_json({"client": client, "revoked": key, "keys": remaining})
    else:
        print_line(f"key {key} of {client} is refused now; left: {', '.join(remaining) or 'none'}")


def _take_over(where: "Home", clients: "Clients") -> None:
    """Keep these keys and let the gateway know; both or neither."""
    from serving.local.gateway import refresh_keys
    from serving.local.keys import read_clients, write_clients

    before = read_clients(where)
    write_clients(where, clients)
    try:
        refresh_keys(where, where.running_state())
    except BaseException:
        write_clients(where, before)
        raise


def _models_of(client: str) -> list[str]:
    """The models whose specs list the client.

    Raises:
        InputError: none does, so a key would open nothing.
    """
    from serving.errors import InputError

    specs = _specs()
    models = [spec.name for spec in specs if client in {each.name for each in spec.clients}]
    if not models:
        known = ", ".join(sorted({each.name for spec in specs for each in spec.clients}))
        raise InputError(
            f"client={client} is in no spec; use one of {known}, or add it under clients: in a spec"
        )
    return models


def _specs() -> "tuple[ModelSpec, ...]":
    from serving.paths import specs_folder
    from serving.spec import load_specs

    return load_specs(specs_folder())


def add_to(parent: typer.Typer) -> None:
    """Add the command and its own commands."""
    parent.add_typer(app, name="client")
