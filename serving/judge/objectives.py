"""`Objective`: one promise, as the share of attempted requests that may be bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from serving.errors import InputError
from serving.judge.bounds import smallest_sample

if TYPE_CHECKING:
    from serving.slo import LatencySlo, TokenSlo

Metric = Literal["latency", "time_to_first_token", "inter_token_latency", "errors", "rate"]

TIMED: Final = ("latency", "time_to_first_token", "inter_token_latency")


@dataclass(frozen=True, slots=True)
class Objective:
    """At most `allowed_ratio` of the attempted requests may be bad in `metric`.

    Bad is a request that was not answered well, and for the timed metrics also one that took longer
    than `limit_ms`. Latency and first token count from the moment a request was *due*. For `rate`,
    `limit_rps` requests a second must be offered and answered; what may be bad follows from it.

    Raises:
        InputError: for a limit that no measurement can meet or miss.
    """

    metric: Metric
    allowed_ratio: float
    limit_ms: float | None = None
    limit_rps: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.allowed_ratio < 1:
            raise InputError(
                f"{self.metric}: allowed_ratio={self.allowed_ratio:g} can be judged by no number "
                "of requests; give a share between 0 and 1"
            )
        limit = {"errors": 1.0, "rate": self.limit_rps}.get(self.metric, self.limit_ms)
        if limit is None or not math.isfinite(limit) or limit <= 0:
            raise InputError(
                f"{self.metric}: limit={limit} is no limit; give a number greater than 0"
            )

    @property
    def name(self) -> str:
        """As a spec spells it: `latency_p99_ms`, `error_ratio`.

        >>> Objective("latency", 0.001, limit_ms=50).name
        'latency_p99.9_ms'
        """
        if self.metric in TIMED:
            return f"{self.metric}_p{100 * self.quantile:.6g}_ms"
        return {"errors": "error_ratio", "rate": "rate_rps"}[self.metric]

    @property
    def quantile(self) -> float:
        """The quantile that must be within the limit; 0.99 for 1% that may be bad."""
        return round(1 - self.allowed_ratio, 12)

    @property
    def limit_ns(self) -> int:
        """The limit of a timed metric in whole nanoseconds, so that comparisons are exact."""
        return round((self.limit_ms or 0) * 1e6)


def quantile_objective(metric: Metric, quantile: float, limit_ms: float) -> Objective:
    """The promise that a quantile of a timed metric is within `limit_ms`.

    >>> quantile_objective("latency", 0.99, 50).allowed_ratio
    0.01
    """
    return Objective(metric, round(1 - quantile, 12), limit_ms=limit_ms)


def rate_objective(limit_rps: float) -> Objective:
    """The promise that `limit_rps` requests a second are answered well, give or take 1%."""
    return Objective("rate", 0.01, limit_rps=limit_rps)


def objectives_of(slo: LatencySlo | TokenSlo | Sequence[Objective]) -> tuple[Objective, ...]:
    """The promises that a spec's SLO comes to; objectives are returned as they are."""
    if isinstance(slo, Sequence):
        return tuple(slo)
    limits = slo.model_dump()
    timed = [
        quantile_objective(metric, 0.99, limits[f"{metric}_p99_ms"])
        for metric in TIMED
        if f"{metric}_p99_ms" in limits
    ]
    return (*timed, Objective("errors", slo.error_ratio))


def smallest_run(objectives: Sequence[Objective], alpha: float) -> int:
    """Requests without a bad one that PASS needs at least, if each were independent.

    To be told before a run starts; dependence makes it more (see `autocorrelation`).

    >>> smallest_run([Objective("latency", 0.01, limit_ms=50), Objective("errors", 0.001)], 0.05)
    2995
    """
    return max((smallest_sample(one.allowed_ratio, alpha) for one in objectives), default=0)
