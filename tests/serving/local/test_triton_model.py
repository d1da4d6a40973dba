"""The file that the local Triton runs, outside it: a stand-in takes the place of its module."""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from serving.local import triton_model

FILE = Path(triton_model.__file__)


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class Request:
    def __init__(self, asked: Sequence[str] = ("y", "z"), **arrays: Any) -> None:
        self.tensors = {name: Tensor(name, array) for name, array in arrays.items()}
        self.asked = list(asked)

    def requested_output_names(self) -> list[str]:
        return self.asked


class Response:
    def __init__(self, output_tensors: list[Tensor], error: "TritonError | None" = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class TritonError(Exception):
    INVALID_ARG, INTERNAL = "400", "500"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class TritonModelException(Exception): ...


Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a fresh copy of the file over a model, as Triton does."""
    triton: Any = ModuleType("triton_python_backend_utils")
    triton.Tensor, triton.InferenceResponse = Tensor, Response
    triton.TritonError, triton.TritonModelException = TritonError, TritonModelException
    triton.get_input_tensor_by_name = lambda request, name: request.tensors.get(name)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)

    def load(model: onnx.ModelProto | None, **config: Any) -> Any:
        version = tmp_path / "toy" / "1"
        version.mkdir(parents=True, exist_ok=True)
        if model is not None:
            (version / "model.onnx").write_bytes(model.SerializeToString())
        loaded = _module().TritonPythonModel()
        loaded.initialize(
            {
                "model_name": "toy",
                "model_repository": str(tmp_path / "toy"),
                "model_version": "1",
                "model_config": json.dumps({**CONFIG, **config}),
            }
        )
        return loaded

    return load


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("model", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def toy(shape: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Y = x + x, and z = x, for tensors of one shape."""
    double = "Add" if kind == TensorProto.FLOAT else "Identity"
    nodes = [
        helper.make_node(double, ["x", "x"] if double == "Add" else ["x"], ["y"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    return _model(nodes, {"x": shape}, {"y": shape, "z": shape}, kind)


def _model(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], kind: int
) -> onnx.ModelProto:
    def tensors(shapes: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, kind, shape) for n, shape in shapes.items()]

    graph = helper.make_graph(nodes, "toy", tensors(inputs), tensors(outputs))
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def tensor(name: str, dims: list[int], data_type: str = "TYPE_FP32") -> dict[str, Any]:
    # Triton writes the numbers of its 64-bit fields as JSON text or as numbers, by version.
    return {"name": name, "data_type": data_type, "dims": [str(dim) for dim in dims]}


CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [tensor("x", [-1])],
    "output": [tensor("y", [-1]), tensor("z", [-1])],
}


def rows(count: int, width: int, start: float = 0) -> Any:
    return (np.arange(count * width, dtype=np.float32) + np.float32(start)).reshape(count, width)


class CountingSession:
    def __init__(self, session: Any) -> None:
        self.session = session
        self.runs: list[tuple[list[str], int]] = []

    def run(self, names: list[str], feed: dict[str, Any]) -> Any:
        self.runs.append((names, len(feed["x"])))
        return self.session.run(names, feed)


def test_requests_of_one_shape_share_a_run_and_each_gets_its_own_rows(load: Load) -> None:
    model = load(toy(["n", "w"]))
    model.session = session = CountingSession(model.session)
    inputs = [rows(1, 3), rows(4, 3, 10), rows(2, 3, 50)]
    responses = model.execute([Request(x=x) for x in inputs])
    assert session.runs == [(["y", "z"], 7)]
    for x, response in zip(inputs, responses, strict=True):
        assert response.error is None
        np.testing.assert_array_equal(response.outputs["y"], x + x)
        np.testing.assert_array_equal(response.outputs["z"], x)


def test_mixed_shapes_run_by_shape_and_answers_keep_the_order_of_the_requests(load: Load) -> None:
    model = load(toy(["n", "w"]))
    model.session = session = CountingSession(model.session)
    inputs = [rows(1, 3), rows(2, 5), rows(3, 3), rows(1, 5), rows(1, 1)]
    responses = model.execute([Request(x=x) for x in inputs])
    assert [count for _, count in session.runs] == [4, 3, 1]
    for x, response in zip(inputs, responses, strict=True):
        np.testing.assert_array_equal(response.outputs["y"], x + x)


def test_only_requested_outputs_are_computed_and_answered(load: Load) -> None:
    model = load(toy(["n", "w"]))
    model.session = session = CountingSession(model.session)
    (one,) = model.execute([Request(["z"], x=rows(1, 2))])
    assert list(one.outputs) == ["z"]
    first, second = model.execute([Request(["z"], x=rows(1, 2)), Request(["y"], x=rows(2, 2))])
    assert (list(first.outputs), list(second.outputs)) == (["z"], ["y"])
    (every,) = model.execute([Request([], x=rows(1, 2))])
    assert list(every.outputs) == ["y", "z"]
    assert [names for names, _ in session.runs] == [["z"], ["y", "z"], ["y", "z"]]


def test_a_failing_shape_fails_its_own_requests_only(load: Load) -> None:
    square = _model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["n", "w"]},
        {"y": ["n", 2]},
        TensorProto.FLOAT,
    )
    square.graph.initializer.append(
        helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1.0] * 6),
    )
    model = load(square, output=[tensor("y", [2])])
    good, bad, good_too = model.execute(
        [Request(["y"], x=rows(1, width)) for width in (3, 4, 3)],
    )
    assert good.error is None
    assert good_too.error is None
    assert str(bad.error).startswith("toy: [ONNXRuntimeError]")
    assert "\n" not in str(bad.error)


