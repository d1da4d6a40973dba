"""The highest rate that keeps the SLO: a search over rates, and a confirmation on fresh data.

    double or halve ──► between a rate that PASSes and one that does not ──► halve the gap to 5%
                                                                                   │
    the answer: "at least R, with 1 - alpha" ◄── PASS on new seeds, alpha / 3 ◄────┘ (else 5% less)

The rate that a search ends at is the luckiest of many, and overstates: only what a confirmation
passed is told. INCONCLUSIVE and INVALID count as not proven.

Source: slo.md, section 3 (iii).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from serving.judge.verdict import Answer

WIDTH: Final = 0.05
CONFIRMATIONS: Final = 3
"""Times that a rate may be put to the test at the end; alpha is shared out among them."""
LOWEST: Final = 1 / 64
"""Of the first rate: below it the search gives up."""
MOST_PROBES: Final = 24


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried, and what came of it."""

    rate_rps: float
    confirms: bool
    answer: Answer


@dataclass(frozen=True, slots=True)
class Search:
    """A search as far as it is; `told` makes the next one. Nothing is hidden: it is its probes.

    Attributes:
        start_rps: the first rate.
        probes: what was tried, in order.
        width: how close a rate that passes and one that does not must come, of the rate.
    """

    start_rps: float
    probes: tuple[Probe, ...] = ()
    width: float = WIDTH

    @property
    def proven_rps(self) -> float | None:
        """The highest rate that passed while searching, below every one that did not."""
        failed = self.failed_rps or math.inf
        passed = [
            probe.rate_rps
            for probe in self.probes
            if not probe.confirms and probe.answer is Answer.PASS and probe.rate_rps < failed
        ]
        return max(passed, default=None)

    @property
    def failed_rps(self) -> float | None:
        """The lowest rate that was not proven while searching."""
        failed = [
            probe.rate_rps
            for probe in self.probes
            if not probe.confirms and probe.answer is not Answer.PASS
        ]
        return min(failed, default=None)

    @property
    def confirmed_rps(self) -> float | None:
        """The rate that the search ends with; None as long as there is none."""
        return next(
            (
                probe.rate_rps
                for probe in self.probes
                if probe.confirms and probe.answer is Answer.PASS
            ),
            None,
        )

    @property
    def next(self) -> tuple[float, bool] | None:
        """The next rate to try, and whether it is to confirm; None where the search is over."""
        confirmations = [probe for probe in self.probes if probe.confirms]
        if self.confirmed_rps is not None or len(confirmations) >= CONFIRMATIONS:
            return None
        proven, failed = self.proven_rps, self.failed_rps
        if confirmations:
            return confirmations[-1].rate_rps * (1 - self.width), True
        if proven is None:
            lower = self.start_rps if failed is None else failed / 2
            return (lower, False) if lower >= self.start_rps * LOWEST else None
        tried = len(self.probes)
        if failed is None:
            return (proven * 2, False) if tried < MOST_PROBES else (proven, True)
        if failed <= proven * (1 + self.width) or tried >= MOST_PROBES:
            return proven, True
        return math.sqrt(proven * failed), False

    def told(self, answer: Answer) -> Search:
        """The search after the verdict on its next rate."""
        following = self.next
        if following is None:
            return self
        rate, confirms = following
        return replace(self, probes=(*self.probes, Probe(rate, confirms, answer)))
