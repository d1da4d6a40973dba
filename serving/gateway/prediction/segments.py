"""The files of the prediction log: one is written, closed ones wait to be shipped.

    <name>-<time>-<random>.jsonl.open   being written, and locked by the process that does
    <name>-<time>-<random>.jsonl        complete; nobody writes to it any more

The lock ends with its process, however that ends, so an unlocked open segment is abandoned. No name
is ever used twice, since what was shipped is known by its name.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

OPEN: Final = ".jsonl.open"
CLOSED: Final = ".jsonl"


class Segment:
    """The file that is being written."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.lines = 0
        self.size_bytes = 0
        self._descriptor = descriptor

    def append(self, data: bytes, lines: int) -> None:
        """Write whole lines.

        Raises:
            OSError: they cannot be written; no part of them is in the file.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size_bytes)
            raise
        self.size_bytes += len(data)
        self.lines += lines

    def close(self) -> None:
        """Make it a closed segment.

        Raises:
            OSError: it is gone, or its folder cannot be changed.
        """
        try:
            self.path.rename(_closed(self.path))
        finally:
            os.close(self._descriptor)


def open_segment(folder: Path, name: str, clock: Callable[[], float]) -> Segment:
    """A new segment, locked; `clock` gives the time that is in its name.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    time = datetime.fromtimestamp(clock(), UTC).strftime("%Y%m%dT%H%M%S")
    path = folder / f"{name}-{time}-{secrets.token_hex(4)}{OPEN}"
    # Tensors may be in it, so nobody else reads it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        # Whoever closes abandoned segments may have found it before it was locked.
        path.stat()
    except OSError:
        os.close(descriptor)
        raise
    return Segment(path, descriptor)


def closed_segments(folder: Path) -> list[Path]:
    """The complete segments, oldest first."""
    found = []
    for path in folder.glob(f"*{CLOSED}"):
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def close_abandoned(folder: Path) -> None:
    """Close the segments of processes that were killed."""
    for path in folder.glob(f"*{OPEN}"):
        with suppress(OSError), path.open("rb") as handle:
            flock(handle, LOCK_EX | LOCK_NB)
            path.rename(_closed(path))


def remove_oldest(folder: Path, most_bytes: int) -> int:
    """Remove closed segments until all that is left fits; how many were removed."""
    sizes = dict(_sizes(folder))
    total, removed = sum(sizes.values()), 0
    for path in closed_segments(folder):
        if total <= most_bytes:
            break
        with suppress(FileNotFoundError):
            path.unlink()
            removed += 1
        total -= sizes.get(path, 0)
    return removed


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in (*folder.glob(f"*{CLOSED}"), *folder.glob(f"*{OPEN}")):
        with suppress(FileNotFoundError):
            yield path, path.stat().st_size


def _closed(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(OPEN) + CLOSED)
