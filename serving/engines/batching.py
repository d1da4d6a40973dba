"""Triton's two batchers, with Triton's own names for their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from serving.strict import Fault, Rule, Strict, tagged
from serving.tensors import (
    LARGEST_INT32,
    LARGEST_INT64,
    LARGEST_UINT32,
    LARGEST_UINT64,
    TensorName,
)

Count = Annotated[int, Field(ge=1, le=LARGEST_INT32)]
BatchSize = Annotated[int, Field(le=LARGEST_INT32)]
Microseconds = Annotated[int, Field(ge=0, le=LARGEST_INT64)]
Level = Annotated[int, Field(ge=0, le=LARGEST_UINT32)]


class QueuePolicy(Strict):
    """How long a request may wait for a batch, and how many may wait."""

    timeout_action: Literal["REJECT", "DELAY"] = Field(
        default="REJECT", description="what happens to a request that waited too long"
    )
    default_timeout_microseconds: Microseconds = Field(
        default=0, description="longest wait in microseconds; 0 is no limit"
    )
    allow_timeout_override: bool = Field(
        default=False, description="whether a request may ask for a shorter wait"
    )
    max_queue_size: int = Field(
        default=0, ge=0, le=LARGEST_UINT32, description="requests that may wait; 0 is no limit"
    )


class DynamicBatching(Strict):
    """Requests that arrive one by one leave as a batch."""

    preferred_batch_size: tuple[BatchSize, ...] = Field(
        default=(), description="batch sizes to send at once, in requests, smallest first"
    )
    max_queue_delay_microseconds: Microseconds = Field(
        default=0, description="longest wait for a fuller batch, in microseconds"
    )
    preserve_ordering: bool = Field(
        default=False, description="whether answers leave in the order of the requests"
    )
    priority_levels: Level = Field(default=0, description="number of levels, 1 the most urgent")
    default_priority_level: Level = Field(
        default=0, description="level of a request that names none"
    )
    default_queue_policy: QueuePolicy | None = Field(
        default=None, description="queue policy of levels without one"
    )
    priority_queue_policy: Mapping[int, QueuePolicy] = Field(
        default={}, description="queue policy by level"
    )

    @Rule
    def _sizes_ascend(self) -> Iterator[Fault]:
        sizes = self.preferred_batch_size
        if any(size >= larger for size, larger in pairwise(sizes)):
            yield Fault(
                ("preferred_batch_size",),
                sizes,
                "is not in ascending order without repeats",
                f"write {sorted(set(sizes))}",
            )

    @Rule
    def _default_level_exists(self) -> Iterator[Fault]:
        levels, default = self.priority_levels, self.default_priority_level
        if levels == 0 and default != 0:
            fix = f"set priority_levels to {default} or more, or remove it"
            yield Fault(("default_priority_level",), default, "has no priority_levels", fix)
        elif levels and not 1 <= default <= levels:
            yield Fault(
                ("default_priority_level",),
                default,
                f"is outside 1 to priority_levels={levels}, so priorities never take effect",
                f"use a level from 1 to {levels}",
            )

    @Rule
    def _policies_have_a_level(self) -> Iterator[Fault]:
        levels = self.priority_levels
        for level, policy in self.priority_queue_policy.items():
            if not 1 <= level <= levels:
                yield Fault(
                    ("priority_queue_policy", level),
                    policy.model_dump(exclude_defaults=True),
                    f"is for level {level}, outside 1 to priority_levels={levels}",
                    f"use a level from 1 to {levels}" if levels else "set priority_levels",
                )


class ControlInput(Strict):
    """An input through which Triton tells a model about the sequence."""

    name: TensorName = Field(description="name of the input")
    kind: Literal[
        "CONTROL_SEQUENCE_START",
        "CONTROL_SEQUENCE_READY",
        "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    ] = Field(description="what the input tells")
    data_type: Literal[
        "TYPE_BOOL", "TYPE_INT32", "TYPE_FP32", "TYPE_UINT32", "TYPE_INT64", "TYPE_UINT64",
        "TYPE_STRING",
    ] = Field(description="type of one element")  # fmt: skip

    @Rule
    def _type_fits_kind(self) -> Iterator[Fault]:
        flags = ("TYPE_BOOL", "TYPE_INT32", "TYPE_FP32")
        ids = ("TYPE_INT32", "TYPE_UINT32", "TYPE_INT64", "TYPE_UINT64", "TYPE_STRING")
        allowed = ids if self.kind == "CONTROL_SEQUENCE_CORRID" else flags
        if self.data_type not in allowed:
            rule = f"cannot carry {self.kind}"
            yield Fault(("data_type",), self.data_type, rule, f"use one of {', '.join(allowed)}")


class Direct(Strict):
    """Each sequence keeps one slot of a batch to itself."""

    kind: Literal["direct"] = Field(description="direct")
    max_queue_delay_microseconds: Microseconds = Field(
        default=0, description="longest wait for a fuller batch, in microseconds"
    )
    minimum_slot_utilization: float = Field(
        default=0.0, ge=0, le=1, description="share of slots in use that ends the wait, 0 to 1"
    )


class Oldest(Strict):
    """Batches form from the oldest requests of the running sequences."""

    kind: Literal["oldest"] = Field(description="oldest")
    max_candidate_sequences: Count = Field(description="sequences that may run at once")
    preferred_batch_size: tuple[BatchSize, ...] = Field(
        default=(), description="batch sizes to send at once, in requests"
    )
    max_queue_delay_microseconds: Microseconds = Field(
        default=0, description="longest wait for a fuller batch, in microseconds"
    )
    preserve_ordering: bool = Field(
        default=False, description="whether answers leave in the order of the requests"
    )


Strategy = Annotated[
    Annotated[Direct, Tag("direct")] | Annotated[Oldest, Tag("oldest")], Discriminator(tagged)
]


class SequenceBatching(Strict):
    """Requests of one sequence meet the same model instance, which keeps their state."""

    max_sequence_idle_microseconds: int = Field(
        ge=1,
        le=LARGEST_UINT64,
        description="time without a request after which a sequence is dropped, in microseconds",
    )
    client_gap_ms: float = Field(
        gt=0, description="longest time clients leave between two requests, in milliseconds"
    )
    strategy: Strategy = Field(description="how batches form: kind direct or oldest")
    control_input: tuple[ControlInput, ...] = Field(
        default=(), description="inputs that tell the model about the sequence"
    )

    @Rule
    def _idle_outlasts_gap(self) -> Iterator[Fault]:
        gap = self.client_gap_ms * 1000
        if self.max_sequence_idle_microseconds <= gap:
            yield Fault(
                ("max_sequence_idle_microseconds",),
                self.max_sequence_idle_microseconds,
                f"is not above client_gap_ms={self.client_gap_ms:g}, so live sequences are dropped",
                f"use more than {gap:.0f}",
            )
