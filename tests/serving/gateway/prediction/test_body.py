"""What goes to a model server keeps every rule, and equal requests alone have equal keys."""

import json
import math
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from serving.gateway.prediction.body import Refusal, Request, key_of, read_request
from serving.gateway.prediction.framing import UNGUARDED_BYTES
from serving.gateway.prediction.schema import ModelSchema, TensorSchema

DIGEST = "sha256:" + "a" * 64
SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "FP16": 2, "BF16": 2, "UINT16": 2, "INT16": 2}
SIZES |= {"UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8}
NUMPY = {"BOOL": "?", "UINT8": "u1", "INT8": "i1", "FP16": "<f2", "UINT16": "<u2", "INT16": "<i2"}
NUMPY |= {"UINT32": "<u4", "INT32": "<i4", "FP32": "<f4"}
NUMPY |= {"UINT64": "<u8", "INT64": "<i8", "FP64": "<f8"}

Json = dict[str, Any]


def model(
    *inputs: TensorSchema, max_batch_size: int = 8, stateful: bool = False, outputs: str = "yz"
) -> ModelSchema:
    told = tuple(TensorSchema(name, "FP32", (-1,)) for name in outputs)
    return ModelSchema(inputs, told, max_batch_size, stateful)


RANKER = model(TensorSchema("x", "FP32", (4,)))
PAIR = model(
    TensorSchema("b", "INT32", (2,)),
    TensorSchema("a", "BYTES", (-1,)),
    TensorSchema("c", "BOOL", (1, -1), optional=True),
)
EVERY = model(
    *(TensorSchema(name, name, (-1, -1), optional=True) for name in [*SIZES, "BYTES"]),
    max_batch_size=0,
)
MODELS = [RANKER, PAIR, EVERY, replace(PAIR, max_batch_size=0), replace(PAIR, stateful=True)]


def x(**changes: Any) -> Json:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.5, 1, -2, 3e38]}
    return {key: value for key, value in {**tensor, **changes}.items() if value is not ...}


def a(*values: str) -> Json:
    return {"name": "a", "shape": [1, len(values)], "datatype": "BYTES", "data": list(values)}


B: Json = {"name": "b", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}


def as_json(*inputs: Json, **members: Any) -> bytes:
    return json.dumps({"inputs": inputs, **members}, ensure_ascii=False).encode()


def as_binary(*tensors: tuple[Json, bytes], **members: Any) -> tuple[bytes, str]:
    inputs = []
    for tensor, raw in tensors:
        parameters = {"binary_data_size": len(raw), **tensor.get("parameters", {})}
        told = {**tensor, "parameters": parameters}
        told.pop("data", None)
        inputs.append(told)
    head = json.dumps({"inputs": inputs, **members}).encode()
    return head + b"".join(raw for _, raw in tensors), str(len(head))


def read(schema: ModelSchema, *inputs: Json, **members: Any) -> Request:
    return read_request(schema, as_json(*inputs, **members), None)


def key(schema: ModelSchema, *inputs: Json, **members: Any) -> bytes:
    return key_of(read(schema, *inputs, **members), DIGEST, None)


