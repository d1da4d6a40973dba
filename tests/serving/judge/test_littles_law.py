"""Little's law, held against recordings that are right and recordings that are not."""

from dataclasses import replace

import numpy as np

from loadtest.simulation.queues import Service, simulate
from serving.judge.evidence import Evidence
from serving.judge.judging import judge
from serving.judge.littles_law import LittlesLaw, littles_law
from serving.judge.measuring import measure
from serving.judge.objectives import quantile_objective
from serving.judge.run import Run, in_flight_at, run_of_seconds
from serving.judge.verdict import Answer

SLO = (quantile_objective("latency", 0.99, 10_000),)


def queue_run(seed: int = 1, size: int = 20_000) -> Run:
    traces = simulate(Service("queue", 0.7), 1, size, 2_000, seed)
    arrivals, latencies = traces.arrivals[0], traces.latencies[0]
    return run_of_seconds(arrivals, arrivals + latencies)


def with_count(run: Run) -> Run:
    """As a sender records it that counts its open requests itself."""
    return replace(run, in_flight=in_flight_at(run.sent, run.sent, run.ended))


def law_of(run: Run) -> LittlesLaw:
    law = littles_law(run)
    assert law is not None
    return law


def verdict_of(run: Run) -> Evidence:
    return measure(run, SLO)


def test_a_sound_recording_of_a_queue_obeys_it() -> None:
    assert law_of(with_count(queue_run())).holds
    assert law_of(replace(queue_run(), service=queue_run().ended - queue_run().sent)).holds
    assert judge(verdict_of(with_count(queue_run())), SLO).answer is Answer.PASS


def test_rows_that_are_missing_from_the_log_break_it() -> None:
    whole = with_count(queue_run())
    kept = np.arange(len(whole)) % 10 != 0
    assert whole.in_flight is not None
    part = Run(
        intended=whole.intended[kept],
        sent=whole.sent[kept],
        ended=whole.ended[kept],
        ok=whole.ok[kept],
        scheduled=True,
        in_flight=whole.in_flight[kept],
    )
    assert not law_of(part).holds
    verdict = judge(verdict_of(part), SLO)
    assert verdict.answer is Answer.INVALID
    assert [fault.what for fault in verdict.faults] == ["Little's law"]


def test_a_duration_in_another_unit_than_it_says_breaks_it() -> None:
    run = queue_run()
    wrong = replace(run, service=(run.ended - run.sent) // 1000)
    assert not law_of(wrong).holds
    assert judge(verdict_of(wrong), SLO).answer is Answer.INVALID


def test_two_clocks_that_differ_by_one_percent_are_within_it_and_by_three_are_not() -> None:
    run = queue_run()
    took = run.ended - run.sent
    assert law_of(replace(run, service=(took * 1.01).astype(np.int64))).holds
    assert not law_of(replace(run, service=(took * 1.03).astype(np.int64))).holds


def test_stamps_alone_are_not_called_independent() -> None:
    law = law_of(queue_run())
    assert law.holds
    assert not law.independent
    assert any("Little's law" in note for note in judge(verdict_of(queue_run()), SLO).notes)


def test_nothing_is_said_of_a_run_in_which_nothing_was_answered() -> None:
    assert littles_law(run_of_seconds([], [])) is None
    assert littles_law(run_of_seconds([0.0, 1.0], [float("inf")] * 2)) is None
