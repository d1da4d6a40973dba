"""From a spec and its model files to a published version."""

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from serving.engines.kinds import Format, TritonEngine
from serving.errors import ArtifactError, InputError
from serving.recipes import RECIPES, recipe
from serving.registry.registry import Published, push
from serving.registry.store import Progress, Store, quiet
from serving.spec import ModelSpec, load_spec

CONFIG = "config.pbtxt"
WARMUP = "warmup"
# What a server looks for in a version's folder; a format that is not here has no such file.
MODEL_FILES: Mapping[Format, str] = {
    "onnx": "model.onnx",
    "tensorrt_plan": "model.plan",
    "torchscript": "model.pt",
    "openvino_ir": "model.xml",
    "python": "model.py",
    "safetensors": "model.safetensors",
}
# The weights of these lie in files of their own.
SEVERAL_FILES: tuple[Format, ...] = ("openvino_ir", "saved_model")


def spec_of(model: str, folder: Path) -> ModelSpec:
    """The spec of a model by name.

    Raises:
        InputError: there is no such spec; the line lists those there are.
        SpecError: the spec breaks rules.
    """
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if model not in known:
        names = ", ".join(known) or "none"
        raise InputError(f"model={model} has no spec in {folder}; use one of: {names}")
    return load_spec(known[model])


def gather(spec: ModelSpec, given: Path | None, folder: Path, specs: Path) -> dict[str, Path]:
    """The files of a version before its config: path in the version → local path.

    Args:
        spec: the model.
        given: the artifact, or a folder of its files; None takes the shipped recipe.
        folder: an empty folder for files that are made here.
        specs: the folder of the specs; warm-up samples lie in `<model>/warmup` of it.

    Raises:
        InputError: there is no such file, it is one of several, or nothing was given and no recipe
            exists.
    """
    return _artifact(spec, given, folder) | _warmup_files(spec, specs)


def _warmup_files(spec: ModelSpec, specs: Path) -> dict[str, Path]:
    samples = (sample for warmup in spec.warmup for sample in (warmup.inputs or {}).values())
    return {
        f"{WARMUP}/{sample.file}": specs / spec.name / WARMUP / sample.file
        for sample in samples
        if sample.file is not None
    }


def _artifact(spec: ModelSpec, given: Path | None, folder: Path) -> dict[str, Path]:
    if given is None:
        if spec.name not in RECIPES:
            raise InputError(
                f"model={spec.name} is not made by a recipe; name its file: galley push "
                f"{spec.name} --file model.onnx"
            )
        return recipe(spec.name).build(folder)
    if given.is_dir():
        return {
            path.relative_to(given).as_posix(): path
            for path in sorted(given.rglob("*"))
            if path.is_symlink() or not path.is_dir()
        }
    if not given.exists():
        raise InputError(f"file={given} does not exist; name the model's {spec.artifact.format}")
    if spec.artifact.format in SEVERAL_FILES:
        raise InputError(
            f"file={given} is one file, and {spec.artifact.format} has several; name their folder"
        )
    return {MODEL_FILES[spec.artifact.format]: given}


def publish(
    store: Store,
    spec: ModelSpec,
    files: Mapping[str, Path],
    *,
    source: str,
    now: datetime,
    version: int | None = None,
    signing_key: Path | None = None,
    progress: Progress = quiet,
) -> Published:
    """Publish model files together with the config that the spec makes of them.

    The config is the cluster's; a replica on a laptop derives its own from it at boot.

    Raises:
        ArtifactError: the files do not fit the spec, or may not be published.
        GalleyError: as `serving.registry.push`.
    """
    if CONFIG in files:
        raise ArtifactError(
            f"{spec.name}: file={CONFIG} is written from the spec; leave it out, and state what it "
            "says in the spec"
        )
    everything = dict(files)
    with tempfile.TemporaryDirectory(prefix="galley-") as folder:
        if isinstance(spec.engine, TritonEngine):
            everything[CONFIG] = _config(spec, files, Path(folder))
        return push(
            store,
            model=spec.name,
            files=everything,
            format=spec.artifact.format,
            source=source,
            now=now,
            version=version,
            signing_key=signing_key,
            progress=progress,
        )


def _config(spec: ModelSpec, files: Mapping[str, Path], folder: Path) -> Path:
    from serving.engines.triton import render_config, to_pbtxt
    from serving.onnx_graph import check_graph

    wanted = MODEL_FILES[spec.artifact.format]
    if wanted not in files:
        raise ArtifactError(
            f"{spec.name}: files={sorted(files)} has no {wanted}, which is what Triton loads; name "
            "it so"
        )
    if spec.artifact.format == "onnx":
        check_graph(spec, files[wanted])
    path = folder / CONFIG
    path.write_text(to_pbtxt(render_config(spec)))
    return path
