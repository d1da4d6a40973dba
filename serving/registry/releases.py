"""Releases: which version of a model an environment serves, changed by compare-and-swap.

The document is the only thing two promoters can race for, and `write` lets one of them win. Its
revision only grows, so its bytes, and with them its ETag, never come back: stale ETags stay stale.

Every revision is also kept for good. The document is swapped first and its copy made second; a
writer that dies in between leaves the copy to the next writer, who must have read that revision to
replace it.
"""

from datetime import datetime
from typing import Any, Self

from pydantic import Field, model_validator

from serving.errors import ConflictError, InputError, IntegrityError
from serving.registry import names, versions
from serving.registry.blobs import Blob, is_present
from serving.registry.manifest import Digest, Document, Instant, instant
from serving.registry.store import Store


class Target(Document):
    """One version, named by number and by content."""

    version: int
    digest: Digest

    def __str__(self) -> str:
        return f"{self.version} ({self.digest})"


class Release(Document):
    """What an environment serves of one model. A field added later needs a default of None."""

    model: str
    environment: str
    stable: Target | None = Field(
        default=None, description="serves all that the candidate does not"
    )
    candidate: Target | None = Field(default=None, description="is on its way to become stable")
    revision: int = Field(ge=1, description="counts the changes; the first is 1")
    updated: Instant = Field(description="UTC")

    @model_validator(mode="after")
    def _names_are_good(self) -> Self:
        try:
            names.check_model(self.model)
            names.check_environment(self.environment)
            for target in self.targets:
                names.check_version(target.version)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def first(cls, environment: str, model: str, now: datetime, **fields: Any) -> Self:
        """The document for a model that this environment has not had before.

        Raises:
            InputError: A name is bad.
        """
        names.check_environment(environment)
        names.check_model(model)
        return cls(model=model, environment=environment, revision=1, updated=instant(now), **fields)

    def changed(self, now: datetime, **fields: Any) -> Self:
        """The next revision, with these fields replaced."""
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(
            **(kept | fields | {"revision": self.revision + 1, "updated": instant(now)})
        )

    @property
    def targets(self) -> tuple[Target, ...]:
        """The versions it names, stable first."""
        return tuple(target for target in (self.stable, self.candidate) if target is not None)

    def __str__(self) -> str:
        return (
            f"revision={self.revision} stable={self.stable or 'none'} "
            f"candidate={self.candidate or 'none'}"
        )


def read(store: Store, environment: str, model: str) -> tuple[Release, str] | None:
    """The current document and the ETag to change it by; None if there has been no release.

    Raises:
        IntegrityError: What is stored is not a release document of this model and environment.
    """
    key = names.release_key(environment, model)
    if (found := store.get(key)) is None:
        return None
    release = Release.parse(found[0], key)
    if (release.environment, release.model) != (environment, model):
        raise IntegrityError(f"{key} is the release of {release.model} in {release.environment}")
    return release, found[1]


def write(store: Store, release: Release, etag: str | None) -> str:
    """Replace the document that was read with `etag` (None: there was none); the new ETag.

    Raises:
        ConflictError: Somebody changed it since; the message says what it is now.
        InputError: A version it newly names does not exist, is incomplete, or has another digest.
    """
    found = read(store, release.environment, release.model)
    current = found[0] if found else None
    if (found[1] if found else None) != etag:
        raise _conflict(release, current)
    if release.revision != (current.revision + 1 if current else 1):
        raise ConflictError(
            f"{_named(release)}: revision={release.revision} does not follow "
            f"{current.revision if current else 'an empty document'}; read it again"
        )
    # What is served already must not hold up a rollback, so only new targets are looked at.
    for target in release.targets:
        if current is None or target not in current.targets:
            _check_target(store, release.model, target)
    if current is not None:
        _keep(store, current)
    key, data = names.release_key(release.environment, release.model), release.to_bytes()
    try:
        written = store.create(key, data) if etag is None else store.swap(key, data, etag)
    except ConflictError:
        now = read(store, release.environment, release.model)
        raise _conflict(release, now[0] if now else None) from None
    _keep(store, release)
    return written


def history(store: Store, environment: str, model: str) -> tuple[Release, ...]:
    """Every revision there has been, oldest first, with the current one last.

    Raises:
        IntegrityError: A kept revision is not what galley wrote.
    """
    found = read(store, environment, model)
    if found is None:
        return ()
    current = found[0]
    folder = names.release_key(environment, model).removesuffix(".json").split("/")
    kept: dict[int, Release] = {}
    for key in store.list(*folder, "history"):
        if (data := store.get(key)) is not None:
            release = Release.parse(data[0], key)
            if key == names.history_key(environment, model, release.revision):
                kept[release.revision] = release
    kept[current.revision] = current
    return tuple(kept[revision] for revision in sorted(kept))


def _keep(store: Store, release: Release) -> None:
    key = names.history_key(release.environment, release.model, release.revision)
    try:
        store.create(key, release.to_bytes())
    except ConflictError:
        return  # whoever wrote this revision has kept it


def _check_target(store: Store, model: str, target: Target) -> None:
    manifest = versions.show(store, model, target.version)
    if manifest.digest != target.digest:
        raise InputError(
            f"{model} {target.version} has digest {manifest.digest}, not {target.digest}; "
            "name the digest that was tested"
        )
    for file in manifest.files:
        if not is_present(store, Blob(file.digest, file.size_bytes)):
            raise InputError(
                f"{model} {target.version} is incomplete: the bytes of {file.path} are not in the "
                "store; push it again"
            )


def _named(release: Release) -> str:
    return f"release of {release.model} in {release.environment}"


def _conflict(release: Release, current: Release | None) -> ConflictError:
    is_now = str(current) if current else "no release"
    return ConflictError(
        f"{_named(release)}: it has changed since it was read, and is now {is_now}; "
        "read it again and decide anew"
    )
