"""`Records`: what the load generator wrote down of each request; a file of rows of 64 bytes.

Times are whole nanoseconds after the start of the run, NEVER for what did not happen. Rows come in
the order in which requests ended, from all workers, and are appended while a run goes on, so that
whoever follows the file sees whole rows up to the moment.
"""

from __future__ import annotations

import csv
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from serving.errors import InputError
from serving.judge.run import NEVER, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadtest.schedule import Schedule

FORMAT: Final = struct.Struct("<qqqqqIIIIhHBB2x")
"""A row as a worker packs it: the fields of ROW in their order."""

ROW: Final = np.dtype(
    {
        "names": [
            *("intended", "sent", "first", "ended", "inter_token"),
            *("position", "in_flight", "tokens", "size_bytes", "status", "worker", "ok", "cached"),
        ],
        "formats": [*("<i8",) * 5, *("<u4",) * 4, "<i2", "<u2", "u1", "u1"],
        "itemsize": FORMAT.size,
    }
)

CONNECTION, TIMEOUT, MALFORMED, DROPPED, BROKEN, GENERATOR, OPEN = -1, -2, -3, -4, -5, -6, -7

WORDS: Final[Mapping[int, str]] = MappingProxyType(
    {
        CONNECTION: "connection_error",
        TIMEOUT: "timeout",
        MALFORMED: "malformed",
        DROPPED: "dropped",
        BROKEN: "broken_stream",
        GENERATOR: "generator_error",
        OPEN: "open",
    }
)
"""What a status below 0 means; from 100 on it is HTTP's own, and gRPC's codes stand at 1000."""

GRPC: Final = 1000

COLUMNS: Final = (
    *("position", "phase", "intended_start_ns", "start_ns", "end_ns", "status"),
    *("first_token_ns", "inter_token_latency_ns", "in_flight", "tokens", "cached", "worker"),
)
"""The columns of the CSV file, as `galley judge` reads them."""


def word_of(status: int) -> str:
    """A status in the words of a report.

    >>> word_of(503), word_of(-2), word_of(1014)
    ('503', 'timeout', 'grpc 14')
    """
    if status >= GRPC:
        return f"grpc {status - GRPC}"
    return WORDS.get(status, str(status))


@dataclass(frozen=True)
class Records:
    """All rows of a run.

    Attributes:
        rows: a structured array of `ROW`, in any order.
    """

    rows: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def read(cls, path: Path) -> Records:
        """The whole rows that the file holds by now; none where there is no file yet."""
        if not path.exists():
            return cls(np.empty(0, dtype=ROW))
        data = path.read_bytes()
        return cls(np.frombuffer(data[: len(data) - len(data) % ROW.itemsize], dtype=ROW))

    def measured(self, schedule: Schedule, until: int | None = None) -> Records:
        """Rows of requests that were due in the measured window, and before `until`."""
        due = self.rows["intended"]
        last = schedule.until if until is None else min(until, schedule.until)
        return Records(self.rows[(due >= schedule.warmup_until) & (due < last)])

    def in_order(self) -> Records:
        """The same rows by their place in the schedule."""
        return Records(self.rows[np.argsort(self.rows["position"], kind="stable")])

    def of_worker(self, worker: int) -> Records:
        """The rows that one worker wrote."""
        return Records(self.rows[self.rows["worker"] == worker])

    def workers(self) -> tuple[int, ...]:
        """The workers that wrote any."""
        return tuple(int(worker) for worker in np.unique(self.rows["worker"]))

    def run(self, observed_until: int, *, tokens: bool = False) -> Run:
        """The rows as the judge takes them.

        A worker knows only of its own open requests, so their number is given where there is one.

        Args:
            observed_until: last moment at which an answer would have been seen, ns.
            tokens: whether answers came token by token.
        """
        rows = self.rows
        alone = len(self.workers()) == 1
        # A request that was still open has no end; one that was never sent has no start either.
        return Run(
            intended=_own(rows["intended"]),
            sent=_own(rows["sent"]),
            ended=_own(rows["ended"]),
            ok=rows["ok"].astype(bool),
            scheduled=True,
            observed_until=observed_until,
            first_token=_own(rows["first"]) if tokens else None,
            inter_token=_own(rows["inter_token"]) if tokens else None,
            in_flight=rows["in_flight"].astype(np.int64) if alone else None,
        )

    def outcomes(self) -> dict[str, int]:
        """How many requests ended in which way, by word, most frequent first."""
        statuses = np.where(
            (self.rows["status"] == 200) & (self.rows["ok"] == 0), MALFORMED, self.rows["status"]
        )
        found, counts = np.unique(statuses, return_counts=True)
        pairs = sorted(zip(counts.tolist(), found.tolist(), strict=True), reverse=True)
        return {word_of(status): count for count, status in pairs}

    @property
    def cache_hit_ratio(self) -> float | None:
        """Share of the good answers that came from a cache; None where there were none."""
        good = self.rows["ok"] == 1
        return float(self.rows["cached"][good].mean()) if good.any() else None

    def write_csv(self, path: Path, schedule: Schedule) -> None:
        """A log that anybody can read, and that `galley judge` judges to the same verdict."""
        with path.open("w", newline="", encoding="ascii") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in self.in_order().rows:
                warmup = row["intended"] < schedule.warmup_until
                status = int(row["status"])
                writer.writerow(
                    (
                        row["position"],
                        "warmup" if warmup else "measured",
                        *(_cell(row[name]) for name in ("intended", "sent", "ended")),
                        "ok" if row["ok"] else _csv_word(status),
                        *(_cell(row[name]) for name in ("first", "inter_token")),
                        row["in_flight"],
                        row["tokens"],
                        row["cached"],
                        row["worker"],
                    )
                )


def _own(column: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(column, dtype=np.int64)


def _cell(value: Any) -> str:
    return "" if value == NEVER else str(value)


_CSV_WORDS: Final[Mapping[int, str]] = MappingProxyType({CONNECTION: "error", BROKEN: "broken"})


def _csv_word(status: int) -> str:
    """The status in the words that `galley judge` knows; a bad answer with 200 is an error."""
    if 200 <= status < 400 or status >= GRPC:
        return "error"
    return _CSV_WORDS.get(status, word_of(status))


def append(path: Path, rows: bytes) -> None:
    """Add rows to the end of the file.

    Raises:
        InputError: for bytes that are not whole rows.
    """
    if len(rows) % ROW.itemsize:
        raise InputError(f"records: {len(rows)} bytes are no whole rows of {ROW.itemsize} bytes")
    with path.open("ab") as file:
        file.write(rows)
