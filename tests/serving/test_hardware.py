"""The tables of GPUs and instances are complete, and MIG layouts are those of the hardware."""

from itertools import combinations_with_replacement
from typing import get_args

import pytest

from serving.hardware.gpus import Gpu, gpu_named, read_gpus
from serving.hardware.instances import Instance, read_instances
from serving.hardware.mig import SLICES, SLOTS, Geometry, Layout, layouts
from serving.spec import Gpu as GpuName

CATALOGUE = read_instances()
GPUS = read_gpus()


def test_every_gpu_that_a_spec_may_name_is_known_and_on_sale() -> None:
    names = set(get_args(GpuName)) - {"none"}
    assert names == {gpu.name for gpu in GPUS.gpus}
    sold = {instance.gpu.name for instance in CATALOGUE.instances if instance.gpu}
    assert names == sold


def test_every_instance_of_the_table_is_read_with_its_gpus() -> None:
    assert len(CATALOGUE.instances) == 77
    assert len({instance.type for instance in CATALOGUE.instances}) == 77
    kinds = [instance.accelerator for instance in CATALOGUE.instances]
    assert (kinds.count("gpu"), kinds.count("neuron"), kinds.count("none")) == (64, 7, 6)


def test_prices_have_a_day_and_a_source() -> None:
    assert CATALOGUE.date == "2026-07-20"
    assert "karpenter" in CATALOGUE.source
    unpriced = {item.type for item in CATALOGUE.instances if item.usd_per_hour is None}
    assert unpriced == {"p5e.48xlarge", "trn2.48xlarge"}


@pytest.mark.parametrize("gpu", GPUS.gpus, ids=lambda gpu: f"{gpu.name}-{gpu.memory_mib}")
def test_every_number_of_a_gpu_has_a_source(gpu: Gpu) -> None:
    assert gpu.source in GPUS.sources
    assert gpu.source != "estimate" or gpu.note


def test_low_precision_is_what_the_compute_capability_allows() -> None:
    for gpu in GPUS.gpus:
        assert ("bf16" in gpu.tflops) <= (gpu.capability >= (8, 0)), gpu.name
        assert ("fp8" in gpu.tflops) <= (gpu.capability >= (8, 9)), gpu.name
        assert ("fp4" in gpu.tflops) <= (gpu.capability >= (10, 0)), gpu.name


def test_what_was_measured_is_below_the_peak() -> None:
    for gpu in GPUS.gpus:
        for number, measured in gpu.achieved_tflops.items():
            assert measured < gpu.tflops[number]


@pytest.mark.parametrize(
    ("kind", "ratio"), [("g6f.large", 1 / 8), ("g6f.2xlarge", 1 / 4), ("gr6f.4xlarge", 1 / 2)]
)
def test_fractional_instances_hold_a_part_of_a_gpu_and_no_whole_one(
    kind: str, ratio: float
) -> None:
    instance = CATALOGUE.named(kind)
    assert isinstance(instance, Instance)
    assert (instance.gpus, instance.gpu_ratio) == (0, ratio)


A100 = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def counts(layout: Layout) -> tuple[int, ...]:
    found = dict(layout)
    return tuple(found.get(name, 0) for name in A100)


def test_full_layouts_of_an_a100_hold_all_that_are_published() -> None:
    # nebuly-ai/nos lists those without the 1g.10gb of newer drivers.
    published = {
        (0, 0, 0, 0, 0, 1), (1, 0, 1, 0, 1, 0), (3, 0, 0, 0, 1, 0), (0, 0, 0, 2, 0, 0),
        (1, 0, 1, 1, 0, 0), (3, 0, 0, 1, 0, 0), (0, 0, 2, 1, 0, 0), (2, 0, 1, 1, 0, 0),
        (1, 0, 3, 0, 0, 0), (3, 0, 2, 0, 0, 0), (5, 0, 1, 0, 0, 0), (7, 0, 0, 0, 0, 0),
    }  # fmt: skip
    assert published <= {counts(layout) for layout in layouts("seven-slices", A100)}


@pytest.mark.parametrize(
    ("name", "memory_mib", "profile", "most"),
    [
        ("a100", 40960, "1g.5gb", 7), ("a100", 40960, "1g.10gb", 4), ("a100", 40960, "2g.10gb", 3),
        ("h100", 81920, "3g.40gb", 2), ("h200", 144384, "4g.71gb", 1),
        ("b200", 183359, "1g.23gb", 7), ("b300", 275040, "7g.269gb", 1),
        ("rtx-pro-server-6000", 98304, "1g.24gb", 4),
        ("rtx-pro-server-6000", 98304, "2g.48gb", 2), ("rtx-pro-4500", 32768, "1g.16gb", 2),
    ],
)  # fmt: skip
def test_as_many_instances_of_a_profile_fit_as_nvidia_lists(
    name: str, memory_mib: int, profile: str, most: int
) -> None:
    gpu = gpu_named(name, memory_mib)
    assert max(dict(layout).get(profile, 0) for layout in gpu.full_layouts) == most


@pytest.mark.parametrize("geometry", get_args(Geometry))
def test_legal_layouts_are_those_that_a_search_without_shortcuts_finds(geometry: Geometry) -> None:
    compute, memory = SLICES[geometry]
    slots = SLOTS[geometry]
    names = tuple(f"p{index}" for index in range(len(slots)))

    def laid(kinds: tuple[int, ...], taken: frozenset[int]) -> bool:
        if not kinds:
            return True
        slot = slots[kinds[0]]
        return any(
            laid(kinds[1:], taken | cells)
            for start in slot.starts
            if max(cells := frozenset(range(start, start + slot.memory))) < memory
            and not cells & taken
        )

    found = set()
    for size in range(1, compute + 1):
        for kinds in combinations_with_replacement(range(len(slots)), size):
            fits = sum(slots[kind].compute for kind in kinds) <= compute
            if fits and laid(kinds, frozenset()):
                found.add(tuple(sorted((names[k], kinds.count(k)) for k in set(kinds))))
    assert set(layouts(geometry, names)) == found


def test_a_profile_offers_less_than_its_share_of_the_memory() -> None:
    for gpu in GPUS.gpus:
        for profile in gpu.profiles:
            assert profile.memory_mib < gpu.memory_mib * profile.slot.memory / SLICES[gpu.mig][1]  # type: ignore[index]
