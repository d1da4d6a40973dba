"""A trace: when requests came, in a text file or a log of requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from serving.errors import InputError
from serving.judge.run import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST: Final = 20_000_000
"""Arrivals of one run: 160 MB, and two hours at 2,500 a second."""


def bounded(requests: float) -> float:
    """As many requests, if one run can hold them.

    Raises:
        InputError: it cannot.
    """
    if not requests <= MOST:
        raise InputError(
            f"the schedule would hold {requests:,.0f} requests; one run holds at most {MOST:,}, so "
            "lower the rate or the time"
        )
    return requests


def read_trace(path: Path) -> NDArray[np.float64]:
    """Seconds since the first moment, in order.

    Raises:
        InputError: the file is no trace.
    """
    if not path.is_file():
        raise InputError(
            f"trace={path}: is no file; give the path as seen from the workload's file"
        )
    try:
        found = _moments_in(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"trace={path}: cannot be read ({error}); give a text file") from None
    if not len(found):
        raise InputError(f"trace={path}: holds no moments; write one in seconds a line")
    since: NDArray[np.float64] = found - found[0]
    return since


def _moments_in(path: Path) -> NDArray[np.float64]:
    found: list[float] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            word = line.split("#", 1)[0].strip()
            if not word:
                continue
            try:
                moment = float(word)
            except ValueError:
                if not found:
                    return _moments_logged(path)
                raise InputError(
                    f"trace={path}: line {number} is {word[:40]!r}; write a moment in seconds"
                ) from None
            if not math.isfinite(moment) or (found and moment < found[-1]):
                raise InputError(
                    f"trace={path}: line {number} is {word[:40]!r}, which does not go on in time; "
                    "sort the moments"
                )
            found.append(moment)
            bounded(len(found))
    return np.array(found, dtype=np.float64)


def _moments_logged(path: Path) -> NDArray[np.float64]:
    """When the requests of a log were due; a log is written as they end, not as they come."""
    from loadtest.recordings.reading import read_recording

    try:
        run = read_recording(path).run
    except InputError as error:
        raise InputError(
            f"trace={path}: holds no moments in seconds, and as a log of requests: {error}"
        ) from None
    bounded(len(run))
    due = np.sort(run.intended[run.intended != NEVER])
    # Taken from each other as whole numbers: a date in nanoseconds is too long for a float.
    since: NDArray[np.float64] = (due - due[:1]) / 1e9
    return since
