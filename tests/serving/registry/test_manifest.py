"""The manifest: one spelling, one digest, and hostile bytes refused in one line."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import IntegrityError
from serving.registry.manifest import File, Manifest, instant

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "model": "ranker",
        "version": 3,
        "format": "onnx",
        "files": (
            File(path="a.onnx", sha256="a" * 64, size_bytes=5),
            File(path="b/c.bin", sha256="b" * 64, size_bytes=0),
        ),
        "source": "commit 1234",
        "created": instant(NOW),
    }
    return Manifest(**(fields | changes))


def test_a_manifest_is_read_back_from_its_bytes() -> None:
    for signature in (None, "sha256:" + "c" * 64):
        written = manifest(signature=signature)
        assert Manifest.parse(written.to_bytes(), "x") == written
    assert manifest().size_bytes == 5


def test_the_digest_is_of_format_and_files_alone() -> None:
    first = manifest()
    same = manifest(
        model="other", version=9, source="elsewhere", created="2030-01-01T00:00:00Z",
        signature="sha256:" + "c" * 64,
    )  # fmt: skip
    assert first.digest == same.digest
    assert manifest(format="safetensors").digest != first.digest
    assert manifest(files=first.files[:1]).digest != first.digest
    # Fixed for good: releases name versions by it.
    assert first.digest == (
        "sha256:f96bec1f8b7caa1718dfb63e42be633142a7426cb4436b72f3633ab27e653465"
    )


def test_a_moment_is_written_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    assert instant(NOW) == instant(NOW.astimezone(east)) == "2026-01-02T03:04:05Z"
    with pytest.raises(ValueError, match="time zone"):
        instant(datetime(2026, 1, 1))


def changed(**changes: Any) -> bytes:
    document = json.loads(manifest().to_bytes()) | changes
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def file(**changes: Any) -> list[dict[str, Any]]:
    return [{"path": "a", "sha256": "a" * 64, "size_bytes": 1} | changes]


GOOD = manifest().to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b"null", b"\xff\xfe", b"\x80\x04N.", b"{" * 100_000, b"[" * 100_000),
        *(
            GOOD + b"\n",
            b" " + GOOD,
            GOOD[:-1],
            GOOD.replace(b":3", b":3.0"),
            GOOD.replace(b":3", b":03"),
        ),
        GOOD[:-1] + b',"version":3}',
        GOOD.replace(b'"version":3', b'"version":"3"'),
        GOOD.replace(b'"version":3', b'"version":true'),
        changed(extra=1),
        changed(model="../x"),
        changed(version=0),
        changed(version=2**31),
        changed(format="On nx"),
        changed(source="two\nlines"),
        changed(source="x" * 2000),
        changed(created="yesterday"),
        changed(created="2026-01-02T03:04:05+02:00"),
        changed(signature="sha256:x"),
        changed(signature=None),
        changed(files=[]),
        changed(files=file() + file()),
        changed(files=file(path="b") + file(path="a")),
        changed(files=file(path="../../etc/passwd")),
        changed(files=file(path="/etc/passwd")),
        changed(files=file(sha256="A" * 64)),
        changed(files=file(sha256="a" * 63)),
        changed(files=file(sha256="a" * 64 + "\n")),
        changed(files=file(size_bytes=-1)),
        changed(files=file(size_bytes=1.5)),
        changed(files=file(mode="0777")),
    ],
)
def test_bytes_that_galley_did_not_write_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        Manifest.parse(data, "models/ranker/3/manifest.json")
    message = str(caught.value)
    assert message.startswith("models/ranker/3/manifest.json")
    assert message.isprintable()
    assert len(message) < 400


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.parse(data, "x")
