"""Evidence: what was measured of a version, kept beside it for good.

    evidence/<model>/<version>/<UTC time>-<kind>-<digits>.json

Nothing is ever overwritten. A document says which digest it is about: a version's number alone
could mean other bytes in another registry.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from serving.errors import ConflictError, InputError, IntegrityError
from serving.registry import names
from serving.registry.manifest import Digest, Document, Instant, instant
from serving.registry.store import Store

Kind = Literal["loadtest", "maximum", "batch-curve"]


class Evidence(Document):
    """One measurement. A field added later needs a default of None."""

    kind: Kind
    model: str
    version: int
    digest: Digest
    environment: str
    made: Instant = Field(description="UTC")
    verdict: str | None = Field(default=None, description="PASS, FAIL, INCONCLUSIVE or INVALID")
    rate_rps: float | None = Field(default=None, description="rate it holds for")
    slo: dict[str, float] = Field(default_factory=dict, description="limits it was judged by")
    alpha: float | None = Field(default=None, description="how often its PASS may be wrong")
    said: dict[str, str] = Field(
        default_factory=dict, description="the measurement itself, each part as its own JSON text"
    )

    @model_validator(mode="after")
    def _names_are_good(self) -> Self:
        try:
            names.check_model(self.model)
            names.check_version(self.version)
            names.check_environment(self.environment)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self


def evidence(kind: Kind, model: str, version: int, now: datetime, **fields: Any) -> Evidence:
    """A measurement that was made now."""
    return Evidence(kind=kind, model=model, version=version, made=instant(now), **fields)


def key_of(found: Evidence) -> str:
    """Where it is kept: by time, so that the newest is the last, and by content."""
    moment = found.made.replace("-", "").replace(":", "")
    digits = hashlib.sha256(found.to_bytes()).hexdigest()[:8]
    return f"evidence/{found.model}/{found.version}/{moment}-{found.kind}-{digits}.json"


def write(store: Store, found: Evidence) -> str:
    """Keep it; its key. Kept twice, it is there once."""
    key = key_of(found)
    try:
        store.create(key, found.to_bytes())
    except ConflictError:
        # The key names the content.
        return key
    return key


def read_all(
    store: Store, model: str, version: int, kind: Kind | None = None
) -> tuple[Evidence, ...]:
    """All that is kept about a version, oldest first.

    Raises:
        IntegrityError: a document is not what galley wrote.
    """
    found = []
    for key in sorted(store.list("evidence", names.check_model(model), str(version))):
        if kind is not None and f"-{kind}-" not in key:
            continue
        data = store.get(key)
        if data is None:
            continue
        one = Evidence.parse(data[0], key)
        if (one.model, one.version) != (model, version) or key_of(one) != key:
            raise IntegrityError(
                f"{key} is not what was written there; remove it, and measure again"
            )
        found.append(one)
    return tuple(found)


def newest(
    store: Store, model: str, version: int, kind: Kind, digest: str | None = None
) -> Evidence | None:
    """The newest of a kind, about exactly this digest where one is given.

    Raises:
        IntegrityError: a document is not what galley wrote.
    """
    kept = [
        one
        for one in read_all(store, model, version, kind)
        if digest is None or one.digest == digest
    ]
    return kept[-1] if kept else None
