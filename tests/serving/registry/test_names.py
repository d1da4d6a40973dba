# ruff: noqa: RUF001 (look-alike letters are what these tests are about)
"""Names, paths and keys: what is not exactly right is refused, and nothing leaves the root."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InputError
from serving.registry import names

BAD_NAMES = [
    *("", ".", "..", "../../etc", "a/../b", "/abs", "a\\..\\b", "a%2f..%2fb", "x" * 300),
    *("ranker\n", "\nranker", "ranker ", " ranker", "Ranker", "1ranker", "-ranker", "_ranker"),
    *("ränker", "rаnker", "ranker\x00", "ran​ker", "ranker.", "ran ker", "ranker/", "a" * 64),
    *("ｒanker", "ranker²", "ranker١"),
]
BAD_VERSIONS: list[object] = [
    *(0, -1, 2**31, 2**63, True, False, 1.0, None, b"1"),
    *("", "0", "01", "+1", "-1", " 1", "1 ", "1\n", "1_0", "0x1", "1.0", "1e3", "١", "²", "１"),
    *("../4", "4/../5", "4/", "latest", "9" * 11, "9" * 5000),
]
BAD_PATHS = [
    *(
        "",
        ".",
        "..",
        "/",
        "/abs",
        "//",
        "a//b",
        "a/",
        "./a",
        "a/.",
        "a/..",
        "../x",
        "a/../b",
        "...",
    ),
    *("a/..../b", "a\\b", "..\\x", "C:\\x", "C:/x", "a%2f..%2fb", "%2e%2e/x", "a\x00b", "a\nb"),
    *("a\tb", "a\x7fb", "mоdel.onnx", "model․onnx", "a／b", "a b", "~/x", "-rf", "a/-rf", "a;b"),
    *("$(x)", "x" * 256, "/".join(["a"] * 17), "a/" * 300 + "a", "😀", "a\udc80"),
]
BAD_KEYS = [
    *("models/ranker/3/../../evil.py", "models/ranker/3//x", "models/ranker/3/", "models/ranker/"),
    *("models/ranker/../manifest.json", "models/../3/manifest.json", "models//3/manifest.json"),
    *("/models/ranker/3/manifest.json", "models/ranker/03/manifest.json", "manifest.json", ""),
    *("models/ranker/3/manifest.json/", "models/ranker/3/manifest.json/x", "models/Ranker/3/x"),
    *("models/ranker/3/model.onnx", "models/ranker/٣/manifest.json", "evil/ranker/3/manifest.json"),
    "models/ranker/99999999999/manifest.json",
    "models/ranker/4294967296/manifest.json",
]


@pytest.mark.parametrize("name", ["ranker", "ranker-2_v1", "a", "r2", "a" * 63])
def test_a_plain_name_is_taken_as_it_is(name: str) -> None:
    assert names.check_model(name) == name
    assert names.check_environment(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_plain_is_refused_and_shown_in_one_line(name: str) -> None:
    with pytest.raises(InputError) as caught:
        names.check_model(name)
    message = str(caught.value)
    assert message.isprintable()
    assert message.isascii() or "…" in message
    assert len(message) < 300
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("given_", "number"), [("10", 10), (10, 10), ("1", 1), (2**31 - 1,) * 2])
def test_a_version_is_a_positive_whole_number(given_: int | str, number: int) -> None:
    assert names.check_version(given_) == number


@pytest.mark.parametrize("version", BAD_VERSIONS)
def test_any_other_version_is_refused(version: int | str) -> None:
    with pytest.raises(InputError):
        names.check_version(version)


@pytest.mark.parametrize(
    "path",
    [
        "model.onnx",
        "a/b/c.bin",
        ".gitattributes",
        "variables.data-00000-of-00001",
        "a..b",
        "x+y=z@1",
    ],
)
def test_a_relative_path_of_plain_parts_is_taken(path: str) -> None:
    assert "/".join(names.check_path(path)) == path


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        names.check_path(path)
    assert str(caught.value).isprintable()
    with pytest.raises(InputError):
        names.join(tmp_path, path)


def test_the_refusal_names_the_part_that_is_wrong() -> None:
    with pytest.raises(InputError, match=r"part '\.\.' is not a file name"):
        names.check_path("weights/../../etc/passwd")


@pytest.mark.parametrize(
    "paths",
    [
        (),
        ("a", "a"),
        ("a", "a/b"),
        ("a/b", "a"),
        ("Model.onnx", "model.onnx"),
        ("A/x", "a"),
        ("..",),
    ],
)
def test_paths_that_cannot_lie_in_one_folder_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        names.check_paths(paths)


def test_paths_come_back_sorted() -> None:
    assert names.check_paths(("b", "a/c", "a/b", "ab")) == ("a/b", "a/c", "ab", "b")


@given(st.text(max_size=60) | st.text(alphabet="ab./\\%2f-~", max_size=20))
def test_a_path_that_is_taken_lies_inside_the_root(path: str) -> None:
    root = Path("/data/reg")
    try:
        joined = names.join(root, path)
    except InputError:
        return
    assert joined.is_relative_to(root)
    assert joined != root
    assert os.path.normpath(joined) == str(joined) == f"/data/reg/{path}"


def test_a_root_is_not_a_prefix_of_its_sibling() -> None:
    root = Path("/data/reg")
    assert names.is_within(root, Path("/data/reg/x"))
    assert names.is_within(root, root)
    assert not names.is_within(root, Path("/data/registry-evil"))
    assert not names.is_within(root, Path("/data/reg/../registry-evil"))
    assert not names.is_within(root, Path("/data"))


@pytest.mark.parametrize("link", ["weights", "weights/x"])
def test_a_symbolic_link_on_the_way_is_refused(tmp_path: Path, link: str) -> None:
    root = tmp_path / "root"
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(tmp_path)
    with pytest.raises(InputError, match="symbolic link"):
        names.join(root, "weights/x")


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_listed_key_that_galley_would_not_write_is_ignored(key: str) -> None:
    assert names.parse_manifest_key(key) is None


@given(
    st.from_regex(r"[a-z][a-z0-9_-]{0,62}", fullmatch=True),
    st.integers(min_value=1, max_value=2**31 - 1),
)
def test_a_key_that_galley_writes_is_read_back(model: str, version: int) -> None:
    assert names.parse_manifest_key(names.manifest_key(model, version)) == (model, version)


def test_history_keys_sort_by_revision() -> None:
    keys = [names.history_key("prod", "ranker", revision) for revision in (1, 9, 10, 100, 99_999)]
    assert keys == sorted(keys)


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "A" * 64, "md5:x", "a" * 64])
def test_a_digest_in_another_form_is_refused(digest: str) -> None:
    with pytest.raises(InputError):
        names.blob_key(digest)
