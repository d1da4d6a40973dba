"""From the rows of a run to percentiles and series.

Percentiles are shown, never judged: verdicts rest on exact counts. They come from HDR histograms in
microseconds with three digits, whose upper edges are shown, so that nothing looks faster than it
was. Failed requests are slower than everything; what the histogram cannot hold counts as such, and
is not dropped silently as the library would.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hdrh.histogram import HdrHistogram

from loadtest.report.report import Second
from serving.judge.run import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loadtest.records import Records
    from loadtest.schedule import Schedule
    from loadtest.server_stats import Sample

    Times = NDArray[np.int64]

MOST_US: Final = 3_600_000_000
SHOWN: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
CDF_POINTS: Final = 240
MOST_SLICES: Final = 240


class Histogram:
    """Times of attempted requests; every one is in it, or in its overflow."""

    def __init__(self) -> None:
        self._held = HdrHistogram(1, MOST_US, 3)
        self.overflow = 0

    def record(self, nanoseconds: Times) -> None:
        """Add times; NEVER and what is beyond an hour go to the overflow."""
        for value, count in zip(*np.unique(nanoseconds // 1000, return_counts=True), strict=True):
            # Rounded up to what the unit can hold: 0 µs is not a time.
            fits = (
                self._held.record_value(max(int(value), 1), int(count)) if value <= MOST_US else 0
            )
            if not fits:
                self.overflow += int(count)

    @property
    def count(self) -> int:
        """All that was recorded."""
        return int(self._held.get_total_count()) + self.overflow

    def quantile_ms(self, quantile: float) -> float | None:
        """The upper edge of the bucket that holds it; None where it never came or there is none."""
        rank = max(math.ceil(quantile * self.count - 1e-9), 1)
        inside = int(self._held.get_total_count())
        if not self.count or rank > inside:
            return None
        value = self._held.get_value_at_percentile(100.0 * rank / inside)
        return float(self._held.get_highest_equivalent_value(int(value))) / 1e3


def latencies(records: Records) -> Times:
    """From when each was due to its answer; NEVER where it was not answered well."""
    rows = records.rows
    good = (rows["ok"] == 1) & (rows["ended"] != NEVER)
    return np.where(good, rows["ended"] - rows["intended"], NEVER)


def services(records: Records) -> Times:
    """The same from the moment of sending."""
    rows = records.rows
    good = (rows["ok"] == 1) & (rows["ended"] != NEVER) & (rows["sent"] != NEVER)
    return np.where(good, rows["ended"] - rows["sent"], NEVER)


def percentiles_ms(times: Times) -> dict[str, float | None]:
    """The percentiles that a report shows."""
    histogram = Histogram()
    histogram.record(times)
    return {name: histogram.quantile_ms(quantile) for name, quantile in SHOWN.items()}


def token_percentiles_ms(records: Records) -> dict[str, dict[str, float | None]]:
    """Of the first token, from when the request was due, and of the time between tokens."""
    rows = records.rows
    good = rows["ok"] == 1
    first = np.where(good & (rows["first"] != NEVER), rows["first"] - rows["intended"], NEVER)
    between = np.where(good, rows["inter_token"], NEVER)
    return {
        "time to first token": percentiles_ms(first),
        "inter-token latency": percentiles_ms(between),
    }


def cdf_of(times: Times) -> tuple[tuple[float, float], ...]:
    """(share, ms) at shares that are even on the scale of nines, as far as answers came."""
    size = len(times)
    if not size:
        return ()
    ordered = np.sort(times)
    nines = np.linspace(0.0, math.log10(max(size, 2)), CDF_POINTS)
    ranks = np.unique(np.clip(np.ceil((1 - 10.0**-nines) * size).astype(int), 1, size))
    return tuple(
        (float(rank) / size, float(ordered[rank - 1]) / 1e6)
        for rank in (*ranks.tolist(), size)
        if ordered[rank - 1] != NEVER
    )


def series_of(
    records: Records, schedule: Schedule, until: int, samples: Sequence[Sample] = ()
) -> tuple[Second, ...]:
    """The run in slices of a second or more, in order.

    Args:
        records: all rows, warm-up too.
        schedule: of the run.
        until: end of the run in ns, where it was broken off.
        samples: what the servers said in the meantime.
    """
    end = min(until, schedule.until)
    length = max(1.0, math.ceil(end / 1e9 / MOST_SLICES))
    edges = np.arange(0.0, end / 1e9, length)
    rows = records.in_order().rows
    offered = (
        np.histogram(schedule.intended / 1e9, (*edges, edges[-1] + length))[0]
        if len(edges)
        else np.empty(0)
    )
    return tuple(
        _slice(rows, float(edge), length, int(offered[place]), schedule, samples)
        for place, edge in enumerate(edges)
    )


def _slice(
    rows: NDArray[Any],
    at: float,
    length: float,
    offered: int,
    schedule: Schedule,
    samples: Sequence[Sample],
) -> Second:
    begun, ended = round(at * 1e9), round((at + length) * 1e9)
    first, last = np.searchsorted(rows["intended"], (begun, ended))
    inside = rows[first:last]
    good = inside[inside["ok"] == 1]
    took = good["ended"] - good["intended"]
    said = [one for one in samples if begun <= one.at_ns < ended and one.requests]
    served = sum(one.requests for one in said)
    return Second(
        at_seconds=at,
        seconds=length,
        phase="warmup" if begun < schedule.warmup_until else "measured",
        offered=offered,
        sent=int((inside["sent"] != NEVER).sum()),
        answered=len(good),
        failed=len(inside) - len(good),
        in_flight=_open(rows, begun, ended),
        p50_ms=_quantile(took, 0.5),
        p99_ms=_quantile(took, 0.99),
        queue_ms=_mean([(one.queue_ms, one.requests) for one in said], served),
        compute_ms=_mean([(one.compute_ms, one.requests) for one in said], served),
        batch_size=_mean([(one.batch_size, one.requests) for one in said], served),
    )


def _open(rows: NDArray[Any], begun: int, ended: int) -> float:
    """Mean number of open requests: the time that requests were open, over the time."""
    sent = rows["sent"] != NEVER
    starts, ends = rows["sent"][sent], rows["ended"][sent]
    overlap = np.minimum(ends, ended) - np.maximum(starts, begun)
    return float(np.maximum(overlap, 0).sum()) / (ended - begun)


def _quantile(took: Times, quantile: float) -> float | None:
    if not len(took):
        return None
    rank = max(math.ceil(quantile * len(took)), 1) - 1
    return float(np.partition(took, rank)[rank]) / 1e6


def _mean(weighted: list[tuple[float, int]], total: int) -> float | None:
    return sum(value * weight for value, weight in weighted) / total if total else None
