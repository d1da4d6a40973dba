"""Pull: a version as a folder on this disk, complete and verified, or not there at all.

Beside the folder lie `<folder>.manifest.json` and, if it is signed, `<folder>.signature.json`:
outside, because a signature leaves no file in the folder uncovered. With them a pulled folder can
be verified again without the store, so a server restarts while the store is down.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.errors import GalleyError, InfrastructureError, InputError, IntegrityError
from serving.registry import blobs, contents, names, signing, versions
from serving.registry.blobs import Blob
from serving.registry.manifest import File, Manifest
from serving.registry.store import Progress, Store, quiet


@dataclass(frozen=True, slots=True)
class _Wanted:
    model: str
    version: int
    target: Path
    verify_key: Path | None
    expect_digest: str | None

    @property
    def subject(self) -> str:
        return signing.subject(self.model, self.version)

    def beside(self, ending: str) -> Path:
        return self.target.with_name(f"{self.target.name}.{ending}")

    def hidden(self, ending: str) -> Path:
        return self.target.with_name(f".{self.target.name}.{ending}")


def pull(
    store: Store,
    *,
    model: str,
    version: int,
    target: Path,
    verify_key: Path | None = None,
    expect_digest: str | None = None,
    progress: Progress = quiet,
) -> Manifest:
    """Make `target` the folder of a version; its manifest.

    A target that already is that version, byte for byte, is kept, and the store is not asked. One
    that an earlier pull made and that is damaged or of another version is replaced.

    Args:
        store: where from.
        model: its name.
        version: its number.
        target: the folder to make; its parents are made as needed.
        verify_key: PEM public key; given, only a version signed by its owner is taken.
        expect_digest: the digest that was tested; given, no other is taken.
        progress: told of bytes that are there.

    Raises:
        InputError: There is no such version, or `target` holds something that no pull made.
        IntegrityError: Bytes, digest or signature are not what they must be; no target was made.
        InfrastructureError: The disk is full or cannot be written.
        StoreError: The store failed.
    """
    names.manifest_key(model, version)
    if expect_digest is not None:
        names.check_digest(expect_digest)
    wanted = _Wanted(model, version, Path.cwd() / target, verify_key, expect_digest)
    if (manifest := _kept(wanted)) is None:
        with blobs.telling_full_disk(wanted.target.parent, 0), _locked(wanted):
            # Another process may have pulled it while this one waited.
            if (manifest := _kept(wanted)) is None:
                return _fetch(store, wanted, progress)
    progress(manifest.size_bytes)
    return manifest


def _kept(wanted: _Wanted) -> Manifest | None:
    """The manifest, if the target is already what is wanted, to the last byte and signature."""
    try:
        copy = wanted.beside("manifest.json")
        manifest = Manifest.parse(copy.read_bytes(), str(copy))
        if (manifest.model, manifest.version) != (wanted.model, wanted.version):
            return None
        if wanted.expect_digest not in (None, manifest.digest) or not _holds(wanted, manifest):
            return None
        if wanted.verify_key is not None:
            signature = wanted.beside("signature.json").read_bytes()
            _verify(wanted, manifest, wanted.target, signature, wanted.verify_key)
    except (OSError, GalleyError):
        return None  # whatever is wrong here, the store decides
    return manifest


def _holds(wanted: _Wanted, manifest: Manifest) -> bool:
    """Whether the target has exactly the manifest's files."""
    found = set()
    for folder, folders, files in os.walk(wanted.target):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if not stat.S_ISDIR(mode):
                if not stat.S_ISREG(mode):
                    return False
                found.add(path.relative_to(wanted.target).as_posix())
    return found == {file.path for file in manifest.files} and all(
        blobs.measure(names.join(wanted.target, file.path)) == Blob(file.digest, file.size_bytes)
        for file in manifest.files
    )


