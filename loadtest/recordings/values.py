"""Cells of a log: times in a unit that their column names, and how a request ended.

Times become whole nanoseconds without passing through floating point: a 19-digit stamp has more
digits than a float holds, and a limit must be compared exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

from serving.judge.run import NEVER

UNITS: Final = {"ns": 0, "us": 3, "ms": 6, "seconds": 9}
"""Decimal places from a unit to nanoseconds."""

GOOD: Final = ("ok", "true", "success")
BAD: Final = (
    *("error", "failed", "false", "timeout", "cancelled", "refused", "reset"),
    *("broken", "malformed", "dropped", "generator_error", "open", ""),
)
OF_GENERATOR: Final = ("too many open files", "cannot assign requested address", "no buffer space")
"""What a system says to a client that has run out of something; the server never heard of it."""
MOST_NS: Final = NEVER // 4
DIGITS: Final = 20


class Unreadable(ValueError):
    """A cell that says nothing; its text is the rule and the fix."""


def nanoseconds(text: str, places: int) -> int:
    """A decimal number of a unit as nanoseconds; digits beyond them are cut off.

    >>> nanoseconds("1733040000.123456789", UNITS["seconds"]) % 10**9, nanoseconds("1.5", 6)
    (123456789, 1500000)

    Raises:
        Unreadable: for what is no finite number.
    """
    whole, _, fraction = text.partition(".")
    # The quick way of nearly every cell; anything else is looked at more closely.
    if text.isascii() and whole.isdecimal() and (fraction.isdecimal() or not fraction):
        return _within(int(whole + fraction[:places].ljust(places, "0")))
    try:
        number = Decimal(text.strip() if text.isascii() and "_" not in text else "")
    except InvalidOperation:
        raise Unreadable("is no number; give one, or leave it empty for what never came") from None
    if not number.is_finite():
        raise Unreadable("is not finite; leave it empty for what never came")
    # A power of ten that no date has would first become a number of as many digits.
    return _within(int(number.scaleb(places)) if number.adjusted() < DIGITS else MOST_NS)


def nanoseconds_of(number: object, places: int) -> int:
    """The same for a number from JSON."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise Unreadable("is no number; give one, or null for what never came")
    if isinstance(number, int):
        return _within(number * 10**places)
    if not math.isfinite(number):
        raise Unreadable("is not finite; give null for what never came")
    return nanoseconds(repr(number), places)


def _within(value: int) -> int:
    if not -MOST_NS < value < MOST_NS:
        raise Unreadable("is beyond the year 2040; check the unit in the column's name")
    return value


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)")


def moment(text: str) -> int:
    """An RFC 3339 time as nanoseconds since 1970.

    >>> moment("2024-12-01T08:00:00.000000001Z"), moment("2024-12-01T09:00:00+01:00")
    (1733040000000000001, 1733040000000000000)

    Raises:
        Unreadable: for anything else, times without a zone among them.
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise Unreadable("is no RFC 3339 time with its zone, such as 2026-01-31T08:00:00.123Z")
    second, fraction, zone = found.groups()
    try:
        return _second(second + zone) * 10**9 + int((fraction or "").ljust(9, "0"))
    except ValueError:
        raise Unreadable("is no date of the calendar; check how it was written") from None


@lru_cache(maxsize=4096)
def _second(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def went_well(status: str) -> bool:
    """Whether a request with this status was answered well.

    `ok`, or an HTTP status from 200 to 399. Words that are not known are refused: taken either way
    they would decide the verdict.

    Raises:
        Unreadable: for such a word.
    """
    word = status.strip().lower()
    if word in GOOD:
        return True
    if word in BAD:
        return False
    try:
        return 200 <= int(word) <= 399
    except ValueError:
        raise Unreadable(
            f"is no known status; use an HTTP status, {', '.join(GOOD)}, or "
            f"{', '.join(word for word in BAD if word)}"
        ) from None


def is_of_generator(error: str) -> bool:
    """Whether an error is the load generator's own: the request was never sent.

    >>> is_of_generator("dial tcp 0.0.0.0:0->127.0.0.1:8000: socket: too many open files")
    True
    """
    return any(words in error.lower() for words in OF_GENERATOR)


class Memory(dict[str, bool]):
    """Statuses already seen; a log has few of them."""

    def __missing__(self, status: str) -> bool:
        self[status] = answer = went_well(status)
        return answer


def reader_of(unit: str) -> Callable[[str], int]:
    """How a cell in this unit is read; `at` is an RFC 3339 time."""
    if unit == "at":
        return moment
    places = UNITS[unit]
    return lambda text: nanoseconds(text, places)
