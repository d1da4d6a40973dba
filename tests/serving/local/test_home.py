"""The home folder: one command changes it at a time, files are whole, secrets stay secret."""

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import StackError
from serving.local import home as home_module
from serving.local.home import Home, Secrets, State, write_atomically, write_json


def test_a_second_holder_of_the_lock_is_refused_until_the_first_lets_go(home: Home) -> None:
    with home.lock():
        refused = pytest.raises(StackError, match="is being changed by another galley command")
        with refused, Home(home.root).lock():
            pytest.fail("the lock was given twice")
    with home.lock():
        assert home.root.is_dir()


def test_a_lock_is_let_go_when_its_holder_fails(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), home.lock():
        raise ZeroDivisionError
    with home.lock():
        assert home.root.is_dir()


def test_a_lock_on_a_folder_that_was_removed_meanwhile_is_not_trusted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed_first(handle: int, operation: int) -> None:
        shutil.rmtree(home.root)
        fcntl.flock(handle, operation)

    monkeypatch.setattr(home_module, "flock", removed_first)
    with pytest.raises(StackError, match="is being changed"), home.lock():
        pytest.fail("a lock that nobody else sees was trusted")


def test_a_lock_on_a_folder_that_was_made_anew_meanwhile_is_not_trusted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced_first(handle: int, operation: int) -> None:
        home.root.rename(home.root.with_name("old"))
        home.root.mkdir()
        (home.root / "lock").touch()
        fcntl.flock(handle, operation)

    monkeypatch.setattr(home_module, "flock", replaced_first)
    with pytest.raises(StackError, match="is being changed"), home.lock():
        pytest.fail("a lock that nobody else sees was trusted")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new, up to \udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replacement_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(source))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_a_private_file_is_its_owners_alone_whatever_the_umask(
    home: Home, secrets: Secrets
) -> None:
    write_atomically(home.secrets_file, secrets.model_dump_json(), private=True)
    assert stat.S_IMODE(home.secrets_file.stat().st_mode) == 0o600
    assert home.secrets() == secrets


def test_a_private_file_takes_the_place_of_an_open_one_closed(home: Home) -> None:
    write_atomically(home.secrets_file, "{}")
    assert stat.S_IMODE(home.secrets_file.stat().st_mode) & 0o044
    write_atomically(home.secrets_file, "{}", private=True)
    assert stat.S_IMODE(home.secrets_file.stat().st_mode) == 0o600


def test_secrets_are_not_shown_where_an_object_is(secrets: Secrets) -> None:
    for shown in (repr(secrets), str(secrets), f"{secrets}", repr([secrets])):
        for hidden in secrets.model_dump().values():
            assert hidden not in shown


def test_every_stack_has_secrets_of_its_own() -> None:
    made = [Secrets.generate() for _ in range(20)]
    values = [value for each in made for value in each.model_dump().values()]
    assert len(set(values)) == len(values)
    assert min(map(len, values)) >= 16


def test_the_state_comes_back_as_it_was_written_and_holds_no_secret(
    home: Home, state: State, secrets: Secrets
) -> None:
    write_json(home.state_file, state.model_dump())
    assert home.state() == home.running_state() == state
    assert set(json.loads(home.state_file.read_text())) == {"stack_id", "replicas", "ports"}
    assert not set(State.model_fields) & set(Secrets.model_fields)
    assert not any(
        hidden in home.state_file.read_text() for hidden in secrets.model_dump().values()
    )


@pytest.mark.parametrize("root", ["nothing", "file", "file/below"])
def test_no_stack_is_told_with_what_starts_one(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    home = Home(tmp_path / root)
    assert home.state() is None
    with pytest.raises(StackError, match=r"^no local stack at .*; run: galley up$"):
        home.running_state()


def test_a_damaged_state_is_told_in_one_line(home: Home) -> None:
    write_atomically(home.state_file, "{}")
    with pytest.raises(StackError, match="is damaged") as caught:
        home.running_state()
    assert "\n" not in str(caught.value)
