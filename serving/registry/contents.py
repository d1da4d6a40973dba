"""What a model file may be, judged by its bytes: its name and extension say nothing.

Refused is whatever a loader would unpickle, since unpickling runs code: pickles of every protocol,
also renamed, packed, compressed, inside numpy arrays of objects or behind old joblib headers. Files
that cannot be looked into are refused with them. Everything else passes: safetensors, ONNX, GGUF,
TensorRT plans, text. Whether a file is good ONNX is for others to say.
"""

import ast
import io
import os
import re
import stat
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final

from serving.errors import ArtifactError
from serving.registry import archives
from serving.registry.archives import MAX_DEPTH, Budget, bomb, telling_damage
from serving.registry.names import quoted
from serving.registry.pickles import Reader, is_pickle

_HEAD_BYTES: Final = 64 * 1024
_MAX_NPY_HEADER_BYTES: Final = 1024 * 1024
_EXPORT: Final = "export it as ONNX, or save its tensors as safetensors"
_MAGIC: Final = (
    (re.compile(rb"PK\x03\x04|PK\x05\x06"), "zip"),
    (re.compile(rb"\x93NUMPY"), "npy"),
    (re.compile(rb"\x1f\x8b\x08"), "gzip"),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2"),
    (re.compile(rb"\xfd7zXZ\x00"), "xz"),
    (re.compile(rb"\x04\x22\x4d\x18"), "lz4"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd"),
    (re.compile(rb"ZF0x[0-9a-f]{1,16}"), "joblib"),
    (re.compile(rb"[\x08\x18\x28\x38\x48\x58\x68\x78]", re.DOTALL), "zlib"),
    (re.compile(rb"[\x00-\xe0].{12}\x00", re.DOTALL), "lzma"),
)
# Their headers prove little, text may have them: what does not unpack is something else.
_WEAK: Final = ("zlib", "lzma")


def check_file(path: Path, name: str = "") -> None:
    """Return if the file may be published and loaded. Messages call it `name`, or by its path.

    Raises:
        ArtifactError: It is no regular file, or holds a pickle, or cannot be looked into; the
            message says what it is, why it is refused, and what to export instead.
    """
    with _open(path) as file:
        name = name or str(path)
        budget = Budget(name)
        _refuse_pickle(file, name, "a pickle")
        file.seek(0)
        if _is_hidden_zip(file):
            _look_into_zip(file, name, budget, depth=0)
        file.seek(0)
        _look(file, name, budget, depth=0, pickle_checked=True)


def _open(path: Path) -> Reader:
    try:
        # Not following links, and not waiting for the other end of a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ArtifactError(
                f"{path} is a symbolic link, and is refused; publish the file it points to"
            ) from None
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ArtifactError(f"{path} is not a regular file, and is refused; publish plain files")
    return io.BufferedReader(io.FileIO(handle), _HEAD_BYTES)


def _look(
    file: Reader, name: str, budget: Budget, depth: int, *, pickle_checked: bool = False
) -> None:
    """Refuse a pickle in what `file` holds from here on, in however many layers."""
    if depth > MAX_DEPTH:
        raise bomb(name, f"it is packed more than {MAX_DEPTH} times over")
    kind = _kind(_head(file), name)
    match kind:
        case "zip" if depth == 0:
            _look_into_zip(file, name, budget, depth)
        case "zip":
            with archives.spooled(file, name) as copy:
                _look_into_zip(copy, name, budget, depth)
        case "tar":
            _look_into_tar(file, name, budget, depth)
        case "npy":
            _look_at_array(file, name)
        case "joblib":
            raise ArtifactError(f"{name}: {_why('a pickle compressed by joblib')}")
        case "lz4" | "zstd":
            raise ArtifactError(
                f"{name}: {kind} data hides what is inside, and is refused; publish it unpacked"
            )
        case None:
            if not pickle_checked:
                _refuse_pickle(file, name, "a pickle")
        case _:
            _look_into_stream(file, name, kind, budget, depth)


def _kind(head: bytes, name: str) -> str | None:
    try:
        # Old tars have no magic, but every tar header carries its own checksum.
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.TarError:
        pass
    else:
        return "tar"
    for magic, kind in _MAGIC:
        if not magic.match(head):
            continue
        if kind not in _WEAK:
            return kind
        unpacked, whole = archives.prefix(head, kind)
        if whole and unpacked:
            return kind
        # A stream that breaks half-way is still unpickled up to there.
        _refuse_pickle(io.BufferedReader(io.BytesIO(unpacked)), name, f"a pickle in {kind} data")
    return None


def _is_hidden_zip(file: Reader) -> bool:
    """Whether a zip, which is read from its end, hides behind another beginning."""
    try:
        with zipfile.ZipFile(file) as archive:
            return bool(archive.infolist()) and not _MAGIC[0][0].match(_rewound(file))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def _rewound(file: Reader) -> bytes:
    file.seek(0)
    return _head(file)


def _look_into_zip(file: Reader, name: str, budget: Budget, depth: int) -> None:
    packed_bytes = file.seek(0, os.SEEK_END)
    with telling_damage(name, "a zip"):
        for member, open_member in archives.zip_members(file, name, packed_bytes, budget):
            with open_member() as inner:
                _look(inner, f"{name}: {quoted(member)[1:-1]}", budget, depth + 1)


def _look_into_tar(file: Reader, name: str, budget: Budget, depth: int) -> None:
    with telling_damage(name, "a tar"):
        for member, inner in archives.tar_members(file, name):
            _look(inner, f"{name}: {quoted(member)[1:-1]}", budget, depth + 1)


def _look_into_stream(file: Reader, name: str, kind: str, budget: Budget, depth: int) -> None:
    with telling_damage(name, f"{kind} data"):
        inner = io.BufferedReader(archives.Unpacked(file, kind, budget), _HEAD_BYTES)
        _look(inner, f"{name}: inside {kind}", budget, depth + 1)
        while inner.read(_HEAD_BYTES):
            pass  # to the end, for the budget to see all of it


def _look_at_array(file: Reader, name: str) -> None:
    """Refuse a numpy array of objects: numpy pickles those."""
    with telling_damage(name, "a numpy array"):
        width = "<H" if file.read(8)[6:7] == b"\x01" else "<I"
        (length,) = struct.unpack(width, file.read(struct.calcsize(width)))
        if length > _MAX_NPY_HEADER_BYTES:
            raise ValueError(f"its header claims {length} bytes")
        header = ast.literal_eval(file.read(length).decode("latin-1").strip())
        has_objects = _has_objects(header["descr"])
    if has_objects:
        raise ArtifactError(f"{name}: {_why('a numpy array of Python objects, which is a pickle')}")


def _has_objects(descr: Any) -> bool:
    """Whether a dtype description holds the object type, at any depth of structured types."""
    match descr:
        case str():
            return "O" in descr or "object" in descr
        case [_, *_] if isinstance(descr, list):
            return any(_has_objects(field[1]) for field in descr)
        case (inner, _) if isinstance(descr, tuple):
            return _has_objects(inner)
    raise ValueError(f"its dtype {descr!r} is not understood")


def _refuse_pickle(file: Reader, name: str, what: str) -> None:
    if is_pickle(file):
        raise ArtifactError(f"{name}: {_why(what)}")


def _why(what: str) -> str:
    return f"{what}; loading one runs whatever code it names, so it is refused; {_EXPORT}"


def _head(file: Reader) -> bytes:
    return file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