def refusal(schema: ModelSchema, body: bytes, header_length: str | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        read_request(schema, body, header_length)
    assert_told(caught.value)
    return caught.value.message


def assert_told(refused: Refusal) -> None:
    assert refused.status == 400
    assert refused.message.isprintable()
    assert len(refused.message) < 600


# --- an independent reader of what goes upstream


def once(pairs: list[tuple[str, Any]]) -> Json:
    assert len(dict(pairs)) == len(pairs), "no member is written twice"
    return dict(pairs)


def decode(request: Request) -> tuple[Json, dict[str, bytes]]:
    """The JSON part, and each tensor's bytes."""
    assert request.header_length is not None
    head = json.loads(request.body[: request.header_length], object_pairs_hook=once)
    end = request.header_length
    tensors = {}
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        tensors[tensor["name"]] = request.body[end : end + size]
        end += size
    assert end == len(request.body)
    return head, tensors


def elements(raw: bytes) -> Iterator[bytes]:
    while raw:
        (size,) = struct.unpack("<I", raw[:4])
        assert len(raw) >= 4 + size
        yield raw[4 : 4 + size]
        raw = raw[4 + size :]


def assert_sound(schema: ModelSchema, request: Request) -> None:
    head, tensors = decode(request)
    assert head.keys() <= {"inputs", "outputs", "parameters"}
    inputs = {tensor.name: tensor for tensor in schema.inputs}
    names = [tensor["name"] for tensor in head["inputs"]]
    assert names == sorted(set(names))
    assert {tensor.name for tensor in schema.inputs if not tensor.optional} <= set(names)
    for tensor in head["inputs"]:
        wanted = inputs[tensor["name"]]
        assert tensor.keys() == {"name", "shape", "datatype", "parameters"}
        assert tensor["datatype"] == wanted.datatype
        shape = tensor["shape"]
        if schema.max_batch_size:
            assert shape[0] == head["inputs"][0]["shape"][0] <= schema.max_batch_size
            shape = shape[1:]
        assert len(shape) == len(wanted.dims)
        assert all(want in (-1, have) for have, want in zip(shape, wanted.dims, strict=True))
        assert all(type(axis) is int and axis >= 1 for axis in tensor["shape"])
        assert_values(wanted.datatype, tensors[wanted.name], math.prod(tensor["shape"]))
        assert not any("shared_memory" in name for name in tensor["parameters"])
    outputs = [output["name"] for output in head.get("outputs", [])]
    assert outputs == sorted(set(outputs))
    assert set(outputs) <= {tensor.name for tensor in schema.outputs}
    parameters = head.get("parameters", {})
    assert list(parameters) == sorted(parameters)
    assert all(type(value) in (str, int, float, bool) for value in parameters.values())
    assert schema.stateful or not any(name.startswith("sequence_") for name in parameters)
    assert request.cacheable is not schema.stateful
    again = read_request(schema, request.body, str(request.header_length))
    assert (again.body, again.header_length) == (request.body, request.header_length)


def assert_values(datatype: str, raw: bytes, count: int) -> None:
    if datatype == "BYTES":
        assert len(list(elements(raw))) == count
        return
    assert len(raw) == count * SIZES[datatype]
    if datatype == "BF16":
        widened = np.frombuffer(raw, "<u2").astype("<u4") << 16
        assert np.isfinite(widened.view("<f4")).all()
    elif datatype == "BOOL":
        assert set(raw) <= {0, 1}
    else:
        assert np.isfinite(np.frombuffer(raw, NUMPY[datatype])).all()


def check(schema: ModelSchema, body: bytes, header_length: str | None) -> Request | None:
    """The request, every rule of which was looked at; nothing if it is refused."""
    try:
        request = read_request(schema, body, header_length)
    except Refusal as refused:
        assert_told(refused)
        return None
    assert_sound(schema, request)
    return request


# --- whatever comes in

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NAMES = st.sampled_from(["x", "a", "b", "c", "y", "z", *SIZES, "BYTES"])
DATA = st.recursive(
    st.lists(SCALARS, max_size=6), lambda data: st.lists(data, max_size=3), max_leaves=4
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "binary_data_size",
            "binary_data",
            "binary_data_output",
            "classification",
            "sequence_id",
            "sequence_start",
            "priority",
            "shared_memory_region",
            "triton_x",
            "other",
        ]
    ),
    SCALARS | st.integers(0, 64) | st.just([1]),
    max_size=4,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "shape": st.lists(st.integers(-1, 8) | st.just(2**62), max_size=4),
        "datatype": st.sampled_from([*SIZES, "BYTES"]),
    },
    optional={"data": DATA | SCALARS, "parameters": PARAMETERS, "more": SCALARS},
)
OUTPUTS = st.fixed_dictionaries({"name": NAMES}, optional={"parameters": PARAMETERS})
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3)},
    optional={
        "id": SCALARS,
        "outputs": st.lists(OUTPUTS, max_size=3),
        "parameters": PARAMETERS | SCALARS,
        "more": SCALARS,
    },
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=20,
)
HEADER_LENGTHS = st.none() | st.integers(-1, 400).map(str) | st.text(max_size=5)


