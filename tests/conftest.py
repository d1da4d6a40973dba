"""What every test may use: the shipped ranker with changes, and files to compare with."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from serving.errors import SpecError
from serving.spec import parse_spec
from serving.yaml_file import read_mapping

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files under tests/golden with what the code gives now",
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Asserts that a file under tests/golden holds a text, or writes it with --update-golden."""

    def compare(file: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / file
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), "pytest --update-golden rewrites it"

    return compare


@pytest.fixture(scope="session")
def stated() -> Callable[[Mapping[str, object]], dict[str | int, Any]]:
    """Gives the ranker's spec as YAML states it, with values set by path; ... removes one."""

    def change(changes: Mapping[str, object]) -> dict[str | int, Any]:
        data = read_mapping(ROOT / "serving" / "specs" / "ranker.yaml")
        for path, value in deepcopy(dict(changes)).items():
            *parents, last = path.split(".")
            place: Any = data
            for parent in parents:
                place = place[int(parent) if isinstance(place, list) else parent]
            if value is ...:
                place.pop(last, None)
            else:
                place[int(last) if isinstance(place, list) else last] = value
        return data

    return change


@pytest.fixture(scope="session")
def faults(
    stated: Callable[[Mapping[str, object]], dict[str | int, Any]],
) -> Callable[[Mapping[str, object]], list[str]]:
    """Gives what a changed ranker is told; at least one fault is expected."""

    def told(changes: Mapping[str, object]) -> list[str]:
        with pytest.raises(SpecError) as caught:
            parse_spec(stated(changes), "ranker")
        return list(caught.value.faults)

    return told


@pytest.fixture
def spec_file(
    stated: Callable[[Mapping[str, object]], dict[str | int, Any]], tmp_path: Path
) -> Callable[..., Path]:
    """Writes a changed ranker to a file and gives its path."""

    def write(changes: Mapping[str, object], name: str = "ranker.yaml") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(stated(changes)), encoding="utf-8")  # JSON is YAML
        return path

    return write


@pytest.fixture(scope="session")
def make_key_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[Path, Path]]:
    """Makes another P-256 key: the paths of its private and its public half."""
    return lambda: _write_key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def key_pair(make_key_pair: Callable[[], tuple[Path, Path]]) -> tuple[Path, Path]:
    return make_key_pair()


def _write_key_pair(folder: Path) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    private_path, public_path = folder / "key.pem", folder / "key.pub"
    private_path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public_path.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private_path, public_path
