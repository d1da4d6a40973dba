"""Floor plans: legal, apart, and with few GPUs."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.capacity.packing import (
    CRITICAL,
    Partitioned,
    Shared,
    Tenant,
    lower_bound,
    pack_mig,
    pack_shared,
    profile_for,
)
from serving.errors import InputError
from serving.hardware.gpus import Gpu, gpu_named
from serving.hardware.mig import layouts

A100 = gpu_named("a100", 81920)


def random_tenants(
    count: int, low: float, high: float, seed: int, replicas: int = 1
) -> list[Tenant]:
    random = np.random.default_rng(seed)
    memory, compute = random.uniform(low, high, (2, -(-count // replicas))).tolist()
    models = [index // replicas for index in range(count)]
    return [
        Tenant(f"m{index}", memory[model], compute[model], (f"model-{model}",))
        for index, model in enumerate(models)
    ]


def assert_legal(tenants: list[Tenant], plan: Shared) -> None:
    assert Counter(tenant.name for gpu in plan.gpus for tenant in gpu) == Counter(
        tenant.name for tenant in tenants
    )
    for gpu in plan.gpus:
        assert gpu
        assert sum(tenant.memory_ratio for tenant in gpu) <= 1 + 1e-6
        assert sum(tenant.compute_ratio for tenant in gpu) <= 1 + 1e-6
        groups = Counter(group for tenant in gpu for group in tenant.apart)
        assert max(groups.values(), default=1) == 1
    assert len(plan.gpus) >= plan.bound


def fewest(tenants: list[Tenant]) -> int:
    """GPUs of the best plan, by trying every one."""
    best = len(tenants)

    def place(index: int, bins: list[list[Tenant]]) -> None:
        nonlocal best
        if len(bins) >= best:
            return
        if index == len(tenants):
            best = len(bins)
            return
        tenant = tenants[index]
        for held in bins:
            together = [*held, tenant]
            if (
                sum(one.memory_ratio for one in together) <= 1 + 1e-9
                and sum(one.compute_ratio for one in together) <= 1 + 1e-9
                and not any(set(one.apart) & set(tenant.apart) for one in held)
            ):
                held.append(tenant)
                place(index + 1, bins)
                held.pop()
        place(index + 1, [*(list(held) for held in bins), [tenant]])

    place(0, [])
    return best


@pytest.mark.parametrize("seed", range(40))
def test_small_plans_are_the_best_there_are_or_one_gpu_more(seed: int) -> None:
    tenants = random_tenants(8, 0.1, 0.7, seed, replicas=1 + seed % 2)
    plan = pack_shared(tenants)
    assert_legal(tenants, plan)
    best = fewest(tenants)
    assert plan.bound <= best <= len(plan.gpus) <= best + 1


def test_most_small_plans_are_the_best_there_are() -> None:
    runs = [random_tenants(8, 0.1, 0.7, seed) for seed in range(40)]
    best = sum(len(pack_shared(run).gpus) == fewest(run) for run in runs)
    assert best >= 36


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("count", "low", "high", "replicas"),
    [(200, 0.01, 0.15, 1), (1000, 0.01, 0.15, 2), (1000, 0.02, 0.3, 1), (2000, 0.02, 0.4, 3)],
)
def test_plans_of_many_small_models_are_within_a_twentieth_of_the_bound(
    count: int, low: float, high: float, replicas: int, seed: int
) -> None:
    tenants = random_tenants(count, low, high, seed, replicas)
    plan = pack_shared(tenants)
    assert_legal(tenants, plan)
    assert len(plan.gpus) <= plan.bound * 1.05 + 1


def test_ten_thousand_models_go_on_two_thousand_gpus_within_a_twentieth_of_the_bound() -> None:
    tenants = random_tenants(10_000, 0.02, 0.375, 1)
    plan = pack_shared(tenants)
    assert_legal(tenants, plan)
    assert 1900 < plan.bound <= len(plan.gpus) <= plan.bound * 1.05


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 4), st.booleans()), max_size=25
    )
)
def test_every_plan_is_legal(drawn: list[tuple[float, float, int, bool]]) -> None:
    tenants = [
        Tenant(f"t{n}", memory, time, (f"m{model}", *([CRITICAL] if critical else [])))
        for n, (memory, time, model, critical) in enumerate(drawn)
    ]
    assert_legal(tenants, pack_shared(tenants))


def test_replicas_of_one_model_and_critical_models_are_kept_apart() -> None:
    tenants = [
        Tenant("a-0", 0.1, 0.1, ("a", CRITICAL)),
        Tenant("a-1", 0.1, 0.1, ("a", CRITICAL)),
        Tenant("b-0", 0.1, 0.1, ("b", CRITICAL)),
        Tenant("c-0", 0.1, 0.1, ("c",)),
    ]
    plan = pack_shared(tenants)
    assert len(plan.gpus) == plan.bound == 3
    assert len(plan.risks) == 1
    assert "c-0" in plan.risks[0]


def test_a_replica_larger_than_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"big: takes 1.20 of a GPU .* sharing: none"):
        pack_shared([Tenant("big", 1.2, 0.1)])


def test_nothing_takes_no_gpu() -> None:
    assert pack_shared([]).gpus == ()
    assert pack_mig(A100, []).gpus == ()
    assert lower_bound([]) == 0


# MIG


def assert_partition_legal(gpu: Gpu, tenants: list[Tenant], plan: Partitioned) -> None:
    assert gpu.mig is not None
    legal = set(layouts(gpu.mig, gpu.mig_names))
    sizes = {tenant.name: tenant for tenant in tenants}
    profiles = {profile.name: profile for profile in gpu.profiles}
    assert sorted(who for held in plan.gpus for who, _ in held) == sorted(sizes)
    for held in plan.gpus:
        assert tuple(sorted(Counter(what for _, what in held).items())) in legal
        for who, what in held:
            assert profiles[what].memory_mib >= sizes[who].memory_ratio * gpu.memory_mib
            assert profiles[what].compute_ratio >= sizes[who].compute_ratio - 1e-6


def fewest_partitions(gpu: Gpu, tenants: list[Tenant]) -> int:
    """GPUs of the best plan, by trying every legal layout for what is left."""
    assert gpu.mig is not None
    every = [Counter(dict(layout)) for layout in layouts(gpu.mig, gpu.mig_names)]
    found = [profile_for(gpu, tenant) for tenant in tenants]
    demand = Counter(profile.name for profile in found if profile is not None)

    @cache
    def best(left: tuple[tuple[str, int], ...]) -> int:
        if not left:
            return 0
        need = Counter(dict(left))
        options = [layout for layout in every if layout[left[0][0]] and layout <= need]
        return 1 + min(best(tuple(sorted((need - layout).items()))) for layout in options)

    return best(tuple(sorted(demand.items())))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("gpu", [A100, gpu_named("rtx-pro-server-6000")], ids=lambda gpu: gpu.name)
def test_partitions_are_legal_and_no_plan_has_fewer_gpus(gpu: Gpu, seed: int) -> None:
    tenants = random_tenants(7, 0.02, 0.6, seed)
    plan = pack_mig(gpu, tenants)
    assert_partition_legal(gpu, tenants, plan)
    assert plan.bound <= len(plan.gpus) == fewest_partitions(gpu, tenants)


def test_many_partitions_are_at_the_bound() -> None:
    tenants = random_tenants(3000, 0.02, 0.5, 1, replicas=3)
    plan = pack_mig(A100, tenants)
    assert_partition_legal(A100, tenants, plan)
    assert len(plan.gpus) <= plan.bound * 1.01 + 1


def test_partitions_of_replicas_of_one_model_are_on_different_gpus() -> None:
    tenants = [Tenant(f"a-{n}", 0.05, 0.05, ("a",)) for n in range(3)]
    plan = pack_mig(A100, tenants)
    assert len(plan.gpus) == plan.bound == 3
    assert plan.crowded(tenants) == ()


def test_replicas_that_meet_all_the_same_are_told() -> None:
    seats = ((("a-0", "1g.10gb"), ("a-1", "1g.10gb")),)
    tenants = [Tenant(f"a-{n}", 0.05, 0.05, ("a",)) for n in range(2)]
    assert Partitioned(seats, 1).crowded(tenants) == ("a",)


def test_a_gpu_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match=r"gpu=l4 does not divide .* h100"):
        pack_mig(gpu_named("l4"), [Tenant("a", 0.1, 0.1)])


def test_a_replica_larger_than_the_largest_partition_is_refused() -> None:
    with pytest.raises(InputError, match=r"a: needs 0.99 of the memory"):
        pack_mig(A100, [Tenant("a", 0.99, 0.1)])
