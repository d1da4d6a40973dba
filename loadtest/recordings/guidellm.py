"""What GuideLLM writes as JSON: a report with the requests of each of its benchmarks.

`targeted_start` is when the schedule wanted a request sent; the strategies `constant`, `poisson`
and `trace` have one, the others send as answers come in.

Source: guidellm 0.8.1, schemas/base/info.py (RequestTimings), schemas/base/request_stats.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.recordings.fields import part_of, time_or_never
from loadtest.recordings.rows import Recording, Rows
from serving.errors import InputError
from serving.judge.run import NEVER

SCHEDULES: Final = ("constant", "poisson", "trace")
ENDS: Final = ("successful", "errored", "incomplete")


def read(report: Mapping[str, Any], where: str, number: int | None) -> Recording:
    """The requests of one benchmark of a report.

    Raises:
        InputError: if it is not said which, if the report holds only a sample of the requests, or
            a field is not what it should be.
    """
    benchmark, here = _chosen(report, where, number)
    strategy = str(part_of(part_of(benchmark, "config", here), "strategy", here).get("type_"))
    requests = part_of(benchmark, "requests", here)
    _all_are_there(benchmark, requests, here)
    rows = Rows(("first_token", "inter_token"))
    scheduled = strategy in SCHEDULES
    for end in ENDS:
        for place, request in enumerate(requests.get(end) or ()):
            at = f"{here}.requests.{end}[{place}]"
            scheduled = _add(rows, request, end, at, scheduled)
    run = rows.run(scheduled=scheduled)
    return Recording(run, "GuideLLM report", (f"strategy {strategy}",))


def _chosen(
    report: Mapping[str, Any], where: str, number: int | None
) -> tuple[Mapping[str, Any], str]:
    benchmarks = report.get("benchmarks")
    if not isinstance(benchmarks, list):
        raise InputError(f"{where}: benchmarks is no list; give GuideLLM's JSON report")
    count = len(benchmarks)
    if number is None and count > 1:
        raise InputError(
            f"{where}: holds {count} benchmarks at different rates; say which with --benchmark 1 "
            f"to {count}"
        )
    chosen = 1 if number is None else number
    if not 1 <= chosen <= count:
        raise InputError(f"{where}: --benchmark {chosen} is not there; it holds {count}")
    here = f"{where}: benchmarks[{chosen - 1}]"
    if not isinstance(benchmarks[chosen - 1], dict):
        raise InputError(f"{here} is no object; give GuideLLM's JSON report")
    return benchmarks[chosen - 1], here


def _all_are_there(benchmark: Mapping[str, Any], requests: Mapping[str, Any], where: str) -> None:
    totals = part_of(part_of(benchmark, "metrics", where), "request_totals", where)
    for end in ENDS:
        held, told = requests.get(end) or (), totals.get(end)
        if not isinstance(held, Sequence) or isinstance(held, str):
            raise InputError(f"{where}: requests.{end} is no list; give GuideLLM's JSON report")
        if isinstance(told, int) and told > len(held):
            raise InputError(
                f"{where}: holds {len(held)} of {told} {end} requests; a sample hides the slow "
                "ones, run GuideLLM without sample_size"
            )


def _add(rows: Rows, request: Mapping[str, Any], end: str, where: str, scheduled: bool) -> bool:
    times = part_of(part_of(request, "info", where), "timings", where)

    def time(name: str) -> int:
        return time_or_never(times, name, "seconds", where)

    sent = time("request_start")
    sent = time("resolve_start") if sent == NEVER else sent
    due = time("targeted_start")
    if due == NEVER and sent == NEVER:
        # It was in the generator's own queue when the run was stopped, and never due.
        return scheduled
    ended = time("request_end")
    ended = time("resolve_end") if ended == NEVER else ended
    first = time("first_token_iteration")
    gap = time_or_never(request, "inter_token_latency_ms", "ms", where)
    tokens = request.get("output_tokens")
    rows.add(
        end == "successful",
        sent if due == NEVER or not scheduled else due,
        sent,
        NEVER if end == "incomplete" or sent == NEVER else ended,
        first,
        0 if gap == NEVER and tokens in (0, 1) else gap,
    )
    return scheduled and due != NEVER
