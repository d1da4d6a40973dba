"""Which columns a log has, and in which unit; a name without its unit is refused.

    intended_start_<unit>        when the schedule wanted it sent
    start_<unit>                 when it was sent; empty: never (dropped)
    end_<unit>                   when its answer was complete or it failed; empty: still open, or
                                 failed at a time that is not known, as status says
    latency_<unit>               time from start to end; instead of end, or by a second clock
    status                       ok, an HTTP status, or a word for what went wrong; dropped and
                                 generator_error say that the server was never asked
    first_token_<unit>           when the first token came; empty: never
    inter_token_latency_<unit>   mean time between tokens; 0 for one token
    in_flight                    requests that the sender counted as open just before this one
    phase                        warmup or measured; warm-up is left out

A unit is ns, us, ms or seconds since any zero that the columns share; `_at` is an RFC 3339 time.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.recordings.values import UNITS
from serving.errors import InputError

MOMENTS: Final = ("intended_start", "start", "end", "first_token")
DURATIONS: Final = ("latency", "inter_token_latency")
PLAIN: Final = ("status", "in_flight", "phase")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the log: its own name, what it holds, and its unit ("" where it has none)."""

    title: str
    holds: str
    unit: str


def known_titles() -> tuple[str, ...]:
    """Every name that a column may have."""
    units = tuple(UNITS)
    return (
        *(f"{name}_{unit}" for name in MOMENTS for unit in (*units, "at")),
        *(f"{name}_{unit}" for name in DURATIONS for unit in units),
        *PLAIN,
    )


def columns_of(titles: Sequence[str], where: str) -> tuple[dict[str, Column], tuple[str, ...]]:
    """The columns of a log by what they hold, and the titles that mean nothing here.

    Raises:
        InputError: for a missing unit, a column that is there twice or nearly right, or one that
            is needed and not there.
    """
    found: dict[str, Column] = {}
    ignored = []
    for title in titles:
        column = _column(title.strip(), where)
        if column is None:
            ignored.append(title)
        elif column.holds in found:
            raise InputError(
                f"{where}: {title} and {found[column.holds].title} are the same column twice; "
                "keep one"
            )
        else:
            found[column.holds] = column
    _complete(found, titles, where)
    return found, tuple(ignored)


def _column(title: str, where: str) -> Column | None:
    if title in PLAIN:
        return Column(title, title, "")
    holds, _, unit = title.rpartition("_")
    if title in known_titles():
        return Column(title, holds, unit)
    if title in (*MOMENTS, *DURATIONS):
        raise InputError(
            f"{where}: column {title} does not say its unit; name it {title}_ms, or with "
            f"{', '.join(UNITS)} (or {title}_at for RFC 3339 times)"
        )
    near = difflib.get_close_matches(title, known_titles(), n=1, cutoff=0.85)
    if near:
        raise InputError(f"{where}: column {title} is not known; is it {near[0]}?")
    return None


def _complete(found: dict[str, Column], titles: Sequence[str], where: str) -> None:
    missing = [name for name in ("start", "status") if name not in found]
    if "end" not in found and "latency" not in found:
        missing.append("end")
    if missing:
        raise InputError(
            f"{where}: columns {', '.join(titles)[:200]} lack {', '.join(missing)}; a log needs "
            "start_<unit>, end_<unit> or latency_<unit>, and status, with ns, us, ms or seconds "
            "for the unit (see `galley judge --help`)"
        )
    zeros = {found[name].unit == "at" for name in MOMENTS if name in found}
    if len(zeros) > 1:
        raise InputError(
            f"{where}: some times are RFC 3339 and some are numbers, whose zero nobody knows; "
            "write all of them in one way"
        )
