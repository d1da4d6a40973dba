"""Real files to ask `filetype` about: this checkout and the installed packages."""

import hashlib
import os
import stat
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from serving.errors import InputError

MAX_SIZE_BYTES = 50 * 1024 * 1024

# Made by tools, not by people: they come and go between two runs.
SKIPPED = frozenset(
    {
        ".git",
        ".venv",
        ".engines",
        ".galley",
        ".hypothesis",
        "__pycache__",
        "node_modules",
        "cdktf.out",
    }
)
SKIPPED_ENDINGS = ("_cache", ".egg-info")


def real_files(root: Path, count: int) -> list[Path]:
    """The same `count` regular files each time, as varied as there are suffixes.

    Each suffix in turn gives its next file, those under `root` before those of the installed
    packages. Symbolic links and files over 50 MB are left out.

    Raises:
        InputError: if there are fewer such files.
    """
    if not root.is_dir():
        raise InputError(f"{root}: not a folder; give the folder of this project")
    found = list(_turns(_by_suffix(root), count))
    if len(found) < count:
        raise InputError(
            f"count={count}: only {len(found)} usable files under {root} and the installed packages"
        )
    return found


def _by_suffix(root: Path) -> list[Iterator[Path]]:
    """One queue per suffix, the queues in the order of their suffixes."""
    queues: dict[str, list[Path]] = defaultdict(list)
    packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    for folder in (root, *sorted(packages)):
        for path in sorted(_walk(folder), key=lambda path: _spread(path, folder)):
            queues[path.suffix.lower()].append(path)
    return [iter(queues[suffix]) for suffix in sorted(queues)]


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(Path(parent, name))]
        yield from (path for name in names if not _is_skipped(path := Path(parent, name)))


def _is_skipped(path: Path) -> bool:
    made = path.name in SKIPPED or path.name.endswith(SKIPPED_ENDINGS)
    return made or (path / "pyvenv.cfg").is_file()


def _spread(path: Path, folder: Path) -> bytes:
    """A sort key that mixes the packages: in plain order the first one would fill the choice."""
    return hashlib.sha256(os.fsencode(path.relative_to(folder))).digest()


def _turns(queues: list[Iterator[Path]], count: int) -> Iterator[Path]:
    while queues and count > 0:
        going = []
        for queue in queues:
            path = next((path for path in queue if _is_usable(path)), None)
            if path is None:
                continue
            going.append(queue)
            if count > 0:
                count -= 1
                yield path
        queues = going


def _is_usable(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    readable = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
    return readable and status.st_size <= MAX_SIZE_BYTES
