"""The floor plan: many small models on few GPUs, so that none is in another's way.

Where replicas only share a GPU (time-slicing, MPS), memory and compute must add up on each. Where
each gets its own part of it (MIG), the parts on one GPU must be a set that the hardware makes.
Replicas of one model never share a GPU, nor do two models that are both latency-critical: what one
of them does in a spike would be the other one's p99.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.errors import InputError
from serving.hardware.gpus import Gpu
from serving.hardware.mig import Profile

EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Tenant:
    """One replica that shares a GPU."""

    name: str
    memory_ratio: float
    """Share of the GPU's memory, 0 to 1."""
    compute_ratio: float
    """Share of the GPU's time at the model's peak, 0 to 1."""
    apart: tuple[str, ...] = ()
    """Groups of which a GPU holds one member at most: its model, and the latency-critical ones."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A floor plan in which GPUs are shared without walls."""

    gpus: tuple[tuple[Tenant, ...], ...]
    bound: int
    """No plan has fewer GPUs."""

    @property
    def risks(self) -> tuple[str, ...]:
        """For each latency-critical replica that is not alone: who can make it late."""
        return tuple(
            f"{tenant.name}: its p99 depends on spikes of "
            + ", ".join(other.name for other in gpu if other is not tenant)
            for gpu in self.gpus
            for tenant in gpu
            if CRITICAL in tenant.apart and len(gpu) > 1
        )


CRITICAL = "latency-critical"


def lower_bound(tenants: Sequence[Tenant]) -> int:
    """GPUs that no plan goes below: by memory, by compute, and by what must be apart.

    Replicas that take more than half of either need one each, so they count too.
    """
    memory = [tenant.memory_ratio for tenant in tenants]
    compute = [tenant.compute_ratio for tenant in tenants]
    groups = Counter(group for tenant in tenants for group in tenant.apart)
    return max(*map(_volume, (memory, compute)), *groups.values(), 0)


def _volume(ratios: Sequence[float]) -> int:
    """GPUs by one resource: all of it, or those of which no two fit together."""
    halves = sum(ratio > 0.5 + EPSILON for ratio in ratios)
    return max(math.ceil(sum(ratios) - EPSILON), halves)


def pack_shared(tenants: Sequence[Tenant]) -> Shared:
    """A floor plan with few GPUs: the better one of two ways, both deterministic.

    One fills GPU after GPU, each time with the replica that best suits what is left of memory and
    compute. The other takes the largest first and puts each where it leaves the least.

    Raises:
        InputError: a replica is larger than a GPU.
    """
    for tenant in tenants:
        larger = max(tenant.memory_ratio, tenant.compute_ratio)
        if larger > 1 + EPSILON:
            raise InputError(
                f"{tenant.name}: takes {larger:.2f} of a GPU and cannot share one; use "
                "sharing: none and a larger GPU"
            )
    bound = lower_bound(tenants)
    plans = (_fill(tenants, bound), _best_fit(tenants))
    best = min(plans, key=len)
    return Shared(tuple(tuple(tenants[index] for index in gpu) for gpu in best), bound)


