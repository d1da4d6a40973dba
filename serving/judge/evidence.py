"""`Evidence`: what a run comes to before anybody judges it. A few hundred numbers, kept for good.

    Run ──measure()──► Evidence ──judge()──► Verdict

Whoever doubts a verdict judges the stored evidence again and gets the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.judge.counts import Counts
from serving.judge.littles_law import LittlesLaw
from serving.judge.objectives import Objective


@dataclass(frozen=True, slots=True)
class Counted:
    """An objective's count."""

    # JSON has no infinity.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012

    objective: Objective
    counts: Counts
    tau: float
    """For how many requests one independent request stands."""
    tau_bad: float = 1.0
    """The same of the series of bad and good alone."""
    cluster: float = 1.0
    """For how many bad requests one event stands; few events are never taken for many."""
    observed_ms: float | None = None
    """The sample's own quantile; inf where it is a request that was not answered well."""
    sorted_tail_ms: tuple[tuple[float, float], ...] = ()
    """(share of the sample, value) from the quantile upwards, to read bounds off."""


@dataclass(frozen=True, slots=True)
class Generator:
    """What the load generator attests of itself; None where it does not say."""

    cpu_ratio: float | None = None
    """Largest share of one core that a generator process used."""
    loop_lag_p99_ms: float | None = None
    """How late its event loop woke up."""
    workers_lost: int | None = None
    expected_requests: int | None = None
    """Requests in the schedule; each must be in the run."""
    server_restarts: int | None = None
    overflowed: int | None = None
    """Samples beyond the last bucket of a histogram."""
    calibrated_rps: float | None = None
    """Rate up to which it has shown, against a server that does nothing, that it is fast enough."""
    cache_hits_beyond: float | None = None
    """Share of answers that a cache gave, beyond what the workload's own repeats explain."""
    merged_percentiles: bool = False
    """Whether any percentile was averaged over workers or windows; such a number means nothing."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The trend of requests in flight over the run."""

    # JSON has no infinity.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012

    per_run: float
    """Requests by which it grew from the first to the last."""
    mean: float
    z: float
    """Trend over its standard error, dependence reckoned in."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run, reduced to what judging it takes.

    Attributes:
        attempted: requests that were due: the one denominator of every share.
        failed: not answered well, for whatever reason.
        open: still open when watching stopped.
        dropped: never sent.
        scheduled: whether latency counts from a schedule; if not, slow answers held up the next
            request and their part in every percentile is too small.
        follows_answers: share of requests that were due just as an answer came in.
        seconds: from the first request that was due to the last.
        tau: the autocorrelation time of requests in flight.
        lag_p99_ms: how late requests were sent, at the 99th percentile.
        early: requests that were sent before they were due by more than can be.
        impossible: requests whose times contradict each other; counted as bad.
    """

    # JSON has no infinity.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012

    attempted: int
    failed: int
    open: int
    dropped: int
    scheduled: bool
    follows_answers: float
    seconds: float
    tau: float
    counted: tuple[Counted, ...]
    median_ms: float | None = None
    lag_p99_ms: float | None = None
    early: int = 0
    impossible: int = 0
    growth: Growth | None = None
    law: LittlesLaw | None = None
    generator: Generator = field(default_factory=Generator)
    notes: tuple[str, ...] = ()

    @property
    def offered_rps(self) -> float:
        """Requests that were due in a second."""
        if self.attempted < 2 or not self.seconds > 0:
            return 0.0
        return (self.attempted - 1) / self.seconds

    def of(self, objective: Objective) -> Counted | None:
        """The count for exactly this objective; a count at another limit is none."""
        return next((one for one in self.counted if one.objective == objective), None)
