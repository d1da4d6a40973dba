"""Inputs are a function of seed, salt and place; answers are good only where every output is."""

import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient

from loadtest.payloads.tensors import BLOCK, place_of
from loadtest.payloads.triton import TensorBodies
from loadtest.workload import TritonHttp, Workload
from serving.paths import SPECS
from serving.publish import spec_of
from serving.tensors import ITEM_BYTES
from tests.loadtest.runs import job_of

RANKER = spec_of("ranker", SPECS)


def workload(framing: str = "binary", batch_size: int = 1, distinct: float = 1.0) -> Workload:
    steady = job_of().workload
    request = TritonHttp(kind="triton_http", framing=framing, batch_size=batch_size)  # type: ignore[arg-type]
    return steady.model_copy(update={"request": request, "distinct_ratio": distinct})


def bodies(framing: str = "binary", batch_size: int = 1, **fields: object) -> TensorBodies:
    return TensorBodies(job_of("ranker", workload(framing, batch_size), seconds=20, **fields))


def answer(binary: bool = True, **changes: object) -> tuple[dict[bytes, bytes], bytes]:
    output = {"name": "score", "datatype": "FP32", "shape": [1, 1], **changes}
    raw = b"\0\0\0\0"
    if binary:
        output = {**output, "parameters": {"binary_data_size": 4}, **changes}
        head = orjson.dumps({"model_name": "ranker", "outputs": [output]})
        return {b"inference-header-content-length": str(len(head)).encode()}, head + raw
    return {}, orjson.dumps({"outputs": [{"data": [0.5], **output}]})


@pytest.mark.parametrize("framing", ["binary", "json"])
def test_a_body_depends_on_seed_salt_and_place_alone(framing: str) -> None:
    first, again = bodies(framing), bodies(framing)
    places = [0, 1, BLOCK, 5, 3 * BLOCK + 1, 2]
    there = [first.body(place) for place in places]
    assert [again.body(place) for place in reversed(places)] == list(reversed(there))
    assert len(set(there)) == len(places)
    assert bodies(framing, salt=1).body(0) != there[0]
    assert bodies(framing, seed=2).body(0) != there[0]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_binary_body_is_what_the_protocols_own_library_reads(batch_size: int) -> None:
    made = bodies(batch_size=batch_size)
    length = int(made.headers["Inference-Header-Content-Length"])
    body = made.body(3)
    head = orjson.loads(body[:length])
    (tensor,) = head["inputs"]
    assert tensor["shape"] == [batch_size, 512]
    assert tensor["parameters"]["binary_data_size"] == len(body) - length == batch_size * 512 * 4
    values = np.frombuffer(body[length:], "<f4")
    assert np.array_equal(values, made.inputs(3)["input0"].ravel())


def test_a_json_body_holds_the_same_values() -> None:
    binary, text = bodies(), bodies("json")
    (tensor,) = orjson.loads(text.body(7))["inputs"]
    assert np.allclose(tensor["data"], binary.inputs(7)["input0"].ravel())


@given(st.integers(0, 5000), st.integers(1, 1000), st.floats(0.01, 1))
def test_below_a_ratio_of_one_inputs_come_again(place: int, requests: int, ratio: float) -> None:
    assert 0 <= place_of(place, requests, ratio) < max(1, round(requests * ratio))


@pytest.mark.parametrize("data_type", sorted(ITEM_BYTES))
@pytest.mark.parametrize("framing", ["binary", "json"])
def test_every_type_of_tensor_can_be_sent(data_type: str, framing: str) -> None:
    inputs = [{"name": "input0", "data_type": data_type, "dims": [3, -1]}]
    spec = RANKER.model_dump(mode="json", exclude_unset=True) | {"inputs": inputs}
    spec["engine"] = {"kind": "triton", "platform": "onnxruntime_onnx", "max_batch_size": 8}
    del spec["warmup"]
    made = TensorBodies(job_of("ranker", workload(framing), spec=spec, seconds=5))
    body = made.body(1)
    if "Inference-Header-Content-Length" in made.headers:
        head = orjson.loads(body[: int(made.headers["Inference-Header-Content-Length"])])
    else:
        head = orjson.loads(body)
    assert head["inputs"][0]["shape"] == [1, 3, 16]


def test_a_good_answer_has_no_fault_in_either_framing() -> None:
    assert bodies().fault(200, *answer()) is None
    assert bodies("json").fault(200, *answer(binary=False)) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "other"}, "KeyError"),
        ({"shape": [2, 1]}, "shape"),
        ({"shape": [1]}, "shape"),
        ({"parameters": {"binary_data_size": 8}}, "8 bytes"),
        ({"parameters": {}}, "KeyError"),
        ({"shape": "x"}, "no answer|shape"),
    ],
)
def test_an_answer_with_another_output_is_none(changes: dict[str, Any], why: str) -> None:

    assert re.search(why, bodies().fault(200, *answer(**changes)) or "")


def test_an_answer_that_is_cut_off_or_no_json_is_none() -> None:
    headers, content = answer()
    assert bodies().fault(200, headers, content[:-1])
    assert bodies().fault(200, headers, content + b"x")
    assert bodies().fault(200, {}, b"<html>")
    assert bodies().fault(200, {}, b"[]")
    assert bodies("json").fault(200, *answer(binary=False, data=[1, 2]))
    assert bodies().fault(503, headers, content) == "status 503"


@given(st.binary(max_size=60), st.one_of(st.none(), st.binary(max_size=4)))
def test_no_answer_breaks_the_check(content: bytes, length: bytes | None) -> None:
    headers = {} if length is None else {b"inference-header-content-length": length}
    assert bodies_for_fuzzing.fault(200, headers, content)


bodies_for_fuzzing = bodies()


def test_the_protocols_own_library_makes_the_same_body() -> None:
    from tritonclient.http import InferInput

    made = bodies()
    tensor = InferInput("input0", [1, 512], "FP32").set_data_from_numpy(
        made.inputs(0)["input0"].copy()
    )
    body, length = InferenceServerClient.generate_request_body([tensor])
    own = int(made.headers["Inference-Header-Content-Length"])
    assert bytes(body)[length:] == made.body(0)[own:]
