"""The simulated services are what theory says of them."""

import math

import numpy as np
import pytest

from loadtest.simulation.queues import SERVERS, SPREAD, Service, simulate, true_limits


def test_a_queue_waits_as_long_as_theory_says() -> None:
    """Allen and Cunneen: W = C/(c - a) (1 + scv)/2, C the probability of waiting (Erlang)."""
    utilisation = 0.85
    load = SERVERS * utilisation
    terms = [load**n / math.factorial(n) for n in range(SERVERS)]
    last = load**SERVERS / math.factorial(SERVERS) / (1 - utilisation)
    waiting = last / (sum(terms) + last)
    variation = math.expm1(SPREAD**2)
    expected = waiting / (SERVERS - load) * (1 + variation) / 2
    traces = simulate(Service("queue", utilisation), 100, 20_000, 5_000, seed=1)
    assert traces.latencies.mean() - 1 == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("kind", ["queue", "bursts", "slow spells", "drift"])
def test_requests_come_at_the_rate_that_the_utilisation_says(kind: str) -> None:
    traces = simulate(Service(kind, 0.7), 50, 20_000, 1_000, seed=2)  # type: ignore[arg-type]
    spans = traces.arrivals[:, -1] - traces.arrivals[:, 0]
    assert 20_000 / spans.mean() == pytest.approx(0.7 * SERVERS, rel=0.03)


def test_failures_in_spells_are_one_percent_of_all_requests() -> None:
    traces = simulate(Service("failing spells"), 200, 20_000, 0, seed=3)
    assert np.isinf(traces.latencies).mean() == pytest.approx(0.01, rel=0.1)


def test_the_true_limit_is_exceeded_by_the_share_it_is_for() -> None:
    service = Service("queue", 0.5)
    narrow, wide = true_limits(service, (0.05, 0.01), 20_000, 5_000, seed=4, requests=1_000_000)
    traces = simulate(service, 50, 20_000, 5_000, seed=5)
    assert (traces.latencies > narrow).mean() == pytest.approx(0.05, rel=0.05)
    assert (traces.latencies > wide).mean() == pytest.approx(0.01, rel=0.1)