@given(st.sampled_from(MODELS), st.binary(max_size=300), HEADER_LENGTHS)
def test_any_bytes_are_refused_or_sound(
    schema: ModelSchema, body: bytes, header_length: str | None
) -> None:
    check(schema, body, header_length)


@given(st.sampled_from(MODELS), ANY_JSON | REQUESTS, st.binary(max_size=40), st.booleans())
def test_any_json_is_refused_or_sound(
    schema: ModelSchema, value: Any, raw: bytes, binary: bool
) -> None:
    text = json.dumps(value).encode()
    check(schema, text + raw if binary else text, str(len(text)) if binary else None)


@st.composite
def arrays(draw: st.DrawFn, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    count = math.prod(shape)
    if datatype == "BYTES":
        texts = st.text(max_size=6).map(str.encode)
        values = draw(st.lists(texts, min_size=count, max_size=count))
        return np.array(values, dtype=object).reshape(shape)
    raw = draw(st.binary(min_size=count * SIZES[datatype], max_size=count * SIZES[datatype]))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, NUMPY[datatype]).reshape(shape)
    return np.nan_to_num(array) if array.dtype.kind == "f" else array


@st.composite
def tensors(draw: st.DrawFn, datatypes: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Inputs for EVERY."""
    names = draw(st.lists(st.sampled_from(datatypes), min_size=1, max_size=3, unique=True))
    shapes = st.tuples(st.integers(1, 3), st.integers(1, 4))
    return {name: draw(arrays(name, draw(shapes))) for name in names}


def body_of(
    inputs: dict[str, NDArray[Any]], binary: bool, outputs: str = ""
) -> tuple[bytes, str | None]:
    """The body that Triton's own client writes."""
    given = []
    for name, array in inputs.items():
        tensor = InferInput(name, list(array.shape), name)
        given.append(tensor.set_data_from_numpy(array, binary_data=binary))
    asked = [InferRequestedOutput(name, binary_data=binary) for name in outputs]
    body, length = InferenceServerClient.generate_request_body(given, outputs=asked or None)
    return bytes(body), None if length is None else str(length)


def assert_equal(request: Request, inputs: dict[str, NDArray[Any]]) -> None:
    head, raw = decode(request)
    assert [tensor["name"] for tensor in head["inputs"]] == sorted(inputs)
    for tensor in head["inputs"]:
        array = inputs[tensor["name"]]
        assert tensor["shape"] == list(array.shape)
        if tensor["datatype"] == "BYTES":
            assert list(elements(raw[tensor["name"]])) == list(array.reshape(-1))
        else:
            assert raw[tensor["name"]] == array.tobytes()


BINARY_DATATYPES = [*NUMPY, "BYTES"]
JSON_DATATYPES = [name for name in BINARY_DATATYPES if name != "FP16"]


@given(tensors(BINARY_DATATYPES), st.sampled_from(["", "z", "yz"]))
def test_binary_tensors_of_tritons_client_arrive_as_they_are(
    inputs: dict[str, NDArray[Any]], outputs: str
) -> None:
    request = check(EVERY, *body_of(inputs, True, outputs))
    assert request is not None
    assert request.framing == "binary"
    assert_equal(request, inputs)


@given(tensors(JSON_DATATYPES), st.sampled_from(["", "z", "yz"]))
def test_json_of_tritons_client_arrives_as_the_same_tensors(
    inputs: dict[str, NDArray[Any]], outputs: str
) -> None:
    request = check(EVERY, *body_of(inputs, False, outputs))
    assert request is not None
    assert request.framing == "json"
    assert_equal(request, inputs)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_body_is_refused_or_sound(data: st.DataObject) -> None:
    binary = data.draw(st.booleans())
    inputs = data.draw(tensors(BINARY_DATATYPES if binary else JSON_DATATYPES))
    body, length = body_of(inputs, binary, data.draw(st.sampled_from(["", "y"])))
    damage = data.draw(st.sampled_from(["flip", "cut", "grow", "length", "swap"]))
    place = data.draw(st.integers(0, len(body) - 1))
    if damage == "flip":
        flipped = body[place] ^ (1 << data.draw(st.integers(0, 7)))
        body = body[:place] + bytes([flipped]) + body[place + 1 :]
    elif damage == "cut":
        body = body[:place]
    elif damage == "grow":
        body = body[:place] + data.draw(st.binary(min_size=1, max_size=5)) + body[place:]
    elif damage == "length":
        length = data.draw(HEADER_LENGTHS)
    else:
        other = data.draw(st.integers(0, len(body) - 1))
        first, last = sorted([place, other])
        body = body[last:] + body[first:last] + body[:first]
    check(EVERY, body, length)


@given(st.data(), tensors(BINARY_DATATYPES))
def test_a_lying_size_is_refused(data: st.DataObject, inputs: dict[str, NDArray[Any]]) -> None:
    body, length = body_of(inputs, True)
    assert length is not None
    head, raw = json.loads(body[: int(length)]), body[int(length) :]
    parameters = data.draw(st.sampled_from(head["inputs"]))["parameters"]
    told = parameters["binary_data_size"]
    parameters["binary_data_size"] = data.draw(
        st.integers(-2, 2 * told).filter(lambda n: n != told)
    )
    text = json.dumps(head).encode()
    refusal(EVERY, text + raw, str(len(text)))


# --- the rules, one by one


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape": [4611686018427387904]}, "input x: shape=[4611686018427387904]; the model takes"),
        ({"shape": [1, 2**62]}, "the model takes a batch of 1 to 8 in front of [4]"),
        ({"shape": [0, 4], "data": []}, "shape=[0, 4]"),
        ({"shape": [9, 4], "data": [1.0] * 36}, "shape=[9, 4]"),
        ({"shape": [-1, 4]}, "shape=[-1, 4]"),
        ({"shape": [True, 4]}, "(not a whole number)"),
        ({"shape": [1.0, 4]}, "(not a whole number)"),
        ({"shape": "1,4"}, "not a list"),
        ({"shape": ...}, "not a list"),
        ({"datatype": "FP64"}, "input x: datatype=FP64; the model takes FP32"),
        ({"datatype": None}, "datatype=(not a string)"),
        ({"data": [1, 2, 3]}, "data has 3 values; shape=[1, 4] needs exactly 4"),
        ({"data": [1, 2, 3, True]}, "data has a boolean; FP32 takes numbers"),
        ({"data": [1, 2, 3, "4"]}, "data has a string; FP32 takes numbers"),
        ({"data": [1, 2, 3, None]}, "data has a null; FP32 takes numbers"),
        ({"data": [1, 2, 3, [4]]}, "data has a list; FP32 takes numbers"),
        ({"data": [1, 2, 3, {}]}, "data has a object"),
        ({"data": [1, 2, 3, 1e39]}, "data has a value outside the range of FP32"),
        ({"data": [1, 2, 3, -3.4028235677973366e38]}, "outside the range of FP32"),
        ({"data": [[1, 2], [3, 4]]}, "data is nested in another shape than [1, 4]"),
        ({"data": [[1, 2, 3, [4]]]}, "data is nested in another shape than [1, 4]"),
        ({"data": [[1, 2, 3, 4], 5]}, "data is nested in another shape than [1, 4]"),
        ({"data": {"0": 1}}, "data is not a list"),
        ({"data": ...}, "input x: has no data"),
        ({"name": "w\n" * 200}, "is not an input of the model; use x"),
        ({"name": None}, "input (not a string): is not an input of the model; use x"),
        ({"contents": []}, "input x: has the unknown member contents"),
        ({"parameters": {"shared_memory_region": "r"}}, "names shared memory"),
        ({"parameters": {"binary_data_size": 16}}, "0 bytes are left after the JSON part"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size is not a whole number"),
        ({"parameters": {"other": []}}, "input x: parameter other is not a scalar"),
        ({"parameters": None}, "input x: parameters is not an object"),
    ],
)
def test_an_input_that_breaks_a_rule_is_told_which(changes: Json, told: str) -> None:
    assert told in refusal(RANKER, as_json(x(**changes)))


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"inputs": []}, "inputs is not a list of tensors"),
        ({"inputs": {}}, "inputs is not a list of tensors"),
        ({"inputs": [1]}, "inputs[0]: is not an object"),
        ({"inputs": [x(), x()]}, "input x: is given twice"),
        ({"output": []}, "the request: has the unknown member output; use id, inputs, outputs"),
        ({"id": 7}, "id is not a string"),
        ({"id": None}, "id is not a string"),
        ({"outputs": {}}, "outputs is not a list"),
        ({"outputs": ["y"]}, "outputs[0]: is not an object"),
        ({"outputs": [{"name": "w"}]}, "output w: is not an output of the model; use y, z"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "output y: is asked for twice"),
        ({"outputs": [{"name": "y", "data": []}]}, "output y: has the unknown member data"),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 0}}]},
            "parameter classification is not a whole number, 1 or more",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            "output y: parameter binary_data is not true or false",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            "names shared memory",
        ),
        ({"parameters": []}, "the request: parameters is not an object"),
        ({"parameters": {"binary_data_output": "yes"}}, "is not true or false"),
        ({"parameters": {"priority": -1}}, "parameter priority is not a whole number, 0 or more"),
        ({"parameters": {"timeout": 1.5}}, "parameter timeout is not a whole number"),
        ({"parameters": {"mine": {}}}, "parameter mine is not a scalar"),
        ({"parameters": {"mine": 2**63}}, "parameter mine does not fit 64 bits"),
        ({"parameters": {"triton_mine": 1}}, "is the server's own"),
        ({"parameters": {"sequence_id": 1}}, "is for models that keep sequences"),
        ({"parameters": {"correlation_id": 1}}, "is for models that keep sequences"),
        ({"parameters": {str(n): n for n in range(65)}}, "has 65 parameters; send at most 64"),
    ],
)
def test_a_request_that_breaks_a_rule_is_told_which(members: Json, told: str) -> None:
    assert told in refusal(RANKER, json.dumps({"inputs": [x()], **members}).encode())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is empty"),
        (b"[]", "it is a list, not an object"),
        (b"1", "it is a number, not an object"),
        (b"{} {}", "unexpected content after document"),
        (b'{"inputs": [NaN]}', "unexpected character"),
        (b'{"inputs": [1e999]}', "infinity"),
        (b'{"id": "\xff"}', "is not the JSON of an inference request"),
        (b'{"id": "\\ud800"}', "is not the JSON of an inference request"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[" * 100_000, "JSON lists"),
        (b"[" * 60_000, "is not the JSON of an inference request"),
        (b'{"a":' * 100_000, "JSON objects"),
    ],
)
def test_what_is_no_request_at_all_is_told_why(body: bytes, told: str) -> None:
    assert told in refusal(RANKER, body)


