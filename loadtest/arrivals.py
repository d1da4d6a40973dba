"""When requests arrive: processes named exactly, drawn from a seed, in ratios of a model's peak.

    constant   even gaps; no other process is ever called constant
    poisson    gaps are exponential: many clients that know nothing of each other
    gamma      gaps are gamma of shape `burstiness`: 1 is Poisson, below it requests come in clumps
    ramp       Poisson whose rate changes evenly from one ratio to another
    step       Poisson at one rate after the other
    replay     the moments of a recorded trace, sped up or slowed down

The moments are a pure function of process, peak, time and seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag

from loadtest.trace import bounded, read_trace
from serving.slo import Positive
from serving.strict import Fault, Rule, Strict, tagged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Moments = NDArray[np.int64]


class Constant(Strict):
    """Even gaps."""

    kind: Literal["constant"]
    rate_ratio: Positive = Field(default=1.0, description="rate, of the model's peak")


class Poisson(Strict):
    """Gaps are exponential."""

    kind: Literal["poisson"]
    rate_ratio: Positive = Field(default=1.0, description="mean rate, of the model's peak")


class Gamma(Strict):
    """Gaps are gamma; their squared variation is 1 / `burstiness`."""

    kind: Literal["gamma"]
    rate_ratio: Positive = Field(default=1.0, description="mean rate, of the model's peak")
    # Below, a run is one heap of requests; above, gaps are even.
    burstiness: float = Field(
        ge=0.01, le=1000, description="shape of the gaps: 1 is Poisson, less is burstier"
    )


class Ramp(Strict):
    """Poisson whose rate changes evenly over the measured time."""

    kind: Literal["ramp"]
    from_ratio: float = Field(ge=0, description="rate at the start, of the model's peak")
    to_ratio: float = Field(ge=0, description="rate at the end, of the model's peak")

    @Rule
    def _sends_something(self) -> Iterator[Fault]:
        if self.from_ratio + self.to_ratio == 0:
            yield Fault(("to_ratio",), 0, "never sends a request", "ramp to a rate above 0")


class Step(Strict):
    """A time at one rate."""

    seconds: Positive = Field(description="how long")
    rate_ratio: float = Field(ge=0, description="mean rate, of the model's peak")


class Steps(Strict):
    """Poisson at one rate after the other; the last one goes on."""

    kind: Literal["step"]
    steps: tuple[Step, ...] = Field(min_length=1, description="in order")

    @Rule
    def _sends_something(self) -> Iterator[Fault]:
        if not any(step.rate_ratio for step in self.steps):
            yield Fault(("steps",), 0, "never send a request", "give a step a rate above 0")


class Replay(Strict):
    """The moments of a recorded trace, from its first on, at the rate that it had."""

    kind: Literal["replay"]
    trace: str = Field(
        description="file beside the workload: a moment in seconds a line, or a log of requests"
    )
    speed: Positive = Field(default=1.0, description="2 sends it in half the time")


Arrivals = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Poisson, Tag("poisson")]
    | Annotated[Gamma, Tag("gamma")]
    | Annotated[Ramp, Tag("ramp")]
    | Annotated[Steps, Tag("step")]
    | Annotated[Replay, Tag("replay")],
    Discriminator(tagged),
]


def moments(arrivals: Arrivals, *, peak_rps: float, seconds: float, seed: int) -> Moments:
    """When requests are due: ns from 0, in order, all before `seconds`.

    Args:
        arrivals: the process.
        peak_rps: what its ratios are of, requests a second.
        seconds: how long.
        seed: all that is drawn is drawn from it.

    Raises:
        InputError: for more requests than one run may hold, or a trace that cannot be read.
    """
    random = np.random.default_rng(seed)
    match arrivals:
        case Constant():
            rate = arrivals.rate_ratio * peak_rps
            found = np.arange(math.ceil(bounded(rate * seconds) - 1e-9)) / rate
        case Poisson():
            found = _renewal(random, arrivals.rate_ratio * peak_rps, seconds, 1.0)
        case Gamma():
            rate = arrivals.rate_ratio * peak_rps
            found = _renewal(random, rate, seconds, arrivals.burstiness)
        case Ramp():
            first, last = arrivals.from_ratio * peak_rps, arrivals.to_ratio * peak_rps
            found = _inhomogeneous(random, (0.0, seconds), (first, last))
        case Steps():
            times, rates = _corners(arrivals.steps, peak_rps, seconds)
            found = _inhomogeneous(random, times, rates)
        case Replay():
            found = read_trace(Path(arrivals.trace)) / arrivals.speed
    found = found[found < seconds]
    return np.minimum(np.rint(found * 1e9), seconds * 1e9 - 1).astype(np.int64)


def seconds_for(arrivals: Arrivals, *, peak_rps: float, requests: int) -> float:
    """How long so many requests take on average; 0 where going on would bring no more.

    A trace is as long as it is, and steps that end in silence bring nothing after it.
    """
    match arrivals:
        case Constant() | Poisson() | Gamma():
            return _quotient(requests, arrivals.rate_ratio * peak_rps)
        case Ramp():
            mean_ratio = (arrivals.from_ratio + arrivals.to_ratio) / 2
            return _quotient(requests, mean_ratio * peak_rps)
        case Steps():
            begun, left = 0.0, float(requests)
            for step in arrivals.steps[:-1]:
                rate = step.rate_ratio * peak_rps
                if left <= rate * step.seconds:
                    return begun + (left / rate if left else 0.0)
                begun, left = begun + step.seconds, left - rate * step.seconds
            last = arrivals.steps[-1].rate_ratio
            return begun + _quotient(left, last * peak_rps) if last else 0.0
        case Replay():
            return 0.0


def first_ratio(arrivals: Arrivals) -> float | None:
    """The rate that a run begins with, of the peak; None for a trace, which has its own."""
    match arrivals:
        case Constant() | Poisson() | Gamma():
            return arrivals.rate_ratio
        case Ramp():
            return arrivals.from_ratio
        case Steps():
            return arrivals.steps[0].rate_ratio
        case Replay():
            return None


def _quotient(requests: float, rate: float) -> float:
    """Seconds; a rate that is too small for numbers takes for ever."""
    return requests / rate if rate else math.inf


def _renewal(
    random: np.random.Generator, rate: float, seconds: float, shape: float
) -> NDArray[np.float64]:
    """Moments whose gaps are independent; drawn until the time is full."""
    mean = bounded(rate * seconds)
    # The spread of the number of arrivals is sqrt(mean / shape); what is over is cut off.
    block = int(mean + 6 * math.sqrt(mean / min(shape, 1.0))) + 64
    gaps = [random.gamma(shape, 1 / (shape * rate), block)]
    while float(sum(part.sum() for part in gaps)) < seconds:
        gaps.append(random.gamma(shape, 1 / (shape * rate), block))
    found = np.cumsum(np.concatenate(gaps))
    return found[found < seconds]


def _corners(
    steps: tuple[Step, ...], peak_rps: float, seconds: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A rate that is constant in parts as corners of a line, two at each edge."""
    times: list[float] = []
    rates: list[float] = []
    begun = 0.0
    for place, step in enumerate(steps):
        last = place == len(steps) - 1
        ended = max(seconds, begun) if last else begun + step.seconds
        times += [begun, min(ended, seconds)]
        rates += [step.rate_ratio * peak_rps] * 2
        begun = ended
        if begun >= seconds:
            break
    return tuple(times), tuple(rates)


def _inhomogeneous(
    random: np.random.Generator, times: tuple[float, ...], rates: tuple[float, ...]
) -> NDArray[np.float64]:
    """Poisson with a rate that is a line between corners, by its integral turned around."""
    at, rate = np.array(times), np.array(rates)
    area = np.concatenate([[0.0], np.cumsum(np.diff(at) * (rate[1:] + rate[:-1]) / 2)])
    count = random.poisson(bounded(area[-1]))
    reached = np.sort(random.uniform(0.0, area[-1], count))
    # In which part each arrival falls, and where in it: the area under a line is a square in time.
    part = np.clip(np.searchsorted(area, reached, side="right") - 1, 0, len(at) - 2)
    left = reached - area[part]
    length = at[part + 1] - at[part]
    slope = np.divide(
        rate[part + 1] - rate[part], length, out=np.zeros_like(left), where=length > 0
    )
    root = np.sqrt(np.maximum(rate[part] ** 2 + 2 * slope * left, 0.0))
    # Where both rates are 0 nothing is left either: that arrival is on the corner itself.
    mean = (rate[part] + root) / 2
    inside = np.divide(left, mean, out=np.zeros_like(left), where=mean > 0)
    return np.sort(at[part] + inside).astype(np.float64)
