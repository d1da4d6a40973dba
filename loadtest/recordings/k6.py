"""What `k6 run --out json=FILE` writes: one point for each metric of each request.

A request is a point of `http_req_duration` or `grpc_req_duration`: its time is the request's end,
its value milliseconds. k6 does not log when a request was due, whatever executor ran; what an
arrival-rate executor could not start in time it counts as `dropped_iterations`.

Source: https://grafana.com/docs/k6/latest/results-output/real-time/json/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from loadtest.recordings.fields import part_of, time_of
from loadtest.recordings.galley_log import json_object
from loadtest.recordings.rows import Recording, Rows
from loadtest.recordings.values import Unreadable, is_of_generator, went_well
from serving.errors import InputError
from serving.judge.run import NEVER

REQUESTS: Final = ("http_req_duration", "grpc_req_duration")
DROPPED: Final = "dropped_iterations"
# Set-up and tear-down are no load.
AROUND: Final = ("::setup", "::teardown")


def read(lines: Iterator[bytes], where: str) -> Recording:
    """The requests of a k6 run.

    Raises:
        InputError: naming line, field, value, rule and fix.
    """
    rows = Rows()
    for number, line in enumerate(lines, start=1):
        # Most points are of other metrics: not worth parsing.
        if b"_req_duration" not in line and b"dropped_iterations" not in line:
            continue
        here = f"{where}:{number}"
        point = json_object(line, here)
        metric = point.get("metric")
        if point.get("type") != "Point" or metric not in (*REQUESTS, DROPPED):
            continue
        data = part_of(point, "data", here)
        tags = part_of(data, "tags", here)
        if str(tags.get("group", "")).startswith(AROUND):
            continue
        end = time_of(data, "time", "at", here)
        if metric == DROPPED or is_of_generator(str(tags.get("error", ""))):
            for _ in range(_count(data, here) if metric == DROPPED else 1):
                rows.add(False, end, NEVER, NEVER)
            continue
        start = end - time_of(data, "value", "ms", here)
        rows.add(_ok(tags, metric, here), start, start, end)
    return Recording(rows.run(scheduled=False), "k6 JSON")


def _ok(tags: Mapping[str, Any], metric: object, where: str) -> bool:
    expected = tags.get("expected_response")
    if isinstance(expected, str):
        return expected == "true"
    status = str(tags.get("status", ""))
    if metric == "grpc_req_duration":
        return status == "0"
    try:
        return went_well(status)
    except Unreadable as error:
        raise InputError(f"{where}: status={status!r} {error}") from None


def _count(data: Mapping[str, Any], where: str) -> int:
    value = data.get("value")
    if not isinstance(value, int | float) or value < 0 or value != int(value):
        raise InputError(f"{where}: value={value!r} is no count; was the log edited?")
    return int(value)