@pytest.mark.parametrize(
    "header_length", ["", "-1", "+5", "5 ", " 5", "0", "1e2", "0x10", "٣", "9" * 5000, "100000"]
)
def test_a_header_that_is_no_length_within_the_body_is_refused(header_length: str) -> None:
    assert "Inference-Header-Content-Length" in refusal(RANKER, as_json(x()), header_length)


@pytest.mark.parametrize(
    ("datatype", "least", "most"),
    [
        *[(f"INT{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)],
        *[(f"UINT{bits}", 0, 2**bits - 1) for bits in (8, 16, 32, 64)],
    ],
)
def test_whole_numbers_stay_within_their_type(datatype: str, least: int, most: int) -> None:
    tensor = {"name": datatype, "datatype": datatype, "shape": [1, 2], "data": [least, most]}
    _, raw = decode(read(EVERY, tensor))
    assert np.frombuffer(raw[datatype], NUMPY[datatype]).tolist() == [least, most]
    for wrong in ([least, most + 1], [least - 1, most], [1.0, 1], [True, 1], ["1", 1]):
        refusal(EVERY, as_json({**tensor, "data": wrong}))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_two_byte_floats_come_as_binary_tensors_alone(datatype: str) -> None:
    tensor = {"name": datatype, "datatype": datatype, "shape": [1, 1]}
    assert "send it as a binary tensor" in refusal(EVERY, as_json({**tensor, "data": [1.0]}))
    assert check(EVERY, *as_binary((tensor, b"\x00\x3c"))) is not None


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("FP16", b"\x00\x7c"),
        ("FP16", b"\x01\xfc"),
        ("BF16", b"\x80\x7f"),
        ("BF16", b"\xc0\xff"),
        ("FP32", struct.pack("<f", math.inf)),
        ("FP32", struct.pack("<f", math.nan)),
        ("FP64", struct.pack("<d", -math.inf)),
    ],
)
def test_a_binary_tensor_is_finite(datatype: str, raw: bytes) -> None:
    tensor = {"name": datatype, "datatype": datatype, "shape": [1, 1]}
    assert "NaN or an infinity" in refusal(EVERY, *as_binary((tensor, raw)))


