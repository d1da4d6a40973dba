"""Routes replace one another by model, and a request may be as large as a full batch needs."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.gateway.routes import LARGEST_REQUEST_BYTES, Gateway, max_request_bytes
from serving.spec import ModelSpec, parse_spec

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]

# The longest that a finite double is as JSON.
LONGEST_NUMBER = -2.2250738585072014e-308


def spec_with(stated: Stated, batch: int, **tensor: object) -> ModelSpec:
    changes: dict[str, object] = {f"inputs.0.{key}": value for key, value in tensor.items()}
    changes |= {"engine.max_batch_size": batch, "engine.dynamic_batching": ..., "warmup": ...}
    return parse_spec(stated(changes), "ranker")


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


def test_a_model_that_takes_text_and_no_tensors_gets_the_servers_own_limit(stated: Stated) -> None:
    engine = {"kind": "vllm", "max_model_len": 8192, "max_num_seqs": 64}
    slo = {
        "time_to_first_token_p99_ms": 500,
        "inter_token_latency_p99_ms": 50,
        "error_ratio": 0.001,
        "because": "people read along",
    }
    without = dict.fromkeys(("inputs", "outputs", "warmup", "cache"), ...)
    changes = {"engine": engine, "artifact.format": "safetensors", "slo": slo, **without}
    assert max_request_bytes(parse_spec(stated(changes), "ranker")) == LARGEST_REQUEST_BYTES


def test_a_new_route_takes_the_place_of_the_old_one_of_its_model(gateway: Gateway) -> None:
    old = gateway.models[0]
    new = replace(old, version=2)
    after = gateway.with_route(new)
    assert after.route("filetype") == new
    assert after.route("ranker") == gateway.route("ranker")
    assert len(after.models) == 2
    assert after.with_route(old) == gateway


def test_routes_are_in_order_of_model_whatever_the_order_they_came_in(gateway: Gateway) -> None:
    first, second = gateway.models
    empty = replace(gateway, models=())
    assert empty.with_route(second).with_route(first) == gateway
    assert empty.with_route(first).with_route(second) == gateway


def test_a_removed_model_has_no_route(gateway: Gateway) -> None:
    after = gateway.without("filetype")
    assert after.route("filetype") is None
    assert after.route("ranker") is not None
    assert after.without("nobody") == after


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"timeout_seconds": 1.0, "endpoints": ()}, True),
        ({"version": 2}, False),
        ({"digest": "sha256:" + "c" * 64}, False),
        ({"model": "other"}, False),
    ],
)
def test_two_routes_lead_to_the_same_version_if_model_number_and_digest_agree(
    gateway: Gateway, change: dict[str, Any], same: bool
) -> None:
    route = gateway.models[0]
    assert route.same_version(replace(route, **change)) is same