def _fetch(store: Store, wanted: _Wanted, progress: Progress) -> Manifest:
    manifest = versions.show(store, wanted.model, wanted.version)
    if wanted.expect_digest not in (None, manifest.digest):
        raise IntegrityError(
            f"{wanted.model} {wanted.version} has digest {manifest.digest}, but "
            f"{wanted.expect_digest} was asked for; nothing was loaded"
        )
    if wanted.verify_key is not None and manifest.signature is None:
        raise IntegrityError(
            f"{wanted.model} {wanted.version} is not signed, and verify key {wanted.verify_key} "
            "demands it; publish it signed as a new version"
        )
    _check_target(wanted)
    _check_room(wanted, manifest)
    fresh = wanted.hidden("pull")
    _remove(fresh)
    fresh.mkdir()
    try:
        for file in manifest.files:
            _fetch_file(store, wanted, file, fresh, progress)
        signature = _fetch_signature(store, manifest)
        if wanted.verify_key is not None:
            _verify(wanted, manifest, fresh, signature, wanted.verify_key)
        _put_in_place(wanted, manifest, fresh, signature)
    finally:
        _remove(fresh)
    return manifest


def _fetch_file(store: Store, wanted: _Wanted, file: File, fresh: Path, progress: Progress) -> None:
    name = f"{wanted.model} {wanted.version} {file.path}"
    path = names.join(fresh, file.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    blobs.download(store, Blob(file.digest, file.size_bytes), path, name=name, progress=progress)
    # Whoever can write to the bucket need not have come through push.
    contents.check_file(path, name)


def _fetch_signature(store: Store, manifest: Manifest) -> bytes:
    if manifest.signature is None:
        return b""
    found = store.get(names.blob_key(manifest.signature))
    return found[0] if found else b""


def _verify(wanted: _Wanted, manifest: Manifest, folder: Path, signature: bytes, key: Path) -> None:
    if blobs.digest_of(signature) != manifest.signature:
        raise IntegrityError(
            f"{wanted.model} {wanted.version}: the signature is not the one published: want "
            f"{manifest.signature}, found {blobs.digest_of(signature)}"
        )
    signing.verify(folder, signature, subject=wanted.subject, public_key=key)


def _put_in_place(wanted: _Wanted, manifest: Manifest, fresh: Path, signature: bytes) -> None:
    """Swap the folders. Dying in between leaves no target, never a wrong one."""
    old = wanted.hidden("old")
    _remove(old)
    for folder, _, _ in os.walk(fresh):
        _sync(Path(folder))
    if wanted.target.exists():
        wanted.target.rename(old)
    _write(wanted.beside("manifest.json"), manifest.to_bytes())
    if signature:
        _write(wanted.beside("signature.json"), signature)
    else:
        wanted.beside("signature.json").unlink(missing_ok=True)
    fresh.rename(wanted.target)
    _sync(wanted.target.parent)
    _remove(old)


def _check_target(wanted: _Wanted) -> None:
    """Refuse to replace what no pull has made: it may be somebody's only copy."""
    target = wanted.target
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"target {target} is not a folder; choose another, or remove it")
    if target.is_dir() and any(target.iterdir()) and not wanted.beside("manifest.json").exists():
        raise InputError(
            f"target {target} holds files that no pull has put there; choose another, or empty it"
        )


def _check_room(wanted: _Wanted, manifest: Manifest) -> None:
    free_bytes = blobs.free_bytes(wanted.target.parent)
    if free_bytes < manifest.size_bytes:
        raise InfrastructureError(
            f"{wanted.target.parent}: the disk is too full: needed {manifest.size_bytes} bytes, "
            f"free {free_bytes} bytes; make room, or choose another folder"
        )


@contextmanager
def _locked(wanted: _Wanted) -> Iterator[None]:
    """One pull of a target at a time; the lock goes with the process, however that ends."""
    wanted.target.parent.mkdir(parents=True, exist_ok=True)
    with wanted.hidden("lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
