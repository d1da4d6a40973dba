"""Inputs of a model for each place in a schedule, in blocks, drawn from the seed.

A replay of the same seed and salt sends the same values, whoever sends them: a block is drawn as a
whole, by its own number. What no other request equals keeps caches out of the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from serving.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from serving.spec import ModelSpec
    from serving.tensors import Tensor

BLOCK: Final = 16
BLOCK_BYTES: Final = 256 * 1024
"""Inputs that are drawn at once: a larger block makes the generator pause for longer."""
TEXT_BYTES: Final = 24
ANY_SIZE: Final = 16
"""Elements on an axis whose size the spec leaves open."""
WORDS: Final = ("galley", "stove", "recipe", "kitchen", "ship", "cook", "bread", "salt")

DTYPES: Final[Mapping[str, str]] = {
    "TYPE_BOOL": "?",
    "TYPE_UINT8": "<u1",
    "TYPE_UINT16": "<u2",
    "TYPE_UINT32": "<u4",
    "TYPE_UINT64": "<u8",
    "TYPE_INT8": "<i1",
    "TYPE_INT16": "<i2",
    "TYPE_INT32": "<i4",
    "TYPE_INT64": "<i8",
    "TYPE_FP16": "<f2",
    "TYPE_FP32": "<f4",
    "TYPE_FP64": "<f8",
    "TYPE_BF16": "<u2",
}


def shape_of(tensor: Tensor, batch_size: int | None) -> tuple[int, ...]:
    """The shape of one request's tensor; the batch axis first where there is one."""
    dims = tuple(ANY_SIZE if size == -1 else size for size in tensor.dims)
    return dims if batch_size is None else (batch_size, *dims)


def batch_axis(spec: ModelSpec, batch_size: int) -> int | None:
    """The batch size where the model has a batch axis, None where it has none."""
    return batch_size if getattr(spec.engine, "max_batch_size", 0) > 0 else None


def block_size(spec: ModelSpec, batch_size: int) -> int:
    """Requests in a block: 16, or fewer of large ones."""
    rows = batch_axis(spec, batch_size)
    each = sum(
        math.prod(shape_of(tensor, rows)) * (ITEM_BYTES[tensor.data_type] or TEXT_BYTES)
        for tensor in spec.inputs
    )
    return max(1, min(BLOCK, BLOCK_BYTES // max(each, 1)))


def block_of(
    spec: ModelSpec, number: int, *, seed: tuple[int, int], batch_size: int
) -> dict[str, NDArray[Any]]:
    """Inputs of one block; the first axis is the place in it.

    Numbers are normal (floats) or from 0 to 255 as far as the type goes (integers, which must stay
    within a vocabulary); text is words.
    """
    random = np.random.default_rng([*seed, number])
    rows, size = batch_axis(spec, batch_size), block_size(spec, batch_size)
    return {
        tensor.name: _drawn(random, tensor, (size, *shape_of(tensor, rows)))
        for tensor in spec.inputs
    }


def _drawn(random: np.random.Generator, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = tensor.data_type
    if kind == "TYPE_STRING":
        words = np.array([word.encode() for word in WORDS], dtype=object)
        # A number of its own beside each word: there are too few words to be told apart.
        numbers = random.integers(0, 2**32, shape)
        picked = words[numbers % len(WORDS)]
        joined = [b"%s %d" % pair for pair in zip(picked.ravel(), numbers.ravel(), strict=True)]
        return np.array(joined, dtype=object).reshape(shape)
    dtype = np.dtype(DTYPES[kind])
    if kind == "TYPE_BF16":
        # The upper half of a 32-bit float.
        floats = random.standard_normal(shape, dtype=np.float32)
        return (floats.view("<u4") >> 16).astype("<u2")
    if dtype.kind == "f":
        return random.standard_normal(shape, dtype=np.float32).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    most = min(255, int(np.iinfo(dtype).max))
    return random.integers(0, most, shape, endpoint=True).astype(dtype)


def place_of(position: int, requests: int, distinct_ratio: float) -> int:
    """Whose inputs the request of this place has: its own, or those of an earlier one.

    >>> [place_of(n, 10, 0.3) for n in range(6)]
    [0, 1, 2, 0, 1, 2]
    """
    return position % max(1, round(requests * distinct_ratio))
