"""A model version's `model.py` under the local Triton, whose build has no ONNX Runtime backend.

Triton's Python backend runs this file in its own interpreter: it is copied beside `model.onnx`, and
imports nothing of this project. In the environment:

    GALLEY_ENGINES_SITE   site-packages folder with numpy and onnxruntime
    GALLEY_ONNX_THREADS   threads per model instance, by default 1
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The embedded interpreter ignores PYTHONPATH.
if "GALLEY_ENGINES_SITE" in os.environ:
    sys.path.insert(0, os.environ["GALLEY_ENGINES_SITE"])

import numpy as np
import onnxruntime

# Triton's word → ONNX Runtime's word.
TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}


class BadInputError(ValueError):
    """The request is at fault, not the model: status 400, not 500."""


REFUSED = (BadInputError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)

Feed = dict[str, Any]
Shapes = tuple[tuple[int, ...], ...]


class TritonPythonModel:
    """Runs `model.onnx`: the requests of a dynamic batch in one session run per shape."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the session; a config that does not fit the model fails the load."""
        import triton_python_backend_utils as triton  # exists inside tritonserver only

        self.triton = triton
        self.name = args["model_name"]
        config = json.loads(args["model_config"])
        self.batches = int(config.get("max_batch_size", 0)) > 0
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        try:
            self.session = _open(path, _threads())
            faults = _faults(config, self.session, self.batches)
        except Exception as error:
            raise triton.TritonModelException(f"{self.name}: {path}: {_line(error)}") from error
        if faults:
            raise triton.TritonModelException(f"{self.name}: {'; '.join(faults)}")
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self._warm_up(config.get("model_warmup", ()), Path(args["model_repository"]) / "warmup")

    def _warm_up(self, samples: Sequence[Mapping[str, Any]], folder: Path) -> None:
        """Answer every declared sample once, or fail the load.

        Triton sends the samples too, but takes an answer that is an error for a warm model.
        """
        for sample in samples:
            try:
                rows = int(sample["batch_size"]) if self.batches else None
                tensors = sample["inputs"].items()
                feed = {name: _sample(tensor, rows, folder) for name, tensor in tensors}
                self._run([feed], [self.outputs])
            except Exception as error:
                raise self.triton.TritonModelException(
                    f"{self.name}: warm-up {sample['name']} fails: {_line(error)}"
                ) from error

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, in their order."""
        responses: list[Any] = [None] * len(requests)
        groups: dict[int | Shapes, list[tuple[int, Feed]]] = {}
        for index, request in enumerate(requests):
            try:
                feed = {name: self._input(request, name) for name in self.inputs}
            except Exception as error:
                responses[index] = self._error(error)
            else:
                key = tuple(feed[name].shape[1:] for name in self.inputs) if self.batches else index
                groups.setdefault(key, []).append((index, feed))
        for group in groups.values():
            asked = [self._asked(requests[index]) for index, _ in group]
            answers = self._answers([feed for _, feed in group], asked)
            for (index, _), answer in zip(group, answers, strict=True):
                responses[index] = answer
        return responses

    def finalize(self) -> None:
        """Free the weights."""
        del self.session

    def _input(self, request: Any, name: str) -> Any:
        tensor = self.triton.get_input_tensor_by_name(request, name)
        if tensor is None:
            raise BadInputError(f"input {name} is missing")
        array = tensor.as_numpy()
        if array.dtype == np.object_:
            # Triton gives bytes; ONNX Runtime would take their printed form, b'...', for the text.
            try:
                text = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
            except UnicodeDecodeError as error:
                raise BadInputError(f"input {name} is not UTF-8: {error.reason}") from error
            array = np.array(text, dtype=np.object_).reshape(array.shape)
        return array

    def _asked(self, request: Any) -> list[str]:
        names = request.requested_output_names()
        return [name for name in self.outputs if name in names] if names else self.outputs

    def _answers(self, feeds: list[Feed], asked: list[list[str]]) -> list[Any]:
        try:
            return [self._response(outputs) for outputs in self._run(feeds, asked)]
        except Exception as error:
            if len(feeds) == 1:
                return [self._error(error)]
        # A value that the model refuses must not fail the requests that share its batch.
        alone = zip(feeds, asked, strict=True)
        return [answer for feed, one in alone for answer in self._answers([feed], [one])]

    def _run(self, feeds: list[Feed], asked: list[list[str]]) -> list[Feed]:
        """What each request asked for, from one session run over all of them."""
        names = [name for name in self.outputs if any(name in one for one in asked)]
        joined = feeds[0] if len(feeds) == 1 else _joined(feeds)
        outputs = dict(zip(names, self.session.run(names, joined), strict=True))
        if not self.batches:
            return [outputs]
        sizes = [len(feed[self.inputs[0]]) for feed in feeds]
        for name, output in outputs.items():
            if output.shape[:1] != (sum(sizes),):
                raise ValueError(f"output {name} has shape {output.shape} for {sum(sizes)} rows")
        ends = np.cumsum(sizes)
        return [
            {name: outputs[name][end - size : end] for name in one}
            for one, size, end in zip(asked, sizes, ends, strict=True)
        ]

    def _response(self, outputs: Feed) -> Any:
        tensors = [self.triton.Tensor(name, array) for name, array in outputs.items()]
        return self.triton.InferenceResponse(output_tensors=tensors)

    def _error(self, error: Exception) -> Any:
        kinds = self.triton.TritonError
        kind = kinds.INVALID_ARG if isinstance(error, REFUSED) else kinds.INTERNAL
        reason = kinds(f"{self.name}: {_line(error)}", kind)
        return self.triton.InferenceResponse(output_tensors=[], error=reason)


def _sample(tensor: Mapping[str, Any], rows: int | None, folder: Path) -> Any:
    """A warm-up tensor; one request's worth is repeated for every row of the batch."""
    word = tensor["data_type"].removeprefix("TYPE_").lower()
    kind = np.dtype("object" if word == "string" else word.replace("fp", "float"))
    dims = [int(dim) for dim in tensor["dims"]]
    shape = dims if rows is None else [rows, *dims]
    if tensor.get("input_data_file"):
        values = np.fromfile(folder / tensor["input_data_file"], dtype=kind)
        return np.resize(values, shape)
    if kind == np.object_:
        return np.full(shape, "", dtype=np.object_)
    return np.zeros(shape, dtype=kind)


