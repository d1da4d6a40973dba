"""Galley's own log of requests, as CSV or JSON lines. `columns` says what is in it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import orjson

from loadtest.recordings.columns import Column, columns_of
from loadtest.recordings.rows import Recording, Rows
from loadtest.recordings.values import (
    Memory,
    Unreadable,
    reader_of,
)
from serving.errors import InputError
from serving.judge.run import NEVER

CHUNK: Final = 50_000
T = TypeVar("T")


def read_csv(lines: Iterable[str], where: str) -> Recording:
    """A CSV file with a header.

    Raises:
        InputError: naming line, column, value, rule and fix.
    """
    reader = csv.reader(lines, strict=True)
    try:
        titles = next(reader, None)
        if titles is None:
            return Recording(Rows().run(scheduled=True), "CSV", ("the file is empty",))
        columns, ignored = columns_of(titles, where)
        taker = _Taker(columns, where, {title.strip(): n for n, title in enumerate(titles)})
        while True:
            first = reader.line_num + 1
            chunk = list(islice(reader, CHUNK))
            if not chunk:
                break
            taker.take(chunk, first)
    except csv.Error as error:
        raise InputError(
            f"{where}:{reader.line_num}: is no CSV ({error}); quote it right"
        ) from None
    return taker.recording("CSV", ignored)


def read_json_lines(lines: Iterator[bytes], where: str) -> Recording:
    """One JSON object a line; the first one says which columns there are.

    Raises:
        InputError: naming line, column, value, rule and fix.
    """
    taker: _Taker | None = None
    ignored: tuple[str, ...] = ()
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    while chunk := list(islice(numbered, CHUNK)):
        objects = [(number, json_object(line, f"{where}:{number}")) for number, line in chunk]
        if taker is None:
            columns, ignored = columns_of(list(objects[0][1]), where)
            titles = {column.title: n for n, column in enumerate(columns.values())}
            taker = _Taker(columns, where, titles)
        names = list(taker.places)
        taker.take(
            [[_cell(one.get(name)) for name in names] for _, one in objects],
            [number for number, _ in objects],
        )
    if taker is None:
        return Recording(Rows().run(scheduled=True), "JSON lines", ("the file is empty",))
    return taker.recording("JSON lines", ignored)


def json_object(line: bytes, where: str) -> dict[str, Any]:
    """The object on a line.

    Raises:
        InputError: for anything else; NaN is no JSON.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"{where}: {line[:60]!r} is no JSON ({error}); write one whole object a line"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: {line[:60]!r} is no object; write one whole object a line")
    return value


