"""`Job`: all that a load test is, settled before it starts, in one JSON file.

The same job gives the same schedule and the same bytes, on one worker or on many. Keys are not in
it: they come from the environment or the stack's own folder, and never into a report.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from loadtest.schedule import Schedule, schedule_of
from loadtest.workload import Workload
from serving.errors import InputError
from serving.judge.objectives import Objective, objectives_of, quantile_objective, smallest_run
from serving.slo import Positive, Ratio
from serving.spec import ModelSpec
from serving.strict import Strict, sentences

KEY_VARIABLE: Final = "GALLEY_KEY"
"""The environment variable with the key that requests carry."""

MOST: Final = 8
"""Requests planned at most, of the fewest that a PASS takes: neighbours in a queue tell the same
story. A run that is sure earlier ends earlier."""
LEAST_TIMEOUT_SECONDS: Final = 5.0
TIMEOUT_OF_LIMIT: Final = 10
FEWEST_USERS, MOST_USERS = 16, 2_000


class Job(Strict):
    """One load test."""

    spec: ModelSpec = Field(description="the model")
    workload: Workload = Field(description="what is sent, and when")
    url: str = Field(description="where requests go")
    ca: str | None = Field(default=None, description="file of the certificate to trust")
    environment: str = Field(default="local", description="name of the environment")
    home: str | None = Field(default=None, description="folder of the local stack, for its key")
    version: int | None = Field(default=None, description="version under test")
    digest: str | None = Field(default=None, description="digest of that version")
    seed: int = Field(ge=0, description="all that is drawn is drawn from it")
    salt: int = Field(
        default=0, ge=0, description="inputs are drawn from it too, so that no cache knows them"
    )
    peak_rps: Positive = Field(description="rate that the workload's ratios are of")
    seconds: Positive | None = Field(default=None, description="measured time; the workload's")
    exact: bool = Field(default=False, description="no longer than that, come what may")
    latency_p99_ms: Positive | None = Field(default=None, description="instead of the spec's")
    error_ratio: Ratio | None = Field(default=None, description="instead of the spec's")
    alpha: Ratio = Field(default=0.05, description="how often a PASS may be wrong")
    max_in_flight: int | None = Field(default=None, ge=1, description="most open requests")

    @cached_property
    def objectives(self) -> tuple[Objective, ...]:
        """What is promised: the spec's SLO, or what stands in its place."""
        kept = []
        for one in objectives_of(self.spec.slo):
            if one.metric == "latency" and self.latency_p99_ms is not None:
                kept.append(quantile_objective("latency", 0.99, self.latency_p99_ms))
            elif one.metric == "errors" and self.error_ratio is not None:
                kept.append(Objective("errors", self.error_ratio))
            else:
                kept.append(one)
        return tuple(kept)

    @cached_property
    def schedule(self) -> Schedule:
        """When each request is due."""
        least = 0 if self.exact else math.ceil(MOST * smallest_run(self.objectives, self.alpha))
        return schedule_of(
            self.workload,
            peak_rps=self.peak_rps,
            seed=self.seed,
            seconds=self.seconds,
            least_requests=least,
        )

    @property
    def by_token(self) -> bool:
        """Whether answers come token by token."""
        return self.workload.request.kind in ("chat", "completions")

    @property
    def timeout_seconds(self) -> float:
        """After which a request is given up, and bad."""
        if self.workload.timeout_seconds is not None:
            return self.workload.timeout_seconds
        limits = [one.limit_ms for one in self.objectives if one.limit_ms]
        return max(LEAST_TIMEOUT_SECONDS, TIMEOUT_OF_LIMIT * max(limits, default=0) / 1e3)

    @property
    def users(self) -> int:
        """Users that wait for arrivals: as many as may be open while a slow service still keeps up.

        An arrival that finds none idle is sent late, and the run is INVALID; so there are rather
        too many, up to what a process can hold.
        """
        if self.max_in_flight is not None:
            return self.max_in_flight
        limits = [one.limit_ms for one in self.objectives if one.metric == "latency"]
        slowest = max((limit for limit in limits if limit), default=10_000.0)
        wanted = math.ceil(4 * self.peak_rps * slowest / 1e3)
        return min(max(wanted, FEWEST_USERS), MOST_USERS)

    def key(self) -> str | None:
        """The key that requests carry: `GALLEY_KEY`, or the local stack's own; None for none."""
        given = os.environ.get(KEY_VARIABLE)
        if given or self.home is None:
            return given or None
        from serving.local.home import Home

        return Home(Path(self.home)).secrets().operator_key

    def changed(self, **fields: Any) -> Job:
        """The same job with other values; what was reckoned from the old ones is left behind."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return Job(**(kept | fields))

    def as_text(self) -> str:
        """JSON that `job_from` reads back to an equal job."""
        return self.model_dump_json(exclude_unset=True)


def job_from(text: str | bytes) -> Job:
    """A job from its text.

    Raises:
        InputError: it is none.
    """
    try:
        return Job.model_validate_json(text)
    except ValidationError as error:
        raise InputError("\n".join(sentences("job", error))) from None
