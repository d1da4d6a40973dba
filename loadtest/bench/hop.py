"""The prediction hop beside an application that does nothing, both served by granian.

What is counted is the processor time of the hop's own process. Its cache is a real Valkey, its
model server a stub.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import httpx
import psutil

from loadtest.bench.bodies import ranker_requests
from loadtest.bench.load import Target, closed_loop, open_loop
from loadtest.bench.measure import (
    MOST_SECONDS,
    checked,
    constant_schedule,
    cpu_per_request,
    interleaved,
)
from loadtest.bench.ratios import (
    Measure,
    Part,
    Ratio,
    Tell,
    over_rounds,
    percentile,
    ratio_of,
)
from loadtest.bench.servers import Server, free_ports, python_app, running
from loadtest.bench.sizes import Sizes
from serving.errors import InfrastructureError
from serving.gateway.prediction.schema import CacheRule, ModelSchema, Served, TensorSchema
from serving.gateway.prediction.table import encode_table
from serving.local.engines import find_engines
from serving.local.home import Secrets, State, write_atomically, write_json
from serving.local.processes import CACHE_USER, valkey_conf

CONNECTIONS: Final = 8
# More than connections, so that no two requests in flight are the same one and share an answer.
DISTINCT_HITS: Final = 64
RATE_RPS: Final = 500
DIGEST: Final = "sha256:" + 64 * "0"
TTL_SECONDS: Final = 3600.0

# As Envoy sends them: what it was sent, and what it adds.
HEADERS: Final = {
    "host": "127.0.0.1",
    "user-agent": "bench",
    "x-forwarded-for": "127.0.0.1",
    "x-forwarded-proto": "https",
    "x-request-id": "5e8f4d1c-6c1f-4c27-9f4e-2f7e1d0a9b3c",
    "x-galley-client": "ads",
    "x-galley-version": "1",
    "x-galley-digest": DIGEST,
}
RANKER: Final = Served(
    model="ranker",
    version=1,
    digest=DIGEST,
    schema=ModelSchema(
        inputs=(TensorSchema("input0", "FP32", (512,)),),
        outputs=(TensorSchema("score", "FP32", (1,)),),
        max_batch_size=64,
    ),
    timeout_seconds=5.0,
    latency_p99_ms=50.0,
    cache=CacheRule(TTL_SECONDS, per_client=False),
)


@dataclass(frozen=True)
class Bench:
    """What runs while the hop is measured."""

    hop: Server
    empty: Server


@contextmanager
def ready_hop(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    """Measures the processor time of hits and misses, and how long a hit takes on one core."""
    with _servers(folder) as bench:
        yield lambda: _measure(bench, sizes, tell)


def _measure(bench: Bench, sizes: Sizes, tell: Tell) -> Part:
    tell("hits and misses of the prediction hop")
    costs = _costs(bench, sizes)
    tell(f"{RATE_RPS} hits a second on one core")
    times = _one_core(bench, sizes)
    hits, hits_json, misses, empty, empty_json, single, empty_single = costs
    return Part(
        ratios={
            "hit_cpu_vs_empty_app": ratio_of(hits, empty),
            "hit_cpu_vs_empty_app_json": ratio_of(hits_json, empty_json),
            "hit_cpu_vs_empty_app_one_at_a_time": ratio_of(single, empty_single),
            "miss_cpu_vs_hit": ratio_of(misses, hits),
        },
        absolute={
            "hit_cpu_us": over_rounds(hits),
            "hit_cpu_us_json": over_rounds(hits_json),
            "miss_cpu_us": over_rounds(misses),
            "empty_app_cpu_us": over_rounds(empty),
            "empty_app_cpu_us_json": over_rounds(empty_json),
            "hit_cpu_us_one_at_a_time": over_rounds(single),
            "empty_app_cpu_us_one_at_a_time": over_rounds(empty_single),
            **times,
        },
        versions={"granian": version("granian")},
    )


@contextmanager
def _servers(folder: Path) -> Iterator[Bench]:
    ports = free_ports("valkey", "stub", "hop", "empty")
    engines, made = find_engines(), Secrets.generate()
    state = State(stack_id="bench", replicas=0, ports=ports)
    write_atomically(folder / "valkey.conf", valkey_conf(state, made), private=True)
    write_atomically(folder / "table.json", encode_table([RANKER]).decode())
    settings = {
        "name": "bench",
        "host": "127.0.0.1",
        "port": ports["hop"],
        "table": str(folder / "table.json"),
        "upstream": {"host": "127.0.0.1", "port": ports["stub"]},
        "valkey": {
            "host": "127.0.0.1",
            "port": ports["valkey"],
            "username": CACHE_USER,
            "password": made.cache_password,
        },
        "mac_key": secrets.token_hex(32),
        "log_folder": str(folder / "predictions"),
    }
    (folder / "settings.json").touch(mode=0o600)
    write_json(folder / "settings.json", settings)
    valkey = (engines.valkey, folder / "valkey.conf")
    stub = python_app("stub_app", ports["stub"])
    empty = python_app("empty_app", ports["empty"])
    hop = (empty[0], "-m", "serving.gateway.prediction.server", folder / "settings.json")
    with ExitStack() as running_servers:
        enter = running_servers.enter_context
        enter(running("valkey", valkey, ports["valkey"], folder))
        enter(running("stub", stub, ports["stub"], folder, ready_path="/"))
        yield Bench(
            enter(running("hop", hop, ports["hop"], folder, ready_path="/live")),
            enter(running("empty", empty, ports["empty"], folder)),
        )


def _costs(bench: Bench, sizes: Sizes) -> list[list[float]]:
    count = sizes.hop_requests
    repeats = -(-count // DISTINCT_HITS)
    hits = ranker_requests(DISTINCT_HITS, 1, HEADERS)
    hits_json = ranker_requests(DISTINCT_HITS, 2, HEADERS, binary=False)
    hop, empty = Target(bench.hop.port), Target(bench.empty.port)
    for warming in (hits, hits_json):
        for target in (hop, empty):
            closed_loop(target, warming * 8, CONNECTIONS, MOST_SECONDS)

    def of_hits(_: int) -> float:
        return _cost_of(bench.hop, hits * repeats, "hit")

    def of_json(_: int) -> float:
        return _cost_of(bench.hop, hits_json * repeats, "hit")

    def of_misses(number: int) -> float:
        distinct = ranker_requests(count, 1000 + number, HEADERS)
        return _cost_of(bench.hop, distinct, "miss")

    def of_empty(_: int) -> float:
        return cpu_per_request(bench.empty, empty, hits * repeats, CONNECTIONS)

    def of_empty_json(_: int) -> float:
        return cpu_per_request(bench.empty, empty, hits_json * repeats, CONNECTIONS)

    # A server that is asked one thing at a time wakes up and goes to sleep for each.
    few = hits * -(-repeats // 4)

    def of_single(_: int) -> float:
        return _cost_of(bench.hop, few, "hit", connections=1)

    def of_empty_single(_: int) -> float:
        return cpu_per_request(bench.empty, empty, few, 1)

    # Each next to the one that it is compared with.
    pairs = (of_json, of_empty_json, of_empty, of_hits, of_misses, of_single, of_empty_single)
    json_, empty_json, empty_, hits_, misses, single, empty_single = interleaved(
        sizes.rounds, *pairs
    )
    return [hits_, json_, misses, empty_, empty_json, single, empty_single]


def _cost_of(
    hop: Server, requests: Sequence[bytes], state: str, connections: int = CONNECTIONS
) -> float:
    """Microseconds for each request, all of which were answered from where they should be.

    Raises:
        InfrastructureError: some were not, so that something else was measured.
    """
    before = _answered(hop, state)
    cost = cpu_per_request(hop, Target(hop.port), requests, connections)
    answered = _answered(hop, state) - before
    if answered != len(requests):
        raise InfrastructureError(f"hop: {answered:g} of {len(requests)} answers were a {state}")
    return cost


def _one_core(bench: Bench, sizes: Sizes) -> dict[str, Ratio]:
    """Hits at an even rate, the hop kept on the last core and everything else off it."""
    cores = sorted(psutil.Process().cpu_affinity() or [])
    if len(cores) > 1:
        bench.hop.pin(cores[-1])
    schedule = constant_schedule(RATE_RPS, sizes.open_seconds)
    distinct = ranker_requests(DISTINCT_HITS, 1, HEADERS)
    requests = (distinct * -(-len(schedule) // DISTINCT_HITS))[: len(schedule)]
    before = _within_one_millisecond(bench.hop)
    used = bench.hop.cpu_seconds()
    outcome = open_loop(Target(bench.hop.port), requests, schedule, 2 * CONNECTIONS, MOST_SECONDS)
    checked(outcome, "hop")
    used = bench.hop.cpu_seconds() - used
    after = _within_one_millisecond(bench.hop)
    within, total = (late - early for late, early in zip(after, before, strict=True))
    once = {
        "hit_p50_ms_at_500_rps": percentile(outcome.latencies, 0.5) * 1e3,
        "hit_p99_ms_at_500_rps": percentile(outcome.latencies, 0.99) * 1e3,
        "hit_share_within_1_ms_in_the_hop": within / total,
        "hit_cpu_us_at_500_rps": used * 1e6 / len(requests),
        "generator_late_p99_ms_at_500_rps": percentile(outcome.lateness, 0.99) * 1e3,
    }
    return {name: over_rounds([value]) for name, value in once.items()}


def _within_one_millisecond(hop: Server) -> tuple[float, float]:
    """Hits that took no longer than 1 ms by the hop's own histogram, and all of them."""
    return _answered(hop, "hit", "0.001"), _answered(hop, "hit")


def _answered(hop: Server, state: str, edge_seconds: str = "+Inf") -> float:
    """Answers of one cache state that took no longer than an edge of the hop's histogram."""
    url = f"http://127.0.0.1:{hop.port}/metrics"
    text = httpx.get(url, timeout=5, trust_env=False).text
    pattern = (
        rf'^galley_prediction_latency_seconds_bucket\{{(?=[^}}]*cache="{state}")'
        rf'(?=[^}}]*le="{re.escape(edge_seconds)}")[^}}]*\}} (\S+)$'
    )
    return sum(float(each) for each in re.findall(pattern, text, re.MULTILINE))
