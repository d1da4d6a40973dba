"""Canary against stable, looked at after every window and over all stages: a sequential test.

Per window and metric four whole numbers are read. Given that a request was bad, with equal rates it
is the canary's with probability w = n_c / (n_c + n_s), so shocks that hit both arms cancel. Two
bets run on that, one against "the canary is no worse" (won: roll back) and one against "it is worse
by the margin" (won: advance). Their state is a handful of numbers that outlive the promoter, and
stay valid while weights go from 5 to 25 to 100.

Source: Lindon, Sanden and Shirikian, KDD 2022 (arXiv 2205.14762); Netflix tech blog, Sequential A/B
testing keeps the world streaming, part 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from serving.errors import InputError
from serving.judge.evalues import log_e_fail
from serving.judge.traffic_split import Split, split_evidence, split_updated

WORSE: Final = (1.15, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Ratios of bad shares that the rollback bet is spread over."""
NO_WORSE: Final = (0.5, 0.75, 1.0, 1.25)
"""Ratios that the promotion bet is spread over."""


class Step(StrEnum):
    """What the evidence so far says to do."""

    ADVANCE = "ADVANCE"
    ROLL_BACK = "ROLL_BACK"
    GO_ON = "GO_ON"
    """Not enough evidence; when the stage's time is over, hold and call somebody, never advance."""
    INVALID = "INVALID"
    """Traffic is not split as configured, or two halves of stable differ: nothing can be said."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one window counted: attempts and bad ones of canary and stable."""

    canary: int
    stable: int
    canary_bad: int
    stable_bad: int

    def __post_init__(self) -> None:
        for name in ("canary", "stable"):
            attempts, bad = getattr(self, name), getattr(self, f"{name}_bad")
            if not (isinstance(attempts, int) and isinstance(bad, int) and 0 <= bad <= attempts):
                raise InputError(
                    f"window: {name}_bad={bad} of {name}={attempts} is no count; give whole "
                    "numbers, the bad among the attempted"
                )


@dataclass(frozen=True, slots=True)
class Rule:
    """How a canary is judged in one metric.

    Attributes:
        allowed_ratio: share of the canary's requests that may be bad whatever stable does: the SLO.
        margin: ratio of bad shares that may never be promoted; 2 for errors, 1.5 for slow answers.
        alpha: chance that a canary as good as stable is rolled back, this metric's part of it.
        beta: chance that a canary worse by the margin is promoted.
    """

    allowed_ratio: float
    margin: float = 2.0
    alpha: float = 0.01
    beta: float = 0.05
    trip_ratio: float = 0.2
    trip_requests: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.allowed_ratio < 1:
            raise InputError(f"rule: allowed_ratio={self.allowed_ratio} is no share; use 0 to 1")
        if not self.margin > max(NO_WORSE):
            raise InputError(
                f"rule: margin={self.margin} leaves nothing to bet on; use more than "
                f"{max(NO_WORSE)}"
            )
        for name in ("alpha", "beta"):
            if not 0 < getattr(self, name) < 0.5:
                raise InputError(
                    f"rule: {name}={getattr(self, name)} is no error rate; use 0 to 0.5"
                )


@dataclass(frozen=True, slots=True)
class Dispersion:
    """How much more stable's windows differ than chance makes them; sums, so that it can go on."""

    windows: int = 0
    attempts: int = 0
    bad: int = 0
    squares: float = 0.0
    """Sum of bad^2 / attempts."""

    @property
    def phi(self) -> float:
        """Pearson's dispersion; 1 at least, and 1 while two windows have not been seen.

        >>> Dispersion(2, 200, 10, 10**2 / 100 + 0).phi > 5 > Dispersion(2, 200, 10, 0.5).phi
        True
        """
        if self.windows < 2 or not 0 < self.bad < self.attempts:
            return 1.0
        share = self.bad / self.attempts
        squares = self.squares - self.bad * share
        return max(1.0, squares / (share * (1 - share)) / (self.windows - 1))

    def with_window(self, attempts: int, bad: int) -> Dispersion:
        """With one more window; one without requests says nothing."""
        if attempts == 0:
            return self
        return Dispersion(
            self.windows + 1,
            self.attempts + attempts,
            self.bad + bad,
            self.squares + bad * bad / attempts,
        )


