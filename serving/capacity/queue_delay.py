"""The dial of dynamic batching: how long to wait for a fuller batch.

The batcher is Triton's: it sends a preferred size as soon as so many requests wait and an instance
is free, the largest that is reached; when the oldest has waited for the delay, it sends all that
wait. Requests arrive at random (Poisson) from a seed, so the same spec gives the same numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.capacity.batching import BatchCurve

REQUESTS = 40_000
WARM_UP = 2_000
DELAYS_MICROSECONDS = (0, 100, 250, 500, 1000, 2000, 3000, 5000, 8000, 12_000)


@dataclass(frozen=True, slots=True)
class Batcher:
    """What the dial belongs to: one replica."""

    curve: BatchCurve
    largest: int
    preferred: tuple[int, ...]
    instances: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What one position of the dial gives."""

    delay_microseconds: int
    fill: float
    """Requests in a batch, on average."""
    p50_ms: float
    p99_ms: float
    busy_ratio: float
    """Share of the time that the instances compute."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Every position, and the one to choose."""

    rate_rps: float
    settings: tuple[Setting, ...]
    recommended: Setting | None
    """The lowest p99 that keeps the SLO with room, at the least work; None where none does."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a run of the batcher gave."""

    latency_ms: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    """Of each request, from arrival to answer."""
    batches: int
    busy_ratio: float


def latencies(
    batcher: Batcher, rate_rps: float, delay_microseconds: int, seed: int, requests: int
) -> Latencies:
    """Requests that arrive at random, batch by batch."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1000 / rate_rps, requests))
    times: list[float] = arrivals.tolist()
    delay = delay_microseconds / 1000
    preferred = batcher.preferred
    smallest = preferred[0] if preferred else batcher.largest
    service = [0.0, *(batcher.curve.ms(size) for size in range(1, batcher.largest + 1))]
    free = [0.0] * batcher.instances
    ended = np.empty(requests)
    head = batches = 0
    work = 0.0
    while head < requests:
        # Either the smallest preferred size is reached, or the oldest has waited for long enough.
        reached = head + smallest - 1
        full = times[reached] if reached < requests else float("inf")
        overdue = times[head] + delay
        start = max(free[0], min(full, overdue))
        window = arrivals[head : head + batcher.largest]
        size = max(1, int(np.searchsorted(window, start, "right")))
        if start < overdue or not delay:
            size = max((prefer for prefer in preferred if prefer <= size), default=size)
        end = start + service[size]
        heapq.heapreplace(free, end)
        ended[head : head + size] = end
        work += service[size]
        head += size
        batches += 1
    span = float(ended.max() - times[0])
    busy = min(1.0, work / (span * batcher.instances))
    return Latencies(ended - arrivals, batches, busy)


def simulate(
    batcher: Batcher, rate_rps: float, delay_microseconds: int, seed: int, requests: int = REQUESTS
) -> Setting:
    """One position of the dial at one rate.

    With an instance always free, a batch is the request that opened it and those that came in the
    delay (1 + rate x delay on average), and no answer takes longer than delay and batch:

    >>> from serving.capacity.batching import curve_of
    >>> idle = Batcher(curve_of({1: 1, 64: 1}, "an example"), 64, (), 64)
    >>> found = simulate(idle, 1000, 5000, seed=1)
    >>> abs(found.fill - 6) < 0.1, abs(found.p99_ms - 6) < 0.01
    (True, True)
    """
    found = latencies(batcher, rate_rps, delay_microseconds, seed, requests)
    p50, p99 = np.quantile(found.latency_ms[min(WARM_UP, requests // 4) :], [0.5, 0.99])
    return Setting(
        delay_microseconds, requests / found.batches, float(p50), float(p99), found.busy_ratio
    )


def dial(
    batcher: Batcher,
    rate_rps: float,
    latency_ms: float,
    seed: int,
    delays: Sequence[int] = DELAYS_MICROSECONDS,
) -> Dial:
    """Every position of the dial below the SLO, and a recommendation.

    Recommended is the position with the least work per request among those whose p99 keeps four
    fifths of the SLO; of those within a tenth of that work, the one with the lowest p99.
    """
    settings = tuple(
        simulate(batcher, rate_rps, delay, seed) for delay in delays if delay < latency_ms * 1000
    )
    good = [setting for setting in settings if setting.p99_ms <= latency_ms * 0.8]
    recommended = None
    if good:
        least = min(setting.busy_ratio for setting in good)
        recommended = min(
            (setting for setting in good if setting.busy_ratio <= least * 1.1),
            key=lambda setting: setting.p99_ms,
        )
    return Dial(rate_rps, settings, recommended)
