"""Whether traffic is split as configured: a sequential test of the canary's share of requests.

A canary that gets another share than its weight says is a routing fault, and what is measured of it
may be a selection. Beta-binomial bet around the configured weight, one for each weight in turn.

Source: Lindon and Malek, Anytime-valid inference for multinomial count data, NeurIPS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

PRIOR: Final = 100.0
"""Requests that the bet's prior is worth: shares within some points of the weight are bet on."""


@dataclass(frozen=True, slots=True)
class Split:
    """Counts at the present weight, and the log of what was won or lost at earlier ones."""

    # JSON has no infinity.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012

    earlier: float = 0.0
    weight: float | None = None
    canary: int = 0
    stable: int = 0


def split_updated(split: Split, canary: int, stable: int, weight: float | None) -> Split:
    """After one more window at `weight`; None for one in which the weight changed."""
    if weight is None:
        return split
    if split.weight == weight:
        return Split(split.earlier, weight, split.canary + canary, split.stable + stable)
    return Split(split_evidence(split), weight, canary, stable)


def split_evidence(split: Split) -> float:
    """Natural log of the evidence that requests are not split by the weight.

    >>> fair = split_evidence(Split(0.0, 0.05, canary=50, stable=950))
    >>> unfair = split_evidence(Split(0.0, 0.05, canary=100, stable=900))
    >>> fair < 0, unfair > math.log(1000)
    (True, True)
    """
    if split.weight is None:
        return split.earlier
    if not 0 < split.weight < 1:
        # Nothing may go to the other side: one that did is proof, and none is nothing new.
        strays = split.canary if split.weight <= 0 else split.stable
        return split.earlier if strays == 0 else math.inf
    a, b = PRIOR * split.weight, PRIOR * (1 - split.weight)
    seen = (
        _log_beta(a + split.canary, b + split.stable)
        - _log_beta(a, b)
        - split.canary * math.log(split.weight)
        - split.stable * math.log1p(-split.weight)
    )
    return split.earlier + seen


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
