"""The file that says which model versions requests may be for, and what is remembered of it."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from serving.gateway.prediction.datatypes import ITEM_BYTES
from serving.gateway.prediction.schema import (
    CacheRule,
    LogRule,
    ModelSchema,
    Served,
    TensorSchema,
)

LOOK_SECONDS: Final = 0.5
"""How long a change of the file may go unseen by lookups that find what they look for."""

_log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


def encode_table(served: Iterable[Served]) -> bytes:
    """The table's file, as JSON; equal tables give equal bytes, whatever their order."""
    ordered = sorted(served, key=lambda one: (one.model, one.version, one.digest))
    return orjson.dumps({"served": ordered}, option=orjson.OPT_INDENT_2)


def decode_table(text: bytes) -> tuple[Served, ...]:
    """What `encode_table` was given, in its order.

    Raises:
        ValueError: if the text is not a table.
    """
    try:
        return tuple(_served(entry) for entry in orjson.loads(text)["served"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of served versions: {error!r}") from error


class Table:
    """The served versions by model and digest, as the file at `path` has them.

    Whoever changes the file replaces it, so that nobody reads half of one. A file that is missing
    or damaged changes nothing: what was known stays, and `faults` counts it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = 0
        self._path = path
        self._clock = clock
        self._stamp: Stamp | None = None
        self._served: Mapping[tuple[str, str], Served] = {}
        self._looked_at = clock()
        self._look()

    def get(self, model: str, digest: str) -> Served | None:
        """The version of `model` whose artifact has `digest`, if it is served."""
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        found = self._served.get((model, digest))
        if found is None and self._look():
            found = self._served.get((model, digest))
        return found

    def __len__(self) -> int:
        return len(self._served)

    def _look(self) -> bool:
        """Whether the file has changed; it is read if so."""
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            served = decode_table(self._path.read_bytes())
        except (OSError, ValueError) as error:
            self.faults += 1
            _log.warning("%s: the table is kept as it was: %s", self._path, error)
            return False
        self._served = {(one.model, one.digest): one for one in served}
        return True


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


def _served(entry: dict[str, Any]) -> Served:
    cache, log = entry["cache"], entry["log"]
    return Served(
        model=entry["model"],
        version=entry["version"],
        digest=entry["digest"],
        schema=_schema(entry["schema"]),
        timeout_seconds=entry["timeout_seconds"],
        latency_p99_ms=entry["latency_p99_ms"],
        cache=None if cache is None else CacheRule(**cache),
        hash_header=entry["hash_header"],
        log=None if log is None else LogRule(log["sample_ratio"], tuple(log["redact"])),
    )


def _schema(entry: dict[str, Any]) -> ModelSchema:
    return ModelSchema(
        inputs=tuple(_tensor(tensor) for tensor in entry["inputs"]),
        outputs=tuple(_tensor(tensor) for tensor in entry["outputs"]),
        max_batch_size=entry["max_batch_size"],
        stateful=entry["stateful"],
    )


def _tensor(entry: dict[str, Any]) -> TensorSchema:
    if entry["datatype"] not in ITEM_BYTES:
        raise ValueError(f"{entry['name']}: no datatype of the protocol is {entry['datatype']}")
    return TensorSchema(entry["name"], entry["datatype"], tuple(entry["dims"]), entry["optional"])
