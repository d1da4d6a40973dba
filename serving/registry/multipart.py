"""A large object sent in parts, so that a killed upload goes on where it stopped.

The server keeps the parts of an unfinished upload. The next attempt finds it by its key, keeps
every part whose content the server can vouch for, and sends the rest. An object appears only when
all parts are there; uploads that nobody finishes are for the bucket's lifecycle rule to remove.
"""

import base64
import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from serving.errors import ConflictError, IntegrityError
from serving.registry.faults import Refused
from serving.registry.store import Progress, Store

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, PartTypeDef

PART_BYTES: Final = 8 * 1024 * 1024
MAX_PARTS: Final = 10_000
_ATTEMPTS: Final = 3


class Gone(Exception):
    """The unfinished upload is no more: somebody completed or aborted it."""


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    data: bytes
    sha256: str  # base64, as S3 writes it

    def is_stored_as(self, stored: "PartTypeDef") -> bool:
        """Whether the server already has exactly these bytes.

        S3 lists the SHA-256 it checked. SeaweedFS does not, but there, and on S3 without KMS, the
        ETag of a *part* is its MD5. Neither matching means sending it again, never trusting it.
        """
        if stored.get("Size") != len(self.data):
            return False
        if checksum := stored.get("ChecksumSHA256"):
            return checksum == self.sha256
        md5 = hashlib.md5(self.data, usedforsecurity=False).hexdigest()
        return stored.get("ETag", "").strip('"') == md5


def send(
    store: Store,
    key: str,
    path: Path,
    *,
    sha256: str,
    size_bytes: int,
    replaces: str | None,
    part_bytes: int,
    progress: Progress,
) -> int:
    """Upload a file in parts, continuing an unfinished upload; the bytes sent this time.

    Args:
        store: where to.
        key: the content-addressed key.
        path: the file.
        sha256: what the whole file must hash to, in hex.
        size_bytes: how long it must be.
        replaces: the ETag of a broken object to replace; None: nothing may be there.
        part_bytes: part length wanted; S3 refuses less than 5 MiB for all parts but the last.
        progress: told of bytes that are done, sent now or kept from before.

    Raises:
        IntegrityError: The file is not, or no longer, what `sha256` says; no object was made.
        StoreError: The store failed; what was sent is kept for the next attempt.
    """
    part_bytes = part_size(size_bytes, part_bytes)
    sent, meter = 0, _Meter(progress)
    for _ in range(_ATTEMPTS):
        upload = _Upload(store, key, replaces)
        meter.done_bytes = 0
        try:
            for part_sent in upload.run(path, sha256, part_bytes, meter):
                sent += part_sent
        except Gone:
            # A second pusher of the same bytes shares the upload, and may have completed it.
            stat = store.head(key)
            if stat is None or stat.size_bytes != size_bytes:
                continue
            meter.reach(size_bytes)
        return sent
    raise ConflictError(f"{store.config.label}: {key} is being written by others; push again")


def part_size(size_bytes: int, wanted_bytes: int) -> int:
    """Bytes per part: as wanted, or as many as it takes for no more than 10,000 parts.

    It depends on the file alone, so that the next attempt cuts it as this one did.
    """
    return max(wanted_bytes, math.ceil(size_bytes / MAX_PARTS))


@dataclass
class _Meter:
    """Tells of each byte once, however many attempts it takes."""

    progress: Progress
    done_bytes: int = 0
    told_bytes: int = 0

    def reach(self, done_bytes: int) -> None:
        self.done_bytes = done_bytes
        if done_bytes > self.told_bytes:
            self.progress(done_bytes - self.told_bytes)
            self.told_bytes = done_bytes


