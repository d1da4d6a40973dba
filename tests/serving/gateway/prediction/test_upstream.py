"""An answer comes back whole and in time, or as an error that says what happened."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop

from serving.gateway.prediction.answer import Answer
from serving.gateway.prediction.upstream import Upstream, UpstreamError

T = TypeVar("T")
Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]

WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
    b"inference-header-content-length: 2\r\ncontent-length: 5\r\n\r\n{}abc"
)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main, 60))


class Server:
    """A server that reads each request whole, and answers as its handler does."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[-1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.requests.append(head + body)
                if not await self.handler(body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def saying(*pieces: bytes, keep: bool = True) -> Handler:
    async def handle(_: bytes, writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return keep

    return handle


async def ask(upstream: Upstream, body: bytes = b"{}", seconds: float = 5.0) -> Answer:
    return await upstream.infer("/v2/models/m/versions/1/infer", body, len(body), "id-1", seconds)


async def outcome(port: int, **settings: Any) -> Answer | UpstreamError:
    upstream = Upstream("127.0.0.1", port)
    try:
        return await ask(upstream, **settings)
    except UpstreamError as error:
        return error
    finally:
        upstream.close()


def answered(handler: Handler, **settings: Any) -> Answer | UpstreamError:
    async def main() -> Answer | UpstreamError:
        async with serving(handler) as server:
            return await outcome(server.port, **settings)

    return run(main())


def test_an_answer_is_what_the_server_said_with_what_its_headers_tell() -> None:
    assert answered(saying(WHOLE)) == Answer(200, b"{}abc", 2, "application/octet-stream")


def test_an_answer_may_come_in_pieces_or_chunks() -> None:
    pieces = [WHOLE[place : place + 7] for place in range(0, len(WHOLE), 7)]
    assert answered(saying(*pieces)) == Answer(200, b"{}abc", 2, "application/octet-stream")
    chunked = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n1\r\n \r\n0\r\n\r\n"
    )
    assert answered(saying(chunked)) == Answer(200, b"{} ", None, "application/json")


@pytest.mark.parametrize("size", [0, 10, 65_536, 65_537, 3_000_000])
def test_a_request_arrives_whole_with_its_sizes_and_id(size: int) -> None:
    async def main() -> bytes:
        async with serving(saying(WHOLE)) as server:
            await outcome(server.port, body=b"x" * size)
            return server.requests[0]

    head, _, body = run(main()).partition(b"\r\n\r\n")
    assert body == b"x" * size
    assert head.startswith(b"POST /v2/models/m/versions/1/infer HTTP/1.1\r\n")
    assert b"x-request-id: id-1" in head
    assert b"inference-header-content-length: %d" % size in head


def test_a_header_that_the_gateway_chooses_by_goes_with_the_request() -> None:
    async def main() -> bytes:
        async with serving(saying(WHOLE)) as server:
            upstream = Upstream("127.0.0.1", server.port)
            await upstream.infer("/", b"{}", 2, "id-1", 5.0, header=("x-sequence-id", "7"))
            upstream.close()
            return server.requests[0]

    assert b"\r\nx-sequence-id: 7\r\n" in run(main())


def test_one_connection_carries_one_request_after_the_other() -> None:
    async def main() -> int:
        async with serving(saying(WHOLE)) as server:
            upstream = Upstream("127.0.0.1", server.port)
            for _ in range(5):
                await ask(upstream)
            await asyncio.gather(*(ask(upstream) for _ in range(3)))
            upstream.close()
            return server.connections

    assert run(main()) == 3


def test_a_connection_that_was_closed_meanwhile_is_replaced_and_nothing_is_asked_twice() -> None:
    async def main() -> tuple[int, int]:
        async with serving(saying(WHOLE, keep=False)) as server:
            upstream = Upstream("127.0.0.1", server.port)
            for _ in range(3):
                assert (await ask(upstream)).status == 200
            upstream.close()
            return server.connections, len(server.requests)

    assert run(main()) == (3, 3)


@pytest.mark.parametrize(
    "pieces",
    [(WHOLE[:-1],), (WHOLE[:40],), (b"HTTP/1.1 200 OK\r\n",)],
    ids=["body", "header", "first line"],
)
def test_an_answer_that_breaks_off_is_an_error_and_never_an_answer(pieces: tuple[bytes]) -> None:
    error = answered(saying(*pieces, keep=False))
    assert isinstance(error, UpstreamError)
    assert error.status == 502


@pytest.mark.parametrize(
    "said",
    [
        b"* OK IMAP4 ready\r\n",
        b"HTTP/1.1 101 Other\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ],
    ids=["another protocol", "an upgrade"],
)
def test_what_is_no_http_is_an_error(said: bytes) -> None:
    error = answered(saying(said))
    assert isinstance(error, UpstreamError)
    assert error.status == 502


def test_a_server_that_does_not_answer_in_time_is_told_as_that() -> None:
    async def handle(_: bytes, __: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(5)
        return False

    error = answered(handle, seconds=0.05)
    assert isinstance(error, UpstreamError)
    assert error.status == 504


def test_the_answer_to_a_request_that_was_given_up_is_not_taken_for_the_next_ones() -> None:
    async def handle(body: bytes, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.2 if body == b"slow" else 0)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n" + body)
        return True

    async def main() -> tuple[bytes, bytes]:
        async with serving(handle) as server:
            upstream = Upstream("127.0.0.1", server.port)
            with pytest.raises(UpstreamError):
                await ask(upstream, b"slow", 0.05)
            task = asyncio.create_task(ask(upstream, b"slow"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            first = (await ask(upstream, b"fast")).body
            await asyncio.sleep(0.3)
            second = (await ask(upstream, b"last")).body
            upstream.close()
            return first, second

    assert run(main()) == (b"fast", b"last")


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "in another piece"])
def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_ones(apart: bool) -> None:
    unasked = WHOLE.replace(b"abc", b"xyz")

    async def handle(body: bytes, writer: asyncio.StreamWriter) -> bool:
        pieces = (WHOLE, unasked) if apart else (WHOLE + unasked,)
        return await saying(*pieces)(body, writer)

    async def main() -> tuple[list[bytes], int]:
        async with serving(handle) as server:
            upstream = Upstream("127.0.0.1", server.port)
            bodies = []
            for _ in range(3):
                bodies.append((await ask(upstream)).body)
                await asyncio.sleep(0.05)
            upstream.close()
            return bodies, server.connections

    assert run(main()) == ([b"{}abc"] * 3, 3)


def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    closed = asyncio.Event()

    async def handle(body: bytes, writer: asyncio.StreamWriter) -> bool:
        await saying(WHOLE)(body, writer)
        return True

    async def main() -> None:
        async with serving(handle) as server:
            served = server.serve

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await served(reader, writer)
                closed.set()

            listener = await asyncio.start_server(serve, "127.0.0.1", 0)
            upstream = Upstream("127.0.0.1", listener.sockets[0].getsockname()[1], 0.05)
            await ask(upstream)
            await closed.wait()
            assert (await ask(upstream)).status == 200
            upstream.close()
            listener.close()

    run(main())


def test_what_must_not_be_done_twice_is_not_sent_twice() -> None:
    async def handle(_: bytes, writer: asyncio.StreamWriter) -> bool:
        if len(requests) > 1:
            return False
        writer.write(WHOLE)
        return True

    requests: list[bytes] = []

    async def main() -> int:
        nonlocal requests
        async with serving(handle) as server:
            requests = server.requests
            upstream = Upstream("127.0.0.1", server.port)
            await ask(upstream)
            with pytest.raises(UpstreamError) as error:
                await upstream.infer("/", b"{}", 2, "id-1", 5.0, repeatable=False)
            assert error.value.status == 503
            upstream.close()
            return len(requests)

    assert run(main()) == 2


@pytest.mark.parametrize("length", [b"-1", b"6", b"x"])
def test_a_json_part_that_is_longer_than_the_answer_is_an_error(length: bytes) -> None:
    error = answered(saying(WHOLE.replace(b"length: 2", b"length: " + length)))
    assert isinstance(error, UpstreamError)
    assert error.status == 502


def test_a_server_that_takes_no_connection_is_given_up_in_time() -> None:
    async def main() -> Answer | UpstreamError:
        with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for waiting in (first, second):
                waiting.setblocking(False)
                waiting.connect_ex(listener.getsockname())
            return await outcome(listener.getsockname()[1], seconds=0.2)

    error = run(main())
    assert isinstance(error, UpstreamError)
    assert error.status == 504


def test_nobody_listening_is_told_as_that() -> None:
    async def main() -> Answer | UpstreamError:
        async with serving(saying(WHOLE)) as server:
            port = server.port
        return await outcome(port)

    error = run(main())
    assert isinstance(error, UpstreamError)
    assert error.status == 503


def test_an_error_keeps_its_status_its_words_and_when_to_come_back() -> None:
    said = b'{"error":"full"}'
    head = b"HTTP/1.1 429 No\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(said) + said
    assert answered(saying(whole)) == Answer(429, said, None, "application/json", "1")


def test_an_error_in_another_form_becomes_json() -> None:
    whole = b"HTTP/1.1 503 No\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\ngone"
    assert answered(saying(whole)) == Answer(503, b'{"error":"gone"}', None, "application/json")