def test_a_missing_input_fails_its_own_request_only(load: Load) -> None:
    model = load(toy(["n", "w"]))
    lost, found = model.execute([Request(), Request(x=rows(1, 2))])
    assert str(lost.error) == "toy: input x is missing"
    assert lost.error.code == TritonError.INVALID_ARG
    assert found.error is None


def test_an_output_that_does_not_keep_the_batch_axis_is_refused(load: Load) -> None:
    doubled = _model(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        {"x": ["n", "w"]},
        {"y": ["m", "w"]},
        TensorProto.FLOAT,
    )
    model = load(doubled, output=[tensor("y", [-1])])
    responses = model.execute([Request(["y"], x=rows(2, 2)), Request(["y"], x=rows(1, 2))])
    assert [str(response.error) for response in responses] == [
        "toy: output y has shape (4, 2) for 2 rows",
        "toy: output y has shape (2, 2) for 1 rows",
    ]
    assert {response.error.code for response in responses} == {TritonError.INTERNAL}


def test_a_value_that_the_model_refuses_fails_its_own_request_only(load: Load) -> None:
    lookup = _model(
        [helper.make_node("Gather", ["w", "x"], ["y"])],
        {"x": ["n", "w"]},
        {"y": ["n", "w"]},
        TensorProto.INT64,
    )
    lookup.graph.initializer.append(helper.make_tensor("w", TensorProto.INT64, [3], [5, 6, 7]))
    model = load(
        lookup,
        input=[tensor("x", [-1], "TYPE_INT64")],
        output=[tensor("y", [-1], "TYPE_INT64")],
    )
    good, bad, good_too = model.execute(
        [Request(["y"], x=np.array([[token]])) for token in (0, 99, 2)]
    )
    assert good.outputs["y"].tolist() == [[5]]
    assert good_too.outputs["y"].tolist() == [[7]]
    assert bad.error.code == TritonError.INVALID_ARG
    assert "out of" in str(bad.error)


def test_a_model_without_batching_runs_each_request_alone(load: Load) -> None:
    model = load(
        toy([2, 2]), max_batch_size=0, input=[tensor("x", [2, 2])], output=[tensor("y", [2, 2])]
    )
    model.session = session = CountingSession(model.session)
    responses = model.execute([Request(["y"], x=rows(2, 2)), Request(["y"], x=rows(2, 2, 9))])
    assert session.runs == [(["y"], 2), (["y"], 2)]
    np.testing.assert_array_equal(responses[1].outputs["y"], 2 * rows(2, 2, 9))


