"""Counts are what was counted, the SLO is an exact edge, and series have an end."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.gateway.prediction.metrics import EDGES_SECONDS, Latency, Metrics
from serving.gateway.prediction.schema import ModelSchema, Served

SCHEMA = ModelSchema((), (), 0)


def served(slo_ms: float | None = 40.0, model: str = "ranker") -> Served:
    return Served(model, 1, "sha256:a", SCHEMA, 5.0, slo_ms)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("slo_ms", [40.0, 50.0, 33.3, 12_000.0])
def test_the_slo_is_an_edge_and_what_takes_exactly_as_long_is_within_it(slo_ms: float) -> None:
    latency = Latency(slo_ms)
    latency.add(slo_ms / 1000)
    latency.add(slo_ms / 1000 + 1e-6)
    buckets = dict(latency.buckets())
    assert buckets[repr(slo_ms / 1000)] == 1
    assert buckets["+Inf"] == 2
    assert list(buckets) == sorted(buckets, key=float)


def test_each_model_has_the_edges_of_its_own_slo() -> None:
    metrics = Metrics()
    metrics.answered(served(), "1", "ads", "hit", 200, 0.01)
    metrics.answered(served(None, "other"), "1", "ads", "hit", 200, 0.01)
    edges = {
        model: {
            dict(labels)["le"]
            for (name, labels) in samples(metrics)
            if name.endswith("seconds_bucket") and dict(labels)["model"] == model
        }
        for model in ("ranker", "other")
    }
    assert edges["ranker"] - edges["other"] == {"0.04"}
    assert len(edges["other"]) == len(EDGES_SECONDS) + 1


def test_answers_are_counted_by_model_version_client_cache_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 503):
        metrics.answered(served(), "2", "ads", "miss", status, 0.5)
    found = samples(metrics)
    labels = (("cache", "miss"), ("client", "ads"), ("model", "ranker"))
    assert found["galley_predictions_total", (*labels, ("status", "200"), ("version", "2"))] == 2
    assert found["galley_predictions_total", (*labels, ("status", "503"), ("version", "2"))] == 1
    key = (("cache", "miss"), ("model", "ranker"), ("version", "2"))
    assert found["galley_prediction_latency_seconds_count", key] == 3
    assert found["galley_prediction_latency_seconds_sum", key] == 1.5


def test_faults_refusals_and_what_is_held_are_told() -> None:
    metrics = Metrics()
    metrics.cache_faults["timeout"] += 3
    metrics.refusals["ranker", "400"] += 1
    metrics.in_flight["ranker", "1"] += 2
    metrics.held_bytes = 17
    metrics.unserved = 4
    found = samples(metrics)
    assert found["galley_cache_faults_total", (("reason", "timeout"),)] == 3
    assert found["galley_refusals_total", (("model", "ranker"), ("status", "400"))] == 1
    assert found["galley_prediction_in_flight", (("model", "ranker"), ("version", "1"))] == 2
    assert found["galley_request_bytes_held", ()] == 17
    assert found["galley_unserved_total", ()] == 4