def test_a_binary_bool_is_0_or_1() -> None:
    tensor = {"name": "BOOL", "datatype": "BOOL", "shape": [1, 2]}
    assert "other than 0 and 1" in refusal(EVERY, *as_binary((tensor, b"\x01\x02")))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x00\x00\x00",
        b"\x01\x00\x00\x00a\x01\x00\x00\x00",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
)
def test_binary_text_is_used_up_exactly(raw: bytes) -> None:
    tensor = {"name": "BYTES", "datatype": "BYTES", "shape": [1, 2]}
    assert "2 elements of BYTES" in refusal(EVERY, *as_binary((tensor, raw)))


def test_data_and_a_binary_tensor_of_one_input_are_refused() -> None:
    text = as_json(x(parameters={"binary_data_size": 16}))
    assert "send one of them" in refusal(RANKER, text + bytes(16), str(len(text)))


def test_bytes_after_the_last_tensor_are_refused() -> None:
    body, length = as_binary((x(), bytes(16)))
    assert "1 bytes follow the last binary tensor" in refusal(RANKER, body + b"\0", length)


def test_a_missing_input_is_refused_and_an_optional_one_may_be_missing() -> None:
    assert "input a: is missing" in refusal(PAIR, as_json(B))
    assert check(PAIR, as_json(B, a("text")), None) is not None


