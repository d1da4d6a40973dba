"""Arithmetic of the benchmarks: what is measured round by round, and what is told of it.

A ratio is taken within a round, of two measurements that follow one another, and told as the
median of all rounds with the lowest and the highest: what the machine does beside it then touches
both sides alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final


@dataclass(frozen=True)
class Ratio:
    """A median over rounds, and the lowest and highest of them."""

    value: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Limit:
    """What a ratio must keep."""

    at_most: float | None = None
    at_least: float | None = None

    def keeps(self, value: float) -> bool:
        """Whether the value keeps it.

        >>> Limit(at_most=2.2).keeps(2.2), Limit(at_least=50).keeps(49.9)
        (True, False)
        """
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def __str__(self) -> str:
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"


TARGETS: Final[Mapping[str, Limit]] = {
    "hit_cpu_vs_empty_app": Limit(at_most=2.2),
    "hit_cpu_vs_empty_app_json": Limit(at_most=2.8),
    "miss_cpu_vs_hit": Limit(at_most=2.5),
    "e2e_p50_vs_bare_envoy": Limit(at_most=1.2),
    "e2e_p99_vs_bare_envoy": Limit(at_most=1.2),
    "stream_vs_bare_envoy": Limit(at_most=1.05),
    "requests_per_cpu_vs_litellm": Limit(at_least=50),
}
"""What the project promises; ratios without one are told for comparison."""

ABSOLUTE_TARGETS: Final[Mapping[str, Limit]] = {
    "hit_p99_ms_at_500_rps": Limit(at_most=1.0),
    "hit_share_within_1_ms_in_the_hop": Limit(at_least=0.99),
}
"""The one promise in milliseconds, as a client has it and as the hop itself counts it."""


@dataclass(frozen=True)
class Part:
    """What one benchmark found; a name in `skipped` has a reason instead of a ratio."""

    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    absolute: Mapping[str, Ratio] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


Measure = Callable[[], Part]
Tell = Callable[[str], None]
"""Says what is going on, to whoever waits."""


def over_rounds(values: Sequence[float]) -> Ratio:
    """Median, lowest and highest.

    >>> over_rounds([3.0, 1.0, 2.0])
    Ratio(value=2.0, low=1.0, high=3.0, rounds=3)
    """
    return Ratio(median(values), min(values), max(values), len(values))


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Each of `above` over the one of the same round in `below`.

    >>> ratio_of([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]).value
    3.0
    """
    return over_rounds([top / bottom for top, bottom in zip(above, below, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def joined(parts: Sequence[Part]) -> Part:
    """All parts as one."""
    together: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
    for part in parts:
        for whole, piece in zip(
            together, (part.ratios, part.absolute, part.skipped, part.versions), strict=True
        ):
            whole.update(piece)
    return Part(*together)
