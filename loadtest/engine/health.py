"""What the generator can say of its own fitness: how late it woke up, and how busy it was.

A generator that is short of time takes its own queue for the server's. So it measures itself while
it measures others, and the judge refuses the run where it was too slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import gevent

from loadtest.alarm import Alarm

CPU_WINDOW_SECONDS = 5.0
"""Time over which processor time is averaged: shorter, and the scheduler's own grain shows."""


@dataclass(frozen=True, slots=True)
class Health:
    """One worker's own account; times in milliseconds, processor time as a share of one core."""

    cpu_ratio: float | None
    loop_lag_p99_ms: float | None


class Pulse:
    """How late this process wakes up, measured at an even beat apart from all load.

    Args:
        every_ns: time between two beats.
    """

    def __init__(self, every_ns: int = 20_000_000) -> None:
        self._every = every_ns
        self._alarm: Alarm | None = None
        self._watcher: object | None = None
        self._next = 0
        self.late_ns: list[int] = []

    def begin(self, told: Callable[[], None] | None = None) -> None:
        """Beat from now on; `told` is called at each beat."""
        self._alarm, self._told = Alarm(), told
        watcher = gevent.get_hub().loop.io(self._alarm.descriptor, 1)
        watcher.start(self._beat)
        self._watcher = watcher
        self._next = time.monotonic_ns() + self._every
        self._alarm.ring_at(self._next / 1e9)

    def stop(self) -> None:
        """Beat no more."""
        if self._alarm is not None:
            self._watcher.stop()  # type: ignore[union-attr]
            self._alarm.close()
            self._alarm = None

    def _beat(self) -> None:
        if self._alarm is None:
            return
        self._alarm.heard()
        now = time.monotonic_ns()
        self.late_ns.append(now - self._next)
        # A stall weighs as much as it lasted: every beat that was slept through was late too.
        missed = (now - self._next) // self._every
        self.late_ns.extend(now - self._next - (n + 1) * self._every for n in range(missed))
        self._next += (missed + 1) * self._every
        self._alarm.ring_at(self._next / 1e9)
        if self._told is not None:
            self._told()


class Watch:
    """Measures this process from `begin` to `stop`, in the measured window only."""

    def __init__(self) -> None:
        self._pulse = Pulse()
        self._cpu: list[tuple[float, float]] = []
        self._next = 0.0

    def begin(self) -> None:
        """Measure from now on."""
        self._cpu = [(time.monotonic(), time.process_time())]
        self._next = self._cpu[0][0] + CPU_WINDOW_SECONDS / 5
        self._pulse.late_ns.clear()
        self._pulse.begin(self._sample)

    def stop(self) -> Health:
        """Measure no more."""
        self._pulse.stop()
        self._cpu.append((time.monotonic(), time.process_time()))
        return Health(busiest(self._cpu), p99_ms(self._pulse.late_ns))

    def _sample(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._cpu.append((now, time.process_time()))
            self._next = now + CPU_WINDOW_SECONDS / 5


def busiest(samples: list[tuple[float, float]]) -> float | None:
    """Largest share of a core over any window of 5 s, or over all where it was shorter.

    Args:
        samples: (monotonic seconds, processor seconds so far), in order.

    >>> busiest([(0, 0), (5, 1), (10, 5), (15, 6)])
    0.8
    """
    shares = []
    for first, (begun, used) in enumerate(samples):
        for ended, total in samples[first + 1 :]:
            if ended - begun >= CPU_WINDOW_SECONDS - 1e-9:
                shares.append((total - used) / (ended - begun))
                break
    if not shares and len(samples) > 1 and samples[-1][0] > samples[0][0]:
        shares = [(samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])]
    return max(shares, default=None)


def p99_ms(late_ns: list[int]) -> float | None:
    """The 99th percentile, one of the values, in milliseconds; None for none.

    >>> p99_ms([1_000_000] * 99 + [7_000_000])
    1.0
    """
    if not late_ns:
        return None
    rank = max(math.ceil(0.99 * len(late_ns)) - 1, 0)
    return sorted(late_ns)[rank] / 1e6
