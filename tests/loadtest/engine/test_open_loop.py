"""Every arrival of a worker ends as exactly one row, whatever becomes of it."""

import time
from collections.abc import Callable

import gevent
import numpy as np
import pytest

from loadtest.engine.open_loop import Answered, OpenLoop
from loadtest.records import DROPPED, GENERATOR, OPEN, ROW, Records
from loadtest.schedule import Schedule
from serving.judge.littles_law import littles_law
from serving.judge.measuring import measure
from serving.judge.objectives import quantile_objective
from serving.judge.run import NEVER

MS = 1_000_000


def schedule_of(count: int, every_ms: float) -> Schedule:
    intended = np.arange(count, dtype=np.int64) * round(every_ms * MS)
    return Schedule(intended, 0, int(intended[-1]) + MS)


def answers_in(seconds: float) -> Answered:
    sent = time.monotonic_ns()
    gevent.sleep(seconds)
    return Answered(sent, time.monotonic_ns(), 200)


def rows_of(loop: OpenLoop, users: int, wait: float, ask: Callable[[int], Answered]) -> Records:
    told: list[int] = []
    greenlets = [
        gevent.spawn(loop.serve, ask, lambda latency, _: told.append(latency)) for _ in range(users)
    ]
    loop.begin(time.monotonic_ns())
    gevent.sleep(wait)
    gevent.killall(greenlets)
    loop.close(time.monotonic_ns())
    rows = np.frombuffer(loop.drain(), dtype=ROW)
    assert loop.recorded == len(rows)
    return Records(rows)


def test_requests_are_sent_when_they_are_due_whatever_the_answers_take() -> None:
    schedule = schedule_of(40, 5)
    found = rows_of(OpenLoop(schedule, 0, 1), 40, 0.7, lambda _: answers_in(0.3)).in_order().rows
    assert found["position"].tolist() == list(range(40))
    assert (found["ok"] == 1).all()
    assert (found["sent"] >= found["intended"]).all()
    # A closed loop of as many users would have sent them all at once, one of fewer far too late.
    assert np.median(found["sent"] - found["intended"]) < 50 * MS


def test_latency_counts_from_the_intended_send_where_nobody_was_free() -> None:
    schedule = schedule_of(10, 1)
    found = rows_of(OpenLoop(schedule, 0, 1), 1, 0.5, lambda _: answers_in(0.02)).in_order().rows
    latency = (found["ended"] - found["intended"]) / MS
    service = (found["ended"] - found["sent"]) / MS
    assert service.max() < 150
    assert latency[-1] > 9 * 20 - 10
    assert np.all(np.diff(latency) > 0)


def test_open_requests_are_counted_as_littles_law_has_it() -> None:
    schedule = schedule_of(200, 4)
    records = rows_of(OpenLoop(schedule, 0, 1), 50, 1.2, lambda n: answers_in(0.01 + n % 7 / 200))
    law = littles_law(records.run(2 * 10**9))
    assert law is not None
    assert law.independent
    assert law.holds


def test_a_fault_of_the_generator_is_written_down_as_its_own() -> None:
    def ask(position: int) -> Answered:
        if position % 2:
            raise RuntimeError("oops")
        return answers_in(0)

    found = rows_of(OpenLoop(schedule_of(10, 1), 0, 1), 4, 0.3, ask).in_order().rows
    assert found["status"].tolist() == [200, GENERATOR] * 5
    assert found["ok"].tolist() == [1, 0] * 5


# P7, P20: what is still open or was never sent is not forgotten.


def test_what_is_open_or_unsent_at_the_end_has_a_row() -> None:
    records = rows_of(OpenLoop(schedule_of(6, 1), 0, 1), 2, 0.1, lambda _: answers_in(5))
    found = records.in_order().rows
    assert found["status"].tolist() == [OPEN] * 2 + [DROPPED] * 4
    assert (found["ended"] == NEVER).all()
    assert (found["sent"][2:] == NEVER).all()
    evidence = measure(records.run(10**9), [quantile_objective("latency", 0.99, 10)])
    assert evidence.attempted == 6
    assert evidence.dropped == 4


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_a_schedule_without_gap_or_overlap(workers: int) -> None:
    schedule = schedule_of(31, 1)
    loops = [OpenLoop(schedule, worker, workers) for worker in range(workers)]
    rows = [rows_of(loop, 4, 0.15, lambda _: answers_in(0)).rows for loop in loops]
    together = np.concatenate(rows)
    assert sorted(together["position"].tolist()) == list(range(31))
    assert set(together["worker"].tolist()) == set(range(workers))


def test_rows_are_drained_once() -> None:
    loop = OpenLoop(schedule_of(3, 1), 0, 1)
    rows_of(loop, 2, 0.1, lambda _: answers_in(0))
    assert loop.drain() == b""
    assert loop.done
