import os
import sysconfig
from pathlib import Path

import pytest

from serving.errors import InputError
from serving.recipes import corpus

ROOT = Path(__file__).parents[3]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the installed packages; the checkout is beside it."""
    (tmp_path / "checkout").mkdir()
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(folder))
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def choose(packages: Path, count: int) -> list[str]:
    parent = packages.parent
    found = corpus.real_files(parent / "checkout", count)
    return [str(path.relative_to(parent)) for path in found]


def test_each_suffix_gives_a_file_in_turn_and_the_checkout_goes_first(packages: Path) -> None:
    write(packages, "one.py", "two.PY", "three.json", "four.so")
    write(packages.parent / "checkout", "mine.py", "Makefile")
    found = choose(packages, 6)
    assert found[:4] == [
        "checkout/Makefile",
        "packages/three.json",
        "checkout/mine.py",
        "packages/four.so",
    ]
    assert set(found[4:]) == {"packages/one.py", "packages/two.PY"}


def test_the_choice_is_the_same_each_time_and_a_longer_one_begins_with_it() -> None:
    found = corpus.real_files(ROOT, 300)
    assert found == corpus.real_files(ROOT, 300)
    assert found[:100] == corpus.real_files(ROOT, 100)
    assert len(set(found)) == 300
    assert len({path.suffix for path in found}) >= 30
    assert all(path.is_file() and not path.is_symlink() for path in found)


def test_what_tools_made_is_left_out(packages: Path) -> None:
    made = (".git/config", ".venv/a", ".engines/a", ".galley/a", "node_modules/a", ".mypy_cache/a",
            "a/__pycache__/a", "galley.egg-info/a", "env/pyvenv.cfg", "env/a")  # fmt: skip
    write(packages.parent / "checkout", *made, "a/kept", ".github/kept")
    assert set(choose(packages, 2)) == {"checkout/a/kept", "checkout/.github/kept"}
    with pytest.raises(InputError, match="count=3: only 2 usable files under"):
        choose(packages, 3)


def test_links_pipes_and_large_files_are_left_out(packages: Path) -> None:
    write(packages, "kept.txt")
    (packages / "link.txt").symlink_to(packages / "kept.txt")
    (packages / "again").symlink_to(packages)
    os.mkfifo(packages / "pipe")
    for name, size in (("large", 1), ("largest", 0)):
        with (packages / name).open("wb") as file:
            file.truncate(corpus.MAX_SIZE_BYTES + size)
    assert choose(packages, 2) == ["packages/largest", "packages/kept.txt"]
    with pytest.raises(InputError, match="only 2 usable files"):
        choose(packages, 3)


def test_no_files_asked_gives_no_files(packages: Path) -> None:
    write(packages, "a")
    assert choose(packages, 0) == []


def test_a_root_that_is_not_a_folder_is_refused(packages: Path) -> None:
    with pytest.raises(InputError, match="gone: not a folder"):
        corpus.real_files(packages / "gone", 1)
