"""What `vegeta encode --to json` or `--to csv` writes: one result a line.

vegeta sends at a rate and does not log when a request was due: `timestamp` is when it was sent.
Give the rate to have the schedule back.

Source: https://github.com/tsenart/vegeta#encode-command, lib/results.go
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Final

from loadtest.recordings.fields import time_of
from loadtest.recordings.galley_log import json_object
from loadtest.recordings.rows import Recording, Rows
from loadtest.recordings.values import Unreadable, is_of_generator, nanoseconds
from serving.errors import InputError
from serving.judge.run import NEVER

CSV_CELLS: Final = (9, 12)
"""Cells of a line before and since requests and headers are in it."""


def read_json(lines: Iterator[bytes], where: str) -> Recording:
    """The results of an attack, as JSON lines.

    Raises:
        InputError: naming line, field, value, rule and fix.
    """
    rows = Rows()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        here = f"{where}:{number}"
        result = json_object(line, here)
        start = time_of(result, "timestamp", "at", here)
        took = time_of(result, "latency", "ns", here)
        _add(rows, start, took, result.get("code"), str(result.get("error") or ""), here)
    return Recording(rows.run(scheduled=False), "vegeta JSON")


def read_csv(lines: Iterable[str], where: str) -> Recording:
    """The same as CSV: timestamp in ns, code, latency in ns, bytes out, bytes in, error, ...

    Raises:
        InputError: naming line, column, value, rule and fix.
    """
    rows = Rows()
    # Bodies and headers of answers are in the cells.
    csv.field_size_limit(1 << 28)
    reader = csv.reader(lines)
    for row in reader:
        here = f"{where}:{reader.line_num}"
        if not row:
            continue
        if len(row) not in CSV_CELLS:
            raise InputError(
                f"{here}: has {len(row)} cells, vegeta writes {CSV_CELLS[-1]}; was the line cut "
                "off?"
            )
        start, took = (_cell(row[n], name, here) for n, name in ((0, "timestamp"), (2, "latency")))
        code = row[1]
        _add(rows, start, took, int(code) if code.isdecimal() else None, row[5], here)
    return Recording(rows.run(scheduled=False), "vegeta CSV")


def _cell(text: str, name: str, where: str) -> int:
    try:
        return nanoseconds(text, 0)
    except Unreadable as error:
        raise InputError(f"{where}: {name}={text[:40]!r} {error}") from None


def _add(rows: Rows, start: int, took: int, code: object, error: str, where: str) -> None:
    if not isinstance(code, int):
        raise InputError(f"{where}: code={code!r} is no HTTP status; was the log edited?")
    if is_of_generator(error):
        rows.add(False, start, NEVER, NEVER)
    else:
        rows.add(200 <= code <= 399 and not error, start, start, start + took)
