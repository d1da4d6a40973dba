"""How a GPU divides into isolated parts (MIG): which profiles there are and where each may lie.

A GPU has slices of memory in a row. A profile takes some of them, from a few allowed starts only,
so not every set of profiles that would fit by size is one that the hardware makes. Here every legal
set is found by laying the profiles out.

Source: `nvidia-smi mig -lgipp` on A100 and H100 (profile: starts, slices taken) and NVIDIA's table
of supported profiles. The starts on GPUs with two or four slices are inferred from the number of
instances in that table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

Geometry = Literal["seven-slices", "four-slices", "two-slices"]

Layout = tuple[tuple[str, int], ...]
"""How many instances of which profile share one GPU, by name."""

USABLE_RATIO = 0.95
"""Of an instance's share of the memory; nvidia-smi lists 4.75 GiB of 5 for 1g.5gb on an A100."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What a profile takes: slices of compute and of memory, and where it may start."""

    compute: int
    memory: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance on one kind of GPU."""

    name: str
    slot: Slot
    compute_ratio: float
    """Share of the GPU's processors."""
    memory_mib: int
    """Memory that a model can use."""


SLOTS: Mapping[Geometry, tuple[Slot, ...]] = {
    "seven-slices": (
        Slot(1, 1, (0, 1, 2, 3, 4, 5, 6)),
        Slot(1, 2, (0, 2, 4, 6)),
        Slot(2, 2, (0, 2, 4)),
        Slot(3, 4, (0, 4)),
        Slot(4, 4, (0,)),
        Slot(7, 8, (0,)),
    ),
    "four-slices": (Slot(1, 1, (0, 1, 2, 3)), Slot(2, 2, (0, 2)), Slot(4, 4, (0,))),
    "two-slices": (Slot(1, 1, (0, 1)), Slot(2, 2, (0,))),
}
"""In the order in which `mig_names` in gpus.yaml lists the names."""

SLICES: Mapping[Geometry, tuple[int, int]] = {
    "seven-slices": (7, 8),
    "four-slices": (4, 4),
    "two-slices": (2, 2),
}
"""Slices of compute and of memory on a whole GPU."""


def profiles_of(geometry: Geometry, names: tuple[str, ...], memory_mib: int) -> tuple[Profile, ...]:
    """The profiles of a GPU with so much memory, smallest first."""
    compute, memory = SLICES[geometry]
    return tuple(
        Profile(
            name,
            slot,
            slot.compute / compute,
            int(memory_mib * slot.memory / memory * USABLE_RATIO),
        )
        for name, slot in zip(names, SLOTS[geometry], strict=True)
    )


@cache
def layouts(geometry: Geometry, names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Every legal set of instances on one GPU, the empty one left out, in order.

    Two halves of a GPU may be 3g and 3g, or 4g and 3g, never 4g and 4g:

    >>> names = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
    >>> found = layouts("seven-slices", names)
    >>> (("3g.40gb", 2),) in found, (("3g.40gb", 1), ("4g.40gb", 1)) in found
    (True, True)
    >>> (("4g.40gb", 2),) in found, (("1g.10gb", 1), ("7g.80gb", 1)) in found
    (False, False)
    """
    compute, memory = SLICES[geometry]
    slots = SLOTS[geometry]
    found: set[Layout] = set()

    def lay(first: int, used: int, left: int, counts: Counter[str]) -> None:
        if counts:
            found.add(tuple(sorted(counts.items())))
        for index in range(first, len(slots)):
            slot = slots[index]
            if slot.compute > left:
                continue
            for start in slot.starts:
                mask = ((1 << slot.memory) - 1) << start
                if start + slot.memory <= memory and not used & mask:
                    lay(index, used | mask, left - slot.compute, counts + Counter([names[index]]))

    lay(0, 0, compute, Counter())
    return tuple(sorted(found))


@cache
def full_layouts(geometry: Geometry, names: tuple[str, ...]) -> tuple[Layout, ...]:
    """The legal sets to which nothing can be added; every other one is a part of one of these."""
    every = layouts(geometry, names)
    return tuple(
        layout
        for layout in every
        if not any(other != layout and _within(layout, other) for other in every)
    )


def _within(part: Layout, whole: Layout) -> bool:
    counts = dict(whole)
    return all(counts.get(name, 0) >= count for name, count in part)
