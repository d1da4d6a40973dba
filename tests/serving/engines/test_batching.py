"""Batcher settings that Triton refuses, or that would quietly do nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from serving.spec import parse_spec

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Told = Callable[[Mapping[str, object]], list[str]]

SEQUENCES = {
    "engine.dynamic_batching": ...,
    "cache": ...,
    "engine.sequence_batching": {
        "max_sequence_idle_microseconds": 30_000,
        "client_gap_ms": 20,
        "strategy": {"kind": "direct"},
    },
}


def batching(maximum: object, **settings: object) -> dict[str, object]:
    return {
        "engine.max_batch_size": maximum,
        "engine.dynamic_batching": settings,
        "warmup": [{"batch_size": 1}],
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            batching(..., preferred_batch_size=[2]),
            "engine.dynamic_batching.preferred_batch_size=[2] needs max_batch_size, which is "
            "unset: a server-wide default does not count; "
            "write max_batch_size: 2 or more in this spec",
            id="maximum unset",
        ),
        pytest.param(
            batching(8, preferred_batch_size=[4, 16]),
            "engine.dynamic_batching.preferred_batch_size=[4, 16] has 16 above max_batch_size=8; "
            "use sizes from 1 to 8, or raise max_batch_size",
            id="preferred above the maximum",
        ),
        pytest.param(
            batching(8, preferred_batch_size=[0]),
            "engine.dynamic_batching.preferred_batch_size=[0] has 0 below 1; use sizes from 1 to 8",
            id="preferred zero",
        ),
        pytest.param(
            batching(8, priority_levels=3),
            "engine.dynamic_batching.default_priority_level=0 is outside 1 to priority_levels=3, "
            "so priorities never take effect; use a level from 1 to 3",
            id="default level unset",
        ),
        pytest.param(
            batching(8, priority_levels=3, default_priority_level=4),
            "engine.dynamic_batching.default_priority_level=4 is outside 1 to priority_levels=3, "
            "so priorities never take effect; use a level from 1 to 3",
            id="default level above the levels",
        ),
        pytest.param(
            batching(
                8,
                priority_levels=2,
                default_priority_level=1,
                priority_queue_policy={5: {"max_queue_size": 3}},
            ),
            "engine.dynamic_batching.priority_queue_policy[5]={'max_queue_size': 3} is for level "
            "5, outside 1 to priority_levels=2; use a level from 1 to 2",
            id="policy for a level that is not there",
        ),
        pytest.param(
            batching(0),
            "engine.max_batch_size=0 makes dynamic_batching batch nothing, without a word from the "
            "server; use 1 or more, or remove dynamic_batching",
            id="dynamic batching without batches",
        ),
        pytest.param(
            batching(...),
            "engine.max_batch_size is unset beside dynamic_batching: a server-wide default does "
            "not count; write the largest batch in this spec",
            id="dynamic batching with the maximum unset",
        ),
        pytest.param(
            batching(8, preferred_batch_size=[4, 2, 4]),
            "engine.dynamic_batching.preferred_batch_size=[4, 2, 4] is not in ascending order "
            "without repeats; write [2, 4]",
            id="preferred out of order",
        ),
        pytest.param(
            batching(8, preferred_batch_size=[4, 4]),
            "engine.dynamic_batching.preferred_batch_size=[4, 4] is not in ascending order "
            "without repeats; write [4]",
            id="preferred twice",
        ),
        pytest.param(
            batching(8, preferred_batch_size=[8, 9]),
            "engine.dynamic_batching.preferred_batch_size=[8, 9] has 9 above max_batch_size=8; "
            "use sizes from 1 to 8, or raise max_batch_size",
            id="preferred one above the maximum",
        ),
        pytest.param(
            batching(8, default_priority_level=2),
            "engine.dynamic_batching.default_priority_level=2 has no priority_levels; "
            "set priority_levels to 2 or more, or remove it",
            id="level without levels",
        ),
    ],
)
def test_batcher_numbers_outside_their_range_are_refused_with_the_bound(
    faults: Told, changes: dict[str, object], expected: str
) -> None:
    assert faults(changes) == [f"ranker: {expected}"]


def test_several_batcher_faults_are_reported_in_one_run(faults: Told) -> None:
    settings = {
        "preferred_batch_size": [0, 16],
        "priority_levels": 2,
        "priority_queue_policy": {5: {}},
        "max_queue_delay_microseconds": "soon",
    }
    found = faults(
        batching(8, **settings) | {"scaling.min_replicas": 30, "inputs.0.data_type": "FP32"}
    )
    fields = [fault.removeprefix("ranker: ").split("=")[0] for fault in found]
    assert sorted(fields) == [
        "engine.dynamic_batching.default_priority_level",
        "engine.dynamic_batching.max_queue_delay_microseconds",
        "engine.dynamic_batching.preferred_batch_size",
        "engine.dynamic_batching.preferred_batch_size",
        "engine.dynamic_batching.priority_queue_policy[5]",
        "inputs[0].data_type",
        "scaling.min_replicas",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        batching(8, preferred_batch_size=[1, 8]),
        batching(8),
        batching(
            8,
            priority_levels=2,
            default_priority_level=2,
            priority_queue_policy={1: {"timeout_action": "DELAY"}, 2: {}},
        ),
        {"engine.max_batch_size": 0, "engine.dynamic_batching": ..., "warmup": [{"batch_size": 1}]},
    ],
)
def test_batcher_numbers_at_their_bounds_are_read(
    stated: Stated, changes: dict[str, object]
) -> None:
    assert parse_spec(stated(changes), "ranker").name == "ranker"


@pytest.mark.parametrize("idle", [10_000, 20_000])
def test_an_idle_limit_within_the_clients_gap_is_refused(faults: Told, idle: int) -> None:
    changes = SEQUENCES | {
        "scaling": {"min_replicas": 3, "max_replicas": 3},
        "engine.sequence_batching.max_sequence_idle_microseconds": idle,
    }
    found = faults(changes)
    assert found[0] == (
        f"ranker: engine.sequence_batching.max_sequence_idle_microseconds={idle} is not above "
        "client_gap_ms=20, so live sequences are dropped; use more than 20000"
    )
    assert "hash_header" in found[1]
