"""The whole gateway beside a bare Envoy, both in front of the same Tritons of a local stack.

The same requests come at the same times to each: misses, since every input is another. Latency
counts from when a request was to be sent, so that one that waits is not a fast one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.bench.bodies import ranker_requests
from loadtest.bench.envoys import bare_envoy
from loadtest.bench.load import Outcome, Target, closed_loop, open_loop
from loadtest.bench.measure import MOST_SECONDS, checked, interleaved, poisson_schedule
from loadtest.bench.our_path import certificate_of, trusting
from loadtest.bench.ratios import Measure, Part, Tell, over_rounds, percentile, ratio_of
from loadtest.bench.servers import ROOT, free_ports
from loadtest.bench.sizes import Sizes
from serving.errors import InfrastructureError
from serving.local.access import authorization
from serving.local.engines import find_engines
from serving.local.home import Home
from serving.local.stack import down

RATE_RPS: Final = 100
CONNECTIONS: Final = 32
WARM_REQUESTS: Final = 100
COMMAND_SECONDS: Final = 200
# One of the ranker's clients, who has a rate limit as clients do.
CLIENT: Final = "feed"


@dataclass(frozen=True)
class Side:
    """Where requests of one side go, and what they carry."""

    name: str
    target: Target
    headers: dict[str, str]


@contextmanager
def ready_end_to_end(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    """Measures median and 99th percentile at a rate that both bear easily."""
    with stack_with_ranker(folder, sizes.replicas, tell) as home, ExitStack() as servers:
        state, engines = home.running_state(), find_engines()
        ports = free_ports("tls", "plain")
        tritons = [state.ports[f"{name}-http"] for name in state.replica_names]
        made = _galley(home, "client", "add", CLIENT)
        trusted = trusting(home.tls)
        for port, certificate in ((ports["tls"], certificate_of(home.tls)), (ports["plain"], None)):
            servers.enter_context(bare_envoy(engines, folder, port, tritons, certificate))
        host = {"host": "127.0.0.1"}
        sides = (
            Side(
                "gateway",
                Target(state.ports["gateway"], trusted),
                {**host, **authorization(made["key"])},
            ),
            Side("bare_envoy", Target(ports["tls"], trusted), host),
            Side("bare_envoy_without_tls", Target(ports["plain"]), host),
        )
        yield lambda: _measure(sides[: sizes.end_to_end_sides], sizes, tell)


def _measure(sides: tuple[Side, ...], sizes: Sizes, tell: Tell) -> Part:
    tell(f"{RATE_RPS} requests a second through {' and '.join(side.name for side in sides)}")
    for number, side in enumerate(sides):
        warm = ranker_requests(WARM_REQUESTS, 10 + number, side.headers)
        checked(closed_loop(side.target, warm, 4, MOST_SECONDS), side.name)

    def measure(side: Side) -> Callable[[int], Outcome]:
        def once(number: int) -> Outcome:
            schedule = poisson_schedule(RATE_RPS, sizes.end_to_end_seconds, 100 + number)
            requests = ranker_requests(len(schedule), 1000 + number, side.headers)
            outcome = open_loop(side.target, requests, schedule, CONNECTIONS, MOST_SECONDS)
            return checked(outcome, side.name)

        return once

    rounds = interleaved(sizes.end_to_end_rounds, *(measure(side) for side in sides))
    names = [side.name for side in sides]
    return _part(sides, dict(zip(names, rounds, strict=True)))


def _part(sides: tuple[Side, ...], found: dict[str, list[Outcome]]) -> Part:
    ratios, absolute = {}, {}
    for share, word in ((0.5, "p50"), (0.99, "p99")):
        times = {
            name: [percentile(outcome.latencies, share) * 1e3 for outcome in outcomes]
            for name, outcomes in found.items()
        }
        for side in sides:
            absolute[f"e2e_{word}_ms_{side.name}"] = over_rounds(times[side.name])
            if side.name != "gateway":
                ratios[f"e2e_{word}_vs_{side.name}"] = ratio_of(times["gateway"], times[side.name])
    late = [percentile(outcome.lateness, 0.99) * 1e3 for outcome in found["gateway"]]
    absolute["generator_late_p99_ms_end_to_end"] = over_rounds(late)
    return Part(ratios=ratios, absolute=absolute)


@contextmanager
def stack_with_ranker(folder: Path, replicas: int, tell: Tell) -> Iterator[Home]:
    """A running stack that serves the ranker."""
    home = Home(folder / "home")
    tell("the local stack starts")
    try:
        _galley(home, "up", "--replicas", str(replicas))
        tell("the ranker is published and deployed")
        _galley(home, "push", "ranker")
        _galley(home, "deploy", "ranker", "1")
        yield home
    finally:
        down(home)


def _galley(home: Home, *arguments: str) -> Any:
    """What a galley command prints as JSON.

    Raises:
        InfrastructureError: it failed; the line is its own.
    """
    program = Path(sys.executable).with_name("galley")
    done = subprocess.run(
        [program, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
        cwd=home.root.parent,
        env={**os.environ, "GALLEY_HOME": str(home.root), "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason was given"]
        raise InfrastructureError(f"galley {' '.join(arguments)}: {said[-1]}")
    return json.loads(done.stdout)
