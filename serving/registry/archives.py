"""Looking into compressed and packed files, within bounds that a bomb cannot stretch.

Nothing is ever written where an archive says; member names that climb, links and devices are
refused all the same, because the next tool may obey them.
"""

import bz2
import io
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

from serving.errors import ArtifactError
from serving.registry.names import quoted
from serving.registry.pickles import Reader

MAX_DEPTH: Final = 4
MAX_MEMBERS: Final = 10_000
MAX_RATIO: Final = 200
MAX_UNPACKED_BYTES: Final = 64 * 1024**3
MAX_SPOOLED_BYTES: Final = 1024**3
_FREE_BYTES: Final = 1024 * 1024  # a small thing may compress as well as it likes
# The largest dictionary an lzma header can ask for; memory that is not touched is not used.
_DICTIONARY_BYTES: Final = 5 * 1024**3
_READ_BYTES: Final = 64 * 1024
_DAMAGED: Final = (
    # what zip, tar, the decompressors and the numpy header raise on bytes that are not theirs
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, NotImplementedError, RuntimeError, MemoryError),
    *(ValueError, TypeError, LookupError, SyntaxError),
)


class Decompressor(Protocol):
    """What zlib, bz2 and lzma have in common."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached."""
        ...

    @property
    def unused_data(self) -> bytes:
        """Input after that end."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Take input, give at most `max_length` bytes; the next call gives what is held back."""
        ...


