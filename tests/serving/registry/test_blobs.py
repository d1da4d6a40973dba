"""Blobs: sent once, resumed where they stopped, and never taken on trust."""

import errno
import hashlib
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from serving.errors import ArtifactError, InfrastructureError, IntegrityError, StoreError
from serving.registry import blobs, multipart
from serving.registry.blobs import Blob
from serving.registry.names import blob_key
from serving.registry.store import Progress, Store, quiet

MIB = 1024 * 1024
PART = 5 * MIB  # the least that S3 takes for a part that is not the last
SIZE = 2 * PART + 1_000_000


def random_file(path: Path, size: int = SIZE) -> Blob:
    path.write_bytes(os.urandom(size))
    return blobs.measure(path)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def upload(store: Store, path: Path, blob: Blob, progress: Progress = quiet) -> int:
    return blobs.upload(store, path, blob, progress=progress, multipart_bytes=PART, part_bytes=PART)


def unfinished(store: Store, blob: Blob) -> int:
    answer = store.client.list_multipart_uploads(
        Bucket=store.config.bucket, Prefix=blob_key(blob.digest)
    )
    return len(answer.get("Uploads", []))


def test_a_file_is_measured(tmp_path: Path) -> None:
    told: list[int] = []
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    blob = blobs.measure(tmp_path / "a", told.append)
    assert blob == Blob("sha256:" + hashlib.sha256(b"x" * 3_000_000).hexdigest(), 3_000_000)
    assert sum(told) == 3_000_000
    with pytest.raises(ArtifactError, match="cannot be read"):
        blobs.measure(tmp_path / "absent")


@pytest.mark.live
@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
def test_a_blob_comes_back_as_it_was_and_is_sent_once(
    store: Store, tmp_path: Path, size: int
) -> None:
    blob = random_file(tmp_path / "a", size)
    told: list[int] = []
    assert upload(store, tmp_path / "a", blob, told.append) == size
    assert upload(store, tmp_path / "a", blob, told.append) == 0
    assert sum(told) == 2 * size
    got: list[int] = []
    blobs.download(store, blob, tmp_path / "b", name="b", progress=got.append)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert sum(got) == size
    assert listed(tmp_path) == ["a", "b"]


class Interrupted(BaseException):
    """As KeyboardInterrupt, but ours."""


@pytest.mark.live
def test_an_interrupted_upload_goes_on_with_the_missing_parts(store: Store, tmp_path: Path) -> None:
    blob = random_file(tmp_path / "a")

    def interrupt(done_bytes: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        upload(store, tmp_path / "a", blob, interrupt)
    assert not blobs.is_present(store, blob)
    told: list[int] = []
    assert upload(store, tmp_path / "a", blob, told.append) == SIZE - PART
    assert sum(told) == SIZE
    assert unfinished(store, blob) == 0
    blobs.download(store, blob, tmp_path / "b", name="b")


@pytest.mark.live
def test_a_part_with_other_content_or_length_is_sent_again(store: Store, tmp_path: Path) -> None:
    blob = random_file(tmp_path / "a")
    key, data = blob_key(blob.digest), (tmp_path / "a").read_bytes()
    place = {"Bucket": store.config.bucket, "Key": key}
    begun = store.client.create_multipart_upload(**place)["UploadId"]  # type: ignore[arg-type]
    for number, body in ((1, b"x" * PART), (2, data[PART : 2 * PART - 1]), (3, data[2 * PART :])):
        store.client.upload_part(**place, UploadId=begun, PartNumber=number, Body=body)  # type: ignore[arg-type]
    assert upload(store, tmp_path / "a", blob) == 2 * PART
    blobs.download(store, blob, tmp_path / "b", name="b")
    assert (tmp_path / "b").read_bytes() == data


@pytest.mark.live
def test_an_upload_that_another_pusher_completes_is_done(store: Store, tmp_path: Path) -> None:
    blob = random_file(tmp_path / "a")
    sent: list[int] = []

    def other(done_bytes: int) -> None:
        if not sent:
            sent.append(0)
            sent.append(upload(store, tmp_path / "a", blob))

    told: list[int] = []

    def both(done_bytes: int) -> None:
        told.append(done_bytes)
        other(done_bytes)

    upload(store, tmp_path / "a", blob, both)
    assert sent[1] == SIZE - PART, "the other one went on from the first part"
    assert sum(told) == SIZE
    assert unfinished(store, blob) == 0
    blobs.download(store, blob, tmp_path / "b", name="b")


@pytest.mark.live
def test_an_upload_that_somebody_aborts_begins_again(store: Store, tmp_path: Path) -> None:
    blob = random_file(tmp_path / "a")
    aborted: list[str] = []

    def abort(done_bytes: int) -> None:
        if not aborted:
            place = {"Bucket": store.config.bucket, "Prefix": blob_key(blob.digest)}
            (found,) = store.client.list_multipart_uploads(**place)["Uploads"]  # type: ignore[arg-type]
            aborted.append(found["UploadId"])
            store.client.abort_multipart_upload(
                Bucket=store.config.bucket, Key=found["Key"], UploadId=found["UploadId"]
            )

    assert upload(store, tmp_path / "a", blob, abort) == SIZE + PART
    blobs.download(store, blob, tmp_path / "b", name="b")


@pytest.mark.live
@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_file_that_changes_while_it_is_sent_makes_no_blob(
    store: Store, tmp_path: Path, size: int
) -> None:
    blob = random_file(tmp_path / "a", size)
    random_file(tmp_path / "a", size)
    with pytest.raises(IntegrityError, match="changed while it was uploaded"):
        upload(store, tmp_path / "a", blob)
    assert not blobs.is_present(store, blob)
    assert unfinished(store, blob) == 0


@pytest.mark.live
@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_broken_blob_is_mended_by_sending_it_again(
    store: Store, tmp_path: Path, size: int
) -> None:
    blob = random_file(tmp_path / "a", size)
    store.create(blob_key(blob.digest), b"half")
    assert upload(store, tmp_path / "a", blob) == size
    blobs.download(store, blob, tmp_path / "b", name="b")


@pytest.mark.live
def test_the_etag_of_a_multipart_object_is_of_no_account(store: Store, tmp_path: Path) -> None:
    """Its MD5 is c4c7…, its ETag c8ce…-2 with one part size and another with another."""
    (tmp_path / "a").write_bytes(b"a" * 5_242_881)
    blob = blobs.measure(tmp_path / "a")
    key = blob_key(blob.digest)
    etags = []
    for part_bytes in (PART, 6 * MIB):
        store.delete(key)
        blobs.upload(store, tmp_path / "a", blob, multipart_bytes=1, part_bytes=part_bytes)
        stat = store.head(key)
        assert stat is not None
        etags.append(stat.etag.strip('"'))
        assert upload(store, tmp_path / "a", blob) == 0
        blobs.download(store, blob, tmp_path / "b", name="b")
    assert etags[0] == "c8ce36bbc9c0db61b79d3b4478950f0f-2"
    assert etags[1] != etags[0]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "truncated": lambda data: data[:-1],
    "grown": lambda data: data + b"x",
    "emptied": lambda data: b"",
}