def test_inputs_of_one_batch_are_of_one_size() -> None:
    two = {**B, "shape": [2, 2], "data": [1, 2, 3, 4]}
    assert "size of the batch" in refusal(PAIR, as_json(two, a("text")))


def test_the_member_that_our_parser_takes_is_the_one_that_the_server_reads() -> None:
    body = b'{"inputs":[{"name":"x","shape":[4611686018427387904],"shape":[1,4],'
    body += b'"datatype":"FP32","data":[1,2,3,4]}]}'
    request = read_request(RANKER, body, None)
    assert b"4611686018427387904" not in request.body
    assert_sound(RANKER, request)


def test_no_value_of_a_tensor_is_in_what_is_told() -> None:
    private = "4111-1111-1111-1111"
    told = refusal(PAIR, as_json(B, {**a(private), "shape": [1, 2]}))
    told += refusal(RANKER, as_json(x(data=[1, 2, 3, private])))
    told += refusal(RANKER, as_json(x(parameters={"note": [private]})))
    assert private not in told


def test_binary_and_json_inputs_may_be_mixed_in_any_order() -> None:
    tensor = {"name": "b", "shape": [1, 2], "datatype": "INT32"}
    raw = struct.pack("<2i", 1, 2)
    told = {**tensor, "parameters": {"binary_data_size": 8}}
    bodies = []
    for inputs in ([told, a("q")], [a("q"), told]):
        text = as_json(*inputs)
        bodies.append(read_request(PAIR, text + raw, str(len(text))).body)
    _, tensors = decode(read_request(PAIR, text + raw, str(len(text))))
    assert tensors == {"a": b"\x01\0\0\0q", "b": raw}
    assert bodies[0] == bodies[1]