@dataclass(frozen=True, slots=True)
class State:
    """All that must be kept between windows, stages and promoters; plain numbers."""

    # JSON has no infinity.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012

    rollback: tuple[float, ...] = (0.0,) * len(WORSE)
    """Log of the bet on each ratio of WORSE."""
    promote: tuple[float, ...] = (0.0,) * len(NO_WORSE)
    canary: int = 0
    canary_bad: int = 0
    dispersion: Dispersion = field(default_factory=Dispersion)
    split: Split = field(default_factory=Split)


def updated(state: State, window: Window, rule: Rule, weight: float | None = None) -> State:
    """The state after one more window.

    Bets are divided by the dispersion known *before* the window: bursts in one arm would otherwise
    look like evidence. `weight` is the canary's configured share; None for a window in which it
    changed.
    """
    phi = state.dispersion.phi
    gains = (state.rollback, state.promote)
    share = window.canary / max(window.canary + window.stable, 1)
    if 0 < share < 1:
        gains = (
            _bet(state.rollback, WORSE, 1.0, share, window, phi),
            _bet(state.promote, NO_WORSE, rule.margin, share, window, phi),
        )
    return State(
        rollback=gains[0],
        promote=gains[1],
        canary=state.canary + window.canary,
        canary_bad=state.canary_bad + window.canary_bad,
        dispersion=state.dispersion.with_window(window.stable, window.stable_bad),
        split=split_updated(state.split, window.canary, window.stable, weight),
    )


def _bet(
    logs: Sequence[float],
    ratios: Sequence[float],
    null_ratio: float,
    share: float,
    window: Window,
    phi: float,
) -> tuple[float, ...]:
    null = _of_canary(null_ratio, share)
    return tuple(
        log
        + (
            window.canary_bad * math.log(_of_canary(ratio, share) / null)
            + window.stable_bad * math.log((1 - _of_canary(ratio, share)) / (1 - null))
        )
        / phi
        for log, ratio in zip(logs, ratios, strict=True)
    )


def _of_canary(ratio: float, share: float) -> float:
    """Probability that a bad request is the canary's, if its share of bad ones is `ratio` times."""
    return ratio * share / (ratio * share + 1 - share)


def mean_of_logs(logs: Sequence[float]) -> float:
    """Log of the mean of what `logs` are the logs of: the evidence of a spread bet."""
    most = max(logs)
    return most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))


def step_of(state: State, rule: Rule) -> Step:
    """What to do now. Safety first: rolling back needs no valid comparison, advancing does."""
    if state.canary >= rule.trip_requests and state.canary_bad > rule.trip_ratio * state.canary:
        return Step.ROLL_BACK
    if split_evidence(state.split) >= math.log(1 / SPLIT_ALPHA):
        return Step.INVALID
    if mean_of_logs(state.rollback) >= math.log(1 / rule.alpha) or not _within_slo(state, rule):
        return Step.ROLL_BACK
    if mean_of_logs(state.promote) >= math.log(1 / rule.beta):
        return Step.ADVANCE
    return Step.GO_ON


SPLIT_ALPHA: Final = 0.001
"""Chance that a sound split is called a routing fault in one rollout."""


def _within_slo(state: State, rule: Rule) -> bool:
    phi = state.dispersion.phi
    evidence = log_e_fail(state.canary_bad / phi, state.canary / phi, rule.allowed_ratio)
    return evidence < math.log(1 / rule.alpha)


def combined_step(steps: Iterable[Step]) -> Step:
    """The step of all metrics: any one rolls back, all must advance. No metric is no evidence."""
    found = set(steps)
    for step in (Step.ROLL_BACK, Step.INVALID, Step.GO_ON):
        if step in found:
            return step
    return Step.ADVANCE if found else Step.INVALID


def calibrated(windows: Iterable[Window], rule: Rule) -> State | None:
    """The state to start a rollout with, from an A/A run: stable split in two, one as the canary.

    Only its dispersion is kept. None where the bet on a difference was won: then these arms differ
    without a canary, and nothing that is measured between them can be trusted.
    """
    state = State()
    for window in windows:
        state = updated(state, window, rule)
        if mean_of_logs(state.rollback) >= math.log(1 / rule.alpha):
            return None
    return replace(State(), dispersion=state.dispersion)
