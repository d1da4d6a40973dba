"""Fields of other tools' JSON: what must be there, what it must be, and where it was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.recordings.values import UNITS, Unreadable, moment, nanoseconds_of
from serving.errors import InputError
from serving.judge.run import NEVER


def time_of(record: Mapping[str, Any], name: str, unit: str, where: str) -> int:
    """A time or duration in nanoseconds.

    Raises:
        InputError: naming line, field, value, rule and fix.
    """
    value = record.get(name)
    try:
        return moment(str(value)) if unit == "at" else nanoseconds_of(value, UNITS[unit])
    except Unreadable as error:
        raise InputError(f"{where}: {name}={value!r} {error}") from None


def time_or_never(record: Mapping[str, Any], name: str, unit: str, where: str) -> int:
    """The same, NEVER where the field is null or not there."""
    return NEVER if record.get(name) is None else time_of(record, name, unit, where)


def part_of(record: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """An object within an object; an absent or null one is empty."""
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{where}: {name}={str(value)[:40]!r} is no object; was the log edited?")
    return value