class _Upload:
    """One unfinished upload on the server, found or begun."""

    def __init__(self, store: Store, key: str, replaces: str | None) -> None:
        self.store, self.key, self.replaces = store, key, replaces
        self.bucket = store.config.bucket
        self.stored: dict[int, PartTypeDef] = {}
        self.id = self._find() or self._begin()

    def run(self, path: Path, sha256: str, part_bytes: int, meter: _Meter) -> Iterator[int]:
        """The bytes sent for each part: 0 for one that was there."""
        whole = hashlib.sha256()
        done: list[CompletedPartTypeDef] = []
        for part in _parts(path, part_bytes):
            whole.update(part.data)
            stored = self.stored.get(part.number)
            if stored is not None and part.is_stored_as(stored):
                etag = stored["ETag"]
            else:
                etag = self._send(part)
                yield len(part.data)
            done.append({"PartNumber": part.number, "ETag": etag, "ChecksumSHA256": part.sha256})
            meter.reach(meter.done_bytes + len(part.data))
        if (now := whole.hexdigest()) != sha256:
            self._abort()
            raise IntegrityError(
                f"{path} changed while it was uploaded: sha256 was {sha256}, now {now}; "
                "nothing was published, push again when it is complete"
            )
        self._complete(done)

    def _find(self) -> str | None:
        """The newest unfinished upload of this very key, with its parts."""
        client = self.store.client
        try:
            with self.store.guard(f"looking for an unfinished upload of {self.key}"):
                pages = client.get_paginator("list_multipart_uploads").paginate(
                    Bucket=self.bucket, Prefix=self.key
                )
                found = [
                    upload
                    for upload in itertools.chain.from_iterable(p.get("Uploads", []) for p in pages)
                    if upload["Key"] == self.key
                ]
                if not found:
                    return None
                newest = max(found, key=lambda u: (u["Initiated"], u["UploadId"]))["UploadId"]
                parts = client.get_paginator("list_parts").paginate(
                    Bucket=self.bucket, Key=self.key, UploadId=newest
                )
                for part in itertools.chain.from_iterable(p.get("Parts", []) for p in parts):
                    self.stored[part["PartNumber"]] = part
        except Refused as refused:
            refused.only(404)
            return None
        return newest

    def _begin(self) -> str:
        try:
            with self.store.guard(f"beginning an upload of {self.key}"):
                return self.store.client.create_multipart_upload(
                    Bucket=self.bucket, Key=self.key, ChecksumAlgorithm="SHA256"
                )["UploadId"]
        except Refused as refused:
            raise refused.told from None

    def _send(self, part: _Part) -> str:
        try:
            with self.store.guard(f"uploading part {part.number} of {self.key}"):
                return self.store.client.upload_part(
                    Bucket=self.bucket,
                    Key=self.key,
                    UploadId=self.id,
                    PartNumber=part.number,
                    Body=part.data,
                    ChecksumSHA256=part.sha256,
                )["ETag"]
        except Refused as refused:
            refused.only(404)
            raise Gone from None

    def _complete(self, parts: "list[CompletedPartTypeDef]") -> None:
        condition = {"IfMatch": self.replaces} if self.replaces else {"IfNoneMatch": "*"}
        try:
            with self.store.guard(f"completing the upload of {self.key}"):
                self.store.client.complete_multipart_upload(
                    Bucket=self.bucket,
                    Key=self.key,
                    UploadId=self.id,
                    MultipartUpload={"Parts": parts},
                    **condition,  # type: ignore[arg-type]
                )
        except Refused as refused:
            refused.only(404, 409, 412)
            self._abort()
            raise Gone from None

    def _abort(self) -> None:
        try:
            with self.store.guard(f"aborting the upload of {self.key}"):
                self.store.client.abort_multipart_upload(
                    Bucket=self.bucket, Key=self.key, UploadId=self.id
                )
        except Refused as refused:
            refused.only(404)


def _parts(path: Path, part_bytes: int) -> Iterator[_Part]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            if not (data := file.read(part_bytes)):
                return
            sha256 = base64.b64encode(hashlib.sha256(data).digest()).decode()
            yield _Part(number, data, sha256)
