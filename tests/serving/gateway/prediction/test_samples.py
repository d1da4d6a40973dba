"""Which requests are sampled, and what is told of their tensors."""

import base64
import itertools
import json
import struct
from collections.abc import Collection
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.gateway.prediction.samples import (
    LARGEST_BODY_BYTES,
    LARGEST_JSON_BYTES,
    Sample,
    sampled,
)
from serving.gateway.prediction.schema import LogRule

CANARY = "canary-7f3a"
DTYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


def tensors_of(
    body: bytes, header_length: int | None, redact: Collection[str]
) -> list[dict[str, Any]]:
    """What is told of a body."""
    return Sample.of(body, header_length, redact).tensors()


def binary(
    *tensors: tuple[str, str, list[int], bytes], field: str = "inputs", **more: object
) -> tuple[bytes, int]:
    """A body with binary tensors, and the length of its JSON part."""
    head = json.dumps(
        {
            field: [
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": shape,
                    "parameters": {"binary_data_size": len(raw)},
                }
                for name, datatype, shape, raw in tensors
            ],
            **more,
        }
    ).encode()
    return head + b"".join(tensor[3] for tensor in tensors), len(head)


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def test_a_request_is_sampled_everywhere_or_nowhere_and_as_often_as_the_rule_says() -> None:
    ids = [f"request-{n}" for n in range(20_000)]
    tenth = {one for one in ids if sampled(LogRule(0.1, ()), one)}
    fifth = {one for one in ids if sampled(LogRule(0.2, ("x",)), one)}
    assert 1_800 < len(tenth) < 2_200
    assert tenth < fifth
    assert all(sampled(LogRule(1, ()), one) for one in ids)
    assert not any(sampled(None, one) for one in ids)
    assert sampled(LogRule(1, ()), "\udc80")


@pytest.mark.parametrize("datatype", DTYPES)
def test_binary_tensors_are_told_as_numpy_reads_them(datatype: str) -> None:
    array: NDArray[Any] = np.array([[0, 1, 2], [3, 100, 7]]).astype(DTYPES[datatype])
    body, length = binary(("x", datatype, [2, 3], array.tobytes()), ("n", "INT8", [1], b"\xff"))
    assert tensors_of(body, length, ()) == [
        {"name": "x", "datatype": datatype, "shape": [2, 3], "data": array.ravel().tolist()},
        {"name": "n", "datatype": "INT8", "shape": [1], "data": [-1]},
    ]


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1))
def test_a_bf16_is_the_float32_with_the_same_upper_half(values: list[float]) -> None:
    wide = np.array(values, dtype="<f4")
    halves = (wide.view("<u4") >> 16).astype("<u2")
    expected = (halves.astype("<u4") << 16).view("<f4").tolist()
    body, length = binary(("x", "BF16", [len(values)], halves.tobytes()))
    assert tensors_of(body, length, ())[0]["data"] == expected


def test_text_is_told_as_text_and_bytes_that_are_none_as_base64() -> None:
    body, length = binary(("t", "BYTES", [3], texts("grün".encode(), b"", b"\xff\x00")))
    assert tensors_of(body, length, ())[0]["data"] == [
        "grün",
        "",
        {"base64": base64.b64encode(b"\xff\x00").decode()},
    ]


def test_json_tensors_are_told_flat_whatever_their_nesting_and_answers_like_requests() -> None:
    answer = {
        "model_name": "m",
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1.5, 2.5], [3.5, None]]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]},
        ],
    }
    found = tensors_of(json.dumps(answer).encode(), None, ())
    assert [each["data"] for each in found] == [[1.5, 2.5, 3.5, None], ["x"]]


def test_the_outputs_that_a_request_asks_for_are_not_taken_for_tensors() -> None:
    body, length = binary(("x", "INT8", [1], b"\x01"), outputs=[{"name": "y"}])
    assert [each["name"] for each in tensors_of(body, length, ())] == ["x"]


def test_both_framings_in_one_body_keep_their_places() -> None:
    head = json.dumps(
        {
            "inputs": [
                {"name": "a", "datatype": "INT32", "shape": [1], "data": [5]},
                {
                    "name": "secret",
                    "datatype": "INT32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                },
                {
                    "name": "b",
                    "datatype": "INT32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                },
            ]
        }
    ).encode()
    found = tensors_of(head + struct.pack("<ii", 6, 7), len(head), ("secret",))
    assert [each.get("data") for each in found] == [[5], None, [7]]
    assert found[1] == {"name": "secret", "datatype": "INT32", "shape": [1], "redacted": True}


@pytest.mark.parametrize("framing", ["json", "binary"])
@pytest.mark.parametrize("filling", [1, LARGEST_BODY_BYTES, LARGEST_JSON_BYTES])
@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_redacted_value_is_never_told_whatever_the_body_is_like(
    framing: str, filling: int, cut: int
) -> None:
    private, public = CANARY, "p" * filling
    if framing == "json":
        document = {
            "inputs": [
                {"name": "private", "datatype": "BYTES", "shape": [1], "data": [[private]]},
                {"name": "public", "datatype": "BYTES", "shape": [1], "data": [public]},
            ]
        }
        body, length = json.dumps(document).encode(), None
    else:
        body, length = binary(
            ("private", "BYTES", [1], texts(private.encode())),
            ("public", "BYTES", [1], texts(public.encode())),
        )
    assert CANARY.encode() in body
    sample = Sample.of(body[: len(body) - cut], length, ("private",))
    told = json.dumps(sample.tensors())
    assert CANARY not in told
    assert CANARY not in repr(sample)


def test_of_a_large_body_shapes_are_told_and_no_values() -> None:
    raw = bytes(LARGEST_BODY_BYTES)
    body, length = binary(("x", "UINT8", [len(raw)], raw), ("key", "UINT8", [1], b"\x01"))
    sample = Sample.of(body, length, ("key",))
    assert sample.data == b""
    assert sample.tensors() == [
        {"name": "x", "datatype": "UINT8", "shape": [len(raw)], "truncated": True},
        {"name": "key", "datatype": "UINT8", "shape": [1], "redacted": True},
    ]


def test_json_that_would_take_long_to_read_is_not_read() -> None:
    data = list(itertools.repeat(1, LARGEST_JSON_BYTES))
    document = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": data}]}
    sample = Sample.of(json.dumps(document).encode(), None, ())
    assert sample.head == b""
    assert sample.tensors() == [{"truncated": True}]


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"error": "no"}', None),
        (b'{"inputs": [{"name": ["x"], "datatype": "INT8", "shape": [1], "data": [1]}]}', None),
        (b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": ["c"], "data": [1]}]}', None),
        (b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": 1}]}', 9),
        binary(("x", "COLOUR", [1], b"\x01")),
        binary(("x", "INT32", [1], b"\x01\x02")),
        binary(("x", "BYTES", [1], b"\x09\x00\x00\x00ab")),
        binary(("x", "BYTES", [1], b"\x09")),
    ],
)
def test_a_body_that_cannot_be_read_is_told_as_that_alone(body: bytes, length: int | None) -> None:
    assert tensors_of(body, length, ()) == [{"unreadable": True}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["INT32"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "outputs", "name", "datatype", "shape", "data"]), inner
        )
    ),
)


@given(values.map(lambda value: json.dumps(value).encode()) | st.binary(), st.integers(0, 40))
def test_no_body_raises(body: bytes, length: int) -> None:
    for header_length in (None, length):
        orjson.dumps(tensors_of(body, header_length, ("name",)))
