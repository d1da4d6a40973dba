"""Push: publish files as a version, all or nothing.

Blobs go first and the manifest last, create-only; so a push that dies leaves nothing visible, and
of many pushers of one version exactly one wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from serving.errors import ArtifactError, ConflictError, InputError
from serving.registry import blobs, contents, multipart, names, signing, versions
from serving.registry.blobs import Blob
from serving.registry.manifest import MAX_SOURCE_CHARACTERS, File, Manifest, instant
from serving.registry.names import quoted
from serving.registry.store import Progress, Store, quiet

_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class Published:
    """What a push came to. `created` is False where the same bytes were published before."""

    model: str
    version: int
    digest: str
    created: bool
    uploaded_bytes: int


def push(
    store: Store,
    *,
    model: str,
    files: Mapping[str, Path],
    format: str,
    source: str,
    now: datetime,
    version: int | None = None,
    signing_key: Path | None = None,
    progress: Progress = quiet,
    multipart_bytes: int = blobs.MULTIPART_BYTES,
    part_bytes: int = multipart.PART_BYTES,
) -> Published:
    """Publish files as a version; every check comes before the first byte is sent.

    Args:
        store: where to.
        model: its name.
        files: path inside the version → file on this disk.
        format: artifact format, as `onnx`.
        source: where the bytes come from, for people: a commit, a run, a URL.
        now: the time to write down, with a time zone.
        version: the number wanted; None: the latest if it has the same content, else the next.
        signing_key: PEM private key to sign with.
        progress: told of bytes stored, whether sent now or there before.
        multipart_bytes: files from this size on are sent in parts and can be resumed.
        part_bytes: size of those parts, at least 5 MiB.

    Raises:
        InputError: A name, a version or the key is bad. ArtifactError: a file may not be published.
        ConflictError: The version exists with other content, which is left as it is.
        IntegrityError: A file changed while it was uploaded; nothing was published.
        StoreError: The store failed; the same push goes on from where it stopped.
    """
    names.check_model(model)
    if version is not None:
        names.check_version(version)
    described = _describe(files, format, source)
    draft = Manifest(
        model=model,
        version=version or 1,
        format=format,
        files=described,
        source=source,
        created=instant(now),
    )
    if (same := _published_before(store, draft, version, signing_key)) is not None:
        return Published(model, same, draft.digest, created=False, uploaded_bytes=0)
    if signing_key is not None:  # a bad key must show before gigabytes are sent
        signing.sign(described, subject=model, private_key=signing_key)
    sent_bytes = sum(
        blobs.upload(
            store,
            files[file.path],
            Blob(file.digest, file.size_bytes),
            progress=progress,
            multipart_bytes=multipart_bytes,
            part_bytes=part_bytes,
        )
        for file in described
    )
    for _ in range(_ATTEMPTS):
        number = version or max(versions.numbers(store, model), default=0) + 1
        signature = None
        if signing_key is not None:
            bundle = signing.sign(
                described, subject=signing.subject(model, number), private_key=signing_key
            )
            blob, signature_bytes = blobs.upload_bytes(store, bundle)
            signature, sent_bytes = blob.digest, sent_bytes + signature_bytes
        manifest = draft.model_copy(update={"version": number, "signature": signature})
        try:
            store.create(names.manifest_key(model, number), manifest.to_bytes())
        except ConflictError:
            # Somebody was faster: with the same content that is success, else try the next number.
            same = _published_before(store, draft, version, signing_key)
            if same is not None:
                return Published(
                    model, same, draft.digest, created=False, uploaded_bytes=sent_bytes
                )
        else:
            return Published(model, number, draft.digest, created=True, uploaded_bytes=sent_bytes)
    raise ConflictError(f"{model}: lost {_ATTEMPTS} races for the next version; push again")


def _describe(files: Mapping[str, Path], format: str, source: str) -> tuple[File, ...]:
    """The files as a manifest lists them, after everything about them was checked."""
    names.check_format(format)
    if not source.isprintable() or len(source) > MAX_SOURCE_CHARACTERS:
        raise InputError(
            f"source={quoted(source)} is not one line of at most {MAX_SOURCE_CHARACTERS} characters"
        )
    paths = names.check_paths(tuple(files))
    described = []
    for path in paths:
        before = _state(files[path])
        contents.check_file(files[path])
        blob = blobs.measure(files[path])
        # What was checked must be what was measured; the upload compares what it sends with that.
        if _state(files[path]) != before:
            raise ArtifactError(f"{files[path]} is being written; push it when it is complete")
        described.append(
            File(
                path=path,
                sha256=blob.digest.removeprefix("sha256:"),
                size_bytes=blob.size_bytes,
            )
        )
    return tuple(described)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.lstat()
    except OSError:
        return None  # the check of its contents says it better
    return state.st_ino, state.st_mtime_ns, state.st_size


def _published_before(
    store: Store, draft: Manifest, version: int | None, signing_key: Path | None
) -> int | None:
    """The version that already is what would be published; None if it has to be published.

    Raises:
        ConflictError: `version` exists and is something else.
    """
    number = version or max(versions.numbers(store, draft.model), default=0)
    existing = versions.find(store, draft.model, number) if number else None
    if existing is None:
        return None
    same = existing.digest == draft.digest
    if same and (signing_key is None or existing.signature is not None):
        return number
    if version is None:
        return None
    if same:
        raise ConflictError(
            f"{draft.model} {version} is published without a signature and is never rewritten; "
            "publish it signed as a new version"
        )
    raise ConflictError(
        f"{draft.model} {version} is published with other content: it is {existing.digest}, yours "
        f"is {draft.digest}; it was left as it is, publish yours as a new version"
    )
