"""The client of the v2 protocol, against servers that are written out here byte by byte."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving.errors import GalleyError, InfrastructureError, InputError
from serving.inference import (
    FAULTS,
    Metadata,
    TensorMetadata,
    check_inputs,
    fault,
    infer,
    metadata,
)

ADDRESS = "http://127.0.0.1:9"
DESCRIPTION = {
    "name": "ranker",
    "versions": ["1", "2"],
    "platform": "python",
    "inputs": [{"name": "input0", "datatype": "FP32", "shape": [-1, 512]}],
    "outputs": [{"name": "score", "datatype": "FP32", "shape": [-1, 1]}],
}

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler))


def ask(handler: Handler, model: str = "ranker", **inputs: Any) -> dict[str, Any]:
    with client(handler) as http:
        return infer(ADDRESS, model, inputs, timeout_seconds=5, client=http)


def answering(status: int, **content: Any) -> Handler:
    return lambda _: httpx.Response(status, **content)


def echo(request: httpx.Request) -> httpx.Response:
    """Each input as an output of the same name, with the bytes that were sent."""
    length = int(request.headers["Inference-Header-Content-Length"])
    asked = json.loads(request.content[:length])
    assert asked["parameters"] == {"binary_data_output": True}
    head = json.dumps({"model_name": "echo", "outputs": asked["inputs"]}).encode()
    return httpx.Response(
        200,
        headers={"Inference-Header-Content-Length": str(len(head))},
        content=head + request.content[length:],
    )


def test_a_request_is_what_the_protocol_says() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return echo(request)

    with client(handler) as http:
        infer(
            f"{ADDRESS}/",
            "ranker",
            {"input0": np.array([[1.5, -2]], dtype=np.float32)},
            timeout_seconds=5,
            headers={"x-api-key": "k"},
            client=http,
        )
    (request,) = seen
    length = int(request.headers["Inference-Header-Content-Length"])
    assert (request.method, str(request.url)) == ("POST", f"{ADDRESS}/v2/models/ranker/infer")
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert request.headers["x-api-key"] == "k"
    assert request.content[length:] == struct.pack("<2f", 1.5, -2)
    assert json.loads(request.content[:length])["inputs"] == [
        {
            "name": "input0",
            "shape": [1, 2],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 8},
        }
    ]


TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f4", ">i8"]
numbers = st.sampled_from(TYPES).map(np.dtype)


@settings(deadline=None)
@given(arrays.arrays(numbers, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)))
def test_numbers_of_every_type_order_and_layout_arrive_unchanged(array: Any) -> None:
    for sent in (array, np.asfortranarray(array), array[::-1]):
        received = ask(echo, x=sent)["x"]
        assert received.dtype == sent.dtype.newbyteorder("=")
        np.testing.assert_array_equal(received, sent)


@pytest.mark.parametrize("kind", ["U", "S", "O"])
def test_text_arrives_as_bytes(kind: str) -> None:
    sent = np.array([["plain", ""], ["two\nlines", "x" * 300]], dtype=kind)
    received = ask(echo, x=sent)["x"]
    assert received.tolist() == [[b"plain", b""], [b"two\nlines", b"x" * 300]]


def test_text_beyond_ascii_is_sent_as_utf_8() -> None:
    assert ask(echo, x=np.array(["naïve"]))["x"].tolist() == ["naïve".encode()]


def test_several_tensors_keep_their_own_bytes() -> None:
    sent = {
        "ids": np.arange(6).reshape(2, 3),
        "text": np.array(["a", "b"]),
        "none": np.zeros((0, 2)),
    }
    received = ask(echo, "echo", **sent)
    assert list(received) == ["ids", "text", "none"]
    np.testing.assert_array_equal(received["ids"], sent["ids"])
    assert received["none"].shape == (0, 2)


def test_a_server_may_answer_in_plain_json() -> None:
    answer = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 2]}]}
    received = ask(answering(200, json=answer), x=np.zeros(1))["y"]
    assert received.dtype == np.float32
    assert received.tolist() == [[0.5], [2]]


def test_metadata_names_the_tensors() -> None:
    with client(answering(200, json=DESCRIPTION)) as http:
        found = metadata(ADDRESS, "ranker", timeout_seconds=5, client=http)
    assert found.versions == ("1", "2")
    assert found.inputs == (TensorMetadata(name="input0", datatype="FP32", shape=(-1, 512)),)
    assert found.outputs == (TensorMetadata(name="score", datatype="FP32", shape=(-1, 1)),)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (400, InputError, "the input is refused: why"),
        (401, InputError, "no valid key was sent: why"),
        (403, InputError, "this key may not use the model: why"),
        (404, InputError, "no such model is served there: why"),
        (413, InputError, "the request is too large; send fewer rows at once: why"),
        (418, InputError, "answered with status 418: why"),
        (429, InfrastructureError, "over the rate limit; try again later: why"),
        (500, InfrastructureError, "answered with status 500: why"),
        (503, InfrastructureError, "overloaded or not ready; try again later: why"),
        (504, InfrastructureError, "the model did not answer in time: why"),
        (302, InfrastructureError, "answered with status 302: why"),
        (204, InfrastructureError, "answered with status 204: why"),
    ],
)
def test_every_status_has_its_error_and_its_words(
    status: int, error: type[GalleyError], words: str
) -> None:
    told = fault(status, where="here", said="why")
    assert type(told) is error
    assert str(told) == f"here: {words}"


def test_every_wording_stays_on_one_line_and_says_where() -> None:
    for status in FAULTS:
        assert str(fault(status, where="here", said="")).endswith(": no reason was given")
        assert str(fault(status, where="here", said="{said}")).endswith(": {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"json": {"error": "unexpected shape for\n input 'x'."}},
            "unexpected shape for input 'x'",
        ),
        ({"json": {"error": "[request id: <id_unknown>] bad"}}, "bad"),
        ({"text": "upstream connect error"}, "upstream connect error"),
        ({"json": ["not", "an", "object"]}, '["not","an","object"]'),
        ({"html": "<html><body>400</body></html>"}, "no reason was given"),
        ({"content": b""}, "no reason was given"),
        ({"content": b"\x1b[31m\x00red\xff"}, "[31m red\ufffd"),
        ({"text": "long " * 10_000}, ("long " * 60).rstrip()),
    ],
)
def test_the_servers_words_are_told_on_one_line(content: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        ask(answering(400, **content), x=np.zeros(1))
    assert str(error.value) == f"model=ranker at {ADDRESS}: the input is refused: {said}"


def test_an_unknown_model_is_told_for_metadata_too() -> None:
    handler = answering(404, json={"error": "unknown model"})
    with client(handler) as http, pytest.raises(InputError, match="no such model is served there"):
        metadata(ADDRESS, "ranker", timeout_seconds=5, client=http)


def reply(head: Any, tail: bytes = b"", length: int | str | None = None) -> Handler:
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
    return answering(200, headers=headers, content=text + tail)


def tensor(**changes: Any) -> dict[str, Any]:
    plain = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    return {"outputs": [{**plain, **changes}]}


@pytest.mark.parametrize(
    "handler",
    [
        answering(200, content=b""),
        answering(200, text="<html>"),
        answering(200, json=[]),
        answering(200, json={}),
        answering(200, json=tensor()),
        reply(tensor(), b"short"),
        reply(tensor(shape=[3]), b"12345678"),
        reply(tensor(datatype="FP8"), b"12345678"),
        reply(tensor(datatype="BYTES"), struct.pack("<I4s", 99, b"1234")),
        reply(tensor(), b"12345678", length=5),
        reply(tensor(), b"12345678", length="all"),
        reply({"outputs": [{"name": "y"}]}),
    ],
)
def test_an_answer_outside_the_protocol_is_told_in_one_line(handler: Handler) -> None:
    with pytest.raises(InfrastructureError, match="does not follow the v2 protocol") as error:
        ask(handler, x=np.zeros(1))
    assert "\n" not in str(error.value)


def test_metadata_outside_the_protocol_is_told_in_one_line() -> None:
    with (
        client(answering(200, json={"name": "ranker"})) as http,
        pytest.raises(InfrastructureError, match="does not follow the v2 protocol") as error,
    ):
        metadata(ADDRESS, "ranker", timeout_seconds=5, client=http)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("array", [np.zeros(1, dtype=complex), np.zeros(1, dtype="M8[s]")])
def test_a_type_that_the_protocol_lacks_is_refused_before_sending(array: Any) -> None:
    with pytest.raises(InputError, match=r"x: type .* cannot be sent"):
        ask(echo, x=array)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="not the name of a model"):
        ask(echo, name, x=np.zeros(1))


def test_a_name_is_quoted_in_the_path() -> None:
    paths = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return echo(request)

    ask(handler, "../a?b", x=np.zeros(1))
    assert paths == [b"/v2/models/..%2Fa%3Fb/infer"]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_refused_connection_names_the_address_and_how_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(InfrastructureError) as error:
        infer(address, "ranker", {"x": np.zeros(1)}, timeout_seconds=5)
    assert str(error.value).startswith(f"model=ranker at {address}: nothing answers: ")
    assert str(error.value).endswith("run: galley up")


def test_a_server_that_says_nothing_is_given_up(silent: str) -> None:
    with pytest.raises(InfrastructureError, match=r"no answer within 0\.1 s"):
        metadata(silent, "ranker", timeout_seconds=0.1)


def test_servers_of_this_machine_are_asked_without_a_proxy(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    for address in (silent, silent.replace("127.0.0.1", "localhost")):
        with pytest.raises(InfrastructureError, match="no answer within"):
            metadata(address, "ranker", timeout_seconds=0.1)
    with pytest.raises(InfrastructureError, match="Connection refused"):
        metadata("http://models.example", "ranker", timeout_seconds=5)


def raising(error: Exception) -> Handler:
    def handler(_: httpx.Request) -> httpx.Response:
        raise error

    return handler


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (httpx.RemoteProtocolError("peer\nclosed"), "the connection broke: peer closed"),
        (httpx.ReadError(""), "the connection broke: ReadError"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "no trusted TLS connection: [SSL"),
        (httpx.ConnectTimeout("slow"), "no answer within 5 s"),
    ],
)
def test_a_broken_connection_is_told_in_one_line(cause: Exception, words: str) -> None:
    with pytest.raises(InfrastructureError) as error:
        ask(raising(cause), x=np.zeros(1))
    assert str(error.value).startswith(f"model=ranker at {ADDRESS}: {words}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["", "127.0.0.1:8000", "ftp://host", "http://[::", "http://"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="not an http or https address"):
        metadata(address, "ranker", timeout_seconds=5)


@pytest.mark.parametrize("key", ["se\ncret", "sécret"])
def test_a_key_that_http_does_not_allow_is_not_repeated(silent: str, key: str) -> None:
    with pytest.raises(InputError, match="a header has characters") as error:
        metadata(silent, "ranker", timeout_seconds=0.1, headers={"x-api-key": key})
    assert "cret" not in str(error.value)
    assert error.value.__suppress_context__


def test_a_shared_client_stays_open() -> None:
    with client(echo) as http:
        for _ in range(2):
            infer(ADDRESS, "ranker", {"x": np.zeros(1)}, timeout_seconds=5, client=http)
        assert not http.is_closed


RANKER = Metadata.model_validate(DESCRIPTION)


def floats(*shape: int) -> Any:
    return np.zeros(shape, dtype=np.float32)


@pytest.mark.parametrize("rows", [1, 64])
def test_fitting_inputs_pass(rows: int) -> None:
    check_inputs(RANKER, {"input0": floats(rows, 512)})
    check_inputs(RANKER, {"input0": floats(rows, 512).astype(">f4")})


@pytest.mark.parametrize(
    ("inputs", "faults"),
    [
        ({}, ["input0: missing; the model takes input0"]),
        (
            {"input": floats(1, 512)},
            [
                "input0: missing; the model takes input0",
                "input: not an input; the model takes input0",
            ],
        ),
        ({"input0": np.zeros((1, 512))}, ["input0: type FP64, the model takes FP32"]),
        ({"input0": np.full((1, 512), "a")}, ["input0: type BYTES, the model takes FP32"]),
        (
            {"input0": np.zeros((1, 512), dtype=complex)},
            ["input0: type complex128, the model takes FP32"],
        ),
        (
            {"input0": floats(512)},
            ["input0: shape [512], the model takes [-1, 512]; add the batch axis in front"],
        ),
        (
            {"input0": floats(1, 5)},
            ["input0: shape [1, 5], the model takes [-1, 512] (-1 stands for any length)"],
        ),
        (
            {"input0": floats(1, 1, 512)},
            ["input0: shape [1, 1, 512], the model takes [-1, 512] (-1 stands for any length)"],
        ),
        (
            {"input0": floats(0, 512)},
            ["input0: shape [0, 512] holds no value; send at least one row"],
        ),
        (
            {"input0": np.zeros(512)},
            [
                "input0: shape [512], the model takes [-1, 512]; add the batch axis in front",
                "input0: type FP64, the model takes FP32",
            ],
        ),
    ],
)
def test_every_fault_of_the_inputs_is_told_at_once(inputs: Any, faults: list[str]) -> None:
    with pytest.raises(InputError) as error:
        check_inputs(RANKER, inputs)
    assert str(error.value).splitlines() == [f"ranker: {fault}" for fault in faults]
