"""Signatures of a version's files: OpenSSF model signing, with elliptic-curve keys.

The signature is a Sigstore bundle that the stock `model_signing verify key` command accepts over a
pulled folder. Three things are stricter here than its defaults: `.git` files are signed and
verified as all others, no file may be left unsigned, and the signed subject must be the model and
version asked for, so that an old signed version cannot be served under a new number.

The library takes two seconds to import, so it is imported where it is used.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, cast

from serving.errors import InputError, IntegrityError
from serving.registry.manifest import File
from serving.registry.names import quoted


def subject(model: str, version: int) -> str:
    """The name a signature carries."""
    return f"{model}/{version}"


def sign(files: Iterable[File], *, subject: str, private_key: Path) -> bytes:
    """The signature over files that were measured already, so what is signed is what was uploaded.

    Raises:
        InputError: The key cannot be read, is encrypted, or is not on P-256, P-384 or P-521.
    """
    from model_signing import signing

    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "signature.json")
        try:
            cast(Any, signing.Config)().set_hashing_config(
                _measured(files, subject)
            ).use_elliptic_key_signer(private_key=private_key).sign(folder, bundle)
        except Exception as error:  # the library raises whatever its parts raise
            raise InputError(
                f"signing key {private_key} cannot be used: {quoted(str(error), 200)}; "
                "use an unencrypted PEM key on P-256, P-384 or P-521"
            ) from None
        return bundle.read_bytes()


def verify(folder: Path, signature: bytes, *, subject: str, public_key: Path) -> None:
    """Return if the signature is of exactly the files in `folder`, by the owner of the key.

    Raises:
        IntegrityError: It is not: wrong key, changed, missing or extra file, or another subject.
        InputError: The public key itself cannot be read.
    """
    from model_signing import verifying

    try:
        verifier = cast(Any, verifying.Config)().use_elliptic_key_verifier(public_key=public_key)
    except Exception as error:  # as above
        raise InputError(
            f"verify key {public_key} cannot be used: {quoted(str(error), 200)}; "
            "use a PEM public key on P-256, P-384 or P-521"
        ) from None
    _check_shape(signature)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch, "signature.json")
        bundle.write_bytes(signature)
        try:
            verifier.set_hashing_config(_everything()).verify(folder, bundle)
        except Exception as error:  # hostile bytes reach every parser in there
            told = quoted(str(error) or type(error).__name__, 300)
            raise IntegrityError(f"{folder}: the signature does not hold: {told}") from None
    # Only now is the payload known to be what the key's owner wrote.
    signed = _payload(signature)["subject"][0]["name"]
    if signed != subject:
        raise IntegrityError(
            f"{folder}: the signature is of {quoted(signed)}, not of {quoted(subject)}; "
            "the store offers one version under the name of another"
        )


def _everything() -> Any:
    """Hashing that ignores nothing, whatever the signature would like to be ignored."""
    from model_signing import hashing

    class Everything(hashing.Config):
        def add_ignored_paths(self, *, model_path: object, paths: Iterable[object]) -> None:
            if ignored := sorted(str(path) for path in paths):
                raise ValueError(f"the signature leaves {ignored} unsigned in {model_path}")

    return cast(Any, Everything)().set_ignored_paths(paths=[], ignore_git_paths=False)


def _measured(files: Iterable[File], subject: str) -> Any:
    """Hashing that reads nothing: the digests are known from the upload."""
    from model_signing import hashing, manifest
    from model_signing._hashing.hashing import Digest

    class Measured(hashing.Config):
        def hash(self, model_path: object, *, files_to_hash: object = None) -> manifest.Manifest:
            return manifest.Manifest(
                subject,
                [
                    manifest.FileManifestItem(
                        path=PurePosixPath(file.path),
                        digest=Digest("sha256", bytes.fromhex(file.sha256)),
                    )
                    for file in files
                ],
                manifest.SerializationType.from_args(
                    {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
                ),
            )

    return cast(Any, Measured)()


def _check_shape(signature: bytes) -> None:
    """Refuse a bundle with more than one reading: a key twice, or an unknown key."""
    try:
        bundle = json.loads(signature, object_pairs_hook=_once)
        material = bundle["verificationMaterial"]
        good = (
            set(bundle) == {"mediaType", "verificationMaterial", "dsseEnvelope"}
            and set(material) <= {"publicKey", "tlogEntries"}
            and isinstance(material["publicKey"]["hint"], str)
            and set(bundle["dsseEnvelope"]) == {"payload", "payloadType", "signatures"}
            and len(bundle["dsseEnvelope"]["signatures"]) == 1
            and isinstance(_payload(signature)["subject"][0]["name"], str)
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        good = False
    if not good:
        raise IntegrityError("the signature is not a bundle signed with an elliptic-curve key")


def _payload(signature: bytes) -> Any:
    import base64

    envelope = json.loads(signature)["dsseEnvelope"]
    return json.loads(base64.b64decode(envelope["payload"]), object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found
