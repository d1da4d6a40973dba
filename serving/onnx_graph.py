"""An ONNX file's inputs and outputs, held against a spec before anything is published.

A graph whose first axis is a number cannot batch, whatever the spec says, and a server finds out
only when it loads, or when two requests first meet in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from serving.engines.kinds import TritonEngine
from serving.errors import ArtifactError, SpecError
from serving.spec import ModelSpec
from serving.strict import Fault, sentence
from serving.tensors import Tensor

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

LARGEST_BYTES = 2**31 - 1
"""Protobuf's own limit; larger models keep their weights in files beside the graph."""

ONNX_NAMES = {
    "FLOAT": "TYPE_FP32",
    "FLOAT16": "TYPE_FP16",
    "DOUBLE": "TYPE_FP64",
    "BFLOAT16": "TYPE_BF16",
    **{name: f"TYPE_{name}" for name in ("BOOL", "STRING")},
    **{
        f"{sign}{bits}": f"TYPE_{sign}{bits}"
        for sign in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
}
"""ONNX's name of a type → Triton's; other types have none in Triton."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output: its size by axis as a number, a symbol, or None for neither."""

    name: str
    data_type: str
    axes: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """What goes into a graph and what comes out."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


def read_graph(path: Path) -> Graph:
    """The inputs and outputs of the ONNX file at `path`.

    Raises:
        ArtifactError: if the file is no ONNX model, or takes weights from outside its folder.
    """
    model = _parsed(path)
    escapes = [
        f"{path}: weights of {name!r} are in {location!r}, {why}; save them beside the graph"
        for name, location in sorted(set(_external(model)))
        if (why := _outside(path.parent, location))
    ]
    if escapes:
        raise ArtifactError("\n".join(escapes))
    weights = {tensor.name for tensor in model.graph.initializer}
    return Graph(
        tuple(_tensor(value) for value in model.graph.input if value.name not in weights),
        tuple(_tensor(value) for value in model.graph.output),
    )


def _parsed(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ArtifactError(f"{path}: larger than 2 GiB; save the weights beside the graph")
        model: ModelProto = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"{path}: cannot be read: {reason}; check the path") from error
    except DecodeError as error:
        raise ArtifactError(f"{path}: not an ONNX model; export the model again") from error
    # Protobuf reads an empty file, and some noise, as a message with nothing in it.
    if not model.ir_version or not model.graph.output:
        raise ArtifactError(f"{path}: an ONNX model without outputs; export the model again")
    return model


def _tensor(value: ValueInfoProto) -> GraphTensor:
    import onnx

    kind = value.type.WhichOneof("value") or "untyped"
    if kind != "tensor_type":
        return GraphTensor(value.name, kind.removesuffix("_type"), None)
    tensor = value.type.tensor_type
    known = onnx.TensorProto.DataType.values()
    onnx_name = (
        onnx.TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else "unknown"
    )
    axes = None
    if tensor.HasField("shape"):
        axes = tuple(
            axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0
            else axis.dim_param or None
            for axis in tensor.shape.dim
        )  # fmt: skip
    return GraphTensor(value.name, ONNX_NAMES.get(onnx_name, onnx_name), axes)


def _external(model: ModelProto) -> Iterator[tuple[str, str]]:
    """Name and location of every tensor that is kept in another file."""
    import onnx

    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            # Readers differ in which of several locations they take, so all of them are judged.
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            for place in places or [""]:
                yield tensor.name, place


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from _graph_tensors(model.graph)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)
    for function in model.functions:
        yield from _attribute_tensors(function.attribute_proto)
        yield from _node_tensors(function.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Sequence[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (attribute.g, *attribute.graphs):
            if graph.ByteSize():
                yield from _graph_tensors(graph)


def _outside(folder: Path, location: str) -> str | None:
    """Why external data at `location` may not be read, if so."""
    # Backslashes and drive letters count on every system: the file may be loaded on another one.
    windows, posix = PureWindowsPath(location), PurePosixPath(location)
    if not location or "\0" in location:
        return "which is no path"
    if posix.is_absolute() or windows.drive or windows.root:
        return "an absolute path"
    if ".." in windows.parts:
        return "which leaves the folder of the graph"
    if not (folder / location).resolve().is_relative_to(folder.resolve()):
        return "a link that leaves the folder of the graph"
    if not (folder / location).is_file():
        return "which is not there"
    return None


def check_graph(spec: ModelSpec, path: Path) -> None:
    """Returns if the graph at `path` has the tensors of `spec` and can batch as it says.

    Raises:
        ArtifactError: if the file is no ONNX model, or takes weights from outside its folder.
        SpecError: with every difference between spec and graph.
    """
    graph = read_graph(path)
    faults = [sentence(spec.name, fault) for fault in graph_faults(spec, graph)]
    if faults:
        raise SpecError(faults)


def graph_faults(spec: ModelSpec, graph: Graph) -> Iterator[Fault]:
    """Every difference between `spec` and `graph`."""
    batches = isinstance(spec.engine, TritonEngine) and spec.engine.max_batch_size > 0
    for field, stated, held in (
        ("inputs", spec.inputs, graph.inputs),
        ("outputs", spec.outputs, graph.outputs),
    ):
        named = {tensor.name: tensor for tensor in held}
        for place, tensor in enumerate(stated):
            if tensor.name in named:
                yield from _tensor_faults((field, place), tensor, named[tensor.name], batches)
            else:
                rule = f"is not among the graph's {field}"
                names = ", ".join(named) or "none"
                yield Fault((field, place, "name"), tensor.name, rule, f"the graph has {names}")
    # A graph may have more outputs than are served, but it does not run without every input.
    stated_names = {tensor.name for tensor in spec.inputs}
    for missing in graph.inputs:
        if missing.name not in stated_names:
            rule = f"leaves out the graph's input {missing.name}"
            yield Fault(("inputs",), sorted(stated_names), rule, f"add {missing.name}")


def _tensor_faults(
    where: tuple[str, int], stated: Tensor, held: GraphTensor, batches: bool
) -> Iterator[Fault]:
    if stated.data_type != held.data_type:
        yield Fault(
            (*where, "data_type"),
            stated.data_type,
            f"is not the graph's type of {stated.name}, {held.data_type}",
            f"use {held.data_type}" if held.data_type.startswith("TYPE_") else "export a tensor",
        )
    if held.axes is not None:
        yield from _axes_faults((*where, "dims"), stated, held.axes, batches)


def _axes_faults(
    where: tuple[str | int, ...], stated: Tensor, axes: Sequence[int | str | None], batches: bool
) -> Iterator[Fault]:
    shape = f"[{', '.join('?' if axis is None else str(axis) for axis in axes)}]"
    own = axes[1:] if batches else axes
    wanted = [axis if isinstance(axis, int) else -1 for axis in own]
    if batches and axes and isinstance(axes[0], int):
        yield Fault(
            where,
            stated.dims,
            f"cannot batch: the graph's {shape} of {stated.name} has a fixed first axis {axes[0]}",
            "export with a symbolic first axis, or set engine.max_batch_size to 0",
        )
    if len(stated.dims) != len(own):
        yield Fault(where, stated.dims, *_rank_wording(stated, shape, wanted, batches))
    elif any(held not in (-1, given) for held, given in zip(wanted, stated.dims, strict=True)):
        rule = f"does not fit the graph's {shape} of {stated.name}"
        yield Fault(where, stated.dims, rule, f"use {wanted}")


def _rank_wording(
    stated: Tensor, shape: str, wanted: Sequence[int], batches: bool
) -> tuple[str, str]:
    more = len(stated.dims) - len(wanted)
    if batches and more == 1 and wanted:
        rule = f"states the batch axis, which max_batch_size implies: the graph has {shape}"
        return rule, f"use {list(wanted)}"
    rule = f"has {len(stated.dims)} axes where the graph's {stated.name} has {len(wanted)}: {shape}"
    if not batches and more == -1:
        return rule, f"use {list(wanted)}, with the batch axis, or set engine.max_batch_size"
    return rule, f"use {list(wanted)}"
