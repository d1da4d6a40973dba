"""Which instance: every one that can run the model, cheapest first, and why each other cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.hardware.instances import Instance


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model sits on one type of instance."""

    replicas: int
    """Replicas that the peak takes on this hardware."""
    gpus_per_replica: float
    """Below 1 where replicas share a GPU."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One type of instance that can run the model."""

    instance: Instance
    replicas: int
    instances: int
    """Machines for all the replicas."""
    usd_per_hour: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """One type of instance that cannot."""

    instance: Instance
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Every instance, judged."""

    candidates: tuple[Candidate, ...]
    """Cheapest first; those without a public price last."""
    rejected: tuple[Rejected, ...]

    @property
    def best(self) -> Candidate | None:
        """The cheapest."""
        return self.candidates[0] if self.candidates else None


def choose(instances: Sequence[Instance], fit: Callable[[Instance], Fit | str]) -> Choice:
    """All `instances`, each with how the model sits on it, or the reason why it cannot."""
    candidates, rejected = [], []
    for instance in instances:
        found = fit(instance)
        if isinstance(found, str):
            rejected.append(Rejected(instance, found))
            continue
        machines = machines_for(instance, found)
        price = instance.usd_per_hour
        cost = None if price is None else price * machines
        candidates.append(Candidate(instance, found.replicas, machines, cost, found.note))
    candidates.sort(key=_cheapest)
    return Choice(tuple(candidates), tuple(rejected))


def _cheapest(candidate: Candidate) -> tuple[float, int, str]:
    cost = candidate.usd_per_hour
    # Of two at one price, the one with fewer and larger machines has less to fail.
    return (
        math.inf if cost is None else round(cost, 6),
        candidate.instances,
        candidate.instance.type,
    )


def machines_for(instance: Instance, fit: Fit) -> int:
    """Machines that so many replicas take; a replica is never spread over two.

    >>> from serving.hardware.instances import read_instances
    >>> machines_for(read_instances().named("g6.12xlarge"), Fit(replicas=7, gpus_per_replica=1))
    2
    """
    if instance.accelerator == "none":
        return fit.replicas
    each = max(1, int(instance.gpus / fit.gpus_per_replica + 1e-9))
    return -(-fit.replicas // each)