def _cell(value: object) -> str:
    """A JSON value as the text that CSV would have; numbers keep all of their digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


_OPEN = ("open", "")
_NOT_SENT = ("dropped", "generator_error")
_PHASES = {"warmup": False, "measured": True}
_COLUMNS: Mapping[str, str] = {
    "intended_start": "intended",
    "start": "sent",
    "end": "ended",
    "first_token": "first_token",
    "inter_token_latency": "inter_token",
    "latency": "service",
    "in_flight": "in_flight",
}


class _Taker:
    """Turns chunks of cells into columns; slow only where something is wrong."""

    def __init__(
        self, columns: Mapping[str, Column], where: str, places: Mapping[str, int]
    ) -> None:
        self.columns, self.where, self.places = columns, where, places
        self.statuses = Memory()
        self.rows = Rows(_COLUMNS[name] for name in columns if name in _COLUMNS)

    def take(self, chunk: list[list[str]], lines: int | Sequence[int]) -> None:
        numbers = range(lines, lines + len(chunk)) if isinstance(lines, int) else lines
        kept = self._measured(self._whole(zip(numbers, chunk, strict=True)))
        if not kept:
            return
        numbers = [number for number, _ in kept]
        by_place = list(zip(*(row for _, row in kept), strict=True))
        texts = {name: by_place[self.places[column.title]] for name, column in self.columns.items()}
        ok = self._each("status", texts["status"], numbers, self.statuses.__getitem__)
        values = {
            _COLUMNS[name]: self._values(name, texts[name], numbers)
            for name in texts
            if name in _COLUMNS
        }
        _complete(values, texts["status"], ok)
        self._moments_are_there(values, texts, numbers, ok)
        self.rows.extend(ok, values)

    def _whole(self, rows: Iterable[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        width = len(self.places)
        # A blank line at the end of a CSV file is no request.
        kept = [(number, row) for number, row in rows if row]
        for number, row in kept:
            if len(row) != width:
                raise InputError(
                    f"{self.where}:{number}: has {len(row)} cells and the header {width}; was the "
                    "line cut off?"
                )
        return kept

    def _measured(self, rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        if "phase" not in self.columns:
            return rows
        place = self.places["phase"]
        for number, row in rows:
            if row[place] not in _PHASES:
                raise InputError(
                    f"{self.where}:{number}: phase={row[place]!r} is not known; use "
                    f"{' or '.join(_PHASES)}"
                )
        return [(number, row) for number, row in rows if _PHASES[row[place]]]

    def _values(self, name: str, texts: Sequence[str], numbers: Sequence[int]) -> list[int]:
        unit = self.columns[name].unit
        read = reader_of(unit) if unit else _whole_number
        return self._each(name, texts, numbers, lambda text: read(text) if text else NEVER)

    def _each(
        self, name: str, texts: Sequence[str], numbers: Sequence[int], read: Callable[[str], T]
    ) -> list[T]:
        try:
            return [read(text) for text in texts]
        except Unreadable:
            for number, text in zip(numbers, texts, strict=True):
                self._one(name, number, text, read)
            raise

    def _one(self, name: str, number: int, text: str, read: Callable[[str], object]) -> None:
        try:
            read(text)
        except Unreadable as error:
            title = self.columns[name].title
            raise InputError(f"{self.where}:{number}: {title}={text[:40]!r} {error}") from None

    def _moments_are_there(
        self,
        values: Mapping[str, Sequence[int]],
        texts: Mapping[str, Sequence[str]],
        numbers: Sequence[int],
        ok: Sequence[bool],
    ) -> None:
        for place, due in enumerate(values["intended"]):
            if due == NEVER:
                named = "intended_start" if "intended_start" in texts else "start"
                raise InputError(
                    f"{self.where}:{numbers[place]}: {self.columns[named].title} is empty, so "
                    "nobody knows when the request was due; give the time, also for one that was "
                    "dropped"
                )
            if ok[place] and NEVER in (values["sent"][place], values["ended"][place]):
                raise InputError(
                    f"{self.where}:{numbers[place]}: status={texts['status'][place]!r} says that "
                    "it was answered well, yet its start or end is empty; give both, or another "
                    "status"
                )

    def recording(self, log_format: str, ignored: Sequence[str]) -> Recording:
        notes = (f"columns not used: {', '.join(ignored)}",) if ignored else ()
        return Recording(
            self.rows.run(scheduled="intended_start" in self.columns), log_format, notes
        )


def _complete(values: dict[str, list[int]], statuses: Sequence[str], ok: Sequence[bool]) -> None:
    """Add the times that follow from the others."""
    if "ended" not in values:
        values["ended"] = [
            NEVER if NEVER in (sent, took) else sent + took
            for sent, took in zip(values["sent"], values["service"], strict=True)
        ]
    if "intended" not in values:
        values["intended"] = list(values["sent"])
    sent, ended = values["sent"], values["ended"]
    for place, good in enumerate(ok):
        if good:
            continue
        word = statuses[place].strip().lower()
        if word in _NOT_SENT:
            sent[place] = ended[place] = NEVER
        elif ended[place] == NEVER and word not in _OPEN:
            # It is known to have failed and not when; only what is open may still turn out well.
            ended[place] = sent[place]


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise Unreadable("is no whole number; count the requests that were open")
    return int(text)