@pytest.mark.live
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_bytes_make_no_file_and_are_told_with_both_digests(
    store: Store, tmp_path: Path, damage: str
) -> None:
    blob = random_file(tmp_path / "a", 3000)
    data = DAMAGE[damage]((tmp_path / "a").read_bytes())
    store.create(blob_key(blob.digest), data)
    with pytest.raises(IntegrityError) as caught:
        blobs.download(store, blob, tmp_path / "b", name="ranker 3 model.onnx")
    message = str(caught.value)
    assert message.startswith("ranker 3 model.onnx: ")
    assert blob.digest in message
    assert blobs.digest_of(data) in message
    assert listed(tmp_path) == ["a"]


@pytest.mark.live
def test_a_missing_blob_makes_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="is gone from the store"):
        blobs.download(store, Blob("sha256:" + "0" * 64, 5), tmp_path / "b", name="b")
    assert listed(tmp_path) == []


@pytest.mark.live
def test_a_full_disk_is_told_with_the_room_there_is(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = random_file(tmp_path / "a", 3_000_000)
    upload(store, tmp_path / "a", blob)

    def full(dir: Path, prefix: str) -> tuple[int, str]:
        """A file on a device that is always full."""
        (dir / "temporary").touch()
        return os.open("/dev/full", os.O_WRONLY), str(dir / "temporary")

    monkeypatch.setattr("serving.registry.blobs.tempfile.mkstemp", full)
    with pytest.raises(
        InfrastructureError, match=r"disk is full: needed 3000000 bytes, free \d+ b"
    ):
        blobs.download(store, blob, tmp_path / "b", name="b")
    assert listed(tmp_path) == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES])
def test_a_write_that_fails_is_one_line(tmp_path: Path, number: int) -> None:
    with pytest.raises(InfrastructureError) as caught, blobs.telling_full_disk(tmp_path, 7):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(caught.value)
    assert ("needed 7 bytes" in str(caught.value)) == (number != errno.EACCES)


def test_parts_grow_so_that_ten_thousand_are_enough() -> None:
    sizes = [multipart.part_size(size, 8 * MIB) for size in (1, 8 * MIB, 80_000 * MIB, 5 * 1024**4)]
    assert sizes[:2] == [8 * MIB] * 2
    assert all(small <= large for small, large in pairwise(sizes))
    assert 5 * 1024**4 / sizes[-1] <= 10_000


@pytest.mark.live
def test_a_part_that_is_too_small_is_told_in_one_line(store: Store, tmp_path: Path) -> None:
    blob = random_file(tmp_path / "a", 3000)
    with pytest.raises(StoreError) as caught:
        blobs.upload(store, tmp_path / "a", blob, multipart_bytes=1, part_bytes=1000)
    assert "\n" not in str(caught.value)
