"""Each engine has its own settings and its own mistakes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from serving.engines.kinds import PLATFORMS, ContainerEngine, VllmEngine
from serving.slo import LatencySlo, TokenSlo
from serving.spec import parse_spec

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Told = Callable[[Mapping[str, object]], list[str]]

CHAT = {
    "name": "chat",
    "artifact": {"format": "safetensors"},
    "engine": {"kind": "vllm", "max_model_len": 4096, "max_num_seqs": 64},
    "inputs": ...,
    "outputs": ...,
    "warmup": ...,
    "cache": ...,
    "slo": {
        "time_to_first_token_p99_ms": 800,
        "inter_token_latency_p99_ms": 60,
        "error_ratio": 0.01,
        "because": "people read at this pace",
    },
}
IMAGE = "vendor/server@sha256:" + "0" * 64
CONTAINER = {
    "engine": {
        "kind": "container",
        "image": IMAGE,
        "port": 8080,
        "ready_path": "/ready",
        "live_path": "/live",
        "request_paths": ["/v1/models/ranker:predict"],
    },
    "warmup": ...,
    "cache": ...,
}


@pytest.mark.parametrize("changes", [CHAT, CONTAINER])
def test_other_engines_are_read(stated: Stated, changes: dict[str, object]) -> None:
    spec = parse_spec(stated(changes), "ranker")
    assert isinstance(spec.engine, VllmEngine | ContainerEngine)
    assert isinstance(spec.slo, TokenSlo if spec.engine.kind == "vllm" else LatencySlo)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (CHAT | {"cache": {"ttl_seconds": 60, "scope": "shared"}}, "cache cannot stand before"),
        (CHAT | {"warmup": [{"batch_size": 1}]}, "warmup is not something that a vllm engine does"),
        (
            CHAT | {"inputs": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]},
            "inputs is not something that a vllm engine has",
        ),
        (CHAT | {"artifact": {"format": "onnx"}}, "artifact.format=onnx is not what vllm reads"),
        (
            CHAT | {"slo": {"latency_p99_ms": 50, "error_ratio": 0.1, "because": "x"}},
            "slo.latency_p99_ms=50 says nothing about an answer that comes token by token",
        ),
        (
            {"slo": CHAT["slo"]},
            "slo.time_to_first_token_p99_ms=800 is for engines that answer token by token",
        ),
        (
            CHAT | {"engine.max_num_batched_tokens": 63},
            "engine.max_num_batched_tokens=63 is below max_num_seqs=64",
        ),
        (CHAT | {"engine.gpu_memory_utilization": 1.1}, "engine.gpu_memory_utilization=1.1 is ab"),
        (CONTAINER | {"engine.live_path": "/ready"}, "engine.live_path=/ready is also ready_path"),
        (CONTAINER | {"engine.image": "vendor/server:latest"}, "engine.image=vendor/server:latest"),
        (
            CONTAINER | {"engine.request_paths": ["/a/../b"]},
            "engine.request_paths[0]=/a/../b is not",
        ),
        (CONTAINER | {"engine.ready_path": "ready"}, "engine.ready_path=ready is not a plain path"),
    ],
)
def test_a_fault_of_another_engine_is_named(
    faults: Told, changes: dict[str, object], expected: str
) -> None:
    found = faults(changes)
    assert any(fault.startswith(f"ranker: {expected}") for fault in found), found


def test_each_platform_reads_its_own_format(stated: Stated) -> None:
    for name, platform in PLATFORMS.items():
        changes = {"engine.platform": name, "artifact.format": platform.format}
        assert parse_spec(stated(changes), "ranker").artifact.format == platform.format
