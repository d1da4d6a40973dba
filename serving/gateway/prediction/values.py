"""The values of a tensor: as JSON lists, and as the bytes that a model server takes.

packed        flat or nested JSON list → bytes, every value within its type
check_bytes   bytes of a binary tensor → nothing, or the rule that they break
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from serving.gateway.prediction.datatypes import CODES, ITEM_BYTES, LENGTH
from serving.gateway.prediction.refusal import Refusal


class _Takes(NamedTuple):
    """The type that nearly all JSON values of a datatype have, every type allowed, and a word."""

    usual: type
    types: frozenset[type]
    words: str


_NUMBERS: Final = _Takes(float, frozenset({int, float}), "numbers")
_WHOLE: Final = _Takes(int, frozenset({int}), "whole numbers")
_TAKES: Final[Mapping[str, _Takes]] = {
    "BOOL": _Takes(bool, frozenset({bool}), "true or false"),
    "BYTES": _Takes(str, frozenset({str}), "strings"),
    # Triton's HTTP server refuses the two-byte floats in JSON, so they are not here.
    "FP32": _NUMBERS,
    "FP64": _NUMBERS,
} | {name: _WHOLE for name in CODES if "INT" in name}

_WORDS: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "whole number",
    float: "fraction or a number beyond 64 bits",
    str: "string",
    list: "list",
    dict: "object",
    type(None): "null",
}

_EXPONENTS: Final[Mapping[str, int]] = {"FP16": 0x7C00, "BF16": 0x7F80}
"""Bits that are all set in an infinity and in a NaN."""


def packed(where: str, datatype: str, data: object, shape: Sequence[int], count: int) -> bytes:
    """The `count` values of a JSON list, flat or nested as `shape` says, as a binary tensor.

    Raises:
        Refusal: naming `where`, if a value is not of the type, or the list not of the shape.
    """
    if datatype not in _TAKES:
        raise Refusal(f"{where}: {datatype} cannot be sent as JSON; send it as a binary tensor")
    if type(data) is not list:
        raise Refusal(f"{where}: data is not a list; send a flat list of its {count} values")
    if data and type(data[0]) is list:
        data = _flattened(where, data, shape)
    if len(data) != count:
        raise Refusal(
            f"{where}: data has {len(data)} values; shape={list(shape)} needs exactly {count}"
        )
    takes = _TAKES[datatype]
    types = list(map(type, data))
    # Counting one type is the fastest look at all of them, and usually enough.
    if types.count(takes.usual) != count and not takes.types.issuperset(types):
        found = next(found for found in types if found not in takes.types)
        raise Refusal(f"{where}: data has a {_WORDS[found]}; {datatype} takes {takes.words}")
    if datatype == "BYTES":
        return _packed_text(data)
    try:
        # Unlike an array's, this conversion refuses what does not fit, infinity included.
        return struct.pack(f"<{count}{CODES[datatype]}", *data)
    except (struct.error, OverflowError):
        raise Refusal(f"{where}: data has a value outside the range of {datatype}") from None


def _flattened(where: str, data: list[Any], shape: Sequence[int]) -> list[Any]:
    fits = len(data) == shape[0] if shape else False
    for size in shape[1:]:
        fits = fits and {list}.issuperset(map(type, data)) and {size}.issuperset(map(len, data))
        if not fits:
            break
        data = list(chain.from_iterable(data))
    if not fits or list in map(type, data):
        raise Refusal(
            f"{where}: data is nested in another shape than {list(shape)}; "
            "send a flat list, or one list for each axis"
        )
    return data


def _packed_text(data: list[str]) -> bytes:
    parts: list[bytes] = []
    for text in data:
        raw = text.encode()
        parts.append(LENGTH.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def check_bytes(where: str, datatype: str, raw: memoryview, count: int) -> None:
    """Nothing, if `raw` is `count` values of the type, each of which is finite.

    Raises:
        Refusal: naming `where`, if it is not.
    """
    item_bytes = ITEM_BYTES[datatype]
    if item_bytes is None:
        _check_text(where, raw, count)
        return
    if len(raw) != count * item_bytes:
        raise Refusal(
            f"{where}: binary_data_size={len(raw)}; "
            f"{count} values of {datatype} take {count * item_bytes} bytes"
        )
    if datatype in ("FP32", "FP64"):
        finite = np.isfinite(np.frombuffer(raw, f"<f{item_bytes}")).all()
    elif datatype in _EXPONENTS:
        bits = _EXPONENTS[datatype]
        finite = ((np.frombuffer(raw, "<u2") & bits) != bits).all()
    else:
        finite = True
    if not finite:
        raise Refusal(f"{where}: data has a NaN or an infinity; send finite values")
    if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max() > 1:
        raise Refusal(f"{where}: data has a byte other than 0 and 1; BOOL takes no other")


def _check_text(where: str, raw: memoryview, count: int) -> None:
    size = len(raw)
    end = 0
    if count * LENGTH.size <= size:
        unpack = LENGTH.unpack_from
        for _ in range(count):
            if end + LENGTH.size > size:
                break
            end += LENGTH.size + unpack(raw, end)[0]
        else:
            if end == size:
                return
    raise Refusal(
        f"{where}: binary_data_size={size} is not that of {count} elements of BYTES; "
        "write each as its length in 4 bytes, little-endian, and its bytes"
    )
