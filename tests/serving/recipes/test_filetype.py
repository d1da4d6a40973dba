import os
import socket
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magika import Magika

from serving.errors import ArtifactError, InputError
from serving.recipes import filetype
from serving.recipes.corpus import real_files

ROOT = Path(__file__).parents[3]
BLOCK = 4096
HEAD = 1024
EDGES = [
    1,
    7,
    8,
    9,
    HEAD - 1,
    HEAD,
    HEAD + 1,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    2 * BLOCK,
    2 * BLOCK + 1,
]

Ask = Callable[[Path | bytes], str]


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return filetype.build(tmp_path_factory.mktemp("filetype"))


@pytest.fixture(scope="module")
def ask(version: dict[str, Path]) -> Ask:
    """The whole way by our own code: encode, ONNX Runtime, decode."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(version["model.onnx"]), options)
    labels = filetype.read_labels(version["labels.json"])

    def ask(source: Path | bytes) -> str:
        tokens = filetype.encode(source, labels)
        if isinstance(tokens, str):
            return tokens
        (scores,) = session.run([filetype.OUTPUT], {filetype.INPUT: tokens[None]})
        return filetype.decode(scores[0], labels)[0]

    return ask


@pytest.fixture(scope="module")
def magika() -> Magika:
    return Magika()


def test_400_real_files_get_the_labels_of_the_package(ask: Ask) -> None:
    files = real_files(ROOT, 400)
    labels = [ask(path) for path in files]
    expected = filetype.reference(files)
    assert [x for x in zip(files, labels, expected, strict=True) if x[1] != x[2]] == []
    assert len(set(labels)) >= 20


whitespace = st.text(alphabet=" \t\n\r\x0b\x0c", max_size=12).map(str.encode)
runs = st.builds(
    lambda byte, length: byte * length, st.sampled_from([b" ", b"\n"]), st.sampled_from(EDGES)
)
cores = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=12).map(str.encode),
    st.builds(
        lambda unit, length: (unit * length)[:length],
        st.sampled_from([b"import os\n", b"\x00", b"\xff\xfe", "é".encode(), b'{"a": 1}', b" x "]),
        st.sampled_from(EDGES),
    ),
)
pads = st.one_of(st.just(b""), whitespace, runs)


@settings(deadline=None, max_examples=300)
@given(st.builds(lambda before, core, after: before + core + after, pads, cores, pads))
def test_any_bytes_get_the_label_of_the_package(ask: Ask, magika: Magika, content: bytes) -> None:
    assert ask(content) == str(magika.identify_bytes(content).output.label)


@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("unit", [b" ", b"a", b"\xff", "é".encode(), b"\x1c", b"\x85"])
def test_runs_of_one_character_at_block_edges_get_the_label_of_the_package(
    ask: Ask, magika: Magika, unit: bytes, length: int
) -> None:
    for content in ((unit * length)[:length], b"\n" * length + unit, unit * 9 + b" " * length):
        assert ask(content) == str(magika.identify_bytes(content).output.label)


def test_only_both_ends_of_a_large_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"begin" * 1000)
        file.truncate(1 << 40)  # a terabyte of holes
        file.seek(0, os.SEEK_END)
        file.write(b"end" * 2000)
    tokens = filetype.encode(path)
    assert not isinstance(tokens, str)
    assert bytes(tokens[:HEAD].tolist()) == (b"begin" * 1000)[:HEAD]
    assert bytes(tokens[HEAD:].tolist()) == (b"end" * 2000)[-HEAD:]


def test_tokens_are_padded_where_a_file_has_no_byte() -> None:
    tokens = filetype.encode(b"  0123456789 ")
    assert not isinstance(tokens, str)
    assert tokens.shape == (2 * HEAD,)
    assert tokens.dtype == np.int32
    assert tokens[:13].tolist() == [*b"0123456789 ", 256, 256]
    assert tokens[-13:].tolist() == [256, *b"  0123456789"]


def test_what_is_not_a_regular_file_is_decided_without_reading(tmp_path: Path, ask: Ask) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to(ROOT / "pyproject.toml")
    (tmp_path / "folder-link").symlink_to(tmp_path)
    (tmp_path / "nothing").touch()
    names = ("pipe", "socket", "link", "folder-link", "nothing", ".")
    paths = [tmp_path / name for name in names]
    labels = [ask(path) for path in paths]
    assert labels == ["unknown", "unknown", "toml", "directory", "empty", "directory"]
    assert labels == filetype.reference(paths)


@pytest.mark.parametrize("read", [filetype.encode, lambda path: filetype.reference([path])])
def test_a_missing_file_and_a_dangling_link_are_refused_by_name(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for name in ("gone", "dangling"):
        with pytest.raises(InputError, match=f"{name}: cannot be read"):
            read(tmp_path / name)


def test_a_file_that_may_not_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret").touch()
    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(InputError, match="secret: cannot be read: Permission denied"):
        filetype.encode(tmp_path / "secret")


def scores_with(label: str, score: float) -> Any:
    labels = filetype.package_labels().target_labels
    scores = np.zeros(len(labels), dtype=np.float32)
    scores[labels.index(label)] = score
    return scores


@pytest.mark.parametrize(
    ("guess", "score", "label"),
    [
        ("python", 0.5, "python"),
        ("python", 0.49, "txt"),
        ("png", 0.5, "png"),
        ("png", 0.49, "unknown"),
        ("markdown", 0.75, "markdown"),
        ("markdown", 0.74, "txt"),
        ("crt", 0.89, "unknown"),
        ("randombytes", 0.99, "unknown"),
        ("randomtxt", 0.99, "txt"),
        ("randomtxt", 0.1, "txt"),
    ],
)
def test_a_low_score_gives_the_general_label(guess: str, score: float, label: str) -> None:
    found, told = filetype.decode(scores_with(guess, score))
    assert found == label
    assert told == pytest.approx(score)


@given(st.integers(0, 213), st.floats(0, 1, width=32))
def test_every_label_is_decided_as_in_the_package(magika: Magika, index: int, score: float) -> None:
    guess = magika._model_config.target_labels_space[index]
    expected, _ = magika._get_output_label_from_dl_label_and_score(guess, score)
    scores = np.full(214, -1, dtype=np.float32)
    scores[index] = score
    assert filetype.decode(scores) == (str(expected), score)


def test_the_first_of_two_equal_scores_wins() -> None:
    scores = np.full(214, 1 / 214, dtype=np.float32)
    scores[[3, 9]] = 0.9
    assert filetype.decode(scores)[0] == filetype.package_labels().target_labels[3]


@pytest.mark.parametrize("scores", [np.zeros(213), np.zeros((2, 214)), np.full(214, np.nan)])
def test_a_row_that_is_not_one_number_per_label_is_refused(scores: Any) -> None:
    with pytest.raises(InputError, match="expected 214 numbers"):
        filetype.decode(scores.astype(np.float32))


def test_a_version_holds_the_published_weights_and_its_labels(
    version: dict[str, Path], tmp_path: Path
) -> None:
    assert list(version) == ["model.onnx", "labels.json"]
    assert filetype.read_labels(version["labels.json"]) == filetype.package_labels()
    folder = resources.files("magika") / "models" / filetype.package_labels().model
    assert version["model.onnx"].read_bytes() == (folder / "model.onnx").read_bytes()
    for name, path in filetype.build(tmp_path / "not-there-yet").items():
        assert path.read_bytes() == version[name].read_bytes()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": "m", "surprise": 1}'])
def test_other_labels_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"labels\.json: not the labels of filetype; wrong: "):
        filetype.read_labels(tmp_path / "labels.json")


def test_missing_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        filetype.read_labels(tmp_path / "labels.json")