def _joined(feeds: list[Feed]) -> Feed:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _open(path: Path, threads: int) -> Any:
    """A session on the CPU; parallelism comes from model instances, not from threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _threads() -> int:
    text = os.environ.get("GALLEY_ONNX_THREADS", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"GALLEY_ONNX_THREADS={text}: not a whole number above 0")
    return int(text)


def _faults(config: Mapping[str, Any], session: Any, batches: bool) -> list[str]:
    """What in the config does not fit the model, one sentence each."""
    inputs = {tensor.name: tensor for tensor in session.get_inputs()}
    outputs = {tensor.name: tensor for tensor in session.get_outputs()}
    unfed = inputs.keys() - {tensor["name"] for tensor in config["input"]}
    faults = [f"the config lacks input {name} of model.onnx" for name in sorted(unfed)]
    for kind, known in (("input", inputs), ("output", outputs)):
        for tensor in config[kind]:
            label = f"{kind} {tensor['name']}"
            if tensor["name"] not in known:
                faults.append(f"{label} is not in model.onnx, which has {', '.join(known)}")
            else:
                faults += _tensor_faults(label, tensor, known[tensor["name"]], batches)
    return faults


def _tensor_faults(label: str, tensor: Mapping[str, Any], known: Any, batches: bool) -> list[str]:
    faults = []
    if TYPES.get(tensor["data_type"]) != known.type:
        faults.append(f"{label} is {tensor['data_type']}, model.onnx has {known.type}")
    have = [dim if isinstance(dim, int) else -1 for dim in known.shape]
    dims = [int(dim) for dim in tensor["dims"]]
    want = [-1, *dims] if batches else dims
    # A session gives an empty shape for a tensor of any rank.
    if have and batches and have[0] != -1:
        faults.append(f"{label} has a fixed batch axis, shape {have}: set max_batch_size to 0")
    elif have and (
        len(want) != len(have) or any(h not in (-1, w) for w, h in zip(want, have, strict=True))
    ):
        faults.append(f"{label} has shape {want}, model.onnx has {have} (-1 stands for any)")
    return faults


def _line(error: Exception) -> str:
    """The first line of the reason."""
    return (str(error).splitlines() or [type(error).__name__])[0]
