"""A connection tells what came and when; it repeats nothing, and trusts nothing that is cut off."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadtest.engine.connection import Connection
from loadtest.records import CONNECTION, GENERATOR, TIMEOUT
from serving.errors import InputError
from serving.judge.run import NEVER

Handler = Callable[[socket.socket, bytes], bool]
"""Answers one request; whether it goes on with the connection."""

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kind: Good\r\n\r\nok"


@contextmanager
def server(handle: Handler) -> Iterator[tuple[str, list[bytes]]]:
    """A server on loopback, and the requests that it got."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def serve(client: socket.socket) -> None:
        with client:
            client.settimeout(5)
            while True:
                request = b""
                try:
                    while b"\r\n\r\n" not in request:
                        piece = client.recv(65536)
                        if not piece:
                            return
                        request += piece
                    head, _, body = request.partition(b"\r\n\r\n")
                    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    while len(body) < size:
                        body += client.recv(65536)
                    got.append(head + b"\r\n\r\n" + body)
                    if not handle(client, body):
                        return
                except OSError:
                    return

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", got
    finally:
        listening.close()


_opened: list[Connection] = []


def connection_to(url: str, headers: dict[str, str], timeout_seconds: float) -> Connection:
    found = Connection(url, headers, timeout_seconds)
    _opened.append(found)
    return found


@pytest.fixture(autouse=True)
def _closes_what_was_opened() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def says(answer: bytes, goes_on: bool = True) -> Handler:
    def handle(client: socket.socket, _: bytes) -> bool:
        client.sendall(answer)
        return goes_on

    return handle


def test_an_answer_comes_with_status_headers_body_and_both_moments() -> None:
    with server(says(GOOD)) as (url, got):
        connection = connection_to(url, {"Authorization": "Bearer k"}, 5)
        before = time.monotonic_ns()
        found = connection.ask("/v2/x", b"body", {"X-More": "1"})
        after = time.monotonic_ns()
    assert (found.status, found.content, found.error) == (200, b"ok", None)
    assert found.headers[b"x-kind"] == b"Good"
    assert before <= found.sent <= found.ended <= after
    head = got[0].decode()
    assert head.startswith("POST /v2/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "Authorization: Bearer k\r\n" in head
    assert "X-More: 1\r\n" in head
    assert head.endswith("Content-Length: 4\r\n\r\nbody")


def test_one_connection_serves_many_requests_and_no_answer_is_mixed_up() -> None:
    def echo(client: socket.socket, body: bytes) -> bool:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        return True

    with server(echo) as (url, _):
        connection = connection_to(url, {}, 5)
        connection.connect()
        opened = connection._socket
        for number in range(50):
            assert connection.ask("/", b"%d" % number, {}).content == b"%d" % number
        assert connection._socket is opened


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
    ],
    ids=["chunked", "after a 100"],
)
def test_answers_in_other_forms_are_read(answer: bytes) -> None:
    with server(says(answer)) as (url, _):
        found = connection_to(url, {}, 5).ask("/", b"x", {})
    assert (found.status, found.content) == (200, b"ok")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok",
        b"no protocol at all\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_off_or_none_is_an_error_and_sent_once(answer: bytes) -> None:
    with server(says(answer, goes_on=False)) as (url, got):
        connection = connection_to(url, {}, 5)
        found = connection.ask("/", b"x", {})
        assert found.status == CONNECTION
        assert found.error
        assert len(got) == 1


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    def silent(_: socket.socket, __: bytes) -> bool:
        time.sleep(1)
        return False

    with server(silent) as (url, _):
        found = connection_to(url, {}, 0.2).ask("/", b"x", {})
    assert found.status == TIMEOUT
    assert found.ended - found.sent >= 200_000_000


def test_a_server_that_drips_is_given_up_in_time_too() -> None:
    def drips(client: socket.socket, _: bytes) -> bool:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _n in range(20):
            client.sendall(b"x")
            time.sleep(0.05)
        return False

    with server(drips) as (url, _):
        found = connection_to(url, {}, 0.3).ask("/", b"x", {})
    assert found.status == TIMEOUT


def test_a_connection_that_was_closed_while_idle_is_opened_anew() -> None:
    with server(says(GOOD, goes_on=False)) as (url, got):
        connection = connection_to(url, {}, 5)
        assert connection.ask("/", b"1", {}).status == 200
        connection._used -= 2_000_000_000
        assert connection.ask("/", b"2", {}).status == 200
    assert len(got) == 2


def test_an_answer_that_ends_the_connection_is_good_and_the_next_opens_another() -> None:
    closing = GOOD.replace(b"X-Kind", b"Connection: close\r\nX-Kind")
    with server(says(closing, goes_on=False)) as (url, got):
        connection = connection_to(url, {}, 5)
        assert [connection.ask("/", b"x", {}).status for _ in range(3)] == [200] * 3
    assert len(got) == 3


def test_pieces_of_a_stream_come_with_their_moments() -> None:
    def streams(client: socket.socket, _: bytes) -> bool:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _n in range(3):
            time.sleep(0.03)
            client.sendall(b"2\r\nok\r\n")
        client.sendall(b"0\r\n\r\n")
        return True

    pieces: list[tuple[int, bytes]] = []
    with server(streams) as (url, _):
        found = connection_to(url, {}, 5).ask(
            "/", b"x", {}, lambda now, piece: pieces.append((now, piece))
        )
    assert [piece for _, piece in pieces] == [b"ok"] * 3
    moments = [now for now, _ in pieces]
    assert found.sent < moments[0] < moments[1] < moments[2] <= found.ended
    assert found.content == b""


def test_nobody_at_the_other_end_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    found = connection_to(f"http://127.0.0.1:{port}", {}, 1).ask("/", b"x", {})
    assert found.status == CONNECTION


# A32: too many open files here is no error of the server.


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_what_this_machine_lacks_is_the_generators_own_failure(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, "none left")

    monkeypatch.setattr("gevent.socket.create_connection", fails)
    found = connection_to("http://127.0.0.1:1", {}, 1).ask("/", b"x", {})
    assert (found.status, found.sent) == (GENERATOR, NEVER)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\0"])
def test_a_header_that_would_be_two_is_refused_and_not_said(value: str) -> None:
    with pytest.raises(InputError) as told:
        connection_to("http://127.0.0.1:1", {"Authorization": value}, 1)
    assert "Evil" not in str(told.value)


def test_another_kind_of_address_is_refused() -> None:
    with pytest.raises(InputError, match="no http or https"):
        connection_to("ftp://x", {}, 1)
