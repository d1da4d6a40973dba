"""`Report`: everything that is said of a run, as plain values; pages are drawn from it alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from serving.errors import IntegrityError

SCHEMA: Final = "galley loadtest 1"


@dataclass(frozen=True, slots=True)
class Second:
    """A slice of the run. Requests count in the slice in which they were due; times in ms."""

    at_seconds: float
    seconds: float
    phase: str
    offered: int
    sent: int
    answered: int
    failed: int
    in_flight: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    batch_size: float | None = None


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What the model servers say of the requests of a time; means in ms."""

    requests: int
    executions: int
    queue_ms: float
    compute_ms: float
    batch_size: float
    restarts: int


@dataclass(frozen=True, slots=True)
class GeneratorHealth:
    """Whether the generator is to be believed."""

    workers: int
    workers_lost: int
    expected: int
    recorded: int
    cpu_ratio: float | None
    loop_lag_p99_ms: float | None
    dispatch_lag_p99_ms: float | None
    calibrated_rps: float | None
    lag_budget_ms: float | None
    cache_hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """A run.

    Attributes:
        verdict: as `Verdict.as_json` gives it.
        workload: as its YAML says it.
        percentiles_ms: of latency from the intended send; None for a time that never came.
        service_percentiles_ms: from the real send.
        token_percentiles_ms: of first token and time between tokens, where there were any.
        cdf: (share of requests, ms) up to the last one that was answered well.
        outcomes: how many requests ended in which way.
        replay_command: what to type for the same run.
    """

    model: str
    environment: str
    version: int | None
    digest: str | None
    started: str
    seconds: float
    broken_off: bool
    workload: dict[str, Any]
    seed: int
    rate_rps: float
    schedule_digest: str
    requests: int
    verdict: dict[str, Any]
    because: str
    percentiles_ms: dict[str, float | None]
    service_percentiles_ms: dict[str, float | None]
    token_percentiles_ms: dict[str, dict[str, float | None]]
    cdf: tuple[tuple[float, float], ...]
    series: tuple[Second, ...]
    outcomes: dict[str, int]
    generator: GeneratorHealth
    server: ServerTimes | None
    replay_command: str
    galley_version: str
    schema: str = field(default=SCHEMA)


def as_text(report: Report) -> str:
    """The report as JSON."""
    return TypeAdapter(Report).dump_json(report, indent=2).decode()


def report_from(text: str | bytes) -> Report:
    """A report from its JSON.

    Raises:
        IntegrityError: it is none.
    """
    try:
        found = TypeAdapter(Report).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise IntegrityError(f"report: {place} cannot be read ({first['msg']})") from None
    if found.schema != SCHEMA:
        raise IntegrityError(f"report: schema={found.schema} is not {SCHEMA}")
    return found
