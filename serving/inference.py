"""Questions to a model server over the KServe v2 HTTP protocol, as binary tensors.

    metadata      GET  /v2/models/<model>         names, types and shapes of the tensors
    check_inputs  metadata, inputs → nothing, or every fault in the user's words
    infer         POST /v2/models/<model>/infer   inputs → outputs

tritonclient writes and reads the bodies; httpx carries them. Every failure is one line.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field

from serving.errors import GalleyError, InfrastructureError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_SAID_CHARACTERS = 300


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives; -1 in `shape` stands for any length."""

    model_config = ConfigDict(frozen=True)

    name: str
    datatype: str = Field(description="the protocol's word: FP32, INT64, BYTES")
    shape: tuple[int, ...]


class Metadata(BaseModel):
    """What a server says of a model."""

    model_config = ConfigDict(frozen=True)

    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class Fault(NamedTuple):
    """How an HTTP status is told."""

    error: type[GalleyError]
    wording: str


# `{said}` is the server's own sentence. Statuses: Triton's http_server.cc, and Envoy's own replies.
FAULTS: Mapping[int, Fault] = {
    400: Fault(InputError, "{where}: the input is refused: {said}"),
    401: Fault(InputError, "{where}: no valid key was sent: {said}"),
    403: Fault(InputError, "{where}: this key may not use the model: {said}"),
    404: Fault(InputError, "{where}: no such model is served there: {said}"),
    413: Fault(InputError, "{where}: the request is too large; send fewer rows at once: {said}"),
    429: Fault(InfrastructureError, "{where}: over the rate limit; try again later: {said}"),
    503: Fault(InfrastructureError, "{where}: overloaded or not ready; try again later: {said}"),
    504: Fault(InfrastructureError, "{where}: the model did not answer in time: {said}"),
}


def fault(status: int, *, where: str, said: str) -> GalleyError:
    """The error that a status other than 200 stands for.

    >>> str(fault(404, where="model=rank at 127.0.0.1:1", said="unknown model"))
    'model=rank at 127.0.0.1:1: no such model is served there: unknown model'
    """
    if status in FAULTS:
        error, wording = FAULTS[status]
    else:
        error = InputError if 400 <= status < 500 else InfrastructureError
        wording = "{where}: answered with status " + str(status) + ": {said}"
    return error(wording.format(where=where, said=said or "no reason was given"))


def infer(
    base_url: str,
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    *,
    timeout_seconds: float,
    headers: Mapping[str, str] | None = None,
    client: httpx.Client | None = None,
) -> dict[str, NDArray[Any]]:
    """Every output of the model for `inputs`, as arrays that may not be written to.

    `timeout_seconds` bounds the connection and each wait for the server. A `client` given by the
    caller keeps its connections from one call to the next, and threads may share it.

    Raises:
        InputError: if the model is unknown or the inputs are refused.
        InfrastructureError: if the server cannot answer.
    """
    from tritonclient.http import InferenceServerClient

    tensors = [_tensor(name, array) for name, array in inputs.items()]
    body, header_length = InferenceServerClient.generate_request_body(tensors)
    sent = {**(headers or {}), "Content-Type": "application/octet-stream"}
    if header_length is not None:
        sent[HEADER_LENGTH] = str(header_length)
    where, url = _place(base_url, model)
    response = _send(where, f"{url}/infer", body, sent, timeout_seconds, client)
    with _told_as_protocol_error(where):
        return _outputs(response)


def metadata(
    base_url: str,
    model: str,
    *,
    timeout_seconds: float,
    headers: Mapping[str, str] | None = None,
    client: httpx.Client | None = None,
) -> Metadata:
    """Names, types and shapes of the model's tensors.

    Raises:
        InputError: if the model is unknown.
        InfrastructureError: if the server cannot answer.
    """
    where, url = _place(base_url, model)
    response = _send(where, url, None, headers or {}, timeout_seconds, client)
    with _told_as_protocol_error(where):
        return Metadata.model_validate_json(response.content)


def check_inputs(metadata: Metadata, inputs: Mapping[str, NDArray[Any]]) -> None:
    """Nothing, if names, types and shapes are those that the model takes.

    Raises:
        InputError: with one line per fault.
    """
    wanted = {tensor.name: tensor for tensor in metadata.inputs}
    names = ", ".join(wanted)
    faults = [f"{name}: not an input; the model takes {names}" for name in inputs.keys() - wanted]
    faults += [f"{name}: missing; the model takes {names}" for name in wanted.keys() - inputs]
    for name in inputs.keys() & wanted:
        faults += [f"{name}: {text}" for text in _tensor_faults(wanted[name], inputs[name])]
    if faults:
        raise InputError("\n".join(f"{metadata.name}: {text}" for text in sorted(faults)))


