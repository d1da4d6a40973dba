"""Requests a second over time, and the moments at which they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from serving.errors import InputError

Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Shape = Literal["constant", "day", "step"]

NIGHT_RATIO = 0.1
"""Of the peak, at the quietest hour of a day."""
STEP_AT_RATIO = 0.25
"""Of the time, at which a step goes from a tenth of the peak to all of it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Rates at moments, in seconds; between them the rate lies on a line."""

    seconds: tuple[float, ...]
    rps: tuple[float, ...]

    @property
    def duration_seconds(self) -> float:
        """Until the last moment."""
        return self.seconds[-1]

    def rate(self, second: float) -> float:
        """Requests a second at a moment."""
        return float(np.interp(second, self.seconds, self.rps))


def shaped(shape: Shape, peak_rps: float, hours: float) -> Load:
    """A made-up load.

    >>> day = shaped("day", 2000, 24)
    >>> round(day.rate(0)), round(day.rate(12 * 3600))
    (200, 2000)
    """
    end = hours * 3600
    if shape == "constant":
        return Load((0, end), (peak_rps, peak_rps))
    low = peak_rps * NIGHT_RATIO
    if shape == "step":
        at = end * STEP_AT_RATIO
        return Load((0, at, at + 1e-6, end), (low, low, peak_rps, peak_rps))
    moments = [end * step / 96 for step in range(97)]
    middle, half = (peak_rps + low) / 2, (peak_rps - low) / 2
    rates = [middle - half * math.cos(2 * math.pi * second / 86_400) for second in moments]
    return Load(tuple(moments), tuple(rates))


def read_trace(path: Path) -> Load:
    """A load from a file with `seconds,rps` on each line; a first line of words is passed over.

    Raises:
        InputError: a line says something else, or time does not go on.
    """
    seconds: list[float] = []
    rates: list[float] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}; check the path") from error
    for number, line in enumerate(lines, 1):
        first, _, second = line.partition(",")
        try:
            moment, rate = float(first), float(second)
        except ValueError:
            if number == 1 or not line.strip():
                continue
            raise InputError(
                f"{path}: line {number} is not seconds,rps; write it as 60,1500"
            ) from None
        good = math.isfinite(moment) and 0 <= rate < math.inf
        if not good or moment <= (seconds[-1] if seconds else -1):
            raise InputError(
                f"{path}: line {number} does not go on in time with a rate of 0 or more; "
                "sort it by seconds"
            )
        seconds.append(moment)
        rates.append(rate)
    if len(seconds) < 2:
        raise InputError(f"{path}: has fewer than two moments; give at least a start and an end")
    return Load(tuple(second - seconds[0] for second in seconds), tuple(rates))


def arrivals(load: Load, first: float, end: float, random: np.random.Generator) -> Times:
    """Moments of requests between two moments, in order; Poisson, at the rate in the middle."""
    count = int(random.poisson(load.rate((first + end) / 2) * (end - first)))
    # Sums of exponential gaps, over their total, are sorted uniform numbers.
    sums = np.cumsum(random.standard_exponential(count + 1))
    moments: Any = first + (end - first) * sums[:-1] / sums[-1]
    return np.asarray(moments, dtype=np.float64)