def _sizes(tenants: Sequence[Tenant]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([(t.memory_ratio, t.compute_ratio) for t in tenants]).reshape(-1, 2)


def _best_fit(tenants: Sequence[Tenant]) -> list[list[int]]:
    """Largest first, each on the GPU where the most is left over of neither."""
    sizes = _sizes(tenants)
    order = np.argsort(-sizes.max(axis=1) - sizes.sum(axis=1) / 100, kind="stable")
    count = len(tenants)
    left = np.ones((count, 2))
    held: list[list[int]] = []
    taken: dict[str, set[int]] = defaultdict(set)
    for index in order.tolist():
        size, apart = sizes[index], tenants[index].apart
        opened = len(held)
        fits = (left[:opened] >= size - EPSILON).all(axis=1)
        for group in apart:
            fits[list(taken[group])] = False
        places = np.flatnonzero(fits)
        if len(places):
            rest = (left[places] - size).sum(axis=1)
            place = int(places[int(np.argmin(rest))])
        else:
            place = opened
            held.append([])
        held[place].append(index)
        left[place] -= size
        for group in apart:
            taken[group].add(place)
    return held


def _fill(tenants: Sequence[Tenant], bound: int) -> list[list[int]]:
    """GPU after GPU, each time the replica whose needs point where most is left."""
    sizes = _sizes(tenants)
    weights = sizes.sum(axis=0) / max(1, bound) + EPSILON
    members: dict[str, list[int]] = defaultdict(list)
    for index, tenant in enumerate(tenants):
        for group in tenant.apart:
            members[group].append(index)
    waiting = {group: len(indices) for group, indices in members.items()}
    alive = np.ones(len(tenants), dtype=bool)
    held: list[list[int]] = []
    while alive.any():
        # Only those that still wait are looked at, by their places among them.
        ids = np.flatnonzero(alive)
        place = np.empty(len(tenants), dtype=np.intp)
        place[ids] = np.arange(len(ids))
        wants, allowed, bonus = sizes[ids], np.ones(len(ids), dtype=bool), np.zeros(len(ids))
        # A group with as many members left as there are GPUs to come must not wait.
        for group, count in waiting.items():
            if 1 < count >= bound - len(held):
                bonus[[place[index] for index in members[group] if alive[index]]] = 10
        left, gpu = np.ones(2), []
        while True:
            fits = allowed & (wants <= left + EPSILON).all(axis=1)
            score = np.where(fits, wants @ (left * weights) + bonus, -1)
            best = int(score.argmax())
            if score[best] < 0:
                break
            index = int(ids[best])
            gpu.append(index)
            left -= sizes[index]
            allowed[best] = False
            for group in tenants[index].apart:
                allowed[[place[other] for other in members[group] if alive[other]]] = False
                waiting[group] -= 1
        alive[gpu] = False
        held.append(gpu)
    return held


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A floor plan in which each replica has its own MIG instance."""

    gpus: tuple[tuple[tuple[str, str], ...], ...]
    """For each GPU, the replica and the profile of every instance that is used."""
    bound: int
    """No plan has fewer GPUs: the linear program's value, rounded up."""

    def crowded(self, tenants: Sequence[Tenant]) -> tuple[str, ...]:
        """Models of which two replicas share a GPU, so that one failure takes both."""
        model = {tenant.name: _model(tenant) for tenant in tenants}
        found = set()
        for gpu in self.gpus:
            counts = Counter(model[name] for name, _ in gpu)
            found |= {name for name, count in counts.items() if count > 1}
        return tuple(sorted(found))


def profile_for(gpu: Gpu, tenant: Tenant) -> Profile | None:
    """The smallest MIG profile that holds a replica; None where not even the whole GPU does."""
    memory = tenant.memory_ratio * gpu.memory_mib
    for profile in gpu.profiles:
        if profile.memory_mib >= memory and profile.compute_ratio >= tenant.compute_ratio - EPSILON:
            return profile
    return None


def pack_mig(gpu: Gpu, tenants: Sequence[Tenant]) -> Partitioned:
    """As few GPUs as there can be: an integer program over the legal layouts.

    Raises:
        InputError: the GPU does not divide, or a replica is larger than it.
    """
    if not gpu.profiles:
        raise InputError(
            f"gpu={gpu.name} does not divide (MIG); use sharing: mps or time-slicing, or one of "
            "a100, h100, h200, b200, b300, rtx-pro-4500, rtx-pro-server-6000"
        )
    wanted: dict[str, list[Tenant]] = defaultdict(list)
    for tenant in tenants:
        profile = profile_for(gpu, tenant)
        if profile is None:
            raise InputError(
                f"{tenant.name}: needs {tenant.memory_ratio:.2f} of the memory and "
                f"{tenant.compute_ratio:.2f} of the time of a {gpu.name}, more than its largest "
                "MIG profile offers; use sharing: none"
            )
        wanted[profile.name].append(tenant)
    if not wanted:
        return Partitioned((), 0)
    demand = {name: len(held) for name, held in wanted.items()}
    layouts = [dict(layout) for layout in gpu.full_layouts]
    counts, bound = _cover(layouts, demand, _most_replicas(wanted))
    chosen = [layout for layout, count in zip(layouts, counts, strict=True) for _ in range(count)]
    return Partitioned(_seat(chosen, wanted), bound)


def _model(tenant: Tenant) -> str:
    return tenant.apart[0] if tenant.apart else tenant.name


def _most_replicas(wanted: Mapping[str, list[Tenant]]) -> dict[str, int]:
    """Replicas of the model that has the most of them, by profile."""
    return {name: max(Counter(map(_model, held)).values()) for name, held in wanted.items()}


def _cover(
    layouts: list[dict[str, int]], demand: Mapping[str, int], spread: Mapping[str, int]
) -> tuple[list[int], int]:
    """How often each layout is used to meet the demand with the fewest GPUs, and the LP's bound.

    As many GPUs have a profile as the model with the most replicas has of them.
    """
    from scipy.optimize import LinearConstraint, linprog, milp

    has = [[layout.get(name, 0) for layout in layouts] for name in demand]
    any_of = [[min(1, count) for count in row] for row in has]
    matrix = np.array(has + any_of)
    need = np.array([*demand.values(), *(spread[name] for name in demand)])
    cost = np.ones(len(layouts))
    relaxed = linprog(cost, A_ub=-matrix, b_ub=-need, method="highs")
    solved = milp(cost, constraints=LinearConstraint(matrix, lb=need), integrality=cost)
    return [round(value) for value in solved.x], math.ceil(relaxed.fun - 1e-6)


def _seat(
    chosen: list[dict[str, int]], wanted: Mapping[str, list[Tenant]]
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Replicas on instances; those of one model go around the GPUs, so that few meet."""
    seats: list[list[tuple[str, str]]] = [[] for _ in chosen]
    for name, tenants in wanted.items():
        having = sorted(range(len(chosen)), key=lambda index: -chosen[index].get(name, 0))
        rounds = max(layout.get(name, 0) for layout in chosen)
        order = [
            index for turn in range(rounds) for index in having if chosen[index].get(name, 0) > turn
        ]
        replicas = Counter(map(_model, tenants))
        by_model = sorted(tenants, key=lambda one: (-replicas[_model(one)], _model(one), one.name))
        for tenant, index in zip(by_model, order, strict=False):
            seats[index].append((tenant.name, name))
    return tuple(tuple(seat) for seat in seats if seat)
