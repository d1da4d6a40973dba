"""The tensors that go into a model and come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from serving.strict import Fault, Rule, Strict, refuse

DataType = Literal[
    "TYPE_BOOL",
    "TYPE_UINT8",
    "TYPE_UINT16",
    "TYPE_UINT32",
    "TYPE_UINT64",
    "TYPE_INT8",
    "TYPE_INT16",
    "TYPE_INT32",
    "TYPE_INT64",
    "TYPE_FP16",
    "TYPE_FP32",
    "TYPE_FP64",
    "TYPE_STRING",
    "TYPE_BF16",
]

ITEM_BYTES: Mapping[DataType, int | None] = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_UINT32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT8": 1,
    "TYPE_INT16": 2,
    "TYPE_INT32": 4,
    "TYPE_INT64": 8,
    "TYPE_FP16": 2,
    "TYPE_FP32": 4,
    "TYPE_FP64": 8,
    "TYPE_STRING": None,
    "TYPE_BF16": 2,
}
"""Size of one element in bytes; None where each element has a size of its own."""

LARGEST_INT32 = 2**31 - 1
LARGEST_INT64 = 2**63 - 1
LARGEST_UINT32 = 2**32 - 1
LARGEST_UINT64 = 2**64 - 1


def _tensor_name(name: str) -> str:
    if not name.isprintable() or any(letter.isspace() for letter in name):
        raise refuse("has a space or an unprintable character", "write the graph's own name")
    return name


TensorName = Annotated[str, Field(min_length=1), AfterValidator(_tensor_name)]
Axis = Annotated[int, Field(le=LARGEST_INT64)]


class Tensor(Strict):
    """One tensor; `dims` leave out the batch axis when the engine batches."""

    name: TensorName = Field(description="name of the tensor in the model's graph")
    data_type: DataType = Field(description="type of one element, in Triton's words")
    dims: tuple[Axis, ...] = Field(
        min_length=1, description="size of each axis in elements, -1 where requests may differ"
    )

    @Rule
    def _dims_are_sizes(self) -> Iterator[Fault]:
        for place, size in enumerate(self.dims):
            if size < 1 and size != -1:
                yield Fault(
                    ("dims", place), size, "is not a size", "use 1 or more, or -1 for any size"
                )

    @property
    def is_open(self) -> bool:
        """Whether requests may differ in size."""
        return -1 in self.dims


class Input(Tensor):
    """A tensor that a request brings."""

    optional: bool = Field(default=False, description="whether a request may leave it out")
