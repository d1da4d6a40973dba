"""One measurement: a load on a server, which must have answered all of it."""

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from loadtest.bench.load import Outcome, Target, closed_loop
from loadtest.bench.servers import Server
from serving.errors import InfrastructureError

MOST_SECONDS: Final = 120.0
Found = TypeVar("Found")


def checked(outcome: Outcome, what: str) -> Outcome:
    """The outcome itself.

    Raises:
        InfrastructureError: something was not answered, so that nothing was measured.
    """
    if outcome.failed:
        raise InfrastructureError(
            f"{what}: {outcome.failed} requests failed ({outcome.why}); nothing is measured by that"
        )
    return outcome


def cpu_per_request(
    server: Server, target: Target, requests: Sequence[bytes], connections: int
) -> float:
    """Microseconds of processors that the server used for each of the requests."""
    before = server.cpu_seconds()
    checked(closed_loop(target, requests, connections, MOST_SECONDS), server.name)
    return (server.cpu_seconds() - before) * 1e6 / len(requests)


def constant_schedule(rate_rps: float, seconds: float) -> list[float]:
    """Times at an even rate, in seconds from the start.

    >>> constant_schedule(4, 1)
    [0.0, 0.25, 0.5, 0.75]
    """
    return [number / rate_rps for number in range(round(rate_rps * seconds))]


def poisson_schedule(rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Times of independent arrivals, as of many clients; the same seed gives the same ones."""
    rng = random.Random(seed)  # noqa: S311 - no secret: a schedule is to be the same again
    times, moment = [], rng.expovariate(rate_rps)
    while moment < seconds:
        times.append(moment)
        moment += rng.expovariate(rate_rps)
    return times


def interleaved(rounds: int, *sides: Callable[[int], Found]) -> list[list[Found]]:
    """What each side measured in each round: A B, B A, A B and so on.

    Every other round goes the other way, so that neither side is always the later one.

    A side is given the number of the round.

    >>> interleaved(2, lambda round: 1.0 + round, lambda round: 10.0)
    [[1.0, 2.0], [10.0, 10.0]]
    """
    found: list[list[Found]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(enumerate(sides))
        for place, side in order if number % 2 == 0 else reversed(order):
            found[place].append(side(number))
    return found