def test_the_id_is_kept_as_json_and_goes_nowhere() -> None:
    request = read(RANKER, x(), id='a "b" ü\n')
    assert request.id is not None
    assert json.loads(request.id) == 'a "b" ü\n'
    assert b"id" not in json.loads(request.body[: request.header_length])
    assert read(RANKER, x()).id is None


def test_parameters_of_sequences_reach_stateful_models_whose_answers_are_not_kept() -> None:
    schema = replace(RANKER, stateful=True)
    parameters = {"sequence_start": True, "sequence_id": "s", "sequence_end": False}
    request = read(schema, x(), parameters=parameters)
    assert decode(request)[0]["parameters"] == parameters
    assert not request.cacheable
    assert read(RANKER, x()).cacheable


# --- keys


def spellings(schema: ModelSchema, inputs: list[Json], **members: Any) -> Iterator[bytes]:
    """Texts that say the same request."""
    for ordered in permutations(inputs):
        request = {"inputs": ordered, **members}
        yield json.dumps(request).encode()
        yield json.dumps(request, indent=3, sort_keys=True).encode()
        turned = [dict(reversed(tensor.items())) for tensor in ordered]
        yield json.dumps({"id": str(ordered), **members, "inputs": turned}).encode()


def test_order_whitespace_nesting_and_id_do_not_change_the_key() -> None:
    two = {"name": "b", "shape": [2, 2], "datatype": "INT32", "data": [1, 2, 3, 4]}
    text = {"name": "a", "shape": [2, 1], "datatype": "BYTES", "data": ["s", "é"]}
    flag = {"name": "c", "shape": [2, 1, 1], "datatype": "BOOL", "data": [True, False]}
    members = {
        "outputs": [{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {"timeout": 5, "priority": 1},
    }
    nested = [{**two, "data": [[1, 2], [3, 4]]}, {**text, "data": [["s"], ["é"]]}, flag]
    turned = {
        "outputs": members["outputs"][::-1],  # type: ignore[index]
        "parameters": {"priority": 1, "timeout": 5},
    }
    texts = [
        *spellings(PAIR, [two, text, flag], **members),
        *spellings(PAIR, nested, **turned),
    ]
    assert len({key_of(read_request(PAIR, text, None), DIGEST, None) for text in texts}) == 1


def test_anything_that_may_change_the_answer_changes_the_key() -> None:
    binary = read_request(RANKER, *as_binary((x(), struct.pack("<4f", 0.5, 1, -2, 3e38))))
    same = read(RANKER, x())
    assert binary.body == same.body, "only the framing differs"
    keys = [
        key_of(same, DIGEST, None),
        key_of(same, DIGEST[:-1] + "b", None),
        key_of(same, DIGEST, ""),
        key_of(same, DIGEST, "ann"),
        key_of(same, DIGEST, "bob"),
        key_of(binary, DIGEST, None),
        key(RANKER, x(data=[0.5, 1, -2, 3.1e38])),
        key(RANKER, x(shape=[2, 4], data=[0.5, 1, -2, 3e38] * 2)),
        key(RANKER, x(parameters={"other": 1})),
        key(RANKER, x(parameters={"other": True})),
        key(RANKER, x(parameters={"other": "1"})),
        key(RANKER, x(), outputs=[{"name": "y"}]),
        key(RANKER, x(), outputs=[{"name": "z"}]),
        key(RANKER, x(), outputs=[{"name": "y"}, {"name": "z"}]),
        key(RANKER, x(), outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        key(RANKER, x(), outputs=[{"name": "y", "parameters": {"classification": 1}}]),
        key(RANKER, x(), outputs=[{"name": "y", "parameters": {"classification": 2}}]),
        key(RANKER, x(), parameters={"binary_data_output": True}),
        key(RANKER, x(), parameters={"binary_data_output": False}),
        key(RANKER, x(), parameters={"priority": 1}),
    ]
    assert len(set(keys)) == len(keys)


def test_equal_bytes_of_another_shape_or_type_have_another_key() -> None:
    schema = model(TensorSchema("t", "INT32", (-1, -1)), max_batch_size=0)
    floats = model(TensorSchema("t", "FP32", (-1, -1)), max_batch_size=0)
    raw = bytes(64)
    tensor = {"name": "t", "datatype": "INT32"}
    requests = [
        read_request(schema, *as_binary(({**tensor, "shape": [2, 8]}, raw))),
        read_request(schema, *as_binary(({**tensor, "shape": [4, 4]}, raw))),
        read_request(floats, *as_binary(({**tensor, "datatype": "FP32", "shape": [4, 4]}, raw))),
    ]
    assert len({key_of(request, DIGEST, None) for request in requests}) == 3


def test_text_split_elsewhere_has_another_key() -> None:
    assert key(PAIR, B, a("ab", "c")) != key(PAIR, B, a("a", "bc"))


@given(
    st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)),
    st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)),
)
@example(("a", "1:b"), ("a 3", "b"))
def test_digest_and_client_are_told_apart(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    request = read(RANKER, x())
    assert (key_of(request, *one) == key_of(request, *other)) == (one == other)


@given(tensors(JSON_DATATYPES), tensors(JSON_DATATYPES), st.booleans(), st.booleans())
def test_two_requests_share_a_key_only_if_they_are_the_same(
    one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]], first: bool, second: bool
) -> None:
    keys, said = set(), set()
    for inputs, binary in ((one, first), (other, second)):
        request = read_request(EVERY, *body_of(inputs, binary, "y"))
        keys.add(key_of(request, DIGEST, None))
        head, raw = decode(request)
        said.add((json.dumps(head), tuple(raw.items()), binary))
    assert len(keys) == len(said)


