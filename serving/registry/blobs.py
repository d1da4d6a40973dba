"""Blobs: file contents under the key of their own SHA-256, so the same bytes are stored once.

The digest in the key is the only checksum that counts, on the way up and on the way down. ETags are
not looked at: that of a multipart object is no MD5, and depends on the part size.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from serving.errors import ArtifactError, ConflictError, InfrastructureError, IntegrityError
from serving.registry import multipart
from serving.registry.names import blob_key
from serving.registry.store import CHUNK_BYTES, Progress, Store, quiet

MULTIPART_BYTES: Final = 16 * 1024 * 1024
# The last is what a file-size limit (RLIMIT_FSIZE) says, as a full disk says the first two.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Blob:
    """The identity of some bytes."""

    digest: str
    size_bytes: int


def measure(path: Path, progress: Progress = quiet) -> Blob:
    """Digest and size of a file, in one pass.

    Raises:
        ArtifactError: The file cannot be read.
    """
    sha256, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
                size_bytes += len(chunk)
                progress(len(chunk))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None
    return Blob(f"sha256:{sha256.hexdigest()}", size_bytes)


def upload_bytes(store: Store, data: bytes) -> tuple[Blob, int]:
    """Store bytes held in memory; their identity, and the bytes sent (0 if they were there)."""
    blob = Blob(digest_of(data), len(data))
    present, replaces = _present(store, blob)
    return blob, 0 if present else _put(store, blob, data, replaces)


def upload(
    store: Store,
    path: Path,
    blob: Blob,
    *,
    progress: Progress = quiet,
    multipart_bytes: int = MULTIPART_BYTES,
    part_bytes: int = multipart.PART_BYTES,
) -> int:
    """Store a file whose identity was measured before; the bytes sent: 0 if they were there.

    Raises:
        IntegrityError: The file is no longer what was measured; no blob was made.
        StoreError: The store failed; a multipart upload continues at the next attempt.
    """
    present, replaces = _present(store, blob)
    if present:
        progress(blob.size_bytes)
        return 0
    sha256 = blob.digest.removeprefix("sha256:")
    if blob.size_bytes >= multipart_bytes and blob.size_bytes > 0:
        return multipart.send(
            store,
            blob_key(blob.digest),
            path,
            sha256=sha256,
            size_bytes=blob.size_bytes,
            replaces=replaces,
            part_bytes=part_bytes,
            progress=progress,
        )
    data = path.read_bytes()
    if (now := hashlib.sha256(data).hexdigest()) != sha256:
        raise IntegrityError(
            f"{path} changed while it was uploaded: sha256 was {sha256}, now {now}; "
            "nothing was published, push again when it is complete"
        )
    sent = _put(store, blob, data, replaces)
    progress(blob.size_bytes)
    return sent


def download(
    store: Store, blob: Blob, target: Path, *, name: str, progress: Progress = quiet
) -> None:
    """Fetch a blob to `target`, which appears complete and verified, or not at all.

    Args:
        store: where from.
        blob: what the bytes must be.
        target: the file to make, in a folder that exists.
        name: how messages call the file.
        progress: told of bytes as they come.

    Raises:
        IntegrityError: The stored bytes are others, or are gone.
        InfrastructureError: The disk is full.
        StoreError: The store failed.
    """
    with telling_full_disk(target.parent, blob.size_bytes):
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".galley-")
        try:
            with os.fdopen(handle, "wb") as file:
                _receive(store, blob, file, name, progress)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _receive(store: Store, blob: Blob, file: BinaryIO, name: str, progress: Progress) -> None:
    sha256, size_bytes = hashlib.sha256(), 0
    for chunk in store.stream(blob_key(blob.digest)):
        sha256.update(chunk)
        size_bytes += len(chunk)
        if size_bytes > blob.size_bytes:
            break  # a blob that never ends must not fill the disk
        file.write(chunk)
        progress(len(chunk))
    found = f"sha256:{sha256.hexdigest()}"
    if size_bytes != blob.size_bytes or found != blob.digest:
        length = f"more than {blob.size_bytes}" if size_bytes > blob.size_bytes else size_bytes
        raise IntegrityError(
            f"{name}: the store holds other bytes than were published: want {blob.digest} of "
            f"{blob.size_bytes} bytes, found {found} of {length} bytes; push the version again"
        )


@contextmanager
def telling_full_disk(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turn a write that found no room into one line: the room there is, and the room it takes."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise InfrastructureError(f"{folder} cannot be written: {error.strerror}") from None
        cause = (
            "the file-size limit is too low" if error.errno == errno.EFBIG else "the disk is full"
        )
        raise InfrastructureError(
            f"{folder}: {cause}: needed {needed_bytes} bytes, free {free_bytes(folder)} bytes; "
            "make room, or choose another folder"
        ) from None


def free_bytes(folder: Path) -> int:
    """Free room on the disk of a folder, in bytes."""
    return shutil.disk_usage(folder).free


def is_present(store: Store, blob: Blob) -> bool:
    """Whether the store has the blob, as far as it can tell without reading it."""
    return _present(store, blob)[0]


def digest_of(data: bytes) -> str:
    """The digest of bytes, as `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _present(store: Store, blob: Blob) -> tuple[bool, str | None]:
    """Whether the store has the blob; if what it has is broken, the ETag to replace it by.

    A content-addressed key with other content is never right, so to push again is to mend it.
    """
    stat = store.head(blob_key(blob.digest))
    if stat is None:
        return False, None
    sha256 = blob.digest.removeprefix("sha256:")
    if stat.size_bytes == blob.size_bytes and stat.sha256 in (None, sha256):
        return True, None
    return False, stat.etag


def _put(store: Store, blob: Blob, data: bytes, replaces: str | None) -> int:
    key = blob_key(blob.digest)
    try:
        if replaces:
            store.swap(key, data, replaces)
        else:
            store.create(key, data)
    except ConflictError:
        if _present(store, blob)[0]:
            return 0  # another pusher of the same bytes was faster
        raise
    return blob.size_bytes
