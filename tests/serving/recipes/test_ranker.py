import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from serving.errors import ArtifactError, InputError
from serving.recipes import ranker


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranker.build(tmp_path_factory.mktemp("ranker"))["model.onnx"]


def test_the_same_seed_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = ranker.build(tmp_path / "not-there-yet", seed=0)
    assert list(again) == ["model.onnx"]
    assert again["model.onnx"].read_bytes() == model.read_bytes()


def test_another_seed_gives_other_answers(model: Path, tmp_path: Path) -> None:
    other = ranker.build(tmp_path, seed=1)["model.onnx"]
    inputs = ranker.sample_inputs(4, seed=0)
    assert not np.isclose(ranker.reference(other, inputs), ranker.reference(model, inputs)).any()


def test_the_model_is_valid_21_mb_and_takes_any_batch(model: Path) -> None:
    onnx.checker.check_model(str(model), full_check=True)
    loaded = onnx.load(str(model))
    assert loaded.ir_version <= 9
    assert [opset.version for opset in loaded.opset_import] == [17]
    assert {node.op_type for node in loaded.graph.node} == {"Gemm", "Relu"}
    assert 20_900_000 < model.stat().st_size < 21_100_000
    session = onnxruntime.InferenceSession(str(model))
    (takes,), (gives,) = session.get_inputs(), session.get_outputs()
    assert (takes.name, takes.type, takes.shape) == ("input0", "tensor(float)", ["batch", 512])
    assert (gives.name, gives.type, gives.shape) == ("score", "tensor(float)", ["batch", 1])


def test_the_reference_agrees_with_the_inference_runtime(model: Path) -> None:
    inputs = ranker.sample_inputs(64, seed=7)
    (scores,) = onnxruntime.InferenceSession(str(model)).run(None, {ranker.INPUT: inputs})
    expected = ranker.reference(model, inputs)
    assert expected.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)


def test_scores_stay_near_one(model: Path) -> None:
    scores = ranker.reference(model, ranker.sample_inputs(256, seed=1))
    assert 0.2 < float(scores.std()) < 2


def test_sample_inputs_repeat_by_seed() -> None:
    inputs = ranker.sample_inputs(3, seed=5)
    assert inputs.shape == (3, 512)
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs, ranker.sample_inputs(3, seed=5))
    assert not np.array_equal(inputs, ranker.sample_inputs(3, seed=6))


def test_features_are_read_from_json_text_and_from_a_file(tmp_path: Path) -> None:
    row = ranker.sample_inputs(1, seed=0)[0]
    text = json.dumps(row.tolist()).encode()
    (tmp_path / "features.json").write_bytes(text)
    for source in (text, tmp_path / "features.json"):
        encoded = ranker.encode(source)
        assert encoded.dtype == np.float32
        np.testing.assert_array_equal(encoded, row)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[1, 2", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "not a list of numbers"),
        (b'["1"]', "not a list of numbers"),
        (b"[true]", "not a list of numbers"),
        (b"[[1]]", "not a list of numbers"),
        (b"[1, 2]", "2 numbers, the model takes 512"),
        (json.dumps([1e39] * 512).encode(), "not finite in 32 bits"),
        (json.dumps([float("nan")] * 512).encode(), "not finite in 32 bits"),
        (json.dumps([10**400] * 512).encode(), "not finite in 32 bits"),
    ],
)
def test_what_is_not_512_finite_numbers_is_refused(text: bytes, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        ranker.encode(text)


def test_a_missing_features_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"features\.json: cannot be read: No such file"):
        ranker.encode(tmp_path / "features.json")


def test_a_score_is_one_finite_number() -> None:
    assert ranker.decode(np.array([0.5], dtype=np.float32)) == 0.5
    for scores in ([0.5, 0.5], [np.nan], []):
        with pytest.raises(InputError, match="expected one finite number"):
            ranker.decode(np.array(scores, dtype=np.float32))


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_reference_needs_the_weights_of_a_ranker(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match="does not hold the weights of ranker"):
        ranker.reference(tmp_path / "model.onnx", ranker.sample_inputs(1, seed=0))
