"""The prediction log: a line for each answer, written behind the requests' backs.

    write(record) ──► a bounded queue ──► a thread, every quarter of a second ──► segment files

A request is never held up and never fails because of its line: what cannot be kept is counted. A
process that is killed loses what the thread has not yet written.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from serving.gateway.prediction.record import Record, line_of
from serving.gateway.prediction.segments import (
    Segment,
    close_abandoned,
    open_segment,
    remove_oldest,
)

MOST_LINES: Final = 20_000
MOST_SAMPLE_BYTES: Final = 16 * 1024 * 1024
SEGMENT_SECONDS: Final = 60.0
SEGMENT_BYTES: Final = 8 * 1024 * 1024
MOST_UNSHIPPED_BYTES: Final = 256 * 1024 * 1024
_EVERY_SECONDS: Final = 0.25
_BATCH_LINES: Final = 64
# Python hands its lock over only when it is let go or after 5 ms; this lets a request go first.
_PAUSE_SECONDS: Final = 0.0005


class PredictionLog:
    """The log of one process. Make it in the process that writes: its thread survives no fork.

    Args:
        folder: where the segments are; made where it is not there.
        name: the process's name, with which its segments begin.
        clock: the time of day in seconds, for the names of segments.
        most_lines: how many lines may wait for the thread.
        most_sample_bytes: how much memory the tensors of waiting lines may hold.
        segment_seconds, segment_bytes: when a segment is full.
        most_unshipped_bytes: what all segments in the folder may take; the oldest make room.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        clock: Callable[[], float] = time.time,
        most_lines: int = MOST_LINES,
        most_sample_bytes: int = MOST_SAMPLE_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
        segment_bytes: int = SEGMENT_BYTES,
        most_unshipped_bytes: int = MOST_UNSHIPPED_BYTES,
    ) -> None:
        self._folder, self._name, self._clock = folder, name, clock
        self._most_lines, self._most_sample_bytes = most_lines, most_sample_bytes
        self._segment_seconds, self._segment_bytes = segment_seconds, segment_bytes
        self._most_unshipped_bytes = most_unshipped_bytes
        self._waiting: deque[Record] = deque()
        self._segment: Segment | None = None
        self._opened = 0.0
        # Each count has one thread that adds to it, so no count needs a lock.
        self._overflowed = self._unwritten = 0
        self._samples_taken = self._samples_done = 0
        self.dropped_samples = 0
        self.removed_segments = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prediction-log", daemon=True)
        with suppress(OSError):
            close_abandoned(folder)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were not kept: too many waited, or the disk refused them."""
        return self._overflowed + self._unwritten

    def write(self, record: Record) -> None:
        """Log an answer. To be called from one thread; never waits and never raises."""
        if len(self._waiting) >= self._most_lines or self._closing.is_set():
            self._overflowed += 1
            return
        if record.inputs is not None or record.outputs is not None:
            size = record.sample_bytes
            if self._samples_taken - self._samples_done + size > self._most_sample_bytes:
                self.dropped_samples += 1
                record = record._replace(inputs=None, outputs=None)
            else:
                self._samples_taken += size
        self._waiting.append(record)

    def close(self) -> None:
        """Write what waits and close the segment; lines that come later are dropped."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_SECONDS):
            while self._write_batch():
                time.sleep(_PAUSE_SECONDS)
            self._close_full(self._segment_seconds)
        while self._write_batch():
            pass
        self._close_full(0)

    def _write_batch(self) -> bool:
        """Write some of what waits; whether there may be more."""
        lines: list[bytes] = []
        while self._waiting and len(lines) < _BATCH_LINES:
            record = self._waiting.popleft()
            if line := _line(record):
                lines.append(line)
            else:
                self._unwritten += 1
            if size := record.sample_bytes:
                self._samples_done += size
                break  # reading tensors took as long as many lines
        if lines:
            try:
                self._current().append(b"".join(lines), len(lines))
            except OSError:
                self._unwritten += len(lines)
        return bool(self._waiting)

    def _current(self) -> Segment:
        if self._segment is not None and self._segment.size_bytes >= self._segment_bytes:
            self._close_full(0)
        if self._segment is None:
            room = self._most_unshipped_bytes - self._segment_bytes
            self.removed_segments += remove_oldest(self._folder, room)
            self._segment = open_segment(self._folder, self._name, self._clock)
            self._opened = time.monotonic()
        return self._segment

    def _close_full(self, seconds: float) -> None:
        """Close the segment if it is that old."""
        if self._segment is None or time.monotonic() - self._opened < seconds:
            return
        segment, self._segment = self._segment, None
        try:
            segment.close()
        except OSError:
            self._unwritten += segment.lines


def _line(record: Record) -> bytes:
    """The record's line, without its tensors where those cannot be told; empty if none can be.

    What a client sent is in it, and nothing that a client sends may end the thread.
    """
    for attempt in (record, record._replace(inputs=None, outputs=None)):
        with suppress(Exception):
            return line_of(attempt)
    return b""
