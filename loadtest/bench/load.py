"""A small load generator for HTTP/1.1 on loopback, bounded in count and in time.

    closed_loop    a fixed number of connections, each asking again once it is answered
    open_loop      requests at times that were fixed before, whatever the answers do

Its own work is in this process, so it is never part of what servers are measured to cost.
"""

import asyncio
import gc
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import httptools
import uvloop

from loadtest.alarm import Alarm

HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Target:
    """Where requests go; with `tls`, over TLS."""

    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Outcome:
    """What a load came to; times in seconds.

    `latencies` are from when a request was to be sent until its last byte, `firsts` until the
    first byte of its body; `lateness` is how much later than intended requests were sent.
    `failed` counts whatever was not answered with 200, or not at all.
    """

    seconds: float
    latencies: tuple[float, ...]
    firsts: tuple[float, ...]
    lateness: tuple[float, ...]
    failed: int
    why: str = ""


def closed_loop(
    target: Target, requests: Sequence[bytes], connections: int, most_seconds: float
) -> Outcome:
    """Send all of the requests, in order, at most one at a time on each connection."""
    return _run(_Load(target, connections, requests, None), most_seconds)


def open_loop(
    target: Target,
    requests: Sequence[bytes],
    schedule: Sequence[float],
    connections: int,
    most_seconds: float,
) -> Outcome:
    """Send each request at its time, in seconds from the start.

    One that finds no free connection waits for it, and its latency counts that.
    """
    return _run(_Load(target, connections, requests, schedule), most_seconds)


def _run(load: "_Load", most_seconds: float) -> Outcome:
    with _without_pauses():
        return uvloop.run(load.run(most_seconds))


@contextmanager
def _without_pauses() -> Iterator[None]:
    """No collection of garbage in here, which would look like a slow answer."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Load:
    """One run."""

    def __init__(
        self,
        target: Target,
        connections: int,
        requests: Sequence[bytes],
        schedule: Sequence[float] | None,
    ) -> None:
        self._target, self._connections = target, connections
        self._requests, self._schedule = requests, schedule
        self._next = 0
        self._waiting: deque[int] = deque()
        self._idle: list[_Connection] = []
        self._start = 0.0
        self._over: asyncio.Event | None = None
        self._left = len(requests)
        self._latencies: list[float] = []
        self._firsts: list[float] = []
        self._lateness: list[float] = []
        self._failed, self._why = 0, ""

    async def run(self, most_seconds: float) -> Outcome:
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._start = time.monotonic()
        opened: list[asyncio.Transport] = []
        alarm = None
        try:
            async with asyncio.timeout(most_seconds):
                await self._open(loop, opened)
                self._start = time.monotonic()
                alarm = self._begin(loop)
                await self._over.wait()
        except TimeoutError:
            self._give_up(f"{self._left} not answered within {most_seconds:g} s")
        except OSError as error:
            self._give_up(str(error))
        seconds = time.monotonic() - self._start
        if alarm:
            loop.remove_reader(alarm.descriptor)
            alarm.close()
        for transport in opened:
            transport.close()
        await asyncio.sleep(0)
        return Outcome(
            seconds,
            tuple(self._latencies),
            tuple(self._firsts),
            tuple(self._lateness),
            self._failed,
            self._why,
        )

    async def _open(self, loop: asyncio.AbstractEventLoop, opened: list[asyncio.Transport]) -> None:
        tls = self._target.tls
        for _ in range(self._connections):
            transport, connection = await loop.create_connection(
                lambda: _Connection(self),
                HOST,
                self._target.port,
                ssl=tls,
                server_hostname=HOST if tls else None,
            )
            opened.append(transport)
            self._idle.append(connection)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> Alarm | None:
        if self._schedule is None:
            for connection in self._idle[: len(self._requests)]:
                self._send(connection, self._take(), time.monotonic())
            return None
        # Twice a tick of the loop's own timers, so that the first is not late.
        self._start += 0.02
        alarm = Alarm()
        loop.add_reader(alarm.descriptor, self._due, alarm)
        alarm.ring_at(self._start + self._schedule[0])
        return alarm

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def _due(self, alarm: Alarm) -> None:
        alarm.heard()
        schedule = self._schedule or ()
        while self._next < len(schedule):
            intended = self._start + schedule[self._next]
            if intended > time.monotonic():
                alarm.ring_at(intended)
                return
            number = self._take()
            if self._idle:
                self._send(self._idle.pop(), number, intended)
            else:
                self._waiting.append(number)

    def _send(self, connection: "_Connection", number: int, intended: float) -> None:
        self._lateness.append(time.monotonic() - intended)
        connection.ask(self._requests[number], intended)

    def answered(self, connection: "_Connection", first: float, status: int) -> None:
        now = time.monotonic()
        self._latencies.append(now - connection.intended)
        self._firsts.append((first or now) - connection.intended)
        self._left -= 1
        if status != 200:
            self._failed += 1
            self._why = self._why or f"status {status}"
        if self._left == 0:
            self._end()
        elif self._schedule is None:
            if self._next < len(self._requests):
                self._send(connection, self._take(), now)
        elif self._waiting:
            number = self._waiting.popleft()
            self._send(connection, number, self._start + self._schedule[number])
        else:
            self._idle.append(connection)

    def lost(self) -> None:
        """A connection was closed before the end: no measurement stands on those that are left."""
        self._give_up("a connection was closed")

    def _give_up(self, why: str) -> None:
        if self._left:
            self._failed += self._left
            self._why = self._why or why
            self._left = 0
            self._end()

    def _end(self) -> None:
        if self._over is not None:
            self._over.set()


class _Connection(asyncio.Protocol):
    """A connection, and the request that it waits for."""

    __slots__ = ("_first", "_load", "_parser", "_transport", "intended")

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._first = 0.0
        self.intended = 0.0

    def ask(self, request: bytes, intended: float) -> None:
        self.intended, self._first = intended, 0.0
        cast(asyncio.Transport, self._transport).write(request)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.lost()

    # What httptools calls.

    def on_body(self, _: bytes) -> None:
        if not self._first:
            self._first = time.monotonic()

    def on_message_complete(self) -> None:
        self._load.answered(self, self._first, self._parser.get_status_code())
