"""A replica serves what it was told to, from its own copy, and nothing that it was not told to."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from serving.engines.triton import on_cpu, parse_pbtxt, render_config, to_pbtxt
from serving.local import replica
from serving.local.engines import Engines
from serving.local.home import Home, State
from serving.local.replica import (
    MODEL_PROGRAM,
    Deployment,
    materialize,
    prepare_backend,
    read_deployments,
    remove_shared_memory,
    repository,
    shared_memory_prefix,
    triton_command,
    write_deployments,
)
from serving.paths import SPECS
from serving.publish import spec_of

RANKER = Deployment(model="ranker", version=3, digest="sha256:" + "a" * 64)


@pytest.fixture
def artifact(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published version of the ranker, as it lies in the stack's artifact folder."""
    folder = home.artifacts / "ranker" / "3"
    (folder / "extra").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"the graph")
    (folder / "extra" / "labels.txt").write_text("a\nb\n")
    (folder / "config.pbtxt").write_text(to_pbtxt(render_config(spec_of("ranker", SPECS))))
    monkeypatch.setattr(replica, "fetch", lambda *_: folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def flags(home: Home, state: State, engines: Engines, *models: str) -> dict[str, list[str]]:
    command, _ = triton_command(home, state, engines, "triton-1", models)
    found: dict[str, list[str]] = {}
    for word in command[1:]:
        name, _, value = word.partition("=")
        found.setdefault(name, []).append(value)
    return found


def test_deployments_come_back_as_they_were_written(home: Home) -> None:
    other = Deployment(model="filetype", version=12, digest="sha256:" + "b" * 64)
    for deployments in ((RANKER, other), (other,), ()):
        write_deployments(home, "triton-0", deployments)
        assert read_deployments(home, "triton-0") == deployments
    assert read_deployments(home, "triton-1") == ()


def test_triton_loads_nothing_but_what_it_is_told_by_name(
    home: Home, state: State, engines: Engines
) -> None:
    assert flags(home, state, engines)["--model-control-mode"] == ["explicit"]
    assert "--load-model" not in flags(home, state, engines)
    told = flags(home, state, engines, "filetype", "ranker")
    assert told["--load-model"] == ["filetype", "ranker"]
    # A pattern would load whatever lies there.
    assert "*" not in "".join(told["--load-model"])


def test_triton_listens_on_loopback_at_the_ports_of_its_replica(
    home: Home, state: State, engines: Engines
) -> None:
    told = flags(home, state, engines)
    for kind in ("http", "grpc", "metrics"):
        assert told[f"--{kind}-address"] == ["127.0.0.1"]
        assert told[f"--{kind}-port"] == [str(state.ports[f"triton-1-{kind}"])]
    assert told["--allow-sagemaker"] == told["--allow-vertex-ai"] == ["false"]


def test_triton_goes_on_without_a_model_that_does_not_load(
    home: Home, state: State, engines: Engines
) -> None:
    assert flags(home, state, engines)["--exit-on-error"] == ["false"]


def test_triton_guesses_no_part_of_a_config(home: Home, state: State, engines: Engines) -> None:
    assert "--disable-auto-complete-config" in flags(home, state, engines)


def test_triton_reads_its_own_repository_and_the_stacks_backend(
    home: Home, state: State, engines: Engines
) -> None:
    told = flags(home, state, engines)
    # It runs in the home folder.
    assert home.root / told["--model-repository"][0] == repository(home, "triton-1")
    assert home.root / told["--backend-directory"][0] == home.backends
    assert repository(home, "triton-0") != repository(home, "triton-1")


def test_every_flag_is_given_once(home: Home, state: State, engines: Engines) -> None:
    repeated = {name for name, values in flags(home, state, engines).items() if len(values) > 1}
    assert not repeated


def test_tritons_python_is_that_of_the_engines(
    home: Home, state: State, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/else")
    command, environment = triton_command(home, state, engines, "triton-0", ())
    assert command[0] == str(engines.tritonserver)
    assert environment["PATH"] == "/python/bin:/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == engines.library_path
    assert environment["GALLEY_ENGINES_SITE"] == str(engines.site)


def test_a_version_is_laid_out_as_triton_reads_it(home: Home, artifact: Path) -> None:
    notes = materialize(home, "triton-0", RANKER, None)
    found = content(repository(home, "triton-0"))
    assert set(found) == {
        "ranker/config.pbtxt",
        "ranker/3/model.onnx",
        "ranker/3/model.py",
        "ranker/3/extra/labels.txt",
    }
    assert found["ranker/3/model.py"] == MODEL_PROGRAM.read_bytes()
    assert found["ranker/3/model.onnx"] == b"the graph"
    expected, told = on_cpu(render_config(spec_of("ranker", SPECS)))
    expected.version_policy.specific.versions.append(3)
    assert parse_pbtxt(found["ranker/config.pbtxt"].decode()) == expected
    assert notes == told != ()


def test_warm_up_samples_lie_beside_the_config_where_triton_looks_for_them(
    home: Home, artifact: Path
) -> None:
    (artifact / "warmup").mkdir()
    (artifact / "warmup" / "sample").write_bytes(b"12345678")
    materialize(home, "triton-0", RANKER, None)
    found = content(repository(home, "triton-0") / "ranker")
    assert found["warmup/sample"] == b"12345678"
    assert "3/warmup/sample" not in found


def test_another_version_takes_the_place_of_the_first(home: Home, artifact: Path) -> None:
    materialize(home, "triton-0", RANKER, None)
    materialize(home, "triton-0", RANKER.model_copy(update={"version": 4}), None)
    folder = repository(home, "triton-0") / "ranker"
    assert sorted(path.name for path in folder.iterdir()) == ["4", "config.pbtxt"]


def test_laying_out_a_version_leaves_the_verified_files_as_they_are(
    home: Home, artifact: Path
) -> None:
    (artifact / "model.py").write_text("the artifact's own")
    before = content(artifact)
    materialize(home, "triton-0", RANKER, None)
    assert content(artifact) == before
    laid_out = repository(home, "triton-0") / "ranker" / "3" / "model.py"
    assert laid_out.read_bytes() == MODEL_PROGRAM.read_bytes()


def test_a_model_that_is_a_python_program_keeps_its_own_program(home: Home, artifact: Path) -> None:
    (artifact / "model.onnx").unlink()
    (artifact / "model.py").write_text("the artifact's own")
    config = parse_pbtxt((artifact / "config.pbtxt").read_text())
    config.ClearField("platform")
    config.backend = "python"
    (artifact / "config.pbtxt").write_text(to_pbtxt(config))
    materialize(home, "triton-0", RANKER, None)
    laid_out = repository(home, "triton-0") / "ranker" / "3" / "model.py"
    assert laid_out.read_text() == "the artifact's own"


def test_the_backend_has_the_stub_beside_it_and_can_be_laid_out_again(
    home: Home, engines: Engines, tmp_path: Path
) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    (backend / "libtriton_python.so").touch()
    real = tmp_path / "triton_python_backend_stub"
    real.touch()
    here = Engines(**{**vars(engines), "python_backend": backend, "stub": real})
    for _ in range(2):
        prepare_backend(home, here)
    folder = home.backends / "python"
    assert (folder / "libtriton_python.so").resolve() == backend / "libtriton_python.so"
    assert {path.name for path in folder.iterdir()} == {"libtriton_python.so", real.name}


def test_a_model_process_starts_with_its_arguments_and_without_the_files_of_its_parent(
    home: Home, engines: Engines, tmp_path: Path
) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    real = tmp_path / "triton_python_backend_stub"
    real.write_text('#!/bin/sh\necho "$@"\nls /proc/$$/fd\n')
    real.chmod(0o755)
    prepare_backend(home, Engines(**{**vars(engines), "python_backend": backend, "stub": real}))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = subprocess.run(
            [home.backends / "python" / real.name, "model.py", "a region"],
            capture_output=True,
            text=True,
            check=True,
            pass_fds=[listening.fileno()],
            env={**os.environ, "GALLEY_TRITON_STUB": str(real)},
        )
        told, *files = done.stdout.splitlines()
        assert told == "model.py a region"
        assert str(listening.fileno()) not in files


def test_only_the_regions_of_this_replica_of_this_stack_are_removed(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "SHARED_MEMORY", tmp_path)
    other = state.model_copy(update={"stack_id": "ba9876543210"})
    kept = [
        f"{shared_memory_prefix(state, 'triton-10')}x",
        f"{shared_memory_prefix(other, 'triton-1')}x",
        "somebody-elses",
    ]
    for name in (*kept, *(f"{shared_memory_prefix(state, 'triton-1')}{n}" for n in range(3))):
        (tmp_path / name).touch()
    remove_shared_memory(shared_memory_prefix(state, "triton-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_the_prefix_of_the_regions_is_what_triton_is_told(
    home: Home, state: State, engines: Engines
) -> None:
    prefix = shared_memory_prefix(state, "triton-1")
    assert flags(home, state, engines)["--backend-config"] == [
        f"python,shm-region-prefix-name={prefix}"
    ]
