"""Keys are unguessable, shown once, told apart without being given away, and taken back singly."""

import stat
from datetime import UTC, datetime

import pytest

from serving.errors import InputError
from serving.gateway.routes import OPERATOR
from serving.local.home import Home, Secrets, write_atomically
from serving.local.keys import (
    Clients,
    gateway_keys,
    read_clients,
    with_key,
    without_key,
    write_clients,
)

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def test_a_client_without_keys_is_not_in_the_file(home: Home) -> None:
    assert read_clients(home) == {}
    write_clients(home, {"ads": ()})
    assert read_clients(home) == {}


def test_another_key_of_a_client_leaves_its_older_ones_good(home: Home) -> None:
    clients, first = with_key({}, "ads", NOW)
    clients, second = with_key(clients, "ads", NOW)
    write_clients(home, clients)
    assert read_clients(home) == {"ads": (first, second)}
    assert first.secret != second.secret
    assert first.id != second.id


def test_a_revoked_key_goes_and_the_others_stay() -> None:
    clients: Clients = {}
    for client in ("ads", "ads", "feed"):
        clients, key = with_key(clients, client, NOW)
    first, second = clients["ads"]
    assert without_key(clients, "ads", first.id) == {"ads": (second,), "feed": (key,)}


@pytest.mark.parametrize("client", ["ads", "nobody"])
def test_a_key_that_a_client_has_not_is_told_with_those_it_has(client: str) -> None:
    clients, key = with_key({}, "ads", NOW)
    with pytest.raises(InputError, match="nonesuch") as caught:
        without_key(clients, client, "nonesuch")
    assert (key.id if client == "ads" else "no keys") in str(caught.value)


def test_keys_are_long_and_never_part_of_what_is_printed_of_them() -> None:
    clients, key = with_key({}, "ads", NOW)
    assert len(key.secret) >= 40
    assert key.secret not in repr(clients)
    assert key.id not in key.secret


def test_only_their_owner_reads_the_file_of_keys(home: Home) -> None:
    write_clients(home, with_key({}, "ads", NOW)[0])
    assert stat.S_IMODE(home.clients_file.stat().st_mode) == 0o600


def test_the_gateway_lets_in_every_client_and_the_operator(home: Home, secrets: Secrets) -> None:
    write_atomically(home.secrets_file, secrets.model_dump_json())
    clients, key = with_key({}, "ads", NOW)
    write_clients(home, clients)
    assert gateway_keys(home) == {"ads": (key.secret,), OPERATOR: ("operator-4",)}
