"""Which models share which GPUs, what that costs, and whose spikes they accept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serving.capacity.cost import usd_per_gpu_hour
from serving.capacity.known import Known
from serving.capacity.packing import CRITICAL, Partitioned, Shared, Tenant, pack_mig, pack_shared
from serving.capacity.placement import shares
from serving.hardware.gpus import gpu_named
from serving.slo import LatencySlo
from serving.spec import ModelSpec

CRITICAL_MS = 100
"""A p99 at or below this is in a user's path, so two such models do not share a GPU."""


@dataclass(frozen=True, slots=True)
class Sharer:
    """A model with its replicas at the peak."""

    spec: ModelSpec
    known: Known
    replicas: int


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """Models that share GPUs of one kind, in one way."""

    gpu: str
    sharing: str
    models: tuple[str, ...]
    shared: Shared | None
    parts: Partitioned | None
    usd_per_hour: float | None
    risks: tuple[str, ...]

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        """Names of what is on each GPU."""
        if self.parts is not None:
            return tuple(tuple(f"{who} ({what})" for who, what in gpu) for gpu in self.parts.gpus)
        return tuple(
            tuple(tenant.name for tenant in gpu)
            for gpu in (self.shared.gpus if self.shared else ())
        )


def plan_floors(models: Sequence[Sharer]) -> Iterator[FloorPlan]:
    """One floor plan for each kind of GPU and way of sharing.

    Raises:
        InputError: a GPU does not divide, or a replica is larger than its part.
    """
    groups: dict[tuple[str, str], list[Sharer]] = defaultdict(list)
    for model in models:
        hardware = model.spec.hardware
        if hardware.sharing != "none":
            groups[hardware.gpu, hardware.sharing].append(model)
    for (name, sharing), held in sorted(groups.items()):
        gpu = gpu_named(name)
        tenants = [tenant for model in held for tenant in _tenants(model)]
        names = tuple(model.spec.name for model in held)
        price = usd_per_gpu_hour(name)
        if sharing == "mig":
            parts = pack_mig(gpu, tenants)
            cost = None if price is None else price * len(parts.gpus)
            risks = tuple(
                f"{model}: two replicas are on one GPU, and fail with it"
                for model in parts.crowded(tenants)
            )
            yield FloorPlan(name, sharing, names, None, parts, cost, risks)
        else:
            shared = pack_shared(tenants)
            cost = None if price is None else price * len(shared.gpus)
            yield FloorPlan(name, sharing, names, shared, None, cost, shared.risks + _open(sharing))


def _open(sharing: str) -> tuple[str, ...]:
    walls = "neither time nor memory" if sharing == "time-slicing" else "no memory bandwidth"
    return (f"{sharing} keeps {walls} apart: a neighbour's spike is everybody's p99; mig does",)


def _tenants(model: Sharer) -> Iterator[Tenant]:
    spec = model.spec
    memory, time = shares(spec, model.known, gpu_named(spec.hardware.gpu), model.replicas)
    apart: tuple[str, ...] = (spec.name,)
    if isinstance(spec.slo, LatencySlo) and spec.slo.latency_p99_ms <= CRITICAL_MS:
        apart = (spec.name, CRITICAL)
    # More than the spec allows is refused elsewhere, and would only make this slow.
    for number in range(min(model.replicas, spec.scaling.max_replicas)):
        yield Tenant(f"{spec.name}-{number}", memory, time, apart)
