"""What the generator writes down is read back whole, and as a log with the same verdict."""

from pathlib import Path

import numpy as np
import pytest

from loadtest.recordings.reading import read_recording
from loadtest.records import (
    BROKEN,
    CONNECTION,
    DROPPED,
    FORMAT,
    GENERATOR,
    GRPC,
    MALFORMED,
    OPEN,
    ROW,
    TIMEOUT,
    WORDS,
    Records,
    append,
    word_of,
)
from serving.errors import InputError
from serving.judge.measuring import measure
from serving.judge.objectives import Objective, quantile_objective
from serving.judge.run import NEVER
from tests.loadtest.runs import bad, job_of, rows_of

OBJECTIVES = (quantile_objective("latency", 0.99, 250), Objective("errors", 0.01))


def test_a_row_is_packed_and_read_alike() -> None:
    values = (1, 2, NEVER, 4, 5, 6, 7, 8, 9, -2, 11, 1, 0)
    row = np.frombuffer(FORMAT.pack(*values), dtype=ROW)[0]
    assert tuple(row.tolist()) == values


def test_a_row_that_is_half_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    assert len(Records.read(path)) == 0
    path.write_bytes(bytes(ROW.itemsize * 2 + 5))
    assert len(Records.read(path)) == 2


def test_only_whole_rows_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    append(path, bytes(ROW.itemsize))
    with pytest.raises(InputError, match="no whole rows"):
        append(path, b"x")
    assert path.stat().st_size == ROW.itemsize


# P6: the warm-up is left out by rule.


def test_the_measured_window_is_what_was_due_in_it_whenever_it_ended() -> None:
    job = job_of(seconds=10)
    kept = Records(rows_of(job, 3000.0)).measured(job.schedule)
    assert len(kept) == job.schedule.measured.sum()
    cut = job.schedule.warmup_until + 5 * 10**9
    assert (Records(kept.rows).measured(job.schedule, cut).rows["intended"] < cut).all()


def test_the_csv_judges_to_the_same_evidence_as_the_rows(tmp_path: Path) -> None:
    job = job_of(seconds=60)
    rows = rows_of(job, np.random.default_rng(1).exponential(40, len(job.schedule)))
    rows = bad(rows, slice(300, 303), 503)
    rows = bad(rows, slice(310, 312), TIMEOUT)
    rows = bad(rows, 320, DROPPED, sent=NEVER, ended=NEVER)
    rows = bad(rows, 330, OPEN, ended=NEVER)
    rows = bad(rows, 340, MALFORMED)
    rows = bad(rows, 350, BROKEN)
    rows = bad(rows, 360, CONNECTION)
    rows = bad(rows, 370, GRPC + 14)
    rows = bad(rows, 380, GENERATOR, sent=NEVER, ended=NEVER)
    records = Records(rows)
    path = tmp_path / "requests.csv"
    records.write_csv(path, job.schedule)
    read = read_recording(path).run
    own = records.measured(job.schedule).run(read.last_seen)
    theirs, ours = (measure(run, OBJECTIVES) for run in (read, own))
    assert [one.counts for one in theirs.counted] == [one.counts for one in ours.counted]
    assert (theirs.dropped, theirs.open, theirs.failed) == (ours.dropped, ours.open, ours.failed)
    assert theirs.tau == pytest.approx(ours.tau, rel=1e-6)


def test_every_way_to_end_has_a_word() -> None:
    assert {word_of(status) for status in WORDS} == set(WORDS.values())
    job = job_of(seconds=5)
    rows = bad(rows_of(job), slice(0, 4), MALFORMED)
    found = Records(rows).outcomes()
    assert found == {"200": len(rows) - 4, "malformed": 4}
    assert list(found) == ["200", "malformed"]


def test_an_answer_with_200_that_is_no_good_is_not_counted_among_the_good() -> None:
    rows = rows_of(job_of(seconds=5))
    rows["ok"][:7] = 0
    assert Records(rows).outcomes()["malformed"] == 7


def test_open_requests_are_counted_by_one_worker_only_where_there_is_one() -> None:
    rows = rows_of(job_of(seconds=5))
    assert Records(rows).run(10**11).in_flight is not None
    rows["worker"][::2] = 1
    both = Records(rows)
    assert both.run(10**11).in_flight is None
    assert both.workers() == (0, 1)
    assert len(both.of_worker(0)) + len(both.of_worker(1)) == len(rows)


def test_tokens_are_given_to_the_judge_only_where_answers_came_by_token() -> None:
    records = Records(rows_of(job_of(seconds=5)))
    assert records.run(10**11).first_token is None
    assert records.run(10**11, tokens=True).first_token is not None


def test_the_share_of_cached_answers_is_of_the_good_ones() -> None:
    rows = rows_of(job_of(seconds=5))
    rows["cached"][: len(rows) // 2] = 1
    assert Records(rows).cache_hit_ratio == pytest.approx(0.5, abs=0.01)
    assert Records(bad(rows, slice(None), 503)).cache_hit_ratio is None
