"""`ranker`: 512 features → one score, a multilayer perceptron with weights from a seed.

It stands for what many teams ship: a dense model of 21 MB that answers in a few milliseconds.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import ArtifactError, InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto

INPUT = "input0"
OUTPUT = "score"
WIDTHS = (512, 2048, 2048, 1)
LAYERS = len(WIDTHS) - 1

# Old enough for every ONNX Runtime that a supported Triton ships.
OPSET = 17
IR_VERSION = 8


def build(folder: Path, seed: int = 0) -> dict[str, Path]:
    """The one file of a version; each seed gives other weights, and always the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(_model(seed).SerializeToString(deterministic=True))
    return {"model.onnx": path}


def encode(source: Path | bytes) -> NDArray[np.float32]:
    """One row of features from a JSON list of 512 numbers.

    Shapes: [512]

    Raises:
        InputError: if the text is anything else.
    """
    import numpy as np

    where = "features" if isinstance(source, bytes) else str(source)
    try:
        features = json.loads(source if isinstance(source, bytes) else source.read_bytes())
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON; give a list of {WIDTHS[0]} numbers") from error
    if not isinstance(features, list) or any(type(value) not in (int, float) for value in features):
        raise InputError(f"{where}: not a list of numbers; give {WIDTHS[0]} numbers")
    if len(features) != WIDTHS[0]:
        raise InputError(f"{where}: {len(features)} numbers, the model takes {WIDTHS[0]}")
    largest = float(np.finfo(np.float32).max)
    if any(not -largest <= value <= largest for value in features):
        raise InputError(f"{where}: holds a number that is not finite in 32 bits")
    return np.array(features, dtype=np.float32)


def decode(scores: NDArray[np.float32]) -> float:
    """The score in one row of the output.

    Shapes: [1]

    Raises:
        InputError: if the row does not hold one finite number.
    """
    import numpy as np

    if scores.size != 1 or not np.isfinite(scores).all():
        raise InputError(f"{OUTPUT}: shape {list(scores.shape)}, expected one finite number")
    return float(scores.item())


def sample_inputs(count: int, seed: int) -> NDArray[np.float32]:
    """Feature rows as the model expects them: standard normal.

    Shapes: [count, 512]
    """
    import numpy as np

    return np.random.RandomState(seed).standard_normal((count, WIDTHS[0])).astype(np.float32)


def reference(path: Path, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """The answers of the model file by plain matrix products in 64 bits: no inference runtime.

    Shapes: [n, 512] → [n, 1]

    Raises:
        ArtifactError: if the file does not hold this model's weights.
    """
    import numpy as np
    import onnx

    try:
        tensors = onnx.load(str(path)).graph.initializer
        weights = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in tensors}
        value = inputs.astype(np.float64)
        for layer in range(LAYERS):
            value = value @ weights[f"weight{layer}"] + weights[f"bias{layer}"]
            if layer < LAYERS - 1:
                value = np.maximum(value, 0)
    except Exception as error:  # the protobuf errors have no public base class
        raise ArtifactError(f"{path}: does not hold the weights of ranker: {error}") from error
    return value.astype(np.float32)


def _model(seed: int) -> ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    nodes, tensors, value = [], [], INPUT
    for layer, (weight, bias) in enumerate(_weights(seed)):
        last = layer == LAYERS - 1
        total = OUTPUT if last else f"gemm{layer}"
        names = [f"weight{layer}", f"bias{layer}"]
        tensors += [
            numpy_helper.from_array(weight, names[0]),
            numpy_helper.from_array(bias, names[1]),
        ]
        nodes.append(helper.make_node("Gemm", [value, *names], [total], name=f"Gemm{layer}"))
        if not last:
            value = f"relu{layer}"
            nodes.append(helper.make_node("Relu", [total], [value], name=f"Relu{layer}"))
    takes = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", WIDTHS[0]])
    gives = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", WIDTHS[-1]])
    return helper.make_model(
        helper.make_graph(nodes, "ranker", [takes], [gives], tensors),
        producer_name="galley",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _weights(seed: int) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Weight and bias of each layer, scaled so that scores stay near 1 (arXiv:1502.01852).

    `RandomState` and not `default_rng`: its stream is frozen for all versions of NumPy.
    """
    import numpy as np

    random = np.random.RandomState(seed)
    layers = []
    for layer, (width, width_out) in enumerate(pairwise(WIDTHS)):
        gain = 1.0 if layer == LAYERS - 1 else 2.0  # a layer before a Relu loses half its variance
        weight = random.standard_normal((width, width_out)) * (gain / width) ** 0.5
        bias = random.standard_normal(width_out) * 0.1
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers
