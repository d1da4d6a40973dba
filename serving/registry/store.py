"""The object store: the few S3 operations the registry stands on, each with one meaning.

Writes that must not be lost are conditional: `create` wins only if nothing was there, `swap` only
if what was read is still there. An ETag is an opaque token for `swap`, never a checksum: multipart
and KMS-encrypted objects have ETags that are no MD5 of anything.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from serving.errors import ConflictError, IntegrityError, StoreError
from serving.registry import faults

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Progress = Callable[[int], None]

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
CHUNK_BYTES: Final = 1024 * 1024
_WRITE_ATTEMPTS: Final = 5
_READ_ATTEMPTS: Final = 4


def quiet(done_bytes: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Where the store is. Without keys, the AWS chain (environment, profile, role) finds them."""

    bucket: str
    endpoint_url: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """How messages name the store."""
        return f"store {self.endpoint_url or f's3 in {self.region}'} bucket={self.bucket}"


@dataclass(frozen=True, slots=True)
class Stat:
    """An object as the store describes it; `sha256` (hex) only where the store checked it."""

    key: str
    size_bytes: int
    etag: str
    sha256: str | None = None


class Store:
    """One bucket. Threads may share it; `close` it, or use it in a `with` block.

    Every method raises StoreError, in one line, for what the server or the way to it does wrong.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.config = config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if (client := self.__dict__.pop("client", None)) is not None:
            client.close()

    @cached_property
    def client(self) -> "S3Client":
        """The boto3 client, made at first use: importing boto3 takes most of a second."""
        import boto3.session
        from botocore.config import Config

        config, host = self.config, urlsplit(self.config.endpoint_url or "").hostname
        with self.guard("connecting"):
            return boto3.session.Session(
                aws_access_key_id=config.access_key,
                aws_secret_access_key=config.secret_key,
                region_name=config.region,
            ).client(
                "s3",
                endpoint_url=config.endpoint_url,
                config=Config(
                    connect_timeout=3,
                    read_timeout=30,
                    retries={"mode": "standard", "total_max_attempts": 3},
                    max_pool_connections=32,
                    s3={"addressing_style": "path" if config.endpoint_url else "auto"},
                    # Bytes are checked against the manifest's SHA-256; a second sum costs time.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    # A company proxy cannot reach this machine's loopback.
                    proxies={} if host in ("127.0.0.1", "localhost", "::1") else None,
                ),
            )

    def guard(self, doing: str) -> AbstractContextManager[None]:
        """Turns what botocore raises inside the block into a StoreError; 404, 409 and 412 pass."""
        return faults.guard(self.config.label, doing)

    def head(self, key: str) -> Stat | None:
        """What is stored under `key`; None where nothing is."""
        try:
            with self.guard(f"looking at {key}"):
                answer = self.client.head_object(
                    Bucket=self.config.bucket, Key=key, ChecksumMode="ENABLED"
                )
        except faults.Refused as refused:
            refused.only(404)
            return None
        checksum = answer.get("ChecksumSHA256", "")
        # A multipart object's checksum is one of checksums, marked by `-<parts>`.
        sha256 = base64.b64decode(checksum).hex() if checksum and "-" not in checksum else None
        return Stat(key, answer["ContentLength"], answer["ETag"], sha256)

    def exists(self, key: str) -> bool:
        """Whether something is stored under `key`."""
        return self.head(key) is not None

    def get(self, key: str) -> tuple[bytes, str] | None:
        """A document and the token `swap` wants for it; None where nothing is.

        Raises:
            IntegrityError: It is larger than any document galley writes.
        """
        try:
            with self.guard(f"reading {key}"):
                answer = self.client.get_object(Bucket=self.config.bucket, Key=key)
                with closing(answer["Body"]) as body:
                    data = body.read(MAX_DOCUMENT_BYTES + 1)
                    # Only the read that finds the end compares with the length that was promised.
                    if len(data) <= MAX_DOCUMENT_BYTES:
                        data += body.read(1)
        except faults.Refused as refused:
            refused.only(404)
            return None
        if len(data) > MAX_DOCUMENT_BYTES:
            raise IntegrityError(
                f"{key} is larger than {MAX_DOCUMENT_BYTES} bytes, so it is not galley's"
            )
        return data, answer["ETag"]

    def list(self, *parts: str) -> Iterator[str]:
        """The keys below a folder given by its parts, in the store's order; no folder markers.

        The prefix always ends with `/`: `models/rank` must not find `models/ranker`.
        """
        prefix = "".join(f"{part}/" for part in parts)
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.config.bucket, Prefix=prefix
        )
        found = iter(pages)
        while True:
            try:
                with self.guard(f"listing {prefix}"):
                    page = next(found, None)
            except faults.Refused as refused:
                raise refused.told from None
            if page is None:
                return
            yield from (o["Key"] for o in page.get("Contents", []) if not o["Key"].endswith("/"))

    def create(self, key: str, data: bytes) -> str:
        """Write a new object; the token of what was written.

        Raises:
            ConflictError: Something is there already; it is left as it was.
        """
        return self._put(key, data, "creating", IfNoneMatch="*")

    def swap(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object that had the token `etag` when it was read; the new token.

        Raises:
            ConflictError: It has changed or gone since; it is left as it is.
        """
        return self._put(key, data, "replacing", IfMatch=etag)

    def delete(self, key: str) -> None:
        """Remove an object, or nothing if there is none."""
        try:
            with self.guard(f"deleting {key}"):
                self.client.delete_object(Bucket=self.config.bucket, Key=key)
        except faults.Refused as refused:
            refused.only(404)

    def stream(self, key: str) -> Iterator[bytes]:
        """The object's bytes in chunks. A broken connection is taken up again where it broke.

        Raises:
            IntegrityError: Nothing is there.
        """
        done, etag, failures = 0, "", 0
        while True:
            # IfMatch holds the object still between two connections.
            more = {"Range": f"bytes={done}-", "IfMatch": etag} if done else {}
            try:
                with self.guard(f"downloading {key}"):
                    answer = self.client.get_object(Bucket=self.config.bucket, Key=key, **more)  # type: ignore[arg-type]
            except faults.Refused as refused:
                refused.only(404, 412, 416)
                raise IntegrityError(f"{self.config.label}: {key} is gone from the store") from None
            etag = answer["ETag"]
            try:
                # Not `with body`: that gives the raw stream, which takes a hang-up for the end.
                with self.guard(f"downloading {key}"), closing(answer["Body"]) as body:
                    while chunk := body.read(CHUNK_BYTES):
                        done, failures = done + len(chunk), 0
                        yield chunk
            except StoreError:
                failures += 1
                if failures == _READ_ATTEMPTS:
                    raise
            else:
                return

    def ensure_bucket(self) -> None:
        """Make the bucket if there is none; for stores this machine runs itself."""
        bucket = self.config.bucket
        try:
            with self.guard("looking for the bucket"):
                self.client.head_bucket(Bucket=bucket)
        except faults.Refused as refused:
            refused.only(404)
        else:
            return
        # us-east-1 is the one region that may not be named here
        place = {"CreateBucketConfiguration": {"LocationConstraint": self.config.region}}
        named = place if self.config.region != "us-east-1" else {}
        try:
            with self.guard("creating the bucket"):
                self.client.create_bucket(Bucket=bucket, **named)  # type: ignore[arg-type]
        except faults.Refused as refused:
            if refused.code != "BucketAlreadyOwnedByYou":
                raise refused.told from None

    def probe(self) -> None:
        """Find out whether the server honours conditional writes; some local S3 servers do not.

        Raises:
            StoreError: It ignores `If-None-Match` or `If-Match`, so two writers would both win.
        """
        from serving.registry.probing import check_conditional_writes

        check_conditional_writes(self)

    def _put(self, key: str, data: bytes, doing: str, **condition: str) -> str:
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        for attempt in range(_WRITE_ATTEMPTS):
            try:
                with self.guard(f"{doing} {key}"):
                    return self.client.put_object(
                        Bucket=self.config.bucket,
                        Key=key,
                        Body=data,
                        ChecksumSHA256=checksum,
                        **condition,  # type: ignore[arg-type]
                    )["ETag"]
            except faults.Refused as refused:
                refused.only(404, 409, 412)
                if refused.status == 409:  # two writers at once; S3 asks for the whole put again
                    time.sleep(0.05 * 2**attempt)
                    continue
                # Where an answer got lost, the retry meets the object this very call has written.
                if refused.retried and (there := self.get(key)) and there[0] == data:
                    return there[1]
                break
        what = "exists already" if doing == "creating" else "has changed since it was read"
        raise ConflictError(f"{self.config.label}: {key} {what}; it was left as it is")
