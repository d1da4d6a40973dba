"""Answers token by token, through the gateway's own path and through a bare Envoy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.bodies import chat_request
from loadtest.bench.load import Target, open_loop
from loadtest.bench.measure import MOST_SECONDS, checked, constant_schedule, interleaved
from loadtest.bench.our_path import PATH, beside_a_bare_one
from loadtest.bench.ratios import Measure, Part, Tell, over_rounds, percentile, ratio_of
from loadtest.bench.servers import Server, free_ports
from loadtest.bench.sizes import Sizes
from loadtest.bench.stub_app import EVENT_STREAM, EVENTS
from serving.local.engines import find_engines

# Starts of streams, which take half a second each; not together, or they wait for one another.
RATE_RPS: Final = 32
CONNECTIONS: Final = 64
WARM_STREAMS: Final = 8


@dataclass(frozen=True)
class Streams:
    """What one side took in one round."""

    first_seconds: float
    total_seconds: float
    cpu_seconds: float


Sides = tuple[tuple[Server, Target], ...]
"""The gateway's path, then a bare Envoy."""


@contextmanager
def ready_stream(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    """Measures first event, whole stream, and Envoy's processor time for each event."""
    engines = find_engines()
    ports = free_ports("stub", "ours", "ours-inner", "ours-admin", "bare")
    with beside_a_bare_one(engines, folder, ports) as (ours, bare, _):
        request = chat_request(PATH, {**ours.headers, "accept": EVENT_STREAM})
        sides = (
            (ours.server, ours.target),
            (bare, Target(bare.port, ours.target.tls)),
        )
        yield lambda: _measure(sides, request, sizes, tell)


def _measure(sides: Sides, request: bytes, sizes: Sizes, tell: Tell) -> Part:
    tell(f"streams of {EVENTS} events")

    def side(server: Server, target: Target) -> Callable[[int], Streams]:
        _streams(server, target, [request] * WARM_STREAMS)
        return lambda _: _streams(server, target, [request] * sizes.streams)

    ours, bare = interleaved(sizes.stream_rounds, *(side(*each) for each in sides))
    return _part(ours, bare)


def _streams(server: Server, target: Target, requests: list[bytes]) -> Streams:
    schedule = constant_schedule(RATE_RPS, len(requests) / RATE_RPS)
    before = server.cpu_seconds()
    outcome = open_loop(target, requests, schedule, CONNECTIONS, MOST_SECONDS)
    checked(outcome, server.name)
    return Streams(
        percentile(outcome.firsts, 0.5),
        percentile(outcome.latencies, 0.5),
        (server.cpu_seconds() - before) / len(requests),
    )


def _part(ours: list[Streams], bare: list[Streams]) -> Part:
    cpu = [each.cpu_seconds for each in ours], [each.cpu_seconds for each in bare]
    firsts = [each.first_seconds for each in ours], [each.first_seconds for each in bare]
    totals = [each.total_seconds for each in ours], [each.total_seconds for each in bare]
    return Part(
        ratios={
            # The dearest of the three: at an even pace the others hardly show a proxy.
            "stream_vs_bare_envoy": ratio_of(*cpu),
            "stream_first_event_vs_bare_envoy": ratio_of(*firsts),
            "stream_total_vs_bare_envoy": ratio_of(*totals),
        },
        absolute={
            "stream_cpu_us_per_event": over_rounds([one * 1e6 / EVENTS for one in cpu[0]]),
            "stream_cpu_us_per_event_bare_envoy": over_rounds(
                [one * 1e6 / EVENTS for one in cpu[1]]
            ),
            "stream_first_event_ms": over_rounds([one * 1e3 for one in firsts[0]]),
            "stream_first_event_ms_bare_envoy": over_rounds([one * 1e3 for one in firsts[1]]),
            "stream_total_ms": over_rounds([one * 1e3 for one in totals[0]]),
        },
    )
