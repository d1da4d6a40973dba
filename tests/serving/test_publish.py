"""What cannot be served is refused before anything is sent to the store."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from serving import publish as publish_module
from serving.engines.kinds import PLATFORMS
from serving.engines.triton import render_config, to_pbtxt
from serving.errors import ArtifactError, InputError, SpecError
from serving.paths import SPECS
from serving.publish import MODEL_FILES, SEVERAL_FILES, gather, publish, spec_of
from serving.recipes import RECIPES, ranker
from serving.registry.registry import Published
from serving.registry.store import Store, StoreConfig
from serving.spec import ModelSpec, parse_spec

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def spec() -> ModelSpec:
    return spec_of("ranker", SPECS)


@pytest.fixture
def unreachable() -> Store:
    """A store that fails whatever is sent to it, with another error than those asked for here."""
    config = StoreConfig(
        bucket="b", endpoint_url="http://127.0.0.1:1", access_key="a", secret_key="s"
    )
    return Store(config)


def other_model(stated: Stated, engine: Mapping[str, object], format: str) -> ModelSpec:
    changes = {f"engine.{key}": value for key, value in engine.items()}
    return parse_spec(stated({"name": "other", "artifact.format": format, **changes}), "other")


def graph(path: Path, width: int) -> Path:
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", size))
        for name, size in ((ranker.INPUT, width), (ranker.OUTPUT, 1))
    ]
    proto = helper.make_model(helper.make_graph([], "g", tensors[:1], tensors[1:]))
    path.write_bytes(proto.SerializeToString())
    return path


def test_an_unknown_model_is_told_with_those_that_have_specs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.yaml").touch()
    with pytest.raises(InputError, match=r"^model=c has no spec in .*; use one of: a, b$"):
        spec_of("c", tmp_path)
    with pytest.raises(InputError, match=r"; use one of: none$"):
        spec_of("c", tmp_path / "nothing")


@pytest.mark.parametrize("name", ["../ranker", "..", "", "specs/../ranker"])
def test_a_path_is_no_name_of_a_model(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "specs"
    folder.mkdir()
    (tmp_path / "ranker.yaml").write_text((SPECS / "ranker.yaml").read_text())
    (folder / "ranker.yaml").write_text((SPECS / "ranker.yaml").read_text())
    with pytest.raises(InputError, match=r"has no spec in .*; use one of: ranker$"):
        spec_of(name, folder)


def test_a_file_that_does_not_exist_is_told_with_what_it_should_be(
    spec: ModelSpec, tmp_path: Path
) -> None:
    missing = tmp_path / "model.onnx"
    with pytest.raises(InputError) as caught:
        gather(spec, missing, tmp_path, SPECS)
    assert str(caught.value) == f"file={missing} does not exist; name the model's onnx"


def test_a_model_without_a_recipe_needs_a_file(stated: Stated, tmp_path: Path) -> None:
    other = other_model(stated, {}, "onnx")
    with pytest.raises(InputError, match=r"^model=other is not made by a recipe; name its file: "):
        gather(other, None, tmp_path, SPECS)


def test_a_shipped_model_makes_its_own_file(spec: ModelSpec, tmp_path: Path) -> None:
    assert set(RECIPES) == {path.stem for path in SPECS.glob("*.yaml")}
    files = gather(spec, None, tmp_path, SPECS)
    assert list(files) == ["model.onnx"]
    assert onnx.load(files["model.onnx"]).graph.input[0].name == ranker.INPUT


def test_one_file_gets_the_name_that_the_server_looks_for(spec: ModelSpec, tmp_path: Path) -> None:
    path = tmp_path / "best-of-may.onnx"
    path.touch()
    assert gather(spec, path, tmp_path, SPECS) == {"model.onnx": path}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_of_triton_has_a_file_that_it_looks_for(platform: str) -> None:
    found = {key: value for key, value in PLATFORMS.items() if key == platform}
    assert MODEL_FILES[found.popitem()[1].format].startswith("model.")


def test_one_file_of_a_format_that_has_several_is_refused(stated: Stated, tmp_path: Path) -> None:
    other = other_model(stated, {"platform": "openvino", "parameters": ...}, "openvino_ir")
    assert other.artifact.format in SEVERAL_FILES
    (tmp_path / "model.xml").touch()
    with pytest.raises(InputError, match=r"openvino_ir has several; name their folder$"):
        gather(other, tmp_path / "model.xml", tmp_path, SPECS)


def test_a_folder_is_taken_with_all_that_is_in_it_links_to_folders_included(
    spec: ModelSpec, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    (given / "deep" / "er").mkdir(parents=True)
    for name in ("model.onnx", "deep/er/weights", ".hidden"):
        (given / name).touch()
    # The registry refuses links; passing over one would publish less than was given.
    (given / "link").symlink_to(tmp_path)
    files = gather(spec, given, tmp_path, SPECS)
    assert files == {
        name: given / name for name in (".hidden", "deep/er/weights", "link", "model.onnx")
    }


def test_a_config_that_is_given_is_refused_since_the_spec_states_it(
    spec: ModelSpec, unreachable: Store, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("model.onnx", "config.pbtxt")}
    with pytest.raises(ArtifactError, match=r"^ranker: file=config.pbtxt is written from the spec"):
        publish(unreachable, spec, files, source="", now=NOW)


@pytest.mark.parametrize("names", [(), ("rank.onnx",), ("1/model.onnx", "README.md")])
def test_files_without_the_one_that_the_server_looks_for_are_refused(
    spec: ModelSpec, unreachable: Store, tmp_path: Path, names: tuple[str, ...]
) -> None:
    files = {name: tmp_path / name for name in names}
    with pytest.raises(ArtifactError, match=r"^ranker: files=\[.*\] has no model.onnx, which is"):
        publish(unreachable, spec, files, source="", now=NOW)


def test_a_graph_that_does_not_fit_the_spec_is_refused(
    spec: ModelSpec, unreachable: Store, tmp_path: Path
) -> None:
    files = {"model.onnx": graph(tmp_path / "model.onnx", width=511)}
    with pytest.raises(SpecError, match=r"ranker: inputs\[?\.?0") as caught:
        publish(unreachable, spec, files, source="", now=NOW)
    assert "511" in str(caught.value)


def test_a_file_that_is_no_graph_is_refused(
    spec: ModelSpec, unreachable: Store, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x80\x04 not a graph")
    with pytest.raises(ArtifactError):
        publish(unreachable, spec, {"model.onnx": path}, source="", now=NOW)


def test_what_fits_is_pushed_together_with_the_config_that_the_spec_comes_to(
    spec: ModelSpec, unreachable: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def push(store: Store, *, files: Mapping[str, Path], **rest: Any) -> Published:
        seen.update(rest, files={name: path.read_bytes() for name, path in files.items()})
        return Published("ranker", 1, "sha256:0", created=True, uploaded_bytes=0)

    monkeypatch.setattr(publish_module, "push", push)
    path = graph(tmp_path / "model.onnx", width=512)
    publish(unreachable, spec, {"model.onnx": path}, source="a test", now=NOW, version=7)
    assert seen["files"] == {
        "model.onnx": path.read_bytes(),
        "config.pbtxt": to_pbtxt(render_config(spec)).encode(),
    }
    assert (seen["model"], seen["format"], seen["version"]) == ("ranker", "onnx", 7)
    assert (seen["source"], seen["now"]) == ("a test", NOW)
