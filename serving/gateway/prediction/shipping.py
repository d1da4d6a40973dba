"""Closed segments of the prediction log become objects in the registry's bucket, and come back.

    predictions/<environment>/<model>/date=2026-12-01/hour=07/<segment>.jsonl.gz

A segment holds what one process answered; each object holds one model's part of it in one hour. An
object's name follows from its segment, and is written once: whoever is stopped between writing and
removing the segment writes nothing twice.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from serving.errors import ConflictError, InputError, IntegrityError
from serving.gateway.prediction.record import time_text
from serving.gateway.prediction.segments import CLOSED, closed_segments
from serving.registry.names import check_environment, check_model

if TYPE_CHECKING:
    from serving.registry.store import Store

NO_MODEL: Final = "-"
"""Stands where a model's name would, for requests whose model has none: a client chose that."""

_SUFFIX: Final = ".jsonl.gz"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one pass did; `unreadable` counts lines that were cut off or damaged, and left out."""

    segments: int = 0
    objects: int = 0
    lines: int = 0
    unreadable: int = 0


def ship(
    folder: Path,
    store: "Store",
    environment: str,
    go_on: Callable[[], bool] = lambda: True,
) -> Shipped:
    """Ship the closed segments in `folder`, oldest first, until `go_on` says no.

    A segment is removed once all of it is in the store.

    Raises:
        InputError: the environment has no name that the registry takes.
        StoreError: the store fails; the segment it failed at and all later ones are still there.
    """
    check_environment(environment)
    done = Shipped()
    for path in closed_segments(folder):
        if not go_on():
            break
        try:
            data = path.read_bytes()
        except OSError:  # the log made room, or it cannot be read: the next may be shipped
            continue
        parts, unreadable = _parts(data)
        for (model, hour), lines in parts.items():
            key = f"{_folder(environment, model)}/{hour}/{path.name.removesuffix(CLOSED)}{_SUFFIX}"
            # It is there already where an earlier pass did not get as far as removing the segment.
            with suppress(ConflictError):
                store.create(key, gzip.compress(b"\n".join(lines) + b"\n", 6, mtime=0))
        path.unlink(missing_ok=True)
        done = Shipped(
            segments=done.segments + 1,
            objects=done.objects + len(parts),
            lines=done.lines + sum(map(len, parts.values())),
            unreadable=done.unreadable + unreadable,
        )
    return done


def read_predictions(
    store: "Store", environment: str, model: str, since: datetime, until: datetime
) -> Iterator[dict[str, Any]]:
    """The logged answers of a model from `since` up to but not at `until`, hour by hour.

    Within an hour they come process by process and not in the order of time. Both times need a time
    zone.

    Raises:
        InputError: the environment or the model has no name that the registry takes.
        IntegrityError: an object is no part of a prediction log.
        StoreError: the store fails.
    """
    base = _folder(check_environment(environment), check_model(model))
    first, last = time_text(since.timestamp()), time_text(until.timestamp())
    day = since.astimezone(UTC).date()
    while day.isoformat() <= last[:10]:
        for key in store.list(*base.split("/"), f"date={day}"):
            hour = key.removeprefix(f"{base}/").rsplit("/", 1)[0]
            if key.endswith(_SUFFIX) and _hour(first) <= hour <= _hour(last):
                for line in _lines(store, key):
                    if first <= line["time"] < last:
                        yield line
        day += timedelta(days=1)


def _lines(store: "Store", key: str) -> Iterator[dict[str, Any]]:
    found = store.get(key)
    if found is None:  # a lifecycle rule has removed it since it was listed
        return
    try:
        lines = gzip.decompress(found[0]).splitlines()
    except (OSError, EOFError, zlib.error):
        raise IntegrityError(
            f"{store.config.label}: {key} is not gzip, so it is no part of a prediction log; "
            "remove it"
        ) from None
    for data in lines:
        if (line := _line(data)) is not None:
            yield line


def _parts(data: bytes) -> tuple[dict[tuple[str, str], list[bytes]], int]:
    """A segment's lines by model and hour, and how many lines of it are none."""
    parts: dict[tuple[str, str], list[bytes]] = {}
    unreadable = 0
    for each in data.split(b"\n"):
        line = _line(each)
        if line is not None:
            parts.setdefault((_model(line), _hour(line["time"])), []).append(each)
        elif each:
            unreadable += 1
    return parts, unreadable


def _line(data: bytes) -> dict[str, Any] | None:
    """The line if it is one: a process that is killed may leave a part of one."""
    try:
        line = orjson.loads(data)
    except ValueError:
        return None
    time = line.get("time") if isinstance(line, dict) else None
    return line if isinstance(time, str) and _TIME.fullmatch(time) else None


def _model(line: dict[str, Any]) -> str:
    try:
        return check_model(line.get("model", ""))
    except (InputError, TypeError):
        return NO_MODEL


def _folder(environment: str, model: str) -> str:
    return f"predictions/{environment}/{model}"


def _hour(time: str) -> str:
    """The folder of an hour; such names sort as the hours do."""
    return f"date={time[:10]}/hour={time[11:13]}"
