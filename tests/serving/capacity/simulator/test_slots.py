"""Queues behave as theory says, and fast arithmetic as slow."""

import heapq
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from serving.capacity.simulator.load import Load, Times, arrivals
from serving.capacity.simulator.slots import FixedSlots, Slots


class RandomSlots(Slots):
    """Slots on which each request takes its own time; one after the other, so for short runs."""

    def __init__(self, count: int, draw: Callable[[int], Times]) -> None:
        super().__init__(count)
        self.draw = draw

    def _serve(self, queue: Times, until: float) -> tuple[int, Times]:
        free: list[float] = self.free.tolist()
        heapq.heapify(free)
        times: list[float] = self.draw(len(queue)).tolist()
        latency = []
        for arrival, time in zip(queue.tolist(), times, strict=True):
            begin = max(arrival, free[0], self.now)
            if begin >= until:
                break
            heapq.heapreplace(free, begin + time)
            latency.append(begin + time - arrival)
        self.free = np.array(free)
        return len(latency), np.array(latency)


def waits(slots: Slots, rate: float, requests: int, seed: int) -> Times:
    """Seconds from arrival to answer at a constant rate, the first tenth left out."""
    random = np.random.default_rng(seed)
    length = requests / rate
    load, parts = Load((0, length), (rate, rate)), []
    for step in range(200):
        first, end = length * step / 200, length * (step + 1) / 200
        parts.append(slots.advance(arrivals(load, first, end, random), end))
    return np.concatenate(parts[20:])


def erlang_c(servers: int, offered: float) -> float:
    """Share of requests that wait in M/M/c."""
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


def mean_wait_fixed(servers: int, offered: float) -> float:
    """Mean wait in M/D/c over the time of one request (Crommelin, 1932)."""
    total = 0.0
    for n in range(1, 2000):
        mean = n * offered
        term = poisson.sf(n * servers - 1, mean) - servers / offered * poisson.sf(n * servers, mean)
        total += float(term)
        if term < 1e-12:
            break
    return total


def test_the_formula_for_many_servers_is_that_of_one_where_there_is_one() -> None:
    for load in (0.3, 0.6, 0.9):
        assert mean_wait_fixed(1, load) == pytest.approx(load / (2 * (1 - load)), rel=1e-6)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.7), (16, 0.9)])
def test_random_times_wait_as_in_m_m_c(servers: int, load: float) -> None:
    random = np.random.default_rng(7)
    slots = RandomSlots(servers, lambda count: random.exponential(1.0, count))
    times = waits(slots, servers * load, 1_000_000, seed=8)
    spare = servers * (1 - load)
    wait = erlang_c(servers, servers * load) / spare
    assert times.mean() == pytest.approx(1 + wait, rel=0.02)


@pytest.mark.parametrize(
    ("servers", "load"), [(1, 0.6), (1, 0.9), (4, 0.8), (20, 0.95), (100, 0.97)]
)
def test_fixed_times_wait_as_in_m_d_c(servers: int, load: float) -> None:
    times = waits(FixedSlots(servers, 1.0), servers * load, 6_000_000, seed=9)
    wait = mean_wait_fixed(servers, servers * load)
    assert times.mean() == pytest.approx(1 + wait, rel=0.005)
    assert times.mean() - 1 == pytest.approx(wait, rel=0.02)


def test_the_tail_is_that_of_m_m_1() -> None:
    random = np.random.default_rng(3)
    times = waits(RandomSlots(1, lambda n: random.exponential(1.0, n)), 0.5, 1_000_000, seed=4)
    # Time in the system is exponential, of mean 1 / (1 - load).
    assert np.quantile(times, 0.99) == pytest.approx(-math.log(0.01) * 2, rel=0.02)


# Multiples of a power of two, so that every sum is exact however it is added up: a request that
# would begin at the very moment a step ends is where the two must agree, not where they round.
TICK = 1 / 64


def ticks(first: int, last: int) -> st.SearchStrategy[float]:
    return st.integers(first, last).map(lambda count: count * TICK)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_all_at_once_is_one_after_the_other(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 6))
    time = data.draw(ticks(1, 192))
    fast, slow = FixedSlots(count, time), RandomSlots(count, lambda n: np.full(n, time))
    now = 0.0
    for _ in range(data.draw(st.integers(1, 6))):
        length = data.draw(ticks(1, 256))
        until = now + length
        moments = st.integers(0, int(length / TICK) - 1).map(lambda tick: tick * TICK)
        arrived = now + np.sort(data.draw(st.lists(moments, max_size=25)))
        assert fast.advance(arrived, until).tolist() == slow.advance(arrived, until).tolist()
        assert len(fast.waiting) == len(slow.waiting)
        assert fast.in_flight == slow.in_flight
        change = data.draw(st.integers(-2, 3))
        for slots in (fast, slow):
            if change > 0:
                slots.add(change)
            else:
                slots.remove(min(-change, len(slots.free)))
        now = until


def test_nobody_is_served_where_there_is_no_slot_and_all_are_when_one_comes() -> None:
    slots = FixedSlots(0, 1.0)
    assert len(slots.advance(np.array([0.0, 0.5]), 1.0)) == 0
    assert slots.in_flight == 2
    slots.add(2)
    assert slots.advance(np.empty(0), 2.0).tolist() == [2.0, 1.5]


def test_arrivals_are_in_order_and_as_many_as_the_rate_says() -> None:
    found = arrivals(Load((0, 100), (1000, 1000)), 10, 60, np.random.default_rng(1))
    assert (np.diff(found) >= 0).all()
    assert found[0] >= 10
    assert found[-1] < 60
    assert len(found) == pytest.approx(50_000, rel=0.02)
