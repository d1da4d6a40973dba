"""The body of an inference request: checked whole, then written anew.

    body ──read_request──► Request ──key_of──► the key of its answer

What a model server reads is never what a client wrote. Two JSON parsers may differ over one text
(of two equal members, which counts?), and a server may trust a shape that it should not. So the
body that goes upstream is written here, of nothing but values that passed every check, and its
bytes are what the key is made of:

    - inputs, requested outputs and parameters are in the order of their names;
    - every tensor is binary, whichever framing it came in: no number is parsed twice, and 0.1
      and 0.10000000149011612 are one FP32. The answer's framing does not depend on the
      request's: outputs and parameters say which it is;
    - `id` is left out; the hop writes it into the answer.

Rules: the KServe v2 protocol with Triton's extensions for binary data, classification, parameters
and sequences, read strictly. An unknown member, an empty tensor, NaN or shared memory is refused.
Source: https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal

import orjson

from serving.gateway.prediction.framing import HEADER, limits_of, parse, split
from serving.gateway.prediction.parameters import (
    OF_INPUTS,
    OF_OUTPUTS,
    OF_REQUESTS,
    OF_SEQUENCES,
    Scalar,
    read_parameters,
)
from serving.gateway.prediction.refusal import Refusal, shown
from serving.gateway.prediction.schema import ModelSchema, TensorSchema
from serving.gateway.prediction.values import check_bytes, packed

__all__ = ["Checker", "Refusal", "Request", "key_of", "read_request"]

KEY_BYTES: Final = 24

LARGEST_AXIS: Final = 2**31 - 1

_MEMBERS = frozenset({"id", "inputs", "outputs", "parameters"})
_INPUT_MEMBERS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_OUTPUT_MEMBERS = frozenset({"name", "parameters"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may go to a model server.

    `body` is what goes there: `header_length` bytes of JSON, then the tensors. `id` is the
    caller's, as a JSON string with its quotes. `framing` is what the caller used.
    """

    id: bytes | None
    body: bytes
    header_length: int | None
    cacheable: bool
    framing: Literal["json", "binary"]


def read_request(schema: ModelSchema, body: bytes, header_length: str | None) -> Request:
    """The request that a body is; `header_length` is the header's text, None without one.

    Raises:
        Refusal: if the model does not take it.
    """
    return _checker(schema).read(body, header_length)


def key_of(request: Request, digest: str, client: str | None) -> bytes:
    """The key of the answer: of the artifact, the request as it goes upstream, and its framing.

    `client` is given where clients do not share answers.
    """
    scope = "" if client is None else f"{len(client)}:{client}"
    head = f"1 {request.framing} {request.header_length} {len(digest)}:{digest} {scope}\0"
    key = blake2b(head.encode(errors="surrogatepass"), digest_size=KEY_BYTES)
    key.update(request.body)
    return key.digest()


