"""What AIPerf writes to `profile_export.jsonl`: one record a request.

`credit_issued_ns` is when the rate limiter let the request go, `request_start_ns` when it was sent.
With a fixed concurrency credits are issued as answers come in: the judge sees that in the times.

Source: aiperf 0.13.0, common/models/record_models.py (MetricRecordInfo, MetricRecordMetadata)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from loadtest.recordings.fields import part_of, time_of, time_or_never
from loadtest.recordings.galley_log import json_object
from loadtest.recordings.rows import Recording, Rows
from serving.errors import InputError
from serving.judge.run import NEVER, Run

UNITS: Final = {"ns": "ns", "us": "us", "ms": "ms", "sec": "seconds", "s": "seconds"}


def read(lines: Iterator[bytes], where: str) -> Recording:
    """The records of a profile run; warm-up is left out.

    Raises:
        InputError: naming line, field, value, rule and fix.
    """
    rows = Rows(("first_token", "inter_token", "service"))
    scheduled = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        here = f"{where}:{number}"
        record = json_object(line, here)
        about, metrics = part_of(record, "metadata", here), part_of(record, "metrics", here)
        if about.get("benchmark_phase") == "warmup" or about.get("phase_kind") == "warmup":
            continue
        start = time_of(about, "request_start_ns", "ns", here)
        due = time_or_never(about, "credit_issued_ns", "ns", here)
        scheduled = scheduled and due != NEVER
        first = _metric(metrics, "time_to_first_token", here)
        gap = _metric(metrics, "inter_token_latency", here)
        rows.add(
            record.get("error") is None and not about.get("was_cancelled", False),
            start if due == NEVER else due,
            start,
            time_of(about, "request_end_ns", "ns", here),
            NEVER if first == NEVER else start + first,
            0 if gap == NEVER and _one_token(metrics) else gap,
            _metric(metrics, "request_latency", here),
        )
    return Recording(_without_gaps(rows, scheduled), "AIPerf JSON lines")


def _without_gaps(rows: Rows, scheduled: bool) -> Run:
    """The run; a second clock counts only where it timed every request."""
    run = rows.run(scheduled=scheduled)
    missing: dict[str, Any] = {
        name: None
        for name in ("first_token", "inter_token", "service")
        if (column := getattr(run, name)) is not None
        and ((column == NEVER).any() if name == "service" else (column == NEVER).all())
    }
    return replace(run, **missing)


def _metric(metrics: Mapping[str, Any], name: str, where: str) -> int:
    metric = part_of(metrics, name, where)
    if not metric:
        return NEVER
    unit = str(metric.get("unit"))
    if unit not in UNITS:
        raise InputError(
            f"{where}: {name} is in unit={unit!r}, which is not known; use {', '.join(UNITS)}"
        )
    return time_of(metric, "value", UNITS[unit], f"{where}: {name}")


def _one_token(metrics: Mapping[str, Any]) -> bool:
    count = metrics.get("output_token_count") or metrics.get("output_sequence_length") or {}
    return isinstance(count, dict) and count.get("value") in (0, 1)
