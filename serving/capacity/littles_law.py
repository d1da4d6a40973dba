"""Little's law: requests in flight = arrival rate x time in the system.

Source: J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9 (1961).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from serving.capacity.exact import OVER, TIMES, exact, spelled_number


@dataclass(frozen=True, slots=True)
class InFlight:
    """From a rate to replicas, with every step of the sum.

    A ranker answers in 50 ms, 2,000 requests a second arrive, a replica bears 20 at once:

    >>> found = InFlight(2000, 50, 20, 1)
    >>> float(found.in_flight), found.replicas
    (100.0, 5)
    >>> InFlight(2000, 50, 20, 1.25).sum
    '2,000 rps × 0.05 s = 100 in flight; ÷ 20 = 5; × 1.25 = 6.25, so 7 replicas'
    """  # noqa: RUF002 (the sum as it is printed)

    rate_rps: float
    time_ms: float
    per_replica: int
    headroom_ratio: float

    @property
    def in_flight(self) -> Fraction:
        """Requests in the system at any moment, on average."""
        return exact(self.rate_rps) * exact(self.time_ms) / 1000

    @property
    def needed(self) -> Fraction:
        """Replicas with headroom, before they are whole."""
        return self.in_flight / self.per_replica * exact(self.headroom_ratio)

    @property
    def replicas(self) -> int:
        """Whole replicas, one at least."""
        return max(1, math.ceil(self.needed))

    @property
    def replica_rps(self) -> Fraction:
        """Requests a second that one replica answers when it is full."""
        return self.per_replica * Fraction(1000) / exact(self.time_ms)

    @property
    def sum(self) -> str:
        """The sum as people write it."""
        seconds = exact(self.time_ms) / 1000
        return (
            f"{spelled_number(self.rate_rps)} rps {TIMES} {spelled_number(seconds)} s = "
            f"{spelled_number(self.in_flight)} in flight; "
            f"{OVER} {self.per_replica:,} = {spelled_number(self.in_flight / self.per_replica)}; "
            f"{TIMES} {spelled_number(self.headroom_ratio)} = {spelled_number(self.needed)}, "
            f"so {self.replicas:,} {'replica' if self.replicas == 1 else 'replicas'}"
        )
