"""One mapping in plain YAML, or a sentence with file, line and fix."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import SpecError
from serving.yaml_file import DEEPEST, LARGEST_BYTES, parse_mapping, read_mapping


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: 1\nb: 2\na: 3\n", "line 3 repeats the key 'a' of line 1; keep one of them"),
        (b"a:\n  b: 1\n  b: 1\n", "line 3 repeats the key 'b' of line 2; keep one of them"),
        (b"", "line 1 holds nothing, not a mapping; start with name: and a name"),
        (b"- 1\n", "line 1 holds a list, not a mapping; start with name: and a name"),
        (b"ranker\n", "line 1 holds a single value, not a mapping; start with name: and a name"),
        (b"a: 1\n---\nb: 2\n", "line 2 starts a second document; keep one per file"),
        (b"a: 1\nb: \xff\n", "line 2 is not UTF-8; save the file as UTF-8"),
        (b"a: 1\nb: \x07\n", "line 2 has a control character; remove it"),
        (b"a: &x 1\nb: *x\n", "line 1 uses an anchor or alias; write the value where it is used"),
        (b"a: 1\nb: *x\n", "line 2 uses an anchor or alias; write the value where it is used"),
        (b"a: !!python/name:os.system 1\n", "uses the tag tag:yaml.org,2002:python/name:os.system"),
        (b"a: !!int x\n", "line 1 uses the tag tag:yaml.org,2002:int; write the value plainly"),
        (b"a: 1\n? [b]\n: 2\n", "line 2 has the key ['b'], which is not text; put it in quotes"),
        (b"a: 1\ntrue: 2\n", "line 2 has the key True, which is not text; put it in quotes"),
        (b"a: " + b"[" * 400, f"line 1 nests deeper than {DEEPEST} levels"),
        (b"x" * (LARGEST_BYTES + 1), "larger than 1 MiB; a spec is a page, move data out of it"),
    ],
)
def test_what_is_not_one_plain_mapping_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping(content, "m.yaml")
    (only,) = caught.value.faults
    assert only.startswith("m.yaml: ")
    assert expected in only


@pytest.mark.parametrize(
    ("content", "line"), [(b"a: 1\nb: [1, 2\n", 3), (b"a: 1\n\tb: 2\n", 2), (b"a: 'x\n", 2)]
)
def test_broken_syntax_is_refused_with_its_line(content: bytes, line: int) -> None:
    with pytest.raises(SpecError, match=rf"^m\.yaml: line {line}: .*; mend the YAML there$"):
        parse_mapping(content, "m.yaml")


def test_every_repeated_key_of_a_file_is_reported() -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping(b"a: 1\na: 2\nb: {c: 1, c: 2}\na: 3\n", "m.yaml")
    assert [fault.split(";")[0] for fault in caught.value.faults] == [
        "m.yaml: line 2 repeats the key 'a' of line 1",
        "m.yaml: line 4 repeats the key 'a' of line 1",
        "m.yaml: line 3 repeats the key 'c' of line 3",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("on", "on"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-12-01", "2026-12-01"),
        ("<<", "<<"),
        ("~", None),
        ("", None),
        ("null", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-12", -12),
        ("0.5", 0.5),
        ("-1e3", -1000.0),
        ("2.", 2.0),
        ("'12'", "12"),
    ],
)
def test_a_scalar_is_what_it_looks_like(written: str, meant: object) -> None:
    value = parse_mapping(f"a: {written}\n".encode(), "m.yaml")["a"]
    assert value == meant
    assert type(value) is type(meant)


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert parse_mapping(b"\xef\xbb\xbfname: x\n", "m.yaml") == {"name": "x"}


def test_a_file_of_the_largest_size_is_read() -> None:
    content = b"a: 1\n#" + b"x" * (LARGEST_BYTES - 7) + b"\n"
    assert len(content) == LARGEST_BYTES
    assert parse_mapping(content, "m.yaml") == {"a": 1}


@pytest.mark.parametrize("name", ["missing.yaml", ".", "nul\0.yaml"])
def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_mapping(tmp_path / name)


PIECES = [*"{}[]:,-?&*!|>'\"#%@`~ \n\t", "a", "1", "- ", ": ", "\n  ", "---\n", "<<: ", "é", "\0"]
yaml_like = st.lists(st.sampled_from(PIECES)).map("".join)


@given(st.binary() | yaml_like.map(str.encode) | st.text().map(lambda t: t.encode("utf-16")))
def test_garbage_gives_a_mapping_or_a_spec_error(content: bytes) -> None:
    try:
        outcome: object = parse_mapping(content, "m.yaml")
    except SpecError as error:
        outcome = error.faults
    if isinstance(outcome, tuple):
        assert outcome
        assert all(fault.startswith("m.yaml: ") and "\n" not in fault for fault in outcome)
    else:
        assert isinstance(outcome, dict)
