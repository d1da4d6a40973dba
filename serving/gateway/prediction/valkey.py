"""A client for one Valkey server that never makes a request wait for the network to come back.

One connection carries every command, pipelined. It is made and made again in the background;
without it, or while the server lets commands wait, a command fails at once.
"""

import asyncio
import contextlib
import random
from time import monotonic
from typing import Final

import hiredis

from serving.gateway.prediction.breaker import Breaker
from serving.gateway.prediction.resp import (
    Answered,
    CacheUnavailable,
    Connection,
    Reason,
    Reply,
)

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
# Nobody waits for it: names are looked up, and the server may be at the end of a long way.
CONNECT_SECONDS: Final = 1.0


def get_or_claim(key: bytes, claim: bytes, milliseconds: int) -> bytes:
    """Gives what is under `key`, or nil after it put `claim` there: one step, one round trip."""
    return _packed(b"SET", key, claim, b"NX", b"GET", b"PX", milliseconds)


def store(key: bytes, value: bytes, milliseconds: int) -> bytes:
    """Puts `value` under `key`, whatever is there."""
    return _packed(b"SET", key, value, b"PX", milliseconds)


def forget(key: bytes) -> bytes:
    """Takes away what is under `key`."""
    return _packed(b"DEL", key)


def _packed(*parts: bytes | int | str) -> bytes:
    # Its annotation knows tuples of one part alone, and not what comes back.
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return packed


class Valkey:
    """The server at `host` and `port`; a password without a username is the default user's.

    A command is answered or given up within `timeout_seconds` (at least 2 ms; timers count in
    milliseconds), counted from when it is sent.
    """

    def __init__(
        self,
        host: str,
        port: int,
        username: str | None = None,
        password: str | None = None,
        timeout_seconds: float = 0.005,
        rng: random.Random | None = None,
    ) -> None:
        self._address = (host, port)
        self._greeting = _greeting(username, password)
        self._timeout_seconds = timeout_seconds
        # Two hops that lost one server must not come back in step; no secret hangs on it.
        self._rng = rng or random.Random()  # noqa: S311
        self._breaker = Breaker()
        self._connection: Connection | None = None
        self._down: Reason = "unreachable"
        self._connecting: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    def start(self) -> None:
        """Begin to connect, in the background; the running loop is the one to use from now on."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._stay_connected())

    async def close(self) -> None:
        """Stop; what is pending fails."""
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
            self._connecting = None
        if self._connection is not None:
            self._connection.end("unreachable")

    @property
    def connected(self) -> bool:
        """Whether a command would be sent now, but for a server that lets commands wait."""
        return self._connection is not None

    def send(self, command: bytes, answered: Answered) -> None:
        """Send a packed command; `answered` is called later, once, with its reply.

        Raises:
            CacheUnavailable: nothing was sent.
        """
        connection = self._connection
        if connection is None:
            raise CacheUnavailable(self._down)
        if self._breaker.is_open:
            if connection.replies:
                self._breaker.answered()
            elif not self._breaker.try_once():
                raise CacheUnavailable("open")
        connection.send(command, answered)

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            self._lost.clear()
            connection = await self._connect()
            if connection is not None:
                since = monotonic()
                await self._lost.wait()
                if monotonic() - since > LONGEST_PAUSE_SECONDS:
                    # It served well, so it may do so again at once.
                    pause = FIRST_PAUSE_SECONDS
                    continue
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _connect(self) -> Connection | None:
        """A connection whose server has taken the greeting; None says to try again later."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._open()
                reply = await _reply_to(connection, self._greeting)
            if isinstance(reply, CacheUnavailable):
                raise reply
        except CacheUnavailable as error:
            self._down = error.reason
        except OSError:  # a TimeoutError is one
            self._down = "unreachable"
        else:
            connection.limit(self._timeout_seconds)
            self._connection = connection
            return connection
        finally:
            if connection is not None and connection is not self._connection:
                connection.end("unreachable")
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(CONNECT_SECONDS, self._on_lost), *self._address
        )
        return connection

    def _on_lost(self, connection: Connection, reason: Reason) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        # What a late answer says is said by who waited for it; to the others nobody is there.
        self._down = "moved" if reason == "moved" else "unreachable"
        if reason == "timeout":
            if connection.replies:
                self._breaker.answered()
            self._breaker.timed_out()
        self._lost.set()


def _greeting(username: str | None, password: str | None) -> bytes:
    """Proves that a server answers, and logs in where there is a password."""
    if password is None:
        return _packed(
            b"PING",
        )
    names = () if username is None else (username,)
    return _packed(b"AUTH", *names, password)


async def _reply_to(connection: Connection, command: bytes) -> Reply:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answered(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    connection.send(command, answered)
    return await future
