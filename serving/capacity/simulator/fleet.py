"""A fleet through time: load, slots and autoscaler, one sync after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from serving.capacity.simulator.autoscaler import SYNC_SECONDS, Autoscaler, Rules
from serving.capacity.simulator.load import Load, Times, arrivals
from serving.capacity.simulator.slots import FixedSlots, Slots

Signal = Literal["in-flight", "waiting"]

FIRST_MS, GROWTH, BINS = 0.01, 1.002, 12_000
"""Bins of the histogram: each 0.2% wider than the last, from 10 µs to more than a day."""


ROUNDING_MS = 1e-4
"""Moments of a day are exact to far less; a request on time must not be late by rounding."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs, and how it grows."""

    per_replica: int
    """Requests that a replica bears at once."""
    service_ms: float
    cold_start_seconds: float
    rules: Rules
    signal: Signal = "in-flight"
    """What the autoscaler looks at: all requests in the system, or only those that wait."""
    metric_age_seconds: float = SYNC_SECONDS
    """How old the number is that it looks at."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet at one sync."""

    second: float
    rps: float
    ordered: int
    ready: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    requests: int
    p50_ms: float
    p99_ms: float
    bad_ratio: float
    """Share of requests later than the SLO, or never answered."""
    replica_hours: float
    most_replicas: int
    longest_queue: int
    turns: int
    """Times that the number of replicas went the other way."""
    moments: tuple[Moment, ...]


class Histogram:
    """Counts of times, and quantiles within 0.2%."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, dtype=np.int64)

    def add(self, milliseconds: Times) -> None:
        """Count more of them."""
        scaled = np.log(np.maximum(milliseconds, FIRST_MS) / FIRST_MS) / math.log(GROWTH)
        places = np.minimum(scaled.astype(np.int64), BINS - 1)
        self.counts += np.bincount(places, minlength=BINS)

    def quantile(self, share: float) -> float:
        """The milliseconds that this share does not exceed; 0 where nothing was counted."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self.counts), max(1, math.ceil(total * share))))
        return float(FIRST_MS * GROWTH ** (place + 0.5))


def simulate(load: Load, fleet: Fleet, slo_ms: float, seed: int) -> Outcome:
    """The fleet under the load, from as many replicas as the first rate needs."""
    return _Run(load, fleet, slo_ms, seed).whole()


class _Run:
    """One simulation."""

    def __init__(self, load: Load, fleet: Fleet, slo_ms: float, seed: int) -> None:
        self.load, self.fleet, self.slo_ms = load, fleet, slo_ms
        self.random = np.random.default_rng(seed)
        self.autoscaler = Autoscaler(fleet.rules)
        first = load.rate(0) * fleet.service_ms / 1000 / fleet.rules.target
        rules = fleet.rules
        self.ready = min(max(math.ceil(first), rules.min_replicas, 1), rules.max_replicas)
        self.starting: list[float] = []
        self.slots: Slots = FixedSlots(self.ready * fleet.per_replica, fleet.service_ms / 1000)
        self.histogram = Histogram()
        self.requests = self.late = self.longest = 0
        self.replica_seconds = 0.0
        self.metrics: list[int] = []
        self.moments: list[Moment] = []

    @property
    def ordered(self) -> int:
        """Replicas that are paid for: ready or starting."""
        return self.ready + len(self.starting)

    def whole(self) -> Outcome:
        syncs = math.ceil(self.load.duration_seconds / SYNC_SECONDS)
        for sync in range(syncs):
            end = min((sync + 1) * SYNC_SECONDS, self.load.duration_seconds)
            self._until(end)
            self._sync(end)
        return self._outcome()

    def _until(self, end: float) -> None:
        """Requests up to a moment, stopping whenever a replica gets ready."""
        begin = self.slots.now
        self.replica_seconds += self.ordered * (end - begin)
        arrived = arrivals(self.load, begin, end, self.random)
        self.requests += len(arrived)
        for ready in [*sorted(second for second in self.starting if second < end), end]:
            part = int(np.searchsorted(arrived, ready))
            latency = self.slots.advance(arrived[:part], ready) * 1000
            arrived = arrived[part:]
            self.histogram.add(latency)
            self.late += int((latency > self.slo_ms + ROUNDING_MS).sum())
            if ready < end:
                self.starting.remove(ready)
                self.ready += 1
                self.slots.add(self.fleet.per_replica)

    def _sync(self, now: float) -> None:
        waiting, in_flight = len(self.slots.waiting), self.slots.in_flight
        self.longest = max(self.longest, waiting)
        self.metrics.append(waiting if self.fleet.signal == "waiting" else in_flight)
        age = round(self.fleet.metric_age_seconds / SYNC_SECONDS)
        metric = self.metrics[max(0, len(self.metrics) - 1 - age)]
        self.moments.append(Moment(now, self.load.rate(now), self.ordered, self.ready, in_flight))
        change = self.autoscaler.decide(now, metric, self.ordered) - self.ordered
        if change > 0:
            self.starting += [now + self.fleet.cold_start_seconds] * change
        for _ in range(-change):
            # What has not started yet goes first.
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
                self.slots.remove(self.fleet.per_replica)

    def _outcome(self) -> Outcome:
        unanswered = len(self.slots.waiting)
        orders = [moment.ordered for moment in self.moments]
        steps = [after - before for before, after in pairwise(orders)]
        moves = [step for step in steps if step]
        return Outcome(
            requests=self.requests,
            p50_ms=self.histogram.quantile(0.5),
            p99_ms=self.histogram.quantile(0.99),
            bad_ratio=(self.late + unanswered) / max(1, self.requests),
            replica_hours=self.replica_seconds / 3600,
            most_replicas=max(orders, default=self.ordered),
            longest_queue=self.longest,
            turns=sum(one * other < 0 for one, other in pairwise(moves)),
            moments=tuple(self.moments),
        )
