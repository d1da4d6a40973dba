"""A run is believed only where generator, rows and schedule agree; then the judge has its say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest import account
from loadtest.account import Account
from loadtest.judging import bound_to_fail, decided, evidence_of, read, verdict_of
from loadtest.records import DROPPED, GENERATOR, OPEN, TIMEOUT
from serving.errors import InputError
from serving.judge.run import NEVER
from serving.judge.verdict import Answer, Verdict
from tests.loadtest.runs import MS, account_of, bad, job_of, kept, rows_of

JOB = job_of(seconds=120, error_ratio=0.01)
COUNT = len(JOB.schedule)
MEASURED = int(JOB.schedule.measured.sum())
FIRST = COUNT - MEASURED


def noisy(mean_ms: float, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).gamma(4, mean_ms / 4, COUNT)


def judged(folder: Path, rows: Any, made: Account | None = None, **said: Any) -> Verdict:
    kept(folder, JOB, with_flight(rows), made, **said)
    run = read(folder)
    return verdict_of(run, evidence_of(run))


def with_flight(rows: Any) -> Any:
    """Rows with the number of requests that were open at each sending."""
    sent = rows["sent"] != NEVER
    starts, ends = np.sort(rows["sent"][sent]), np.sort(rows["ended"][sent])
    begun = np.searchsorted(starts, rows["sent"][sent], "left")
    done = np.searchsorted(ends, rows["sent"][sent], "right")
    rows["in_flight"][sent] = begun - done
    return rows


def test_a_run_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB, noisy(30)))
    assert found.answer is Answer.PASS
    assert not found.faults


def test_a_run_that_breaks_them_fails(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB, noisy(300)))
    assert found.answer is Answer.FAIL


def test_fifty_requests_are_inconclusive_however_good(tmp_path: Path) -> None:
    job = job_of(seconds=1.25)
    kept(tmp_path, job, with_flight(rows_of(job)))
    run = read(tmp_path)
    assert 30 < len(run.records.measured(job.schedule)) < 80
    assert verdict_of(run, evidence_of(run)).answer is Answer.INCONCLUSIVE


# P5: lost workers, and samples that do not add up with the schedule.


def test_a_lost_worker_makes_the_run_invalid(tmp_path: Path) -> None:
    rows = rows_of(JOB, noisy(30))
    made = account_of(rows, JOB)
    lost = Account(made.started_unix, made.ended_unix, 2, made.parts, (1,))
    found = judged(tmp_path, rows, lost)
    assert [fault.what for fault in found.faults] == ["workers"]


def test_no_account_at_all_is_a_lost_generator(tmp_path: Path) -> None:
    kept(tmp_path, JOB, rows_of(JOB, noisy(30)))
    (tmp_path / account.ACCOUNT).unlink()
    run = read(tmp_path)
    assert verdict_of(run, evidence_of(run)).answer is Answer.INVALID


@pytest.mark.parametrize("rows", ["missing", "doubled"])
def test_rows_that_do_not_add_up_with_the_schedule_make_it_invalid(
    tmp_path: Path, rows: str
) -> None:
    whole = rows_of(JOB, noisy(30))
    wrong = whole[:-3] if rows == "missing" else np.concatenate([whole, whole[-3:]])
    found = judged(tmp_path, wrong)
    assert found.answer is Answer.INVALID
    assert "reconciliation" in [fault.what for fault in found.faults]


def test_a_worker_that_followed_another_schedule_makes_it_invalid(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB, noisy(30)), schedule_digest="0" * 64)
    assert [fault.what for fault in found.faults] == ["workers"]


def test_a_run_without_a_row_is_never_a_pass(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB)[:0])
    assert found.answer is Answer.INVALID


# P4: the generator's own slowness.


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"cpu_ratio": 0.97}, "generator CPU"),
        ({"loop_lag_p99_ms": 40.0}, "event loop lag"),
    ],
)
def test_a_generator_that_was_not_well_makes_a_good_run_invalid(
    tmp_path: Path, said: dict[str, Any], what: str
) -> None:
    found = judged(tmp_path, rows_of(JOB, noisy(30)), **said)
    assert found.answer is Answer.INVALID
    assert [fault.what for fault in found.faults] == [what]


def test_sending_late_makes_it_invalid(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB, noisy(30), lag_ms=40))
    assert [fault.what for fault in found.faults] == ["dispatch lag"]


def test_more_than_the_generator_is_calibrated_for_is_invalid(tmp_path: Path) -> None:
    kept(tmp_path, JOB, with_flight(rows_of(JOB, noisy(30))))
    run = read(tmp_path)
    found = verdict_of(run, evidence_of(run, calibrated_rps=20))
    assert [fault.what for fault in found.faults] == ["calibration"]
    assert verdict_of(run, evidence_of(run, calibrated_rps=50)).answer is Answer.PASS


def test_a_late_generator_does_not_save_a_service_that_breaks_its_promise_anyway(
    tmp_path: Path,
) -> None:
    rows = rows_of(JOB, noisy(600), lag_ms=40)
    found = judged(tmp_path, rows, loop_lag_p99_ms=60.0)
    assert found.answer is Answer.FAIL
    assert any("forgiven" in note for note in found.notes)
    assert [gate.name for gate in found.gates] == [one.name for one in JOB.objectives]


def test_what_the_generator_was_late_is_never_held_against_the_service(tmp_path: Path) -> None:
    # All of it is the generator's doing: 20 ms of service, heard of 400 ms late.
    rows = rows_of(JOB, noisy(20) + 400, lag_ms=40)
    assert judged(tmp_path, rows, loop_lag_p99_ms=420.0).answer is Answer.INVALID


# P17: answers that a cache gives are not the model's.


def test_answers_from_a_cache_that_should_not_know_them_make_it_invalid(tmp_path: Path) -> None:
    rows = rows_of(JOB, noisy(30))
    rows["cached"][FIRST : FIRST + MEASURED // 10] = 1
    found = judged(tmp_path, rows)
    assert [fault.what for fault in found.faults] == ["cache"]


def test_a_workload_that_repeats_itself_may_be_answered_by_a_cache(tmp_path: Path) -> None:
    job = job_of(workload="cached", seconds=120, error_ratio=0.01)
    rows = rows_of(job, np.random.default_rng(1).gamma(4, 5, len(job.schedule)))
    rows["cached"][np.arange(len(rows)) % 10 != 0] = 1
    kept(tmp_path, job, with_flight(rows))
    run = read(tmp_path)
    assert verdict_of(run, evidence_of(run)).answer is Answer.PASS


# A32: exit codes say what happened, and nothing else.


def test_one_failure_in_many_is_no_reason_to_fail(tmp_path: Path) -> None:
    found = judged(tmp_path, bad(rows_of(JOB, noisy(30)), FIRST + 100, 500))
    assert (found.answer, found.exit_code) == (Answer.PASS, 0)


def test_all_answered_and_too_slow_is_a_failure(tmp_path: Path) -> None:
    found = judged(tmp_path, rows_of(JOB, np.where(np.arange(COUNT) % 20, noisy(30), 900)))
    assert (found.answer, found.exit_code) == (Answer.FAIL, 1)


def test_errors_of_the_generator_itself_make_the_run_invalid(tmp_path: Path) -> None:
    places = np.arange(FIRST, COUNT, 33)
    rows = bad(rows_of(JOB, noisy(30)), places, GENERATOR, sent=NEVER, ended=NEVER)
    found = judged(tmp_path, rows)
    assert (found.answer, found.exit_code) == (Answer.INVALID, 4)
    assert [fault.what for fault in found.faults] == ["achieved rate"]


# A31: an SLO is not rounded.


@pytest.mark.parametrize(("ms", "answer"), [(104.9, Answer.FAIL), (99.8, Answer.PASS)])
def test_a_limit_is_compared_before_anything_is_rounded(
    tmp_path: Path, ms: float, answer: Answer
) -> None:
    job = job_of(seconds=120, error_ratio=0.01, latency_p99_ms=100.0)
    kept(tmp_path, job, with_flight(rows_of(job, ms)))
    run = read(tmp_path)
    assert verdict_of(run, evidence_of(run)).answer is answer


# P7, P8, P20: what is open, failed or dropped is bad; there is one denominator.


@pytest.mark.parametrize(
    ("status", "values"),
    [
        (503, {}),
        (TIMEOUT, {}),
        (OPEN, {"ended": NEVER}),
        (DROPPED, {"sent": NEVER, "ended": NEVER}),
    ],
)
def test_whatever_was_not_answered_well_is_bad_and_attempted(
    tmp_path: Path, status: int, values: dict[str, int]
) -> None:
    places = np.arange(FIRST, COUNT, 150)
    kept(tmp_path, JOB, with_flight(bad(rows_of(JOB, noisy(30)), places, status, **values)))
    found = evidence_of(read(tmp_path))
    assert [one.counts.attempted for one in found.counted] == [MEASURED] * 2
    assert [one.counts.bad for one in found.counted] == [len(places)] * 2


def test_what_is_bound_to_fail_is_known_on_the_way_and_a_pass_only_where_it_may_be(
    tmp_path: Path,
) -> None:
    cut = JOB.schedule.warmup_until + 100 * 10**9
    failing = read(kept(tmp_path / "a", JOB, with_flight(rows_of(JOB, noisy(300)))))
    assert bound_to_fail(failing, cut)
    passing = read(kept(tmp_path / "b", JOB, with_flight(rows_of(JOB, noisy(30)))))
    assert not bound_to_fail(passing, cut)
    assert decided(passing, cut)
    assert not decided(passing, JOB.schedule.warmup_until + 2 * 10**9)


def test_a_run_that_was_broken_off_is_judged_by_what_was_due_before(tmp_path: Path) -> None:
    cut = JOB.schedule.warmup_until + 60 * 10**9
    rows = rows_of(JOB, noisy(30))
    kept(tmp_path, JOB, with_flight(rows[rows["intended"] < cut + 200 * MS]))
    found = evidence_of(read(tmp_path), broken_off_at=cut)
    assert found.generator.expected_requests == found.attempted


def test_several_workers_are_held_against_littles_law_each(tmp_path: Path) -> None:
    rows = rows_of(JOB, noisy(30))
    rows["worker"] = np.arange(COUNT) % 2
    for worker in (0, 1):
        own = rows["worker"] == worker
        rows[own] = with_flight(rows[own])
    rows["in_flight"][rows["worker"] == 1] += 3
    found = judged(tmp_path, rows)
    assert "Little's law" in [fault.what for fault in found.faults]


def test_a_folder_without_a_run_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no load test"):
        read(tmp_path / "nothing")
    (tmp_path / account.JOB).write_text("{}")
    with pytest.raises(InputError, match="job: spec"):
        read(tmp_path)
