"""The API keys of clients: made here, shown once, kept in a file that only its owner reads."""

import hashlib
from collections.abc import Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from serving.errors import InputError
from serving.gateway.edge import Keys
from serving.gateway.routes import OPERATOR
from serving.local.home import Home, new_api_key, write_atomically


class Key(BaseModel):
    """One key of a client. `id` tells it from the client's others without giving it away."""

    model_config = ConfigDict(frozen=True)
    id: str
    secret: str = Field(repr=False)
    created: datetime


Clients = Mapping[str, tuple[Key, ...]]
_CLIENTS = TypeAdapter(dict[str, tuple[Key, ...]])


def read_clients(home: Home) -> dict[str, tuple[Key, ...]]:
    """The keys of every client that has one."""
    path = home.clients_file
    return _CLIENTS.validate_json(path.read_bytes()) if path.exists() else {}


def write_clients(home: Home, clients: Clients) -> None:
    """Keep these keys and no others."""
    kept = {name: keys for name, keys in sorted(clients.items()) if keys}
    write_atomically(home.clients_file, _CLIENTS.dump_json(kept, indent=2).decode(), private=True)


def with_key(clients: Clients, client: str, now: datetime) -> tuple[Clients, Key]:
    """The clients with one more key of this one, and that key; older ones stay good."""
    secret = new_api_key()
    key = Key(id=hashlib.sha256(secret.encode()).hexdigest()[:8], secret=secret, created=now)
    return {**clients, client: (*clients.get(client, ()), key)}, key


def without_key(clients: Clients, client: str, key_id: str) -> Clients:
    """The clients without this key.

    Raises:
        InputError: the client has no such key.
    """
    held = clients.get(client, ())
    left = tuple(key for key in held if key.id != key_id)
    if len(left) == len(held):
        known = ", ".join(key.id for key in held) or "no keys"
        raise InputError(f"key={key_id} is not one of client={client}; it has {known}")
    return {**clients, client: left}


def gateway_keys(home: Home) -> Keys:
    """What the gateway lets in: every client's keys, and the operator's."""
    keys = {name: tuple(key.secret for key in held) for name, held in read_clients(home).items()}
    return {**keys, OPERATOR: (home.secrets().operator_key,)}
