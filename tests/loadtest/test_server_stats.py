"""What a server says of itself is a difference of two readings, and a fresh start is noticed."""

import pytest

from loadtest.server_stats import Reading, reading_of, replicas_of, sample_of, times_of
from tests.loadtest.runs import job_of

ANSWER = {
    "model_stats": [
        {
            "inference_count": 32,
            "execution_count": 8,
            "inference_stats": {
                "success": {"count": 16, "ns": 0},
                "queue": {"count": 16, "ns": 32_000_000},
                "compute_input": {"count": 16, "ns": 1_000_000},
                "compute_infer": {"count": 16, "ns": 160_000_000},
                "compute_output": {"count": 16, "ns": 3_000_000},
            },
        }
    ]
}


def test_a_reading_is_taken_from_tritons_own_answer() -> None:
    assert reading_of(ANSWER) == Reading(16, 8, 32, 32_000_000, 164_000_000)


def test_means_are_of_requests_and_batches_of_executions() -> None:
    found = sample_of(5, [Reading(16, 8, 32, 32_000_000, 160_000_000), Reading(16, 8, 16, 0, 0)])
    assert (found.requests, found.queue_ms, found.compute_ms) == (32, 1.0, 5.0)
    assert found.batch_size == 3.0


def test_nothing_done_is_no_division_by_zero() -> None:
    assert sample_of(0, []).batch_size == 0.0
    assert times_of([sample_of(0, [])], 0) is None


def test_a_replica_that_began_anew_is_noticed() -> None:
    before, after = Reading(16, 8, 32, 1, 1), Reading(3, 1, 3, 1, 1)
    assert after.since(before) is None
    assert before.since(after) == Reading(13, 7, 29, 0, 0)


def test_samples_are_weighed_by_what_they_saw() -> None:
    busy = sample_of(0, [Reading(30, 10, 30, 30_000_000, 0)])
    calm = sample_of(1, [Reading(10, 10, 10, 0, 0)])
    found = times_of([busy, calm], 2)
    assert found is not None
    assert found.queue_ms == pytest.approx(0.75)
    assert found.batch_size == 2.0
    assert found.restarts == 2


def test_only_the_local_stack_is_asked() -> None:
    assert replicas_of(job_of()) == ()