class Checker:
    """Reads the requests for one model."""

    def __init__(self, schema: ModelSchema) -> None:
        self._inputs = {tensor.name: tensor for tensor in schema.inputs}
        self._required = frozenset(t.name for t in schema.inputs if not t.optional)
        self._outputs = frozenset(tensor.name for tensor in schema.outputs)
        self._largest_batch = schema.max_batch_size
        self._is_stateful = schema.stateful
        self._limits = limits_of(schema)

    def read(self, body: bytes, header_length: str | None) -> Request:
        """What `read_request` gives."""
        text, raw = split(body, header_length)
        given = parse(text, self._limits)
        if not _MEMBERS.issuperset(given):
            raise _unknown("the request", given, _MEMBERS)
        head: dict[str, Any] = {}
        head["inputs"], tensors = self._read_inputs(given.get("inputs"), raw)
        if "outputs" in given:
            outputs = self._read_outputs(given["outputs"])
            if outputs:
                head["outputs"] = outputs
        if "parameters" in given:
            parameters = self._read_parameters(given["parameters"])
            if parameters:
                head["parameters"] = parameters
        written = orjson.dumps(head)
        return Request(
            id=_read_id(given["id"]) if "id" in given else None,
            body=b"".join((written, *tensors)),
            header_length=len(written),
            cacheable=not self._is_stateful,
            framing="json" if header_length is None else "binary",
        )

    def _read_inputs(
        self, given: object, raw: memoryview
    ) -> tuple[list[dict[str, Any]], list[bytes | memoryview]]:
        """The inputs in the order of their names: each as the JSON part tells it, and its bytes."""
        if type(given) is not list or not given:
            raise Refusal("inputs is not a list of tensors; send every input of the model")
        read: dict[str, tuple[dict[str, Any], bytes | memoryview]] = {}
        end = 0
        for place, tensor in enumerate(given):
            wanted = self._wanted(place, tensor)
            if wanted.name in read:
                raise Refusal(f"input {wanted.name}: is given twice; send it once")
            size = _binary_size(wanted.name, tensor)
            if size is None:
                read[wanted.name] = self._read_input(wanted, tensor, None)
            elif end + size > len(raw):
                raise Refusal(
                    f"input {wanted.name}: binary_data_size={size}, and {len(raw) - end} bytes are "
                    f"left after the JSON part; binary tensors follow {HEADER} bytes of JSON"
                )
            else:
                read[wanted.name] = self._read_input(wanted, tensor, raw[end : end + size])
                end += size
        if end != len(raw):
            raise Refusal(
                f"{len(raw) - end} bytes follow the last binary tensor; "
                "binary_data_size of the inputs adds up to all that follows the JSON part"
            )
        if not self._required.issubset(read):
            missing = min(self._required - read.keys())
            raise Refusal(f"input {missing}: is missing; send every input that is not optional")
        if self._largest_batch and len({read[name][0]["shape"][0] for name in read}) > 1:
            raise Refusal("the first axis differs between inputs; it is the size of the batch")
        ordered = [read[name] for name in sorted(read)]
        return [told for told, _ in ordered], [tensor for _, tensor in ordered]

    def _wanted(self, place: int, given: object) -> TensorSchema:
        if type(given) is not dict:
            raise Refusal(f"inputs[{place}]: is not an object; send name, shape, datatype, data")
        name = given.get("name")
        wanted = self._inputs.get(name) if type(name) is str else None
        if wanted is None:
            raise Refusal(
                f"input {shown(name)}: is not an input of the model; use {_listed(self._inputs)}"
            )
        if not _INPUT_MEMBERS.issuperset(given):
            raise _unknown(f"input {wanted.name}", given, _INPUT_MEMBERS)
        return wanted

    def _read_input(
        self, wanted: TensorSchema, given: dict[str, Any], raw: memoryview | None
    ) -> tuple[dict[str, Any], bytes | memoryview]:
        where = f"input {wanted.name}"
        datatype = wanted.datatype
        if given.get("datatype") != datatype:
            raise Refusal(
                f"{where}: datatype={shown(given.get('datatype'))}; the model takes {datatype}"
            )
        shape: Any = given.get("shape")
        count = self._count(where, wanted, shape)
        if raw is not None:
            if "data" in given:
                raise Refusal(f"{where}: has data and binary_data_size; send one of them")
            check_bytes(where, datatype, raw, count)
            tensor: bytes | memoryview = raw
        else:
            if "data" not in given:
                raise Refusal(f"{where}: has no data; send data, or a binary tensor and its size")
            tensor = packed(where, datatype, given["data"], shape, count)
        parameters: dict[str, Scalar] = {"binary_data_size": len(tensor)}
        if len(given.get("parameters", ())) > (raw is not None):  # more than the size
            others = read_parameters(where, given["parameters"], OF_INPUTS)
            parameters = dict(sorted((others | parameters).items()))
        told = {
            "name": wanted.name,
            "shape": shape,
            "datatype": datatype,
            "parameters": parameters,
        }
        return told, tensor

    def _count(self, where: str, wanted: TensorSchema, shape: Any) -> int:
        """The number of elements of a tensor of `shape`, which fits what the model takes."""
        largest_batch = self._largest_batch
        dims = (-1, *wanted.dims) if largest_batch else wanted.dims
        count = 1
        fits = type(shape) is list and len(shape) == len(dims)
        if fits:
            for size, wants in zip(shape, dims, strict=True):
                if (
                    type(size) is not int
                    or not 1 <= size <= LARGEST_AXIS
                    or (size != wants and wants != -1)
                ):
                    fits = False
                    break
                count *= size
        if fits and (not largest_batch or shape[0] <= largest_batch):
            return count
        batch = f"a batch of 1 to {largest_batch} in front of " if largest_batch else ""
        raise Refusal(
            f"{where}: shape={_shown_shape(shape)}; the model takes {batch}{list(wanted.dims)}, "
            "where -1 is any size from 1"
        )

    def _read_outputs(self, given: object) -> list[dict[str, Any]]:
        if type(given) is not list:
            raise Refusal("outputs is not a list; leave it out to get every output")
        read: dict[str, dict[str, Any]] = {}
        for place, output in enumerate(given):
            if type(output) is not dict:
                raise Refusal(f"outputs[{place}]: is not an object; send an object with name")
            name = output.get("name")
            if type(name) is not str or name not in self._outputs:
                raise Refusal(
                    f"output {shown(name)}: is not an output of the model; "
                    f"use {_listed(self._outputs)}"
                )
            if name in read:
                raise Refusal(f"output {name}: is asked for twice; ask once")
            if not _OUTPUT_MEMBERS.issuperset(output):
                raise _unknown(f"output {name}", output, _OUTPUT_MEMBERS)
            read[name] = {"name": name}
            if "parameters" in output:
                parameters = read_parameters(f"output {name}", output["parameters"], OF_OUTPUTS)
                if parameters:
                    read[name]["parameters"] = parameters
        return [read[name] for name in sorted(read)]

    def _read_parameters(self, given: object) -> dict[str, Scalar]:
        parameters = read_parameters("the request", given, OF_REQUESTS)
        if not self._is_stateful:
            for name in parameters:
                if name.startswith(OF_SEQUENCES):
                    raise Refusal(
                        f"the request: parameter {shown(name)} is for models that keep sequences; "
                        "leave it out"
                    )
        return parameters


