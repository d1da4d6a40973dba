"""Signatures: of exactly these files, by exactly this key, for exactly this version."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InputError, IntegrityError
from serving.registry import blobs, signing
from serving.registry.manifest import File

SUBJECT = signing.subject("ranker", 3)
Keys = tuple[Path, Path]


def described(folder: Path) -> tuple[File, ...]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        File(
            path=path.relative_to(folder).as_posix(),
            sha256=blobs.measure(path).digest.removeprefix("sha256:"),
            size_bytes=path.stat().st_size,
        )
        for path in found
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "version"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"\x08\x0a model")
    (folder / "weights" / "0.bin").write_bytes(b"weights")
    return folder


@pytest.fixture
def signature(folder: Path, key_pair: Keys) -> bytes:
    return signing.sign(described(folder), subject=SUBJECT, private_key=key_pair[0])


def verify(folder: Path, signature: bytes, keys: Keys) -> None:
    signing.verify(folder, signature, subject=SUBJECT, public_key=keys[1])


def test_a_signed_folder_verifies(folder: Path, signature: bytes, key_pair: Keys) -> None:
    verify(folder, signature, key_pair)


def test_the_stock_tool_verifies_it_too(
    folder: Path, signature: bytes, key_pair: Keys, tmp_path: Path
) -> None:
    bundle = tmp_path / "signature.json"
    bundle.write_bytes(signature)
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(folder)]
    options = [
        "--signature",
        str(bundle),
        "--public_key",
        str(key_pair[1]),
        "--no-ignore-git-paths",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def flip(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"\x08\x0b model")


def add_git_file(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "evil.py").write_text("import os")


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "a flipped byte": flip,
    "a truncated file": lambda folder: (folder / "model.onnx").write_bytes(b"\x08"),
    "a missing file": lambda folder: (folder / "weights" / "0.bin").unlink(),
    "an extra file": lambda folder: (folder / "extra.py").write_text("x"),
    "a renamed file": lambda folder: (folder / "model.onnx").rename(folder / "other.onnx"),
    "an extra git file": add_git_file,
    "a gitignore": lambda folder: (folder / ".gitignore").write_text("*"),
    "a symbolic link": lambda folder: (folder / "link").symlink_to("model.onnx"),
    "a link to a folder": lambda folder: (folder / "link").symlink_to("/etc"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_changed_folder_is_refused(
    folder: Path, signature: bytes, key_pair: Keys, tampering: str
) -> None:
    TAMPERINGS[tampering](folder)
    with pytest.raises(IntegrityError, match="signature does not hold") as caught:
        verify(folder, signature, key_pair)
    assert "\n" not in str(caught.value)


def test_another_key_is_refused(
    folder: Path, signature: bytes, make_key_pair: Callable[[], Keys]
) -> None:
    with pytest.raises(IntegrityError, match="signature does not hold"):
        verify(folder, signature, make_key_pair())


def test_a_signature_of_another_version_is_refused(folder: Path, key_pair: Keys) -> None:
    old = signing.sign(
        described(folder), subject=signing.subject("ranker", 2), private_key=key_pair[0]
    )
    with pytest.raises(IntegrityError, match=r"signature is of 'ranker/2', not of 'ranker/3'"):
        verify(folder, old, key_pair)


def test_a_signature_that_leaves_files_out_is_refused(
    folder: Path, key_pair: Keys, tmp_path: Path
) -> None:
    """The library's own default leaves `.git` unsigned, and says so in what it signs."""
    from model_signing import signing as stock

    add_git_file(folder)
    bundle = tmp_path / "signature.json"
    config: Any = stock.Config
    config().use_elliptic_key_signer(private_key=key_pair[0]).sign(folder, bundle)
    with pytest.raises(IntegrityError, match="unsigned"):
        verify(folder, bundle.read_bytes(), key_pair)


def changed(signature: bytes, change: Callable[[Any], object]) -> bytes:
    bundle = json.loads(signature)
    change(bundle)
    return json.dumps(bundle).encode()


def resubject(bundle: Any) -> None:
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b"ranker/3", b"ranker/4")
    envelope["payload"] = base64.b64encode(payload).decode()


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda signature: b"",
    "no json": lambda signature: b"\xff",
    "a list": lambda signature: b"[]",
    "an empty object": lambda signature: b"{}",
    "deep nesting": lambda signature: b"[" * 200_000,
    "a second envelope": lambda signature: signature[:-1] + b',"dsseEnvelope":{}}',
    "an unknown key": lambda signature: signature[:-1] + b',"dsse_envelope":{}}',
    "no key hint": lambda signature: changed(
        signature, lambda bundle: bundle["verificationMaterial"]["publicKey"].pop("hint")
    ),
    "no signatures": lambda signature: changed(
        signature, lambda bundle: bundle["dsseEnvelope"].update(signatures=[])
    ),
    "two signatures": lambda signature: changed(
        signature, lambda bundle: bundle["dsseEnvelope"].update(signatures=[{}, {}])
    ),
    "a changed payload": lambda signature: changed(signature, resubject),
    "a certificate": lambda signature: changed(
        signature, lambda bundle: bundle["verificationMaterial"].update(certificate={})
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_bundle_is_refused_in_one_line(
    folder: Path, signature: bytes, key_pair: Keys, forgery: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(IntegrityError) as caught:
        verify(folder, FORGERIES[forgery](signature), key_pair)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_bad_key_is_told_in_one_line(
    folder: Path, signature: bytes, tmp_path: Path, content: bytes
) -> None:
    key = tmp_path / "bad.pem"
    key.write_bytes(content)
    for path in (key, tmp_path / "absent.pem"):
        with pytest.raises(InputError, match="signing key") as caught:
            signing.sign(described(folder), subject=SUBJECT, private_key=path)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match="verify key"):
            signing.verify(folder, signature, subject=SUBJECT, public_key=path)
