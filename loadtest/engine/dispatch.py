"""`Dispatcher`: hands each arrival to a user at its time, whatever became of the ones before.

    the kernel's timer ─► what is due ─► a user that is idle
                              │ none is
                              ▼
                          a queue; the next user that is done takes it, and how late is recorded

Locust's own waits start when an answer is there, so that slow answers thin out the load
(coordinated omission). Here nothing that a server does moves an arrival. The timer is a descriptor
of the kernel: gevent's own timers tick in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import gevent
from gevent.queue import SimpleQueue

from loadtest.alarm import Alarm


class Dispatcher:
    """The arrivals of one worker.

    Args:
        intended: when each is due, ns after the start, in order.
    """

    def __init__(self, intended: Sequence[int]) -> None:
        self._intended = intended
        self._next = 0
        self._due: SimpleQueue[int] = SimpleQueue()
        self._alarm: Alarm | None = None
        self._watcher: object | None = None
        self.start = 0
        """The start of the run on this machine's monotonic clock, ns."""

    def begin(self, start: int) -> None:
        """Let arrivals come, counted from `start` on the monotonic clock, in ns."""
        self.start = start
        self._alarm = Alarm()
        watcher = gevent.get_hub().loop.io(self._alarm.descriptor, 1)
        watcher.start(self._hand_out)
        self._watcher = watcher
        self._set()

    def take(self) -> int:
        """The place of the next arrival among this worker's own, at its time or late."""
        place: int = self._due.get()
        return place

    @property
    def waiting(self) -> int:
        """Arrivals that are due and that no user has taken."""
        return self._due.qsize()

    @property
    def handed_out(self) -> int:
        """Arrivals that came due."""
        return self._next

    @property
    def all_due(self) -> bool:
        """Whether no arrival is left that is still to come."""
        return self._next >= len(self._intended)

    def untaken(self) -> list[int]:
        """Takes back all that nobody took; they were never sent."""
        left = []
        while not self._due.empty():
            left.append(self._due.get_nowait())
        return left

    def stop(self) -> None:
        """No more arrivals."""
        if self._alarm is None:
            return
        self._watcher.stop()  # type: ignore[union-attr]
        self._alarm.close()
        self._alarm = None

    def _set(self) -> None:
        if self._alarm is None or self.all_due:
            return
        self._alarm.ring_at((self.start + self._intended[self._next]) / 1e9)

    def _hand_out(self) -> None:
        """Called by the event loop; must not wait for anything."""
        if self._alarm is None:
            return
        self._alarm.heard()
        now = time.monotonic_ns() - self.start
        intended, place, end = self._intended, self._next, len(self._intended)
        while place < end and intended[place] <= now:
            self._due.put_nowait(place)
            place += 1
        self._next = place
        self._set()
