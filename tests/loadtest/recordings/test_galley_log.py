"""Galley's own log: every column, and every way in which one can be wrong."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.recordings.galley_log import read_csv, read_json_lines
from loadtest.recordings.reading import read_recording
from loadtest.recordings.rows import Recording
from loadtest.recordings.values import UNITS, nanoseconds
from serving.errors import InputError
from serving.judge.run import NEVER

HEADER = "intended_start_ms,start_ms,end_ms,status"


def csv_log(*rows: str, header: str = HEADER) -> Recording:
    return read_csv(io.StringIO("\n".join((header, *rows)) + "\n", newline=""), "run.csv")


def jsonl_log(*records: object) -> Recording:
    def lines() -> Iterator[bytes]:
        for record in records:
            yield (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n"

    return read_json_lines(lines(), "run.jsonl")


def fault(*rows: str, header: str = HEADER) -> str:
    with pytest.raises(InputError) as raised:
        csv_log(*rows, header=header)
    return str(raised.value)


def test_each_row_is_a_request_with_its_times_to_the_nanosecond() -> None:
    run = csv_log("1733040000123.000001,1733040000123.5,1733040000200,200").run
    assert run.scheduled
    assert run.intended.tolist() == [1733040000123000001]
    assert run.sent.tolist() == [1733040000123500000]
    assert run.ended.tolist() == [1733040000200000000]
    assert run.ok.tolist() == [True]


@pytest.mark.parametrize(
    ("unit", "written"),
    [
        ("ns", ("1000000000", "1020000000")),
        ("us", ("1000000", "1020000")),
        ("ms", ("1000", "1020.0")),
        ("seconds", ("1", "1.02")),
        ("seconds", ("1e0", "102e-2")),
        ("at", ("2026-01-31T08:00:01Z", "2026-01-31T09:00:01.020000000+01:00")),
    ],
)
def test_each_unit_gives_the_same_run(unit: str, written: tuple[str, str]) -> None:
    run = csv_log(
        f"{written[0]},{written[0]},{written[1]},ok",
        header=f"intended_start_{unit},start_{unit},end_{unit},status",
    ).run
    assert (run.ended - run.intended).tolist() == [20_000_000]


@pytest.mark.parametrize(
    ("status", "good"),
    [
        *((word, True) for word in ("ok", "OK", "true", "success", "200", "204", "302", " 200 ")),
        *((word, False) for word in ("500", "429", "404", "0", "-1", "error", "Timeout", "broken")),
    ],
)
def test_a_status_says_whether_it_went_well(status: str, good: bool) -> None:
    assert csv_log(f"0,0,20,{status}").run.ok.tolist() == [good]


def test_an_empty_end_is_a_request_still_open_and_an_empty_start_one_never_sent() -> None:
    run = csv_log("0,0,,open", "10,,,dropped", "20,20,40,200").run
    assert (run.ended == NEVER).tolist() == [True, True, False]
    assert (run.sent == NEVER).tolist() == [False, True, False]


def test_a_failure_without_an_end_is_a_failure_and_not_open() -> None:
    run = csv_log("0,0,,timeout", "10,10,,500", "20,20,,", "30,30,,open").run
    assert (run.ended == NEVER).tolist() == [False, False, True, True]
    assert not run.ok.any()


def test_what_the_generator_could_not_send_is_no_answer_of_the_server() -> None:
    """A client without file descriptors looks like a server that fails."""
    run = csv_log("0,0,5,generator_error", "10,10,15,dropped", "20,20,25,500").run
    assert (run.sent == NEVER).tolist() == [True, True, False]
    assert not run.ok.any()
    closed = csv_log("7,12,generator_error", header="start_ms,end_ms,status").run
    assert (closed.intended.tolist(), closed.sent.tolist()) == ([7_000_000], [NEVER])


def test_a_log_without_intended_times_has_no_schedule() -> None:
    run = csv_log("5,25,ok", header="start_ms,end_ms,status").run
    assert not run.scheduled
    assert run.intended.tolist() == run.sent.tolist()


def test_a_latency_stands_for_an_end_and_beside_one_is_a_second_clock() -> None:
    alone = csv_log("5,20,ok", header="start_ms,latency_ms,status").run
    assert alone.ended.tolist() == [25_000_000]
    both = csv_log("5,25,19.9,ok", header="start_ms,end_ms,latency_ms,status").run
    assert both.service is not None
    assert both.service.tolist() == [19_900_000]


def test_the_warm_up_is_left_out() -> None:
    header = f"{HEADER},phase"
    run = csv_log("0,0,900,200,warmup", "10,10,20,200,measured", header=header).run
    assert len(run) == 1
    assert "use warmup or measured" in fault("0,0,9,200,steady", header=header)


def test_streams_have_their_first_token_and_the_time_between_tokens() -> None:
    header = f"{HEADER},first_token_ms,inter_token_latency_us,in_flight"
    run = csv_log("0,0,900,200,30,4500,3", "9,9,,error,,,4", header=header).run
    assert run.first_token is not None
    assert run.inter_token is not None
    assert run.in_flight is not None
    assert run.first_token.tolist() == [30_000_000, NEVER]
    assert run.inter_token.tolist() == [4_500_000, NEVER]
    assert run.in_flight.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("0,0,NaN,200", "run.csv:3: end_ms='NaN' is not finite"),
        ("0,0,inf,200", "run.csv:3: end_ms='inf' is not finite"),
        ("0,zero,20,200", "run.csv:3: start_ms='zero' is no number"),
        ("0,0,20,maybe", "run.csv:3: status='maybe' is no known status"),
        ("0,0,20", "run.csv:3: has 3 cells and the header 4; was the line cut off?"),
        (",0,20,200", "run.csv:3: intended_start_ms is empty"),
        ("0,0,,200", "run.csv:3: status='200' says that it was answered well"),
        ("0,,20,ok", "run.csv:3: status='ok' says that it was answered well"),
        ("0,0,99999999999999999999,200", "check the unit"),
        ("0,0,1_000,200", "is no number"),
        ("0,0,٣,x", "status='x'"),
    ],
)
def test_a_cell_that_says_nothing_is_named_with_line_column_value_and_rule(
    row: str, told: str
) -> None:
    assert told in fault("0,0,20,200", row)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("start,end,status", "column start does not say its unit; name it start_ms"),
        ("start_ms,status", "lack end"),
        ("end_ms,status", "lack start"),
        ("start_ms,end_ms", "lack status"),
        ("time,code,ok", "lack start, status, end"),
        ("start_ms,start_us,end_ms,status", "same column twice"),
        ("start_ms,end_ms,intended_strat_ms,status", "is it intended_start_ms?"),
        ("start_at,end_ms,status", "zero nobody knows"),
        ("start_minutes,end_ms,status", "lack start"),
    ],
)
def test_a_header_that_leaves_anything_to_guess_is_refused(header: str, told: str) -> None:
    assert told in fault(header=header)


def test_columns_that_are_not_used_are_told() -> None:
    found = csv_log("0,0,20,200,/v2", header=f"{HEADER},url")
    assert found.notes == ("columns not used: url",)


def test_a_header_alone_is_a_run_without_requests() -> None:
    assert len(csv_log().run) == 0


def test_json_lines_are_read_like_csv() -> None:
    records = [
        {"intended_start_ms": 0, "start_ms": 0.25, "end_ms": 20, "status": 200},
        {"intended_start_ms": 10, "start_ms": 10, "end_ms": None, "status": "timeout"},
        {"intended_start_ms": 20, "start_ms": None, "status": "dropped", "extra": [1]},
    ]
    by_json = jsonl_log(*records).run
    by_csv = csv_log("0,0.25,20,200", "10,10,,timeout", "20,,,dropped").run
    for name in ("intended", "sent", "ended", "ok"):
        assert getattr(by_json, name).tolist() == getattr(by_csv, name).tolist()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"start_ms": 0, "end_ms": NaN, "status": 200}', "run.jsonl:2: "),
        (b'{"start_ms": 0, "end_ms": 2', "write one whole object a line"),
        (b"[1, 2]", "is no object"),
        (b'{"start_ms": 0, "end_ms": "soon", "status": 200}', "run.jsonl:2: end_ms='soon'"),
        (b'{"start_ms": 0, "end_ms": true, "status": 200}', "run.jsonl:2: end_ms='true'"),
        (b'{"start_ms": 0, "end_ms": [1], "status": 200}', "run.jsonl:2: end_ms='[1]'"),
        (b'{"end_ms": 5, "status": 500}', "run.jsonl:2: start_ms is empty"),
    ],
)
def test_a_json_line_that_says_nothing_is_named_too(line: bytes, told: str) -> None:
    with pytest.raises(InputError) as raised:
        jsonl_log({"start_ms": 0, "end_ms": 5, "status": 200}, line)
    assert told in str(raised.value)


def test_many_rows_are_read_in_chunks_and_faults_have_their_own_line(tmp_path: Path) -> None:
    rows = [f"{n},{n},{n + 20},200" for n in range(120_000)]
    log = tmp_path / "run.csv"
    log.write_text("\n".join([HEADER, *rows, ""]))
    run = read_recording(log).run
    assert len(run) == 120_000
    assert np.array_equal(run.ended - run.intended, np.full(120_000, 20_000_000))
    rows[110_000] = "110000,110000,,200"
    log.write_text("\n".join([HEADER, *rows, ""]))
    with pytest.raises(InputError, match=r"run\.csv:110002: "):
        read_recording(log)


@given(st.integers(0, 2 * 10**18), st.sampled_from(sorted(UNITS)))
def test_a_time_is_the_same_in_any_unit_to_the_last_digit(value: int, unit: str) -> None:
    places = UNITS[unit]
    digits = str(value).rjust(places + 1, "0")
    written = f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}"
    assert nanoseconds(written.rstrip("."), places) == value