@dataclass
class Budget:
    """What may still be unpacked for one file, over all its layers."""

    name: str
    left_bytes: int = MAX_UNPACKED_BYTES

    def spend(self, unpacked_bytes: int) -> None:
        """Count bytes that came out of an archive.

        Raises:
            ArtifactError: They are more than any honest artifact unpacks to.
        """
        self.left_bytes -= unpacked_bytes
        if self.left_bytes < 0:
            raise bomb(self.name, f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes")


def bomb(name: str, why: str) -> ArtifactError:
    """The refusal of something too large to be looked through."""
    return ArtifactError(f"{name}: {why}, and is refused as a possible bomb; publish it unpacked")


@contextmanager
def telling_damage(name: str, kind: str) -> Iterator[None]:
    """Refuse what cannot be looked through: a more lenient loader might find a pickle there."""
    try:
        yield
    except _DAMAGED as error:
        why = quoted(str(error) or type(error).__name__)
        raise ArtifactError(
            f"{name}: {kind} that cannot be looked into ({why}); publish the files inside it"
        ) from None


class _Zlib:
    """zlib's decompressor in the manner of the other two: it keeps unread input itself."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=47)  # 47: gzip or zlib, whichever the header says

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _lzma() -> Decompressor:
    return lzma.LZMADecompressor(memlimit=_DICTIONARY_BYTES)


COMPRESSIONS: Final[dict[str, Callable[[], Decompressor]]] = {
    "gzip": _Zlib,
    "zlib": _Zlib,
    "bzip2": bz2.BZ2Decompressor,
    "xz": _lzma,
    "lzma": _lzma,
}


def prefix(packed: bytes, kind: str) -> tuple[bytes, bool]:
    """What the beginning of a stream unpacks to, and whether it did so without a fault."""
    inner, out = COMPRESSIONS[kind](), b""
    try:
        for start in range(0, len(packed), 256):
            if inner.eof or len(out) > _FREE_BYTES:
                break
            out += inner.decompress(packed[start : start + 256], _FREE_BYTES)
    except Exception:  # each library has its own
        return out, False
    return out, True


class Unpacked(io.RawIOBase):
    """The bytes inside a compressed stream, all concatenated members, counted as they come."""

    def __init__(self, packed: Reader, kind: str, budget: Budget) -> None:
        self._packed, self._make, self._budget = packed, COMPRESSIONS[kind], budget
        self._inner = self._make()
        self._taken_bytes, self._given_bytes = 0, 0

    def readable(self) -> bool:
        """True; it is for reading."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, unless the end comes first; the bytes put there."""
        filled = 0
        while filled < len(buffer):
            data = self._more(len(buffer) - filled)
            if not data:
                break
            buffer[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    def _more(self, wanted_bytes: int) -> bytes:
        """At least one byte, unless the end is reached."""
        out = b""
        while not out:
            packed = b""
            if self._inner.eof:
                # Another member may follow, after zeros that pad to a block.
                packed = self._inner.unused_data.lstrip(b"\0")
                while not packed:
                    if not (packed := self._take()):
                        return b""
                    packed = packed.lstrip(b"\0")
                self._inner = self._make()
            out = self._inner.decompress(packed, wanted_bytes)
            if not out and not self._inner.eof:
                if not (packed := self._take()):
                    raise EOFError("its end is missing")
                out = self._inner.decompress(packed, wanted_bytes)
        self._given_bytes += len(out)
        self._budget.spend(len(out))
        if self._given_bytes > _FREE_BYTES + MAX_RATIO * self._taken_bytes:
            raise bomb(self._budget.name, f"it unpacks to more than {MAX_RATIO} times its size")
        return out

    def _take(self) -> bytes:
        packed = self._packed.read(_READ_BYTES)
        self._taken_bytes += len(packed)
        return packed


def zip_members(
    file: Reader, name: str, packed_bytes: int, budget: Budget
) -> Iterator[tuple[str, Callable[[], Reader]]]:
    """The files in a zip, each with a way to open it, after its directory was found good.

    Raises:
        ArtifactError: It is a bomb, or a member is a link or climbs. Damage raises what it will.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise bomb(name, f"a zip of {len(members)} members, more than {MAX_MEMBERS}")
        unpacked_bytes = sum(member.file_size for member in members)
        if unpacked_bytes > _FREE_BYTES + MAX_RATIO * packed_bytes:
            raise bomb(name, f"a zip that unpacks to more than {MAX_RATIO} times its size")
        budget.spend(unpacked_bytes)
        for member in members:
            _check_member(name, member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _refused_member(name, member.filename, "a symbolic link")
            if member.flag_bits & 1:
                raise ValueError(f"{quoted(member.filename)} is encrypted")
            if not member.is_dir():
                yield member.filename, partial(_opened, archive, member)


def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Reader:
    return io.BufferedReader(cast(Any, archive.open(member)))


def tar_members(file: Reader, name: str) -> Iterator[tuple[str, Reader]]:
    """The files in a tar, in order, each to be read before the next.

    Raises:
        ArtifactError: A member is a link or a device, or climbs. Damage raises what it will.
    """
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= MAX_MEMBERS:
                raise bomb(name, f"a tar of more than {MAX_MEMBERS} members")
            _check_member(name, member.name)
            if not (member.isfile() or member.isdir()):
                raise _refused_member(name, member.name, "a link or a device")
            inner = archive.extractfile(member) if member.isfile() else None
            if inner is not None:
                yield member.name, io.BufferedReader(cast(Any, inner))


def spooled(stream: Reader, name: str) -> Reader:
    """A copy of a stream that can be read from its end, as a zip must be; to be closed.

    Raises:
        ArtifactError: It is larger than galley is ready to copy only to look at.
    """
    handle, path = tempfile.mkstemp()
    Path(path).unlink()
    size_bytes = 0
    with io.FileIO(handle, "w+", closefd=False) as copy:
        while data := stream.read(_READ_BYTES):
            size_bytes += copy.write(data)
            if size_bytes > MAX_SPOOLED_BYTES:
                os.close(handle)
                raise bomb(name, f"a zip of more than {MAX_SPOOLED_BYTES} bytes inside an archive")
        copy.seek(0)
    return io.BufferedReader(io.FileIO(handle))


def _check_member(name: str, member: str) -> None:
    parts = member.replace("\\", "/").split("/")
    if member.startswith(("/", "\\")) or ".." in parts or "\0" in member or ":" in parts[0]:
        raise _refused_member(name, member, "a path that leaves the archive's folder")


def _refused_member(name: str, member: str, what: str) -> ArtifactError:
    return ArtifactError(
        f"{name}: member {quoted(member)} is {what}, and is refused; publish plain files instead"
    )
