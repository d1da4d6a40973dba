"""Requests on the slots of all ready replicas, first come first served.

A slot holds one request. The gateway is taken to find a free slot wherever there is one, so this is
one queue with many servers, and G/D/c where each request takes as long as the other.
"""

from __future__ import annotations

import numpy as np

from serving.capacity.simulator.load import Times

NONE: Times = np.empty(0)


class Slots:
    """Slots, when each is free, and who waits; all times in seconds."""

    def __init__(self, count: int) -> None:
        self.free: Times = np.zeros(count)
        self.waiting: Times = NONE
        self.now = 0.0

    def add(self, count: int) -> None:
        """More slots, free from now on."""
        self.free = np.concatenate([self.free, np.full(count, self.now)])

    def remove(self, count: int) -> None:
        """Fewer slots: those that are free first; a request that runs ends all the same."""
        self.free = np.sort(self.free)[count:]

    @property
    def running(self) -> int:
        """Slots with a request on them now."""
        return int((self.free > self.now).sum())

    @property
    def in_flight(self) -> int:
        """Requests that wait or run now."""
        return len(self.waiting) + self.running

    def advance(self, arrived: Times, until: float) -> Times:
        """Let time go on; the seconds from arrival to answer of every request that began.

        `arrived` are the moments, in order, of all requests between now and `until`.
        """
        queue = np.concatenate([self.waiting, arrived]) if len(self.waiting) else arrived
        if len(self.free) and len(queue):
            taken, latency = self._serve(queue, until)
        else:
            taken, latency = 0, NONE
        self.waiting = queue[taken:]
        self.now = until
        return latency

    def _serve(self, queue: Times, until: float) -> tuple[int, Times]:
        raise NotImplementedError


class FixedSlots(Slots):
    """Slots on which every request takes the same time; all of them at once in arithmetic.

    The next request takes the slot that is free first. Times being equal, slots get free in the
    order in which they were taken, so slot j serves every c-th request, and each column of a table
    with c columns is a queue of its own: begin = max(arrival, begin before + time).
    """

    def __init__(self, count: int, seconds: float) -> None:
        super().__init__(count)
        self.seconds = seconds

    def _serve(self, queue: Times, until: float) -> tuple[int, Times]:
        slots, time = len(self.free), self.seconds
        free = np.sort(np.maximum(self.free, self.now))
        rows = int((until - self.now) / time) + 2
        queue = queue[: rows * slots]
        rows = -(-len(queue) // slots)
        table = np.full(rows * slots, np.inf)
        table[: len(queue)] = queue
        offsets = time * np.arange(rows)[:, None]
        table = table.reshape(rows, slots) - offsets
        table[0] = np.maximum(table[0], free)
        begin = (np.maximum.accumulate(table, axis=0) + offsets).ravel()[: len(queue)]
        taken = int((begin < until).sum())
        # The last `slots` that began say when each slot is free.
        last = begin[max(0, taken - slots) : taken] + time
        self.free = np.concatenate([free[min(taken, slots) :], last])
        return taken, begin[:taken] + time - queue[:taken]
