"""Ports are free, differ, and lie where the kernel takes none for clients."""

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving.errors import InputError, StackError
from serving.local import ports
from serving.local.ports import FIRST, LOOPBACK, choose_ports, is_free

NAMES = tuple(f"port-{number}" for number in range(18))


def listen(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


@pytest.fixture
def taken() -> Iterator[int]:
    with listen(0) as server:
        yield server.getsockname()[1]


def client_range(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    path.write_text(text)
    monkeypatch.setattr(ports, "_CLIENT_RANGE", path)


def test_a_wanted_port_that_is_taken_is_refused_with_its_name_and_number(taken: int) -> None:
    with pytest.raises(InputError, match=f"^port gateway={taken} is taken by another program; "):
        choose_ports(NAMES, {"gateway": taken}, random.Random(1))


def test_a_wanted_port_that_this_user_may_not_open_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(port: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ports, "_bind", refuse)
    with pytest.raises(InputError, match=r"^port gateway=80 is not this user's to open; "):
        choose_ports(("gateway",), {"gateway": 80}, random.Random(1))


def test_a_port_is_free_again_when_its_server_has_gone(taken: int) -> None:
    assert not is_free(taken)
    with listen(0) as server:
        port = server.getsockname()[1]
        client = socket.create_connection((LOOPBACK, port))
        accepted, _ = server.accept()
        # The side that closes first keeps the connection in TIME_WAIT.
        accepted.close()
        client.close()
    assert is_free(port)


def test_a_wanted_port_is_used_and_given_to_nobody_else() -> None:
    wanted = choose_ports(("gateway",), {}, random.Random(1))
    for seed in range(5):
        chosen = choose_ports(("gateway", *NAMES), wanted, random.Random(seed))
        assert chosen["gateway"] == wanted["gateway"]
        assert len(set(chosen.values())) == len(NAMES) + 1


def test_every_name_gets_a_free_port_of_its_own() -> None:
    chosen = choose_ports(NAMES, {}, random.Random(1))
    assert tuple(chosen) == NAMES
    assert len(set(chosen.values())) == len(NAMES)
    assert all(is_free(port) for port in chosen.values())


def test_what_the_first_choice_has_taken_the_second_leaves_alone() -> None:
    first = choose_ports(NAMES, {}, random.Random(7))
    with ExitStack() as stack:
        for port in first.values():
            stack.enter_context(listen(port))
        second = choose_ports(NAMES, {}, random.Random(7))
        assert not set(first.values()) & set(second.values())


def test_no_port_is_one_that_the_kernel_takes_for_clients() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chosen = choose_ports(NAMES, {}, random.Random(1)).values()
    assert all(FIRST <= port < low for port in chosen)


def test_a_lower_client_range_moves_the_choice_below_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client_range(monkeypatch, tmp_path / "range", "13050\t60999\n")
    names = [f"port-{number}" for number in range(200)]
    chosen = choose_ports(names, {}, random.Random(1)).values()
    assert max(chosen) < 13_050


def test_an_unreadable_client_range_counts_as_the_kernels_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ports, "_CLIENT_RANGE", tmp_path / "missing")
    chosen = choose_ports(NAMES, {}, random.Random(1)).values()
    assert all(FIRST <= port < 32_768 for port in chosen)


def test_too_few_free_ports_are_told_with_their_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client_range(monkeypatch, tmp_path / "range", "1024 60999")
    names = [f"port-{number}" for number in range(1_001)]
    with pytest.raises(StackError, match=r"^no 1001 free ports between 12000 and 12999$"):
        choose_ports(names, {}, random.Random(1))
