"""The manifest of one version: its files and their digests. Written last, and once."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from serving.errors import InputError, IntegrityError
from serving.registry import names
from serving.registry.names import quoted

MAX_FILES: Final = 10_000
MAX_SOURCE_CHARACTERS: Final = 1024

Sha256 = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
Digest = Annotated[str, StringConstraints(pattern=r"\Asha256:[0-9a-f]{64}\z")]
Instant = Annotated[
    str, StringConstraints(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z\z")
]


class Document(BaseModel):
    """A JSON object with one spelling: strict types, no unknown keys, canonical bytes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """The canonical JSON: sorted keys, no spaces, ASCII, absent values left out."""
        return canonical(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """The document that `data` is the canonical JSON of.

        Raises:
            IntegrityError: `data` is anything else, down to one space; `where` says what it was.
        """
        try:
            parsed = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "document"
            raise IntegrityError(
                f"{where} is not a {cls.__name__.lower()}: {quoted(field)[1:-1]}: "
                f"{quoted(first['msg'], 160)[1:-1]}"
            ) from None
        # One spelling per document leaves no room for a key given twice.
        if parsed.to_bytes() != data:
            raise IntegrityError(f"{where} is not written as galley writes it, so it was changed")
        return parsed


class File(Document):
    """One file of a version."""

    path: str = Field(description="relative path inside the version, parts joined by /")
    sha256: Sha256
    size_bytes: int = Field(ge=0)

    @property
    def digest(self) -> str:
        """The digest in the form `sha256:<hex>`."""
        return f"sha256:{self.sha256}"


class Manifest(Document):
    """What a version is. Equal files in an equal format have an equal `digest`, whoever pushed."""

    model: str
    version: int
    format: str = Field(description="artifact format, as onnx or safetensors")
    files: tuple[File, ...] = Field(max_length=MAX_FILES, description="sorted by path")
    source: str = Field(max_length=MAX_SOURCE_CHARACTERS, description="where the bytes come from")
    created: Instant = Field(description="UTC")
    signature: Digest | None = Field(default=None, description="digest of the signature's blob")

    @model_validator(mode="after")
    def _names_are_good(self) -> Self:
        try:
            names.check_model(self.model)
            names.check_version(self.version)
            names.check_format(self.format)
            paths = names.check_paths(tuple(file.path for file in self.files))
        except InputError as error:
            raise ValueError(str(error)) from None
        if paths != tuple(file.path for file in self.files):
            raise ValueError("files are not sorted by path")
        if not self.source.isprintable():
            raise ValueError("source holds a control character")
        return self

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over format and files alone: not over when, whence or by whom."""
        return content_digest(self.format, self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)


def content_digest(format: str, files: tuple[File, ...]) -> str:
    """The digest of a version with these files, which must be sorted by path."""
    body = {"format": format, "files": [file.model_dump(mode="json") for file in files]}
    return f"sha256:{hashlib.sha256(canonical(body)).hexdigest()}"


def canonical(value: dict[str, Any]) -> bytes:
    """The one JSON spelling of a value."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def instant(now: datetime) -> str:
    """A moment in UTC, as documents write it.

    Raises:
        ValueError: `now` has no time zone; a bare local time would be a different moment elsewhere.
    """
    if now.tzinfo is None:
        raise ValueError("now has no time zone; use datetime.now(UTC)")
    return now.astimezone(UTC).isoformat().replace("+00:00", "Z")
