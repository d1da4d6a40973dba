"""`OpenLoop`: the part of a run that one worker does: its arrivals, its open requests, its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadtest.engine.dispatch import Dispatcher
from loadtest.records import DROPPED, FORMAT, GENERATOR, OPEN
from serving.judge.run import NEVER

if TYPE_CHECKING:
    from loadtest.schedule import Schedule

Told = Callable[[int, "Answered"], None]


@dataclass(slots=True)
class Answered:
    """What became of a request; moments of the monotonic clock in ns, NEVER for what was not.

    Attributes:
        sent: just before the first byte left.
        ended: just after the last byte came, or the request failed.
        status: HTTP status, or one of `records` below 0.
        why: what was wrong; None for a good answer.
        first: the first token.
        inter_token: mean time between tokens in ns; 0 for one token.
        tokens: tokens of the answer.
        size_bytes: of the answer's body.
        cached: whether it came from a cache on the way.
    """

    sent: int
    ended: int
    status: int
    why: str | None = None
    first: int = NEVER
    inter_token: int = NEVER
    tokens: int = 0
    size_bytes: int = 0
    cached: bool = False


class OpenLoop:
    """One worker's share of a schedule.

    Args:
        schedule: the whole schedule.
        worker: the number of this worker, from 0.
        workers: how many there are.
    """

    def __init__(self, schedule: Schedule, worker: int, workers: int) -> None:
        self.worker = worker
        self._positions: list[int] = schedule.share(worker, workers).tolist()
        self._intended: list[int] = schedule.intended[schedule.share(worker, workers)].tolist()
        self.until = schedule.until
        self.dispatcher = Dispatcher(self._intended)
        self._open: dict[int, int] = {}
        self._rows = bytearray()
        self.recorded = 0

    def begin(self, start: int) -> None:
        """Let arrivals come, from `start` on the monotonic clock in ns."""
        self.dispatcher.begin(start)

    @property
    def done(self) -> bool:
        """Whether every arrival came due and every request was answered."""
        return self.recorded >= len(self._positions)

    @property
    def expected(self) -> int:
        """How many requests this worker has to send."""
        return len(self._positions)

    def serve(self, ask: Callable[[int], Answered], told: Told) -> None:
        """A user's life: take an arrival when it is due, ask, write down what became of it.

        Args:
            ask: sends the request of this place in the schedule and waits for its answer.
            told: is told of each request, with its latency from the intended send in ns.
        """
        dispatcher, flight, positions = self.dispatcher, self._open, self._positions
        while True:
            place = dispatcher.take()
            in_flight = len(flight)
            flight[place] = time.monotonic_ns()
            try:
                answered = ask(positions[place])
            except Exception as error:
                # A fault of the generator says nothing of the server, and must not look like it.
                now = time.monotonic_ns()
                answered = Answered(NEVER, now, GENERATOR, f"{type(error).__name__}: {error}")
            # A user that is stopped in the middle leaves its request open; `close` writes it down.
            del flight[place]
            self._write(place, answered, in_flight)
            told(answered.ended - dispatcher.start - self._intended[place], answered)

    def drain(self) -> bytes:
        """The rows since the last call."""
        rows, self._rows = bytes(self._rows), bytearray()
        return rows

    def close(self, now: int) -> None:
        """Write down what is still open, and what was due by `now` and never sent."""
        self.dispatcher.stop()
        for place, sent in list(self._open.items()):
            self._write(place, Answered(sent, NEVER, OPEN), 0)
        self._open.clear()
        for place in self.dispatcher.untaken():
            self._write(place, Answered(NEVER, NEVER, DROPPED), 0)

    def _write(self, place: int, answered: Answered, in_flight: int) -> None:
        start = self.dispatcher.start
        sent, ended, first = answered.sent, answered.ended, answered.first
        self._rows += FORMAT.pack(
            self._intended[place],
            sent if sent == NEVER else sent - start,
            first if first == NEVER else first - start,
            ended if ended == NEVER or sent == NEVER else ended - start,
            answered.inter_token,
            self._positions[place],
            in_flight,
            answered.tokens,
            answered.size_bytes,
            answered.status,
            self.worker,
            answered.why is None and answered.status == 200,
            answered.cached,
        )
        self.recorded += 1
