"""Bodies of inference requests in the v2 protocol, and whether an answer to one is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from loadtest.payloads.tensors import batch_axis, block_of, block_size, place_of, shape_of
from serving.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadtest.job import Job
    from serving.tensors import Tensor

HEADER_LENGTH: Final = b"inference-header-content-length"
BLOCKS_KEPT: Final = 128
"""At most 32 MB: requests are sent in order, and a few late ones come back to an older block."""
ONLY_BINARY: Final = ("TYPE_FP16", "TYPE_BF16")
"""Types that the protocol has no JSON for."""


class TensorBodies:
    """Everything that all users of a worker send, by its place in the schedule.

    Args:
        job: the load test.
    """

    def __init__(self, job: Job) -> None:
        request = job.workload.request
        self._spec, self._seed = job.spec, (job.seed, job.salt)
        types = {tensor.data_type for tensor in job.spec.inputs}
        wanted = getattr(request, "framing", "binary") == "binary"
        # Text has no size that is known before, so it goes as JSON; half floats cannot.
        sized = all(ITEM_BYTES[kind] for kind in types)
        self._binary = sized and (wanted or bool(types & set(ONLY_BINARY)))
        self._batch: int = getattr(request, "batch_size", 1)
        self._rows = batch_axis(job.spec, self._batch)
        self._requests, self._distinct = len(job.schedule), job.workload.distinct_ratio
        self._size = block_size(job.spec, self._batch)
        self._blocks: dict[int, dict[str, NDArray[Any]]] = {}
        self._head = self._binary_head() if self._binary else b""
        self.path = f"/v2/models/{job.spec.name}/infer"
        self.headers: dict[str, str] = {
            "Accept-Encoding": "identity",
            "Content-Type": "application/octet-stream" if self._binary else "application/json",
        }
        if self._head:
            self.headers["Inference-Header-Content-Length"] = str(len(self._head))
        self._shapes = {
            tensor.name: tensor.dims if self._rows is None else (self._rows, *tensor.dims)
            for tensor in job.spec.outputs
        }
        self._sizes = {tensor.name: ITEM_BYTES[tensor.data_type] for tensor in job.spec.outputs}

    def inputs(self, position: int) -> dict[str, NDArray[Any]]:
        """The inputs of the request at this place, each in its request's shape."""
        place = place_of(position, self._requests, self._distinct)
        number, row = divmod(place, self._size)
        block = self._blocks.get(number)
        if block is None:
            while len(self._blocks) >= BLOCKS_KEPT:
                # The oldest: places come in order, save for a few that are late.
                del self._blocks[next(iter(self._blocks))]
            block = block_of(self._spec, number, seed=self._seed, batch_size=self._batch)
            self._blocks[number] = block
        return {name: values[row] for name, values in block.items()}

    def body(self, position: int) -> bytes:
        """The body of the request at this place."""
        inputs = self.inputs(position)
        if self._head:
            return self._head + b"".join([values.tobytes() for values in inputs.values()])
        return orjson.dumps(
            {
                "inputs": [
                    {**_said(tensor, self._rows), "data": _plain(inputs[tensor.name])}
                    for tensor in self._spec.inputs
                ]
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )

    def fault(self, status: int, headers: Mapping[bytes, bytes], content: bytes) -> str | None:
        """What is wrong with an answer; None for a good one.

        Good has status 200, and every output of the spec in the size that it must have.
        """
        if status != 200:
            return f"status {status}"
        length = headers.get(HEADER_LENGTH)
        try:
            head = orjson.loads(content if length is None else content[: int(length)])
            found = {one["name"]: one for one in head["outputs"]}
            raw = 0
            for name, wanted in self._shapes.items():
                one = found[name]
                if not fits(one["shape"], wanted):
                    return f"output {name} has the shape {one['shape']}"
                raw += self._checked(name, one, _elements(one["shape"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"no answer in the v2 protocol: {type(error).__name__}: {error}"[:200]
        if length is not None and int(length) + raw != len(content):
            return f"{len(content) - int(length)} bytes of outputs instead of {raw}"
        return None

    def _checked(self, name: str, one: Mapping[str, Any], elements: int) -> int:
        """Bytes that this output has after the JSON part."""
        data = one.get("data")
        if data is not None:
            if len(data) != elements:
                raise ValueError(f"output {name} has {len(data)} elements of {elements}")
            return 0
        size: int = one["parameters"]["binary_data_size"]
        each = self._sizes[name]
        if each is not None and size != each * elements:
            raise ValueError(f"output {name} has {size} bytes")
        return size

    def fault_of(self, outputs: Sequence[tuple[str, Sequence[int], int]]) -> str | None:
        """The same for outputs that came apart: name, shape and size in bytes of each."""
        found = {name: (shape, size) for name, shape, size in outputs}
        for name, wanted in self._shapes.items():
            if name not in found:
                return f"output {name} is missing"
            shape, size = found[name]
            each = self._sizes[name]
            if not fits(shape, wanted):
                return f"output {name} has the shape {list(shape)}"
            if each is not None and size != each * _elements(shape):
                return f"output {name} has {size} bytes"
        return None

    def _binary_head(self) -> bytes:
        inputs = []
        for tensor in self._spec.inputs:
            size = _elements(shape_of(tensor, self._rows)) * (ITEM_BYTES[tensor.data_type] or 0)
            inputs.append({**_said(tensor, self._rows), "parameters": {"binary_data_size": size}})
        outputs = [
            {"name": tensor.name, "parameters": {"binary_data": True}}
            for tensor in self._spec.outputs
        ]
        return orjson.dumps({"inputs": inputs, "outputs": outputs})


def _said(tensor: Tensor, rows: int | None) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(shape_of(tensor, rows)),
        "datatype": datatype(tensor),
    }


def datatype(tensor: Tensor) -> str:
    """The protocol's word for a tensor's type.

    A spec says TYPE_STRING for what the protocol calls BYTES.
    """
    name = tensor.data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an answer has a shape that the spec allows; -1 stands for any size.

    >>> fits([1, 214], [1, -1]), fits([3, 2], [2, 3])
    (True, False)
    """
    return len(shape) == len(wanted) and all(
        want in (-1, have) for have, want in zip(shape, wanted, strict=True)
    )


def _plain(values: NDArray[Any]) -> Any:
    if values.dtype == object:
        return [value.decode() for value in values.ravel()]
    return values.ravel().astype("f4") if values.dtype == "f2" else values.ravel()


def _elements(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
