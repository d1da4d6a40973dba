"""The protocol's datatypes: how `struct` writes an element of each, and how large it is."""

import struct
from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""Those that `struct` knows; BF16 is the upper half of an FP32."""

ITEM_BYTES: Final[Mapping[str, int | None]] = {
    **{name: struct.calcsize(f"<{code}") for name, code in CODES.items()},
    "BF16": 2,
    "BYTES": None,
}
"""Size of one element by datatype; None where each element says its own."""

LENGTH: Final = struct.Struct("<I")
"""The length in front of each element of BYTES."""
