"""Warm-up: requests that an instance answers before it is ready, and what would stop them.

A sample that does not fit stops the server from loading the model at all, so everything is compared
with the inputs here, sample files included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from serving.strict import ABSENT, Fault, Location, Rule, Strict, refuse
from serving.tensors import ITEM_BYTES, LARGEST_INT32, Axis, DataType, Input, TensorName


def _plain_file(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise refuse("is not a plain file name", "put the file in the model's warmup folder")
    return name


class Sample(Strict):
    """One input of a warm-up request."""

    data_type: DataType = Field(description="type of one element, as the input has it")
    dims: tuple[Axis, ...] = Field(
        min_length=1, description="size of each axis in elements, without the batch axis"
    )
    file: Annotated[str, AfterValidator(_plain_file)] | None = Field(
        default=None,
        description="raw little-endian tensor bytes of one request, in <model>/warmup/ beside the "
        "spec; zeros when absent",
    )

    @property
    def size_bytes(self) -> int | None:
        """Bytes of one request; None for strings."""
        item = ITEM_BYTES[self.data_type]
        return None if item is None else math.prod(self.dims) * item


class Warmup(Strict):
    """A request answered before an instance is ready: zeros unless `inputs` says otherwise."""

    batch_size: int = Field(ge=1, le=LARGEST_INT32, description="requests in the batch")
    shapes: Mapping[TensorName, tuple[Axis, ...]] = Field(
        default={}, description="size of each axis in elements, for inputs whose dims have -1"
    )
    inputs: Mapping[TensorName, Sample] = Field(
        default={}, description="every required input in full, instead of zeros"
    )

    @Rule
    def _one_form(self) -> Iterator[Fault]:
        if self.inputs and self.shapes:
            yield Fault(
                ("shapes",), self.shapes, "stands beside inputs", "put the sizes in inputs.*.dims"
            )

    def samples(self, inputs: Sequence[Input]) -> dict[str, Sample]:
        """What each input gets, by name: as stated, or zeros for every required one."""
        return dict(self.inputs) or {
            tensor.name: Sample(
                data_type=tensor.data_type, dims=self.shapes.get(tensor.name, tensor.dims)
            )
            for tensor in inputs
            if not tensor.optional
        }


def warmup_faults(warmup: Warmup, inputs: Sequence[Input], largest_batch: int) -> Iterator[Fault]:
    """What would stop the model from loading with this warm-up."""
    if warmup.batch_size > largest_batch:
        yield Fault(
            ("batch_size",),
            warmup.batch_size,
            f"is above the largest batch, {largest_batch}",
            f"use 1 to {largest_batch}, or raise engine.max_batch_size",
        )
    known = {tensor.name: tensor for tensor in inputs}
    required = [tensor for tensor in inputs if not tensor.optional]
    if warmup.inputs:
        yield from _key_faults(warmup, required, known)
        for name, sample in warmup.inputs.items():
            if name in known:
                yield from _sample_faults(sample, known[name], ("inputs", name))
    else:
        yield from _shape_faults(warmup, required, known)


def _key_faults(
    warmup: Warmup, required: Sequence[Input], known: Mapping[str, Input]
) -> Iterator[Fault]:
    wanted = [tensor.name for tensor in required]
    if not set(wanted) <= set(warmup.inputs) <= set(known):
        yield Fault(
            ("inputs",),
            list(warmup.inputs),
            f"does not name the required inputs [{', '.join(wanted)}]",
            "name each of them, and nothing that the model does not take",
        )


def _sample_faults(sample: Sample, tensor: Input, where: Location) -> Iterator[Fault]:
    if sample.data_type != tensor.data_type:
        yield Fault(
            (*where, "data_type"),
            sample.data_type,
            f"is not the input's type {tensor.data_type}",
            f"use {tensor.data_type}",
        )
    yield from _dims_faults(sample.dims, tensor, (*where, "dims"))


def _shape_faults(
    warmup: Warmup, required: Sequence[Input], known: Mapping[str, Input]
) -> Iterator[Fault]:
    for name, dims in warmup.shapes.items():
        if name in known:
            yield from _dims_faults(dims, known[name], ("shapes", name))
        else:
            fix = f"use one of {', '.join(known)}"
            yield Fault(("shapes", name), dims, "is not an input of the model", fix)
    for tensor in required:
        if tensor.is_open and tensor.name not in warmup.shapes:
            example = [128 if size == -1 else size for size in tensor.dims]
            yield Fault(
                ("shapes", tensor.name),
                ABSENT,
                f"is missing, and dims {list(tensor.dims)} leave the size open",
                f"state one, such as shapes: {{{tensor.name}: {example}}}",
            )


def _dims_faults(dims: Sequence[int], tensor: Input, where: Location) -> Iterator[Fault]:
    if any(size < 1 for size in dims):
        yield Fault(
            where, dims, "has an axis without a size", "a sample states every axis, from 1 up"
        )
    elif len(dims) != len(tensor.dims) or any(
        size not in (-1, given) for size, given in zip(tensor.dims, dims, strict=True)
    ):
        wanted = list(tensor.dims)
        yield Fault(where, dims, f"does not fit the input's dims {wanted}", f"follow {wanted}")


ENCODED: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"RIFF": "a WebP image or WAV sound",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"\x93NUMPY": "a NumPy file with a header",
    b"PK\x03\x04": "a zip archive",
}
"""First bytes → what people put where raw tensor bytes belong."""


def warmup_file_faults(warmups: Sequence[Warmup], folder: Path) -> Iterator[Fault]:
    """What is wrong with the sample files of `warmups`, which lie in `folder`."""
    for place, warmup in enumerate(warmups):
        for name, sample in warmup.inputs.items():
            if sample.file is not None:
                where = ("warmup", place, "inputs", name, "file")
                yield from _file_faults(sample, folder / sample.file, where, warmup.batch_size)


def _file_faults(sample: Sample, path: Path, where: Location, batch_size: int) -> Iterator[Fault]:
    try:
        held = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        yield Fault(where, sample.file, f"cannot be read: {error.strerror}", f"put it at {path}")
        return
    wanted = sample.size_bytes
    # Triton reads one request from the file and repeats it for the whole batch; a file that holds
    # the whole batch loads as well.
    if wanted is None or held in (wanted, wanted * batch_size):
        return
    dims = " x ".join(map(str, sample.dims))
    need = f"{dims} of {sample.data_type} is {wanted:,} bytes"
    kind = next((kind for magic, kind in ENCODED.items() if start.startswith(magic)), None)
    if kind is None:
        yield Fault(
            where, sample.file, f"has {held:,} bytes, but {need}", "write the raw tensor again"
        )
    else:
        rule = f"is {kind} of {held:,} bytes and not a tensor: {need}"
        yield Fault(where, sample.file, rule, "decode it and write the raw elements")
