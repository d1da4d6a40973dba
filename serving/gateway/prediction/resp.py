"""One connection to Valkey: commands leave in order, answers come back in that order, or it ends.

Answers carry no number, so that a command which is given up would hand its answer to the next
one: the first answer that is late, or that no Valkey gives, ends the whole connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Literal, TypeAlias, cast

import hiredis

Reason: TypeAlias = Literal["timeout", "unreachable", "full", "moved", "denied", "corrupt", "open"]

# A reply is waited for in two steps, the second this long: a loop that was busy elsewhere then
# reads what lies in the socket before it says that nothing came. Timers count in milliseconds.
GRACE_SECONDS: Final = 0.001
# Beyond either, commands are not sent: the server takes in less than it is given.
MOST_PENDING: Final = 4096
MOST_UNSENT_BYTES: Final = 4 << 20
# No reply is longer than the longest entry; this much in pieces is from another kind of server.
MOST_REPLY_BYTES: Final = 64 << 20

_INCOMPLETE: Final = object()
_REASONS: Final[tuple[tuple[str, Reason], ...]] = (
    ("MOVED", "moved"),
    ("ASK ", "moved"),
    ("CROSSSLOT", "moved"),
    ("CLUSTERDOWN", "moved"),
    ("READONLY", "moved"),
    ("OOM", "full"),
    ("MISCONF", "full"),
    ("ERR max number of clients", "full"),
    ("WRONGTYPE", "corrupt"),
    ("LOADING", "unreachable"),
    ("MASTERDOWN", "unreachable"),
)


class CacheUnavailable(Exception):
    """The cache did not do what it was asked; `reason` is one word, for a metric."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Final = reason


Reply: TypeAlias = bytes | int | CacheUnavailable | None
Answered: TypeAlias = Callable[[Reply], None]


def reason_of(error: str) -> Reason:
    """What an error reply comes down to; whatever is not known is a command not allowed here.

    >>> reason_of("MOVED 2246 10.0.0.9:6379"), reason_of("NOPERM User x has no permissions")
    ('moved', 'denied')
    """
    return next((reason for start, reason in _REASONS if error.startswith(start)), "denied")


class Connection(asyncio.Protocol):
    """An open connection; `lost` is called once with why, after every pending command failed.

    `replies` counts the commands that were answered.
    """

    def __init__(
        self, timeout_seconds: float, lost: Callable[["Connection", Reason], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._pending: deque[tuple[float, Answered]] = deque()
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._partial_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._first_wait = 0.0
        self.replies = 0
        self._overdue: tuple[float, Answered] | None = None
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self.limit(timeout_seconds)

    def limit(self, timeout_seconds: float) -> None:
        """Give every command sent from now on another time; nothing may be pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._first_wait = max(timeout_seconds - GRACE_SECONDS, GRACE_SECONDS)
        self.replies = 0

    def send(self, command: bytes, answered: Answered) -> None:
        """Queue a packed command; `answered` is called with its reply, never before this returns.

        Raises:
            CacheUnavailable: unreachable after the connection's end, open while too much is
                waiting; nothing was sent.
        """
        if self._transport is None:
            raise CacheUnavailable("unreachable")
        if self._paused or len(self._pending) >= MOST_PENDING:
            raise CacheUnavailable("open")
        self._pending.append((monotonic(), answered))
        self._transport.write(command)
        if self._timer is None:
            self._timer = self._loop.call_later(self._first_wait, self._look_at_the_clock)

    def end(self, reason: Reason) -> None:
        """Close now: what is pending fails with `reason`, and nothing more is taken."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        while self._pending:
            self._pending.popleft()[1](CacheUnavailable(reason))
        self._lost(self, reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to write to."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MOST_UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is pending."""
        self.end("unreachable")

    def pause_writing(self) -> None:
        """Take no more commands: the server is not reading."""
        self._paused = True

    def resume_writing(self) -> None:
        """Take commands again."""
        self._paused = False

    def data_received(self, data: bytes) -> None:
        """Hand every reply that is complete to its command."""
        try:
            self._hand_out(data)
        except (hiredis.ProtocolError, MemoryError):  # lengths that are lies
            self.end("unreachable")

    def _hand_out(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        reader.feed(data)
        while (reply := reader.gets()) is not _INCOMPLETE:
            self._partial_bytes = -len(data)
            if not pending:
                raise hiredis.ProtocolError("a reply to no command")
            if type(reply) is hiredis.ReplyError:
                reply = CacheUnavailable(reason_of(str(reply)))
            elif reply is not None and type(reply) is not bytes and type(reply) is not int:
                raise hiredis.ProtocolError("a reply that no command here has")
            self.replies += 1
            pending.popleft()[1](reply)
            if type(reply) is CacheUnavailable and reply.reason == "moved":
                # After a failover the name may already lead to the new primary.
                self.end("moved")
                return
        self._partial_bytes += len(data)
        if self._partial_bytes > MOST_REPLY_BYTES:
            raise hiredis.ProtocolError("a reply longer than any entry")

    def _look_at_the_clock(self) -> None:
        # The loop's own time may be as old as its last turn, so it is not asked.
        self._timer = None
        if not self._pending:
            return
        head = self._pending[0]
        left = head[0] + self._first_wait - monotonic()
        if left <= 0.0:
            if self._overdue is head:
                self.end("timeout")
                return
            self._overdue = head
        wait = max(left, GRACE_SECONDS)
        self._timer = self._loop.call_later(wait, self._look_at_the_clock)
