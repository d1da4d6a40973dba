"""A graph and a spec that disagree are told apart before anything is published."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from serving.errors import ArtifactError, SpecError
from serving.onnx_graph import ONNX_NAMES, Graph, check_graph, read_graph
from serving.recipes import ranker
from serving.spec import ModelSpec, load_spec, parse_spec
from serving.tensors import ITEM_BYTES

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Axes = Sequence[int | str | None]
SPECS = Path(__file__).parents[2] / "serving" / "specs"
PIXELS = ("n", 3, 224, 224)


def model(
    inputs: Mapping[str, Axes],
    outputs: Mapping[str, Axes],
    kind: int = TensorProto.FLOAT,
    weights: Sequence[TensorProto] = (),
    nodes: Sequence[onnx.NodeProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, axes) for name, axes in inputs.items()],
        [helper.make_tensor_value_info(name, kind, axes) for name, axes in outputs.items()],
        initializer=list(weights),
    )
    return helper.make_model(graph)


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def pixels(stated: Stated, dims: Sequence[int], maximum: int, **changes: object) -> ModelSpec:
    tensor = {"name": "pixels", "data_type": "TYPE_FP32", "dims": list(dims)}
    fields = {
        "engine.max_batch_size": maximum,
        "engine.dynamic_batching": ...,
        "inputs": [tensor],
        "warmup": [],
    }
    return parse_spec(stated(fields | changes), "ranker")


def faults(spec: ModelSpec, path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        check_graph(spec, path)
    return list(caught.value.faults)


def test_the_shipped_filetype_fits_the_model_of_the_magika_package() -> None:
    (path,) = (Path(str(resources.files("magika"))) / "models").glob("*/model.onnx")
    graph = read_graph(path)
    (only,) = graph.inputs
    # The exporter's names for the batch axis differ between input and output.
    assert (only.name, only.data_type, only.axes) == ("bytes", "TYPE_INT32", ("unk__214", 2048))
    check_graph(load_spec(SPECS / "filetype.yaml"), path)


def test_the_shipped_ranker_fits_the_model_of_its_recipe(tmp_path: Path) -> None:
    path = ranker.build(tmp_path)["model.onnx"]
    assert [tensor.name for tensor in read_graph(path).inputs] == ["input0"]
    check_graph(load_spec(SPECS / "ranker.yaml"), path)


@pytest.mark.parametrize(
    ("axes", "dims", "maximum", "expected"),
    [
        pytest.param(
            (1, 3, 224, 224),
            (3, 224, 224),
            8,
            "[3, 224, 224] cannot batch: the graph's [1, 3, 224, 224] of pixels has a fixed first "
            "axis 1; export with a symbolic first axis, or set engine.max_batch_size to 0",
            id="fixed batch axis",
        ),
        pytest.param(
            PIXELS,
            (-1, 3, 224, 224),
            8,
            "[-1, 3, 224, 224] states the batch axis, which max_batch_size implies: the graph has "
            "[n, 3, 224, 224]; use [3, 224, 224]",
            id="batch axis stated twice",
        ),
        pytest.param(
            PIXELS,
            (3, 224, 224),
            0,
            "[3, 224, 224] has 3 axes where the graph's pixels has 4: [n, 3, 224, 224]; "
            "use [-1, 3, 224, 224], with the batch axis, or set engine.max_batch_size",
            id="batch axis left out",
        ),
        pytest.param(
            PIXELS,
            (224, 224),
            8,
            "[224, 224] has 2 axes where the graph's pixels has 3: [n, 3, 224, 224]; "
            "use [3, 224, 224]",
            id="another rank",
        ),
        pytest.param(
            PIXELS,
            (3, 256, 224),
            8,
            "[3, 256, 224] does not fit the graph's [n, 3, 224, 224] of pixels; use [3, 224, 224]",
            id="another size",
        ),
        pytest.param(
            PIXELS,
            (3, -1, 224),
            8,
            "[3, -1, 224] does not fit the graph's [n, 3, 224, 224] of pixels; use [3, 224, 224]",
            id="open where the graph is fixed",
        ),
    ],
)
def test_axes_that_do_not_fit_are_refused(
    stated: Stated, tmp_path: Path, axes: Axes, dims: Sequence[int], maximum: int, expected: str
) -> None:
    score = {"name": "score", "data_type": "TYPE_FP32", "dims": [1] if maximum else [-1, 1]}
    path = saved(tmp_path, model({"pixels": axes}, {"score": ("n", 1)}))
    spec = pixels(stated, dims, maximum, outputs=[score])
    assert faults(spec, path) == [f"ranker: inputs[0].dims={expected}"]


@pytest.mark.parametrize(
    ("axes", "dims", "maximum"),
    [
        pytest.param(PIXELS, (3, 224, 224), 8, id="symbolic batch axis"),
        pytest.param((1, 3, 224, 224), (1, 3, 224, 224), 0, id="fixed batch axis, no batching"),
        pytest.param((None, 3, "h", "w"), (3, -1, -1), 8, id="open axes"),
        pytest.param(("n", 3, "h", "w"), (3, 224, -1), 8, id="spec narrower than the graph"),
        pytest.param(None, (3, 224, 224), 8, id="graph without a shape"),
    ],
)
def test_axes_that_fit_pass(
    stated: Stated, tmp_path: Path, axes: Axes, dims: Sequence[int], maximum: int
) -> None:
    path = saved(tmp_path, model({"pixels": axes}, {"score": axes}))
    score = {"name": "score", "data_type": "TYPE_FP32", "dims": list(dims)}
    check_graph(pixels(stated, dims, maximum, outputs=[score]), path)


def test_an_output_with_a_fixed_batch_axis_cannot_batch_either(
    stated: Stated, tmp_path: Path
) -> None:
    path = saved(tmp_path, model({"pixels": PIXELS}, {"score": (1, 1)}))
    (only,) = faults(pixels(stated, (3, 224, 224), 8), path)
    assert only.startswith("ranker: outputs[0].dims=[1] cannot batch: the graph's [1, 1] of score")


def test_every_difference_is_reported_in_one_run(stated: Stated, tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        model({"pixels": (1, 3), "mask": ("n", 1)}, {"logits": ("n", 2)}, TensorProto.FLOAT16),
    )
    found = faults(pixels(stated, (4,), 8), path)
    assert [fault.removeprefix("ranker: ").split(";")[0] for fault in found] == [
        "inputs[0].data_type=TYPE_FP32 is not the graph's type of pixels, TYPE_FP16",
        "inputs[0].dims=[4] cannot batch: the graph's [1, 3] of pixels has a fixed first axis 1",
        "inputs[0].dims=[4] does not fit the graph's [1, 3] of pixels",
        "outputs[0].name=score is not among the graph's outputs",
        "inputs=['pixels'] leaves out the graph's input mask",
    ]


def test_a_graph_may_have_more_outputs_than_are_served(stated: Stated, tmp_path: Path) -> None:
    path = saved(tmp_path, model({"pixels": PIXELS}, {"tokens": ("n", 9), "score": ("n", 1)}))
    check_graph(pixels(stated, (3, 224, 224), 8), path)


def test_weights_listed_as_inputs_are_not_asked_of_requests(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [0.5])
    path = saved(tmp_path, model({"x": ("n", 1), "w": (1,)}, {"y": ("n", 1)}, weights=[weight]))
    assert [tensor.name for tensor in read_graph(path).inputs] == ["x"]


def test_an_output_that_is_no_tensor_is_refused(stated: Stated, tmp_path: Path) -> None:
    proto = model({"pixels": PIXELS}, {})
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    proto.graph.output.append(
        helper.make_value_info("score", helper.make_sequence_type_proto(inner))
    )
    assert faults(pixels(stated, (3, 224, 224), 8), saved(tmp_path, proto)) == [
        "ranker: outputs[0].data_type=TYPE_FP32 is not the graph's type of score, sequence; "
        "export a tensor"
    ]


def test_every_type_of_triton_has_a_name_in_onnx() -> None:
    assert set(ONNX_NAMES.values()) == set(ITEM_BYTES)
    assert set(ONNX_NAMES) <= set(TensorProto.DataType.keys())


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x08\x08", b"\x80\x04\x95\x00"])
def test_what_is_not_an_onnx_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="export the model again"):
        read_graph(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read: No such file or directory"):
        read_graph(tmp_path / "model.onnx")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_graph_or_an_artifact_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.onnx"
    path.write_bytes(content)
    try:
        outcome: object = read_graph(path)
    except ArtifactError as error:
        outcome = error
    assert isinstance(outcome, Graph) or "\n" not in str(outcome)


def outside(location: str | None, name: str = "w") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    if location is not None:
        tensor.external_data.add(key="location", value=location)
    return tensor


def in_subgraph(tensor: TensorProto) -> onnx.ModelProto:
    inner = helper.make_graph([], "inner", [], [], initializer=[tensor])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    return model({"x": ("n", 1)}, {"y": ("n", 1)}, nodes=[node])


def in_constant(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    return model({"x": ("n", 1)}, {"y": ("n", 1)}, nodes=[node])


def in_weights(tensor: TensorProto) -> onnx.ModelProto:
    return model({"x": ("n", 1)}, {"y": ("n", 1)}, weights=[tensor])


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    proto = model({"x": ("n", 1)}, {"y": ("n", 1)})
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    proto.functions.append(helper.make_function("d", "f", [], ["y"], [node], []))
    return proto


PLACES = [in_weights, in_constant, in_subgraph, in_function]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/etc/passwd", "an absolute path"),
        ("C:\\weights.bin", "an absolute path"),
        ("\\\\host\\share\\weights.bin", "an absolute path"),
        ("../weights.bin", "which leaves the folder of the graph"),
        ("a/../../weights.bin", "which leaves the folder of the graph"),
        ("a\\..\\..\\weights.bin", "which leaves the folder of the graph"),
        ("link.bin", "a link that leaves the folder of the graph"),
        ("missing.bin", "which is not there"),
        ("", "which is no path"),
        (None, "which is no path"),
    ],
)
def test_weights_from_outside_the_folder_are_refused_wherever_they_are_named(
    tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto], location: str | None, why: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(4))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ArtifactError) as caught:
        read_graph(saved(folder, place(outside(location))))
    assert f"{why}; save them beside the graph" in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
def test_weights_beside_the_graph_are_read(
    tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(bytes(4))
    path = saved(tmp_path, place(outside("data/weights.bin")))
    assert [tensor.name for tensor in read_graph(path).outputs] == ["y"]


def test_all_weights_that_leave_are_named_even_without_names(tmp_path: Path) -> None:
    weights = [outside("../a", ""), outside("../b", ""), outside("../a", "")]
    proto = model({"x": ("n", 1)}, {"y": ("n", 1)}, weights=weights)
    with pytest.raises(ArtifactError) as caught:
        read_graph(saved(tmp_path, proto))
    assert [line.split("'")[3] for line in str(caught.value).splitlines()] == ["../a", "../b"]
