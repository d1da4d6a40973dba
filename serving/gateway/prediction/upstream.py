"""HTTP/1.1 to the gateway's inner listener, as cheap as a request can be in Python.

    infer ──► an idle connection, or a new one ──► one write ──► httptools ──► Answer

A connection carries one request at a time and is kept for the next one. One that the other side
had closed meanwhile, before a single byte of an answer, is replaced once. One that says more than
it was asked is closed, since what it said would be taken for the answer to the next request.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

import httptools

from serving.gateway.prediction.answer import JSON, Answer, error_answer

MOST_IDLE: Final = 64
IDLE_SECONDS: Final = 30.0
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
# Larger bodies are written apart from their header rather than copied behind it.
JOINED_BYTES: Final = 64 * 1024
CLOSED: Final = "the gateway closed the connection"


class UpstreamError(Exception):
    """A request without an answer: the HTTP `status` that tells it, and a `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Stale(Exception):
    """The connection was closed before anything of an answer came."""


class Upstream:
    """Requests to one address; connections without requests are closed after `idle_seconds`."""

    def __init__(self, host: str, port: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self._host, self._port = host, port
        self._idle_seconds = idle_seconds
        # The last one in is the first one out, so those at the front are idle for longest.
        self._idle: list[_Connection] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._tail = f" HTTP/1.1\r\nhost: {host}:{port}\r\n"

    async def infer(
        self,
        path: str,
        body: bytes,
        header_length: int | None,
        request_id: str,
        timeout_seconds: float,
        *,
        repeatable: bool = True,
        header: tuple[str, str] | None = None,
    ) -> Answer:
        """The answer to an inference request, whatever its status; `header` goes with it.

        Nobody can tell a server that never read a request from one that ended while it worked on
        it. So what is not `repeatable`, as a model that remembers would be told twice, is not sent
        a second time.

        Raises:
            UpstreamError: there was none within the time, or none that is whole.
        """
        began = monotonic()
        length = (
            "" if header_length is None else f"inference-header-content-length: {header_length}\r\n"
        )
        more = "" if header is None else f"{header[0]}: {header[1]}\r\n"
        head = (
            f"POST {path}{self._tail}content-type: application/octet-stream\r\n{length}{more}"
            f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode("latin-1", "replace")
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await connection.send(head, body, timeout_seconds)
                except _Stale:
                    if not repeatable:
                        raise UpstreamError(503, CLOSED) from None
                    break
        connection = await self._connect(began + timeout_seconds - monotonic())
        try:
            return await connection.send(head, body, began + timeout_seconds - monotonic())
        except _Stale:
            raise UpstreamError(503, CLOSED) from None

    async def _connect(self, timeout_seconds: float) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                _, protocol = await loop.create_connection(
                    lambda: _Connection(self._free), self._host, self._port
                )
        except TimeoutError:
            raise UpstreamError(504, "the gateway's inner listener does not answer") from None
        except OSError:
            raise UpstreamError(503, "the gateway's inner listener does not answer") from None
        return protocol

    def _free(self, connection: "_Connection") -> None:
        if self._closed or len(self._idle) >= MOST_IDLE:
            connection.close()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweep()

    def _sweep(self) -> None:
        """Close what has been idle for too long, now and again as long as there is anything."""
        oldest = monotonic() - self._idle_seconds
        for connection in self._idle:
            if connection.idle_since < oldest:
                connection.close()
        self._idle = [connection for connection in self._idle if connection.is_open]
        self._sweeper = None
        if self._idle:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._idle_seconds, self._sweep)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is done."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection, and the one answer that it waits for."""

    __slots__ = (
        *("_answer", "_chunks", "_deadline", "_free", "_header_length", "_kind", "_loop"),
        *("_parser", "_retry_after", "_size", "_started", "_transport", "idle_since", "is_open"),
    )

    def __init__(self, free: Callable[["_Connection"], None]) -> None:
        self._free = free
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.is_open = True
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._started = False
        self._header_length: int | None = None
        self._kind = JSON
        self._retry_after: str | None = None

    async def send(self, head: bytes, body: bytes, timeout_seconds: float) -> Answer:
        answer = self._answer = self._loop.create_future()
        self._deadline = self._loop.call_later(timeout_seconds, self._expired)
        transport = cast(asyncio.Transport, self._transport)
        if len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        try:
            return cast(Answer, await answer)
        finally:
            if not answer.done() or answer.cancelled():
                # The caller has gone; so what comes would be taken for the next one's.
                self.close()

    def close(self) -> None:
        self.is_open = False
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.close()

    def _expired(self) -> None:
        self._fail(UpstreamError(504, "the model did not answer in time"))

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()
            return
        self._started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(UpstreamError(502, "the answer is not HTTP"))

    def connection_lost(self, _: Exception | None) -> None:
        self.is_open = False
        if self._answer is None or self._answer.done():
            return
        if self._started:
            self._fail(UpstreamError(502, "the answer broke off"))
        else:
            self._fail(_Stale())

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            # A second answer behind the first, in the same piece.
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._kind = value.decode("latin-1")
        elif name == b"inference-header-content-length":
            self._header_length = int(value)
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MOST_ANSWER_BYTES:
            self._fail(UpstreamError(502, f"the answer is larger than {MOST_ANSWER_BYTES} bytes"))
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        if not 0 <= (self._header_length or 0) <= len(body):
            self._fail(UpstreamError(502, "the answer's JSON part is longer than the answer"))
            return
        answer = self._whole(status, body)
        if self._deadline is not None:
            self._deadline.cancel()
        keep = self._parser.should_keep_alive() and self.is_open
        self._answer.set_result(answer)
        self._reset()
        if keep:
            self._free(self)
        else:
            self.close()

    def _whole(self, status: int, body: bytes) -> Answer:
        if status >= 400 and not self._kind.startswith(JSON):
            # Not the words of a model server, so not for machines.
            text = body[:300].decode(errors="replace").strip()
            return error_answer(status, text or f"status {status}", self._retry_after)
        return Answer(status, body, self._header_length, self._kind, self._retry_after)
