"""Names of models, versions, files and keys: checked once, and never rewritten.

A name that needs mending was meant for somewhere else, so a bad one is refused, with the part that
is wrong. Checks are on path parts: `/data/registry-evil` begins with `/data/reg` and is not in it.
"""

import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from serving.errors import InputError

MAX_VERSION: Final = 2**31 - 1
MAX_PATH_CHARACTERS: Final = 512
MAX_PATH_PARTS: Final = 16

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
_FORMAT: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_VERSION: Final = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
# One list of allowed characters shuts out separators, `%2f`, controls and look-alikes all at once.
_PART: Final = re.compile(r"[A-Za-z0-9._+=@][A-Za-z0-9._+=@-]{0,254}", re.ASCII)


def quoted(value: object, limit: int = 80) -> str:
    """One line that shows a hostile value: escaped, and cut at `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def check_model(name: str) -> str:
    """The model name itself.

    Raises:
        InputError: It is not lower-case ASCII letters, digits, `-` and `_`, starting with a letter.
    """
    return _named("model", name)


def check_environment(name: str) -> str:
    """The environment name itself; the rule is that of model names.

    Raises:
        InputError: It breaks that rule.
    """
    return _named("environment", name)


def check_format(name: str) -> str:
    """The artifact format itself, such as `onnx`.

    Raises:
        InputError: It is not a short lower-case word.
    """
    if not _FORMAT.fullmatch(name):
        raise InputError(
            f"format={quoted(name)} is not a format name; use a lower-case word, as onnx"
        )
    return name


def check_version(value: int | str) -> int:
    """The version as a number, from a number or from the folder name that Triton would read.

    Raises:
        InputError: It is not a positive whole number in plain ASCII digits.
    """
    # bool is an int to Python, and no version to anybody else
    written = str(value) if type(value) is int else value
    if (
        not isinstance(written, str)
        or not _VERSION.fullmatch(written)
        or int(written) > MAX_VERSION
    ):
        raise InputError(
            f"version={quoted(value)} is not a version; use a whole number from 1 to "
            f"{MAX_VERSION} without sign or leading zeros"
        )
    return int(written)


def check_digest(digest: str) -> str:
    """The digest itself.

    Raises:
        InputError: It is not `sha256:` and 64 lower-case hexadecimal digits.
    """
    if not _DIGEST.fullmatch(digest):
        raise InputError(f"digest={quoted(digest)} is not sha256:<64 hexadecimal digits>")
    return digest


def check_path(path: str) -> tuple[str, ...]:
    """The parts of a file's path inside a version.

    Raises:
        InputError: The path is absolute, climbs, is too long, or a part holds a character other
            than ASCII letters, digits and `._+=@-`.
    """
    if not path:
        raise InputError("file path is empty; name the file inside the version, as model.onnx")
    if len(path) > MAX_PATH_CHARACTERS:
        raise InputError(
            f"file path {quoted(path)} is longer than {MAX_PATH_CHARACTERS} characters"
        )
    if path.startswith("/"):
        raise InputError(f"file path {quoted(path)} is absolute; name it relative to the version")
    parts = tuple(path.split("/"))
    if len(parts) > MAX_PATH_PARTS:
        raise InputError(f"file path {quoted(path)} has more than {MAX_PATH_PARTS} parts")
    for part in parts:
        if not _PART.fullmatch(part) or not part.strip("."):
            raise InputError(
                f"file path {quoted(path)}: part {quoted(part)} is not a file name; "
                "use ASCII letters, digits and ._+=@-, and no '..'"
            )
    return parts


def check_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths of one version, sorted.

    Raises:
        InputError: There is none, one is bad, or two cannot lie in one folder: the same name twice,
            names that differ only in case, or a file that is also somebody's folder.
    """
    if not paths:
        raise InputError("a version without files cannot be published; name at least one file")
    seen: dict[str, str] = {}
    for path in paths:
        check_path(path)
        if (other := seen.setdefault(path.lower(), path)) != path or paths.count(path) > 1:
            raise InputError(
                f"file paths {quoted(other)} and {quoted(path)} are the same file on some disks"
            )
    for path in paths:
        for parent in list(PurePosixPath(path.lower()).parents)[:-1]:
            if str(parent) in seen:
                raise InputError(
                    f"file path {quoted(path)} needs a folder where {quoted(seen[str(parent)])} "
                    "is a file; rename one of them"
                )
    return tuple(sorted(paths))


def join(root: Path, path: str) -> Path:
    """Where a checked path lies under `root`.

    Raises:
        InputError: The path is bad, or something on the way to it is a symbolic link.
    """
    here = root
    for part in check_path(path):
        here = here / part
        try:
            mode = os.lstat(here).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISLNK(mode):
            raise InputError(
                f"file path {quoted(path)}: {quoted(part)} under {root} is a symbolic link; "
                "remove it"
            )
    if not is_within(root, here):
        raise InputError(f"file path {quoted(path)} leaves {root}")
    return here


def is_within(root: Path, path: Path) -> bool:
    """Whether `path` is `root` or below it, by parts and without looking at the disk."""
    return Path(os.path.normpath(path)).is_relative_to(os.path.normpath(root))


def manifest_key(model: str, version: int) -> str:
    """The key that makes a version visible."""
    return f"models/{check_model(model)}/{check_version(version)}/manifest.json"


def parse_manifest_key(key: str) -> tuple[str, int] | None:
    """The model and version a listed key is the manifest of; None for every other key.

    A bucket may hold anything: folder markers, `models/ranker/3/../../evil.py`, `models/x//1`.
    Only a key that `manifest_key` itself would write counts.
    """
    match key.split("/"):
        case ["models", model, version, "manifest.json"]:
            if _NAME.fullmatch(model) and _VERSION.fullmatch(version):
                number = int(version)
                return (model, number) if number <= MAX_VERSION else None
    return None


def blob_key(digest: str) -> str:
    """The content-addressed key of a digest."""
    return "blobs/sha256/" + check_digest(digest).removeprefix("sha256:")


def release_key(environment: str, model: str) -> str:
    """The key of the release document of a model in an environment."""
    return f"releases/{check_environment(environment)}/{check_model(model)}.json"


def history_key(environment: str, model: str, revision: int) -> str:
    """The key that keeps one revision of a release document for good; sorts by revision."""
    folder = release_key(environment, model).removesuffix(".json")
    return f"{folder}/history/{revision:010d}.json"


def _named(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{what}={quoted(name)} is not a name; use 1 to 63 lower-case ASCII letters, digits, "
            "'-' and '_', starting with a letter"
        )
    return name