def test_text_tensors_keep_their_text(load: Load) -> None:
    text = {
        "input": [tensor("x", [1], "TYPE_STRING")],
        "output": [tensor(name, [1], "TYPE_STRING") for name in ("y", "z")],
    }
    model = load(toy(["n", 1], TensorProto.STRING), **text)
    first, second, broken = model.execute(
        [
            Request(x=np.array([["naïve".encode()], [b""]], dtype=np.object_)),
            Request(x=np.array([[b"a\nb"]], dtype=np.object_)),
            Request(x=np.array([[b"\xff"]], dtype=np.object_)),
        ]
    )
    assert first.outputs["y"].tolist() == [["naïve"], [""]]
    assert second.outputs["z"].tolist() == [["a\nb"]]
    assert str(broken.error) == "toy: input x is not UTF-8: invalid start byte"
    assert broken.error.code == TritonError.INVALID_ARG


@pytest.mark.parametrize(
    ("shape", "config", "fault"),
    [
        (["n", 4], {"input": [tensor("q", [4])]}, "the config lacks input x of model.onnx"),
        (["n", 4], {"input": [tensor("q", [4])]}, "input q is not in model.onnx, which has x"),
        (["n", 4], {"output": [tensor("q", [4])]}, "output q is not in model.onnx, which has y, z"),
        (["n", 4], {"input": [tensor("x", [5])]}, "x has shape [-1, 5], model.onnx has [-1, 4]"),
        (["n", 4], {"input": [tensor("x", [1, 4])]}, "input x has shape [-1, 1, 4]"),
        (["n", 4], {"input": [tensor("x", [-1])]}, "input x has shape [-1, -1]"),
        (["n", 4], {"input": [tensor("x", [4], "TYPE_FP16")]},
         "input x is TYPE_FP16, model.onnx has tensor(float)"),
        ([1, 4], {"input": [tensor("x", [4])]},
         "input x has a fixed batch axis, shape [1, 4]: set max_batch_size to 0"),
        ([2, 4], {"max_batch_size": 0, "input": [tensor("x", [4])]},
         "input x has shape [4], model.onnx has [2, 4]"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_the_model_fails_the_load(
    load: Load, shape: list[Any], config: dict[str, Any], fault: str
) -> None:
    with pytest.raises(TritonModelException) as error:
        load(toy(shape), **config)
    assert fault in str(error.value)
    assert str(error.value).startswith("toy: ")


@pytest.mark.parametrize("shape", [["n", "w"], ["n", 4]])
def test_a_config_may_narrow_what_the_model_leaves_open(load: Load, shape: list[Any]) -> None:
    load(toy(shape), input=[tensor("x", [4])], output=[tensor("y", [4])])


def test_a_missing_model_file_fails_the_load_in_one_line(load: Load) -> None:
    with pytest.raises(TritonModelException, match=r"model\.onnx") as error:
        load(None)
    assert "\n" not in str(error.value)


def test_threads_are_one_unless_the_environment_says_otherwise(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = load(toy(["n", "w"])).session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    monkeypatch.setenv("GALLEY_ONNX_THREADS", "2")
    options = load(toy(["n", "w"])).session.get_session_options()
    assert options.intra_op_num_threads == 2
    monkeypatch.setenv("GALLEY_ONNX_THREADS", "all")
    with pytest.raises(TritonModelException, match="GALLEY_ONNX_THREADS=all: not a whole number"):
        load(toy(["n", "w"]))


def test_the_engines_folder_is_searched_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("GALLEY_ENGINES_SITE", "/engines/site")
    _module()
    assert sys.path[0] == "/engines/site"


def test_an_unloaded_model_lets_go_of_its_weights(load: Load) -> None:
    model = load(toy(["n", "w"]))
    model.finalize()
    assert not hasattr(model, "session")
