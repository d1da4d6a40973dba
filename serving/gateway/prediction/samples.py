"""The share of requests whose tensors are logged, and those tensors with what is private left out.

A body is read where the log writes it, not where the request is answered. Nothing of a body that
cannot be read is told, since nobody can say which part of it is private.
"""

import base64
import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from serving.gateway.prediction.datatypes import CODES, ITEM_BYTES, LENGTH
from serving.gateway.prediction.schema import LogRule

LARGEST_BODY_BYTES: Final = 64 * 1024
"""Of a larger body, names, types and shapes are told, and no values."""

LARGEST_JSON_BYTES: Final = 1024 * 1024
"""A larger JSON part is not read at all: reading it holds up every request meanwhile."""


def sampled(rule: LogRule | None, request_id: str) -> bool:
    """Whether the request's tensors are logged: the same answer for an id wherever it is asked."""
    if rule is None:
        return False
    digest = hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rule.sample_ratio * 2**64


@dataclass(frozen=True, slots=True)
class Sample:
    """A request or an answer whose tensors are to be logged: its JSON part, its binary tensors."""

    head: bytes = field(repr=False)
    data: bytes = field(repr=False)
    redact: Collection[str]
    truncated: bool

    @classmethod
    def of(cls, body: bytes, header_length: int | None, redact: Collection[str]) -> "Sample":
        """The parts of a body that will be told; `header_length` is None where all is JSON."""
        length = len(body) if header_length is None else header_length
        truncated = len(body) > LARGEST_BODY_BYTES
        return cls(
            head=body[:length] if length <= LARGEST_JSON_BYTES else b"",
            data=b"" if truncated else body[length:],
            redact=redact,
            truncated=truncated,
        )

    def tensors(self) -> list[dict[str, Any]]:
        """Each tensor as `{name, datatype, shape}` and what is told of its values.

        That is `data`, a flat list in row-major order, where text that is not UTF-8 stands as
        `{"base64": ...}`; or `redacted`, or `truncated` (the body is too large). A body that is no
        request and no answer gives one entry `unreadable`.
        """
        if not self.head and self.truncated:
            return [{"truncated": True}]
        try:
            return list(self._tensors())
        except (ValueError, TypeError, KeyError, struct.error, RecursionError):
            return [{"unreadable": True}]

    def _tensors(self) -> Iterator[dict[str, Any]]:
        document, start = orjson.loads(self.head), 0
        # A request may also list the outputs it wants, without values.
        for tensor in document["inputs" if "inputs" in document else "outputs"]:
            name, datatype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
            if type(name) is not str or not all(type(size) is int for size in shape):
                raise TypeError(name)
            told: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
            size = tensor.get("parameters", {}).get("binary_data_size")
            if name in self.redact:
                yield told | {"redacted": True}
            elif self.truncated:
                yield told | {"truncated": True}
            elif size is None:
                yield told | {"data": _flat(tensor["data"])}
            else:
                yield told | {"data": _values(datatype, self.data[start : start + size])}
            start += size or 0


def _flat(data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        data = [value for row in data for value in row]
    return data


def _values(datatype: str, raw: bytes) -> list[Any]:
    """Little-endian elements as Python has them."""
    if datatype == "BYTES":
        return list(_texts(raw))
    if datatype == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        datatype, raw = "FP32", bytes(wide)
    kind, size = CODES[datatype], ITEM_BYTES[datatype] or 1
    return list(struct.unpack(f"<{len(raw) // size}{kind}", raw))


def _texts(raw: bytes) -> Iterator[str | dict[str, str]]:
    place = 0
    while place < len(raw):
        start = place + LENGTH.size
        place = start + LENGTH.unpack_from(raw, place)[0]
        text = raw[start:place]
        if place > len(raw):
            raise ValueError("an element ends past the end")
        try:
            yield text.decode()
        except UnicodeDecodeError:
            yield {"base64": base64.b64encode(text).decode()}
