"""A table reads as it was written, follows its file, and outlives a bad one."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.prediction.datatypes import ITEM_BYTES
from serving.gateway.prediction.schema import (
    CacheRule,
    LogRule,
    ModelSchema,
    Served,
    TensorSchema,
)
from serving.gateway.prediction.table import LOOK_SECONDS, Table, decode_table, encode_table

TENSORS = st.builds(
    TensorSchema,
    name=st.text(),
    datatype=st.sampled_from(sorted(ITEM_BYTES)),
    dims=st.lists(st.integers(-1, 2**63 - 1)).map(tuple),
    optional=st.booleans(),
)
SECONDS = st.floats(0, allow_nan=False, allow_infinity=False)
SERVED = st.builds(
    Served,
    model=st.text(),
    version=st.integers(1, 2**31),
    digest=st.text(),
    schema=st.builds(
        ModelSchema,
        inputs=st.lists(TENSORS, max_size=3).map(tuple),
        outputs=st.lists(TENSORS, max_size=3).map(tuple),
        max_batch_size=st.integers(0, 2**31 - 1),
        stateful=st.booleans(),
    ),
    timeout_seconds=SECONDS,
    latency_p99_ms=st.none() | SECONDS,
    cache=st.none() | st.builds(CacheRule, ttl_seconds=SECONDS, per_client=st.booleans()),
    log=st.none()
    | st.builds(
        LogRule, sample_ratio=st.floats(0, 1), redact=st.lists(st.text(), max_size=3).map(tuple)
    ),
)
ONE = Served(
    model="ranker",
    version=1,
    digest="sha256:" + "a" * 64,
    schema=ModelSchema(
        inputs=(TensorSchema("x", "FP32", (512,)),),
        outputs=(TensorSchema("y", "FP32", (8,)),),
        max_batch_size=64,
    ),
    timeout_seconds=30.0,
    cache=CacheRule(ttl_seconds=60.0, per_client=False),
)
TWO = Served(
    model="ranker",
    version=2,
    digest="sha256:" + "b" * 64,
    schema=ONE.schema,
    timeout_seconds=30.0,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def replace(path: Path, text: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text)
    new.replace(path)


@given(st.lists(SERVED, max_size=3))
def test_a_table_reads_as_it_was_written(served: list[Served]) -> None:
    assert sorted(map(repr, decode_table(encode_table(served)))) == sorted(map(repr, served))


def test_equal_tables_are_equal_bytes_in_any_order() -> None:
    assert encode_table([ONE, TWO]) == encode_table([TWO, ONE])


def test_a_version_is_found_by_model_and_digest(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode_table([ONE, TWO]))
    table = Table(path, clock)
    assert table.get("ranker", TWO.digest) == TWO
    assert table.get("other", TWO.digest) is None
    assert table.get("ranker", "sha256:") is None


def test_a_lookup_that_misses_looks_at_once(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode_table([ONE]))
    table = Table(path, clock)
    replace(path, encode_table([ONE, TWO]))
    assert table.get("ranker", TWO.digest) == TWO


def test_a_change_is_seen_within_half_a_second(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode_table([ONE]))
    table = Table(path, clock)
    replace(path, encode_table([TWO]))
    assert table.get("ranker", ONE.digest) == ONE
    clock.now = LOOK_SECONDS
    assert table.get("ranker", ONE.digest) is None


def test_a_change_that_keeps_time_and_size_is_seen(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode_table([ONE]))
    table = Table(path, clock)
    before = path.stat()
    other = encode_table([ONE]).replace(b"a" * 64, b"c" * 64)
    assert len(other) == before.st_size
    new = path.with_suffix(".new")
    new.write_bytes(other)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    assert table.get("ranker", "sha256:" + "c" * 64) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"served": 7}',
        b'{"served": [7]}',
        b'{"served": [{"model": "ranker"}]}',
        encode_table([ONE])[:-20],
        encode_table([ONE]).replace(b'"FP32"', b'"FP8"'),
    ],
)
def test_a_damaged_file_keeps_what_was_known(tmp_path: Path, clock: Clock, text: bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode_table([ONE]))
    table = Table(path, clock)
    replace(path, text)
    for _ in range(3):
        clock.now += 1
        assert table.get("ranker", ONE.digest) == ONE
    assert table.faults == 1, "one damaged file is one fault, however often it is looked at"
    replace(path, encode_table([TWO]))
    clock.now += 1
    assert table.get("ranker", TWO.digest) == TWO


def test_a_missing_file_keeps_what_was_known(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "table.json"
    table = Table(path, clock)
    assert table.get("ranker", ONE.digest) is None
    replace(path, encode_table([ONE]))
    assert table.get("ranker", ONE.digest) == ONE
    path.unlink()
    clock.now += 1
    assert table.get("ranker", ONE.digest) == ONE
    assert table.faults > 0
