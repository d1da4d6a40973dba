"""The load generator against real servers of the benchmark's own."""

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench.bodies import chat_request
from loadtest.bench.load import Target, closed_loop, open_loop
from loadtest.bench.measure import constant_schedule
from loadtest.bench.servers import Server, free_ports, python_app, running
from loadtest.bench.stub_app import EVENT_STREAM
from serving.errors import InfrastructureError

REQUEST = chat_request("/v1/chat/completions", {"host": "127.0.0.1"})


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_ports("stub")["stub"]
    folder = tmp_path_factory.mktemp("stub")
    with running("stub", python_app("stub_app", port), port, folder, ready_path="/") as server:
        yield server


def test_a_closed_loop_sends_every_request_once(stub: Server) -> None:
    before = stub.cpu_seconds()
    outcome = closed_loop(Target(stub.port), [REQUEST] * 100, 4, 30.0)
    assert outcome.failed == 0
    assert len(outcome.latencies) == len(outcome.firsts) == 100
    assert stub.cpu_seconds() > before


def test_more_connections_than_requests_are_no_harm(stub: Server) -> None:
    outcome = closed_loop(Target(stub.port), [REQUEST], 8, 30.0)
    assert (outcome.failed, len(outcome.latencies)) == (0, 1)


def test_an_open_loop_counts_from_the_intended_time(stub: Server) -> None:
    schedule = constant_schedule(200, 0.5)
    outcome = open_loop(Target(stub.port), [REQUEST] * len(schedule), schedule, 4, 30.0)
    assert outcome.failed == 0
    assert len(outcome.latencies) == len(outcome.lateness) == len(schedule)
    assert min(outcome.lateness) >= 0.0
    # A request cannot be answered before it was sent, so its lateness is in its latency.
    assert sum(outcome.latencies) > sum(outcome.lateness)


def test_requests_that_find_no_free_connection_wait_and_are_answered(stub: Server) -> None:
    stream = chat_request("/v1/chat/completions", {"host": "x", "accept": EVENT_STREAM})
    outcome = open_loop(Target(stub.port), [stream] * 3, [0.0, 0.0, 0.0], 1, 30.0)
    assert (outcome.failed, len(outcome.latencies)) == (0, 3)
    first, second, third = outcome.latencies
    # One after the other, on the one connection.
    assert first < second < third


def test_the_first_event_of_a_stream_is_told_apart_from_its_last(stub: Server) -> None:
    stream = chat_request("/v1/chat/completions", {"host": "x", "accept": EVENT_STREAM})
    outcome = closed_loop(Target(stub.port), [stream], 1, 30.0)
    assert outcome.firsts[0] < outcome.latencies[0]


def test_a_status_other_than_200_is_a_failure() -> None:
    answer = b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno"
    with answering(answer) as port:
        outcome = closed_loop(Target(port), [REQUEST] * 2, 1, 10.0)
    assert (outcome.failed, outcome.why) == (2, "status 503")


def test_a_closed_connection_is_a_failure_of_all_that_is_left() -> None:
    with answering(b"") as port:
        outcome = closed_loop(Target(port), [REQUEST] * 5, 1, 10.0)
    assert (outcome.failed, outcome.why) == (5, "a connection was closed")


def test_a_port_where_nobody_listens_is_a_failure_of_everything() -> None:
    outcome = closed_loop(Target(free_ports("none")["none"]), [REQUEST] * 4, 1, 10.0)
    assert outcome.failed == 4
    assert "refused" in outcome.why


def test_a_load_ends_when_its_time_is_over() -> None:
    with answering(None) as port:
        outcome = closed_loop(Target(port), [REQUEST] * 3, 1, 0.2)
    assert outcome.failed == 3
    assert "not answered within 0.2 s" in outcome.why


def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo the port is taken >&2; exit 3")
    port = free_ports("none")["none"]
    with (
        pytest.raises(InfrastructureError, match="bad ended with 3: the port is taken"),
        running("bad", command, port, tmp_path),
    ):
        pass


def test_a_server_that_is_stopped_takes_its_children_with_it(tmp_path: Path) -> None:
    port = free_ports("tree")["tree"]
    child = f"[sys.executable, '-m', 'http.server', '{port}']"
    command = (sys.executable, "-c", f"import subprocess, sys; subprocess.run({child})")
    with running("tree", command, port, tmp_path) as server:
        assert server.cpu_seconds() > 0.0
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


class answering:
    """A server that gives each request these bytes; closes at b"", stays silent at None."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for held in self._held:
            held.close()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        self._held.append(connection)
        while connection.recv(65_536):
            if self._answer is None:
                continue
            if not self._answer:
                connection.close()
                return
            connection.sendall(self._answer)
