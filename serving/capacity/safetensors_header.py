"""Bytes of weights, from the headers of safetensors files alone; no tensor is read.

Source of the format: github.com/huggingface/safetensors: eight bytes of length, then JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from serving.errors import InputError

LARGEST_HEADER_BYTES = 100 * 1000 * 1000
"""The format's own limit."""

ITEM_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F4": 4,
}  # fmt: skip


def weight_bytes(path: Path) -> int:
    """Bytes that the tensors of one file take.

    Raises:
        InputError: it is no safetensors file, or its header and its length differ.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, LARGEST_HEADER_BYTES)))
        header.pop("__metadata__", None)
        total = sum(_tensor_bytes(tensor) for tensor in header.values())
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error
    if not total == end == size - 8 - length:
        raise _broken(path, f"tensors take {total} bytes, and {size - 8 - length} are in it")
    return total


def _broken(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: is no whole safetensors file: {reason}; fetch it again")


def _tensor_bytes(tensor: Mapping[str, Any]) -> int:
    first, end = tensor["data_offsets"]
    bits = prod(tensor["shape"]) * ITEM_BITS[tensor["dtype"]]
    # A tensor whose place is not its size makes the sum differ from the end.
    return -(-bits // 8) if end - first == -(-bits // 8) else -1


def folder_weight_bytes(folder: Path) -> int | None:
    """Bytes of all the safetensors files in a folder; None where there are none.

    An index (`model.safetensors.index.json`) is believed where the files are not beside it.

    Raises:
        InputError: a file is broken.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return sum(weight_bytes(path) for path in files)
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None
    try:
        total = json.loads(index.read_bytes())["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        total = None
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        raise InputError(f"{index}: states no metadata.total_size in bytes; fetch it again")
    return total