@lru_cache(maxsize=256)
def _checker(schema: ModelSchema) -> Checker:
    return Checker(schema)


def _read_id(given: object) -> bytes:
    if type(given) is not str:
        raise Refusal("id is not a string; send a string or leave it out")
    return orjson.dumps(given)


def _binary_size(name: str, given: dict[str, Any]) -> int | None:
    """The size that the input states for its binary tensor, in bytes."""
    if "parameters" not in given:
        return None
    parameters = given["parameters"]
    if type(parameters) is not dict:
        raise Refusal(f"input {name}: parameters is not an object; send an object")
    size = parameters.get("binary_data_size")
    if size is None and "binary_data_size" not in parameters:
        return None
    if type(size) is not int or size < 0:
        raise Refusal(f"input {name}: parameter binary_data_size is not a whole number of bytes")
    return size


def _unknown(where: str, given: dict[str, Any], known: frozenset[str]) -> Refusal:
    member = min(given.keys() - known)
    return Refusal(f"{where}: has the unknown member {shown(member)}; use {_listed(known)}")


def _listed(names: Any) -> str:
    return shown(", ".join(sorted(names)))


def _shown_shape(shape: Any) -> str:
    if type(shape) is not list or len(shape) > 16:
        return "(not a list of up to 16 axes)"
    return f"[{', '.join(str(s) if type(s) is int else '(not a whole number)' for s in shape)}]"
