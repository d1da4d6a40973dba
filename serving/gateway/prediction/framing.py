"""The two framings of a request's body, and its JSON part read within bounded memory.

JSON framing     all of the body is JSON
binary framing   `Inference-Header-Content-Length` bytes of JSON, then the tensors' bytes
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import orjson

from serving.gateway.prediction.refusal import Refusal
from serving.gateway.prediction.schema import ModelSchema

HEADER: Final = "Inference-Header-Content-Length"

UNGUARDED_BYTES: Final = 64 * 1024
"""A JSON part up to this size is read whatever it holds: at most about 3 MB of Python objects."""

_MAX_DIGITS = 18
_SPARE_OBJECTS = 8
_SPARE_LISTS = 8

_UNCOUNTED = bytes(set(range(256)) - set(b'"{['))


def split(body: bytes, header_length: str | None) -> tuple[bytes | memoryview, memoryview]:
    """The JSON part of a body, and the bytes that follow it.

    Raises:
        Refusal: if the header is not a length within the body.
    """
    if not body:
        raise Refusal("the body is empty; send a JSON object with inputs")
    view = memoryview(body)
    if header_length is None:
        return body, view[len(body) :]
    if not (header_length.isascii() and header_length.isdigit()):
        raise Refusal(f"{HEADER} is not a decimal number; use the size of the JSON part in bytes")
    length = int(header_length) if len(header_length) <= _MAX_DIGITS else len(body) + 1
    if not 1 <= length <= len(body):
        raise Refusal(
            f"{HEADER}={header_length[:_MAX_DIGITS]} is not within the {len(body)} bytes of the "
            "body; use the size of the JSON part in bytes"
        )
    return view[:length], view[length:]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many JSON objects and lists a request for a model can need; None where sizes are open."""

    objects: int
    lists: int | None


def limits_of(schema: ModelSchema) -> Limits:
    """What the largest request for a model needs, with every tensor nested in lists."""
    objects = 2 + 2 * len(schema.inputs) + 2 * len(schema.outputs) + _SPARE_OBJECTS
    lists = 2 + 2 * len(schema.inputs) + _SPARE_LISTS
    for tensor in schema.inputs:
        if -1 in tensor.dims:
            return Limits(objects, None)
        dims = (schema.max_batch_size, *tensor.dims) if schema.max_batch_size else tensor.dims
        lists += sum(prod(dims[:axis]) for axis in range(1, len(dims)))
    return Limits(objects, lists)


def parse(text: bytes | memoryview, limits: Limits) -> dict[str, Any]:
    """The JSON object that `text` is.

    Small lists and objects cost up to 40 times their text. So they are counted in a large text
    before it is read: objects up to what the model can need, lists up to that and a third of the
    text's bytes. What is left costs at most 36 bytes for each byte of text.

    Raises:
        Refusal: if it is something else.
    """
    if len(text) > UNGUARDED_BYTES:
        _check_count(bytes(text), limits)
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        said = error.msg
    else:
        if isinstance(parsed, dict):
            return parsed
        said = f"it is a {_json_word(parsed)}, not an object"
    raise Refusal(f"the body is not the JSON of an inference request: {said}")


def _check_count(text: bytes, limits: Limits) -> None:
    lists = len(text) // 3 if limits.lists is None else min(limits.lists, len(text) // 3)
    if text.count(b"{") <= limits.objects and text.count(b"[") <= lists:
        return
    text = _outside_strings(text)
    if text.count(b"{") > limits.objects:
        raise Refusal(f"the body holds more than {limits.objects} JSON objects; the model has none")
    if text.count(b"[") > lists:
        raise Refusal(
            f"the body holds more than {lists} JSON lists; write the data of an input as one list"
        )


def _outside_strings(text: bytes) -> bytes:
    r"""The braces and brackets of a JSON text that are not in strings.

    >>> _outside_strings(rb'{"a\\\"{": ["["]}')
    b'{['
    """
    # A backslash before a quote is an escape only if no other backslash escapes it.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNCOUNTED)
    return b"".join(plain.split(b'"')[::2])


def _json_word(value: object) -> str:
    words = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return words.get(type(value), "number")
