"""`read_recording`: a file in any format that is known, told apart by what is in it.

What cannot be told apart for certain is refused with the formats to choose from.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Literal, cast, get_args

import orjson

from loadtest.recordings import aiperf, galley_log, guidellm, k6, vegeta
from loadtest.recordings.rows import Recording, Rows
from serving.errors import InputError

Format = Literal["csv", "jsonl", "k6", "vegeta-json", "vegeta-csv", "guidellm", "aiperf"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
FIRST: Final = 1 << 20


def read_recording(
    path: Path, log_format: Format | None = None, benchmark: int | None = None
) -> Recording:
    """The requests that a file holds; gzip is unpacked on the way.

    Raises:
        InputError: naming file, line, field, value, rule and fix.
    """
    if not path.is_file():
        raise InputError(f"{path}: is no file; give the log of a run")
    try:
        with _opened(path) as file:
            start = file.read(FIRST)
        if not start.strip():
            return Recording(Rows().run(scheduled=True), "nothing", ("the file is empty",))
        chosen = log_format or _format_of(start, path)
        with _opened(path) as file:
            return _read(chosen, file, path.name, benchmark)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path.name}: cannot be unpacked ({error}); give the whole file, or pack it again"
        ) from None


def _read(chosen: Format, file: IO[bytes], where: str, benchmark: int | None) -> Recording:
    lines: Iterator[bytes] = iter(file)
    if chosen == "guidellm":
        return guidellm.read(_document(file, where), where, benchmark)
    if benchmark is not None:
        raise InputError(
            f"{where}: --benchmark is for GuideLLM's reports, this is {chosen}; omit it"
        )
    if chosen in ("csv", "vegeta-csv"):
        reader = galley_log.read_csv if chosen == "csv" else vegeta.read_csv
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                return reader(text, where)
        except UnicodeDecodeError:
            raise InputError(f"{where}: is no UTF-8 text; write the log as UTF-8") from None
        except csv.Error as error:
            raise InputError(f"{where}: is no CSV ({error}); quote it right") from None
    readers = {
        "jsonl": galley_log.read_json_lines,
        "k6": k6.read,
        "vegeta-json": vegeta.read_json,
        "aiperf": aiperf.read,
    }
    return readers[chosen](lines, where)


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb")


def _document(file: IO[bytes], where: str) -> dict[str, Any]:
    try:
        document = orjson.loads(file.read())
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: is no JSON ({error}); give the whole report") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: is no JSON object; give the whole report")
    return document


def _format_of(start: bytes, path: Path) -> Format:
    first = start.lstrip().splitlines()[0]
    if b"\0" in first:
        raise InputError(
            f"{path.name}: is not text; of vegeta's own files make some with "
            "`vegeta encode --to json`"
        )
    if first.startswith((b"{", b"[")):
        return _json_format(first, start, path)
    text = first.decode("utf-8-sig", errors="replace")
    cells = [cell.strip('" ') for cell in text.split(",")]
    if len(cells) in vegeta.CSV_CELLS and cells[0].isdecimal() and cells[2].isdecimal():
        return "vegeta-csv"
    if cells[:2] == ["metric_name", "timestamp"]:
        raise InputError(
            f"{path.name}: is k6's CSV, whose times are whole seconds; run k6 with --out json=FILE"
        )
    if cells[:3] == ["Type", "Name", "Request Count"]:
        raise InputError(
            f"{path.name}: is Locust's statistics, whose times are rounded and summed up; give a "
            "log of single requests"
        )
    return "csv"


def _json_format(first: bytes, start: bytes, path: Path) -> Format:
    try:
        record = orjson.loads(first)
    except orjson.JSONDecodeError:
        # A document over many lines, or one longer than was read.
        if b'"benchmarks"' in start:
            return "guidellm"
        raise _unknown(path, "its first line is no whole JSON object") from None
    if not isinstance(record, dict):
        raise _unknown(path, "its first line is no JSON object")
    keys = set(record)
    if "benchmarks" in keys:
        return "guidellm"
    if {"type", "metric", "data"} <= keys:
        return "k6"
    if {"metadata", "metrics"} <= keys:
        return "aiperf"
    if {"timestamp", "latency", "code"} <= keys:
        return "vegeta-json"
    if "status" in keys or any(str(key).startswith("start") for key in keys):
        return "jsonl"
    raise _unknown(path, f"an object with {', '.join(sorted(map(str, keys)))[:120]}")


def _unknown(path: Path, why: str) -> InputError:
    return InputError(
        f"{path.name}: is in no format that is known ({why}); say which with --format: "
        f"{', '.join(FORMATS)}"
    )