# --- memory

MIB = 2**20


@pytest.mark.parametrize(
    "piece",
    [b"[],", b'["a"],', b"[1.5],", b"[[[[]]]],", b'{"a":1},', b'"a",', b"1000,", b"1e5,"],
)
@pytest.mark.parametrize("schema", [RANKER, PAIR])
def test_a_body_costs_at_most_36_times_its_size(schema: ModelSchema, piece: bytes) -> None:
    name = schema.inputs[-1].name.encode()
    body = b'{"inputs":[{"name":"' + name + b'","data":[' + piece * (MIB // len(piece)) + b"1]}]}"
    tracemalloc.start()
    try:
        refusal(schema, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 36 * len(body)


def test_braces_in_a_large_text_are_text() -> None:
    text = r'{"a": [{"b": "\\"}]}' * (UNGUARDED_BYTES // 8)
    assert check(PAIR, as_json(B, a(text, "\\", '"[{')), None) is not None


def test_a_large_nested_tensor_is_taken_whole() -> None:
    schema = model(TensorSchema("t", "FP32", (1, 1)), max_batch_size=20_000)
    data = [[[0.5]]] * 20_000
    tensor = {"name": "t", "datatype": "FP32", "shape": [20_000, 1, 1], "data": data}
    assert len(as_json(tensor)) > UNGUARDED_BYTES
    assert check(schema, as_json(tensor), None) is not None
