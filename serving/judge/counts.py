"""`Counts`: how many of the attempted requests were bad, the only thing a verdict rests on.

Every promise becomes bad-of-attempted: a quantile of latency (bad: slower than the limit, or not
answered well) and an error ratio (bad: not answered well) alike. Counts are exact at the limit,
parts add up to the whole, and failures need no place in a percentile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serving.errors import InputError


@dataclass(frozen=True, slots=True)
class Counts:
    """Of `attempted` requests `bad` were certainly bad, and of `unknown` more nobody can say.

    Unknown are requests still open when watching stopped and younger than the limit, and times that
    were recorded too coarsely to tell on which side of the limit they fall. They are taken as bad
    where PASS is asked for and as good where FAIL is.

    Raises:
        InputError: for numbers that no run can have, NaN among them.
    """

    attempted: int
    bad: int
    unknown: int = 0

    def __post_init__(self) -> None:
        for name in ("attempted", "bad", "unknown"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InputError(
                    f"counts: {name}={value} is no count; give a whole number, 0 or more"
                )
        if self.most > self.attempted:
            raise InputError(
                f"counts: bad={self.bad} and unknown={self.unknown} are more than "
                f"attempted={self.attempted}; every bad request was attempted, count it there too"
            )

    @property
    def most(self) -> int:
        """Bad requests at most: all unknown ones taken as bad."""
        return self.bad + self.unknown

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.attempted + other.attempted,
            self.bad + other.bad,
            self.unknown + other.unknown,
        )


def total(parts: Iterable[Counts]) -> Counts:
    """The whole that the parts (workers, windows, repetitions) make.

    >>> total([Counts(100, 1), Counts(900, 2)])
    Counts(attempted=1000, bad=3, unknown=0)
    """
    return sum(parts, Counts(0, 0))
