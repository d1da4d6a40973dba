"""What a model's requests may be, take and need follows from its spec alone."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.gateway.edge import render_edge
from serving.gateway.inner import render_inner
from serving.gateway.limits import ATTEMPTS, LARGEST_REQUEST_BYTES, limits_of, max_request_bytes
from serving.gateway.routes import Caller, Gateway, Limits
from serving.spec import ModelSpec, parse_spec

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]

# The longest that a finite double is as JSON.
LONGEST_NUMBER = -2.2250738585072014e-308


def spec_with(stated: Stated, batch: int, **tensor: object) -> ModelSpec:
    changes: dict[str, object] = {f"inputs.0.{key}": value for key, value in tensor.items()}
    changes |= {"engine.max_batch_size": batch, "engine.dynamic_batching": ..., "warmup": ...}
    return parse_spec(stated(changes), "ranker")


def limits_with(
    stated: Stated, changes: Mapping[str, object] | None = None, replicas: int = 2
) -> Limits:
    return limits_of(parse_spec(stated(changes or {}), "ranker"), replicas)


def nested(shape: list[int]) -> Any:
    return [nested(shape[1:]) for _ in range(shape[0])] if shape else LONGEST_NUMBER


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 8), st.lists(st.integers(1, 12), min_size=1, max_size=4))
@example(8, [8000])
@example(8, [4000, 1, 1, 1, 1])
def test_a_full_batch_fits_as_json_however_long_its_numbers_and_however_nested_they_are(
    stated: Stated, batch: int, dims: list[int]
) -> None:
    spec = spec_with(stated, batch, data_type="TYPE_FP64", dims=dims)
    shape = [batch, *dims]
    tensor = {"name": "input0", "datatype": "FP64", "shape": shape, "data": nested(shape)}
    body = json.dumps({"inputs": [tensor]})
    assert len(body) <= max_request_bytes(spec)


@given(
    st.integers(0, 2**31 - 1),
    st.lists(st.one_of(st.just(-1), st.integers(1, 2**40)), min_size=1, max_size=5),
)
def test_no_model_takes_requests_without_a_limit_and_open_dims_get_the_servers_own(
    stated: Stated, batch: int, dims: list[int]
) -> None:
    limit = max_request_bytes(spec_with(stated, batch, dims=dims))
    assert 0 < limit <= LARGEST_REQUEST_BYTES
    if -1 in dims or math.prod(dims) * max(1, batch) * 8 > LARGEST_REQUEST_BYTES:
        assert limit == LARGEST_REQUEST_BYTES


def test_a_larger_batch_may_send_more(stated: Stated) -> None:
    limits = [max_request_bytes(spec_with(stated, batch, dims=[512])) for batch in (0, 1, 2, 64)]
    assert limits[0] == limits[1] < limits[2] < limits[3] < LARGEST_REQUEST_BYTES


def test_every_input_counts(stated: Stated) -> None:
    both = [{"name": name, "data_type": "TYPE_FP32", "dims": [512]} for name in ("a", "b")]
    plain = {"engine.dynamic_batching": ..., "warmup": ...}
    one = max_request_bytes(parse_spec(stated({**plain, "inputs": both[:1]}), "ranker"))
    two = max_request_bytes(parse_spec(stated({**plain, "inputs": both}), "ranker"))
    assert two - one > 512 * 64 * 8


def test_strings_have_no_largest_size_so_they_get_the_servers_own_limit(stated: Stated) -> None:
    spec = spec_with(stated, 1, data_type="TYPE_STRING", dims=[1])
    assert max_request_bytes(spec) == LARGEST_REQUEST_BYTES


VLLM: dict[str, object] = {
    "engine": {"kind": "vllm", "max_model_len": 8192, "max_num_seqs": 64},
    "artifact.format": "safetensors",
    "slo": {
        "time_to_first_token_p99_ms": 500,
        "inter_token_latency_p99_ms": 50,
        "error_ratio": 0.001,
        "because": "people read along",
    },
    **dict.fromkeys(("inputs", "outputs", "warmup", "cache"), ...),
}


def test_a_model_that_takes_text_and_no_tensors_gets_the_servers_own_limit(stated: Stated) -> None:
    assert max_request_bytes(parse_spec(stated(VLLM), "ranker")) == LARGEST_REQUEST_BYTES


def test_tokens_come_as_a_stream_that_is_never_asked_for_twice(stated: Stated) -> None:
    limits = limits_with(stated, VLLM)
    assert (limits.kind, limits.per_try_timeout_seconds) == ("stream", None)


def test_a_decoupled_model_streams(stated: Stated) -> None:
    limits = limits_with(stated, {"engine.decoupled": True, "cache": ...})
    assert (limits.kind, limits.per_try_timeout_seconds) == ("stream", None)


def test_a_sequence_is_never_asked_for_twice(stated: Stated) -> None:
    limits = limits_with(
        stated,
        {
            "engine.dynamic_batching": ...,
            "engine.sequence_batching": {
                "max_sequence_idle_microseconds": 60_000_000,
                "client_gap_ms": 1000,
                "strategy": {"kind": "direct"},
            },
            "cache": ...,
            "routing": {"hash_header": "x-sequence-id"},
        },
    )
    assert (limits.kind, limits.per_try_timeout_seconds) == ("tensors", None)


@given(st.floats(1, 60_000))
def test_an_attempt_is_given_up_only_well_after_the_p99_and_both_fit_the_time(
    stated: Stated, p99_ms: float
) -> None:
    limits = limits_with(
        stated,
        {"slo.latency_p99_ms": p99_ms, "engine.dynamic_batching.max_queue_delay_microseconds": 0},
    )
    attempt = limits.per_try_timeout_seconds
    assert attempt is not None
    assert attempt >= 5 * p99_ms / 1000
    assert ATTEMPTS * attempt <= limits.timeout_seconds


def test_the_time_in_the_spec_is_the_time_that_is_given(stated: Stated) -> None:
    assert limits_with(stated, {"routing": {"timeout_ms": 10_000}}).timeout_seconds == 10
    tight = limits_with(stated, {"routing": {"timeout_ms": 60}})
    assert (tight.timeout_seconds, tight.per_try_timeout_seconds) == (0.06, None)


def test_the_times_in_the_spec_are_those_of_its_routes(stated: Stated, gateway: Gateway) -> None:
    changes = {"routing": {"timeout_ms": 2500, "idle_timeout_seconds": 7}}
    for more, expected in (
        ({}, {("2.5s", None)}),
        ({"engine.decoupled": True, "cache": ...}, {("2.5s", None), ("0s", "7s")}),
    ):
        limits = limits_with(stated, {**changes, **more})
        gateway = gateway.with_route(replace(gateway.models[1], limits=limits))
        rendered = [
            *render_edge(gateway, {})["virtual_hosts"][0]["routes"],
            *render_inner(gateway)["virtual_hosts"][0]["routes"],
        ]
        found = {
            (route["route"]["timeout"], route["route"].get("idle_timeout"))
            for route in rendered
            if "/models/ranker" in str(route["match"]) and "route" in route
        }
        assert found == expected


def test_the_idle_time_in_the_spec_is_the_silence_that_is_borne(stated: Stated) -> None:
    assert limits_with(stated, {"routing": {"idle_timeout_seconds": 7}}).idle_timeout_seconds == 7
    assert limits_with(stated).idle_timeout_seconds == 300


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_as_much_may_be_in_flight_as_all_replicas_bear_and_a_short_queue(
    stated: Stated, replicas: int
) -> None:
    limits = limits_with(stated, replicas=replicas)  # 20 for each replica
    assert limits.max_in_flight == 30 * replicas
    assert limits.retries_in_flight == 30


def test_each_client_has_its_rate_and_the_model_its_peak_with_headroom(stated: Stated) -> None:
    limits = limits_with(stated)
    assert limits.callers == (Caller("ads", 500), Caller("feed", 2000))
    assert limits.rate_rps == 2500


def test_the_header_that_finds_a_replica_is_the_one_in_the_spec(stated: Stated) -> None:
    assert limits_with(stated).hash_header is None
    hashed = limits_with(stated, {"routing": {"hash_header": "x-user"}})
    assert hashed.hash_header == "x-user"