def _tensor_faults(wanted: TensorMetadata, array: NDArray[Any]) -> Iterator[str]:
    datatype = _datatype(array)
    if datatype != wanted.datatype:
        yield f"type {datatype or array.dtype}, the model takes {wanted.datatype}"
    shape, takes = list(array.shape), list(wanted.shape)
    if len(shape) + 1 == len(takes) and takes[0] == -1 and _fits(shape, takes[1:]):
        yield f"shape {shape}, the model takes {takes}; add the batch axis in front"
    elif not _fits(shape, takes):
        yield f"shape {shape}, the model takes {takes} (-1 stands for any length)"
    elif array.size == 0:
        yield f"shape {shape} holds no value; send at least one row"


def _fits(shape: list[int], takes: list[int]) -> bool:
    same_rank = len(shape) == len(takes)
    return same_rank and all(want in (-1, have) for have, want in zip(shape, takes, strict=True))


def _datatype(array: NDArray[Any]) -> str | None:
    """The protocol's word for the type of the array; nothing if it has none."""
    from tritonclient.utils import np_to_triton_dtype

    if array.dtype.kind == "U":
        return "BYTES"
    found: str | None = np_to_triton_dtype(array.dtype.newbyteorder("="))
    return found


def _tensor(name: str, array: NDArray[Any]) -> Any:
    """The array as the protocol sends it: little-endian, text as bytes."""
    from tritonclient.http import InferInput

    datatype = _datatype(array)
    if datatype is None:
        raise InputError(f"{name}: type {array.dtype} cannot be sent; use a number, bool or bytes")
    plain = array.astype(
        object if array.dtype.kind == "U" else array.dtype.newbyteorder("="), copy=False
    )
    return InferInput(name, list(array.shape), datatype).set_data_from_numpy(plain)


def _outputs(response: httpx.Response) -> dict[str, NDArray[Any]]:
    from tritonclient.http import InferenceServerClient
    from tritonclient.utils import triton_to_np_dtype

    length = response.headers.get(HEADER_LENGTH)
    parsed = InferenceServerClient.parse_response_body(response.content, header_length=length)
    outputs = {}
    for tensor in parsed.get_response()["outputs"]:
        if triton_to_np_dtype(tensor["datatype"]) is None:
            raise ValueError(f"{tensor['name']} has the unknown type {tensor['datatype']}")
        outputs[tensor["name"]] = parsed.as_numpy(tensor["name"])
    return outputs


def _place(base_url: str, model: str) -> tuple[str, str]:
    """The model and its server as errors name them, and the model's address."""
    if model in ("", ".", ".."):
        raise InputError(f"model={model}: not the name of a model")
    url = f"{base_url.rstrip('/')}/v2/models/{quote(model, safe='')}"
    return f"model={model} at {base_url}", url


def _send(
    where: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_seconds: float,
    client: httpx.Client | None,
) -> httpx.Response:
    """The response with status 200; a GET where there is no body."""
    method = "GET" if body is None else "POST"
    try:
        with _client(url, client) as http:
            response = http.request(
                method, url, content=body, headers=dict(headers), timeout=timeout_seconds
            )
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InputError(f"{where}: not an http or https address") from error
    except (httpx.LocalProtocolError, UnicodeEncodeError):
        # The cause repeats the header, and headers hold keys.
        raise InputError(f"{where}: a header has characters that HTTP does not allow") from None
    except httpx.TimeoutException as error:
        raise InfrastructureError(f"{where}: no answer within {timeout_seconds:g} s") from error
    except httpx.HTTPError as error:
        raise _broken(where, error) from error
    if response.status_code != httpx.codes.OK:
        raise fault(response.status_code, where=where, said=_said(response))
    return response


def _client(url: str, client: httpx.Client | None) -> AbstractContextManager[httpx.Client]:
    """The caller's client, left open; or one for this call."""
    if client is not None:
        return nullcontext(client)
    # A proxy from the environment cannot reach the servers of this machine.
    return httpx.Client(trust_env=not _is_loopback(httpx.URL(url).host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _broken(where: str, error: httpx.HTTPError) -> InfrastructureError:
    reason = _one_line(str(error)) or type(error).__name__
    if not isinstance(error, httpx.ConnectError):
        return InfrastructureError(f"{where}: the connection broke: {reason}")
    if "SSL" in reason:
        return InfrastructureError(f"{where}: no trusted TLS connection: {reason}")
    return InfrastructureError(
        f"{where}: nothing answers: {reason}; for the local stack, run: galley up"
    )


@contextmanager
def _told_as_protocol_error(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tritonclient raises whatever it stumbles over
        reason = _one_line(str(error)) or type(error).__name__
        raise InfrastructureError(
            f"{where}: the answer does not follow the v2 protocol: {reason}"
        ) from error


def _said(response: httpx.Response) -> str:
    """The server's own sentence, on one line; nothing where it sent a page for people."""
    if "html" in response.headers.get("Content-Type", ""):
        return ""
    text = response.text
    try:
        found = json.loads(text)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = text
    return _one_line(str(found).removeprefix("[request id: <id_unknown>] "))


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_SAID_CHARACTERS])
    return " ".join(printable.split())[:MAX_SAID_CHARACTERS].rstrip(". ")
