"""What a hop counts, as Prometheus reads it.

Counting is adding to dicts and lists; prometheus_client makes text of them when it is asked.
Series are of models that are served and of clients with a key, so there is an end to them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from serving.gateway.prediction.schema import Served

EDGES_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Latency:
    """How many answers took how long, with an exact edge at the model's SLO."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, slo_ms: float | None) -> None:
        slo = () if slo_ms is None else (slo_ms / 1000,)
        self.edges = sorted({*EDGES_SECONDS, *slo})
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one answer."""
        self.counts[bisect_left(self.edges, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Edge and how many took no longer, the last without end."""
        found, sum_so_far = [], 0
        for edge, count in zip([*self.edges, inf], self.counts, strict=True):
            sum_so_far += count
            found.append(("+Inf" if edge == inf else repr(edge), float(sum_so_far)))
        return found


class Metrics(Collector):
    """The counts of one hop."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, ...]] = Counter()
        self.latencies: dict[tuple[str, str, str], Latency] = {}
        self.cache_faults: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, ...]] = Counter()
        self.in_flight: Counter[tuple[str, str]] = Counter()
        self.failures = 0
        self.unserved = 0
        self.held_bytes = 0
        self.table_faults = 0
        self.log_dropped = 0
        self.log_samples_dropped = 0
        self.log_segments_removed = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def answered(
        self, served: Served, version: str, client: str, cache: str, status: int, seconds: float
    ) -> None:
        """Count an answer to a request for a version."""
        model = served.model
        self.answers[model, version, client, cache, str(status)] += 1
        key = (model, version, cache)
        latency = self.latencies.get(key)
        if latency is None:
            latency = self.latencies[key] = Latency(served.latency_p99_ms)
        latency.add(seconds)

    def text(self) -> bytes:
        """All of it, as a scrape gets it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for."""
        yield _counter(
            "galley_predictions",
            "Answers.",
            ("model", "version", "client", "cache", "status"),
            self.answers,
        )
        latency = HistogramMetricFamily(
            "galley_prediction_latency_seconds",
            "From a request's arrival at the hop until its answer.",
            labels=("model", "version", "cache"),
        )
        for labels, found in self.latencies.items():
            latency.add_metric(labels, found.buckets(), found.total)
        yield latency
        in_flight = GaugeMetricFamily(
            "galley_prediction_in_flight", "Requests being worked on.", labels=("model", "version")
        )
        for place, count in self.in_flight.items():
            in_flight.add_metric(place, count)
        yield in_flight
        yield _counter(
            "galley_cache_faults",
            "Times that the cache was no help.",
            ("reason",),
            Counter({(reason,): count for reason, count in self.cache_faults.items()}),
        )
        yield _counter(
            "galley_refusals", "Requests that were refused.", ("model", "status"), self.refusals
        )
        yield GaugeMetricFamily(
            "galley_request_bytes_held", "Bodies in memory.", value=self.held_bytes
        )
        yield CounterMetricFamily(
            "galley_hop_failures", "Requests on which the hop itself failed.", value=self.failures
        )
        yield CounterMetricFamily(
            "galley_unserved", "Requests for a version not served here.", value=self.unserved
        )
        for name, help_, value in (
            ("galley_table_faults", "Tables that could not be read.", self.table_faults),
            ("galley_log_lines_dropped", "Lines that were not logged.", self.log_dropped),
            ("galley_log_samples_dropped", "Tensors left out.", self.log_samples_dropped),
            ("galley_log_segments_removed", "Removed unshipped.", self.log_segments_removed),
        ):
            yield CounterMetricFamily(name, help_, value=value)


def _counter(
    name: str, help_: str, labels: tuple[str, ...], counts: "Counter[tuple[str, ...]]"
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
