"""Simulated services: many runs at once of a queue before c servers, first come, first served.

Everything is a function of the seed. One row is one run, so that a step of all runs is one step of
NumPy: 400 runs of 20,000 requests take about two seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.float64]

Kind = Literal["iid", "queue", "bursts", "slow spells", "drift", "failing spells"]

SERVERS = 8
SPREAD = 0.5
"""Standard deviation of the logarithm of a service time."""


@dataclass(frozen=True, slots=True)
class Service:
    """A kind of service and how busy it is; mean service time is 1.

    - iid: times are independent of each other, there is no queue
    - queue: Poisson arrivals, log-normal service, 8 servers (M/G/8)
    - bursts: the same, arrivals at two rates that take turns
    - slow spells: the same, every service time is longer in spells (compaction, a noisy neighbour)
    - drift: the same, service times grow by 10% over the run
    - failing spells: no queue; errors come in spells and are answered at once
    """

    kind: Kind
    utilisation: float = 0.7

    @property
    def name(self) -> str:
        """As a table calls it."""
        alone = self.kind in ("iid", "failing spells")
        return self.kind if alone else f"{self.kind} {self.utilisation:g}"


@dataclass(frozen=True)
class Traces:
    """Runs of one service: arrival and latency in service times, row by row."""

    arrivals: Times
    latencies: Times

    def tail(self, size: int) -> Traces:
        """The last `size` requests of every run: what a run is after its warm-up."""
        return Traces(self.arrivals[:, -size:], self.latencies[:, -size:])


def simulate(service: Service, runs: int, size: int, warmup: int, seed: int) -> Traces:
    """`runs` runs of `size` requests each, after `warmup` requests that are left out."""
    made = np.random.default_rng(seed)
    count = size + warmup
    if service.kind in ("iid", "failing spells"):
        arrivals = np.cumsum(made.exponential(1.0, (runs, size)), axis=1)
        latencies = _lognormal(made, (runs, size))
        if service.kind == "failing spells":
            latencies[_spells(made, runs, size, share=0.01, length=20)] = np.inf
        return Traces(arrivals, latencies)
    gaps = made.exponential(1 / (SERVERS * service.utilisation), (runs, count))
    times = _lognormal(made, (runs, count))
    if service.kind == "bursts":
        fast = _spells(made, runs, count, share=0.25, length=200)
        # Twice as fast in a quarter of the arrivals; the mean rate stays.
        gaps *= np.where(fast, 0.5, 7 / 6)
    elif service.kind == "slow spells":
        slow = _spells(made, runs, count, share=0.05, length=100)
        times *= np.where(slow, 2.0, 0.9 / 0.95)
    elif service.kind == "drift":
        times *= np.linspace(0.95, 1.05, count)
    arrivals = np.cumsum(gaps, axis=1)
    return Traces(arrivals, _queue(arrivals, times)).tail(size)


def _lognormal(made: np.random.Generator, shape: tuple[int, int]) -> Times:
    return made.lognormal(-(SPREAD**2) / 2, SPREAD, shape)


def _spells(
    made: np.random.Generator, runs: int, count: int, share: float, length: int
) -> NDArray[np.bool_]:
    """Spells of `length` requests on average that hold `share` of all requests."""
    leave, enter = 1 / length, share / (1 - share) / length
    chance = made.random((count, runs))
    state = made.random(runs) < share
    out = np.empty((count, runs), dtype=bool)
    for step in range(count):
        out[step] = state
        state = np.where(state, chance[step] >= leave, chance[step] < enter)
    return out.T


def _queue(arrivals: Times, times: Times) -> Times:
    """Latency of each request: it takes the server that is free first."""
    runs, count = arrivals.shape
    due, took = np.ascontiguousarray(arrivals.T), np.ascontiguousarray(times.T)
    free = np.zeros((runs, SERVERS))
    rows = np.arange(runs)
    out = np.empty((count, runs))
    for step in range(count):
        server = free.argmin(axis=1)
        done = np.maximum(free[rows, server], due[step]) + took[step]
        free[rows, server] = done
        out[step] = done - due[step]
    return out.T


CHUNK = 2_000_000


def true_limits(
    service: Service, bad_ratios: Sequence[float], size: int, warmup: int, seed: int, requests: int
) -> tuple[float, ...]:
    """The limits that exactly these shares of all requests exceed, from a simulation of its own."""
    runs, made, tails = max(CHUNK // size, 1), 0, []
    kept = max(bad_ratios)
    while made < requests:
        latencies = simulate(service, runs, size, warmup, seed + made).latencies.ravel()
        # Only what may be beyond a limit is kept: ten million requests would fill the memory.
        first = max(len(latencies) - int(2 * kept * len(latencies)) - 1, 0)
        tails.append(np.partition(latencies, first)[first:])
        made += len(latencies)
    tail = np.sort(np.concatenate(tails))[::-1]
    return tuple(float(tail[int(ratio * made)]) for ratio in bad_ratios)
