"""Logs of other tools, as small as they come, and told apart by what is in them."""

import gzip
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loadtest.recordings.reading import read_recording
from loadtest.recordings.rows import Recording, after_warmup, on_schedule
from serving.errors import InputError
from serving.judge.judging import judge
from serving.judge.measuring import measure
from serving.judge.objectives import quantile_objective
from serving.judge.run import NEVER
from serving.judge.verdict import Answer

SECOND = 10**9


def written(folder: Path, *lines: object, name: str = "log") -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def fault(path: Path, **how: Any) -> str:
    with pytest.raises(InputError) as raised:
        read_recording(path, **how)
    return str(raised.value)


# k6: one point for each metric of each request; times are those of its end.


def k6_point(metric: str, time: str, value: float, **tags: str) -> dict[str, Any]:
    return {"metric": metric, "type": "Point", "data": {"time": time, "value": value, "tags": tags}}


K6_HEAD = {"type": "Metric", "data": {"type": "trend"}, "metric": "http_req_duration"}
AT = "2026-01-31T08:00:00"


def k6_log(folder: Path) -> Path:
    return written(
        folder,
        K6_HEAD,
        k6_point("http_reqs", f"{AT}.100Z", 1, status="200"),
        k6_point("http_req_duration", f"{AT}.100Z", 80.5, status="200", expected_response="true"),
        k6_point("http_req_duration", f"{AT}.200Z", 1.0, status="503", expected_response="false"),
        k6_point("http_req_duration", f"{AT}.300Z", 9.0, status="200", group="::setup"),
        k6_point("dropped_iterations", f"{AT}.400Z", 2),
        k6_point("grpc_req_duration", f"{AT}.500Z", 5.0, status="0"),
        k6_point("http_req_failed", f"{AT}.500Z", 0),
    )


def test_k6_requests_end_at_their_point_and_its_drops_are_requests_too(tmp_path: Path) -> None:
    found = read_recording(k6_log(tmp_path))
    assert found.format == "k6 JSON"
    assert not found.run.scheduled
    assert found.run.ok.tolist() == [True, False, False, False, True]
    assert (found.run.ended - found.run.sent).tolist()[:2] == [80_500_000, 1_000_000]
    assert (found.run.sent == NEVER).tolist() == [False, False, True, True, False]


def test_a_k6_log_may_be_packed(tmp_path: Path) -> None:
    packed = tmp_path / "k6.gz"
    packed.write_bytes(gzip.compress(k6_log(tmp_path).read_bytes()))
    assert len(read_recording(packed).run) == 5


def test_a_packed_log_that_is_cut_off_or_damaged_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(k6_log(tmp_path).read_bytes())
    for damaged in (packed[: len(packed) // 2], packed[:40] + b"\0" * 40, packed[:-8] + b"\1" * 8):
        (tmp_path / "k6.gz").write_bytes(damaged)
        assert "cannot be unpacked" in fault(tmp_path / "k6.gz")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"time": "yesterday", "value": 1, "tags": {"status": "200"}}, "time='yesterday'"),
        ({"time": f"{AT}Z", "value": None, "tags": {"status": "200"}}, "value=None"),
        ({"time": f"{AT}", "value": 1, "tags": {"status": "200"}}, "with its zone"),
        ({"time": f"{AT}Z", "value": 1, "tags": {"status": "fine"}}, "status='fine'"),
        ({"time": f"{AT}Z", "value": 1, "tags": 5}, "tags='5' is no object"),
    ],
)
def test_a_k6_point_that_is_damaged_is_named(
    tmp_path: Path, data: dict[str, Any], told: str
) -> None:
    point = {"metric": "http_req_duration", "type": "Point", "data": data}
    assert told in fault(written(tmp_path, K6_HEAD, point))


# vegeta: what it sent and when; the schedule is in its rate alone.


def vegeta_result(n: int, code: int = 200, error: str = "") -> dict[str, Any]:
    return {
        "attack": "",
        "seq": n,
        "code": code,
        "timestamp": f"2026-01-31T08:00:00.{n:03}000001+01:00",
        "latency": 20_000_000 + n,
        "bytes_out": 0,
        "bytes_in": 5,
        "error": error,
        "body": None,
    }


def test_vegeta_results_as_json_and_as_csv_are_the_same_run(tmp_path: Path) -> None:
    as_json = written(tmp_path, vegeta_result(0), vegeta_result(1, 500), vegeta_result(2, 0, "eof"))
    start = 1769842800 * SECOND + 1
    as_csv = written(
        tmp_path,
        f'{start},200,20000000,0,5,"",,"",0,GET,http://x,""',
        f"{start + 1_000_000},500,20000001,0,5,,,,1,GET,http://x,",
        f"{start + 2_000_000},0,20000002,0,0,eof,,,2,GET,http://x,",
        name="csv",
    )
    one, other = read_recording(as_json), read_recording(as_csv)
    assert (one.format, other.format) == ("vegeta JSON", "vegeta CSV")
    for name in ("sent", "ended", "ok"):
        assert getattr(one.run, name).tolist() == getattr(other.run, name).tolist()
    assert one.run.ok.tolist() == [True, False, False]


def test_errors_of_the_generator_itself_make_the_run_invalid(tmp_path: Path) -> None:
    error = "dial tcp 0.0.0.0:0->10.0.0.1:80: socket: too many open files"
    results = [vegeta_result(n, *((0, error) if n % 33 == 0 else (200, ""))) for n in range(800)]
    run = on_schedule(read_recording(written(tmp_path, *results)).run, 1000)
    slo = [quantile_objective("latency", 0.99, 50)]
    verdict = judge(measure(run, slo), slo)
    assert verdict.answer is Answer.INVALID
    assert "open files" in verdict.faults[0].message
    points = [k6_point("http_req_duration", f"{AT}Z", 0, status="0", error=error)]
    assert read_recording(written(tmp_path, K6_HEAD, *points)).run.sent.tolist() == [NEVER]


def test_vegetas_own_files_and_broken_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").write_bytes(b"\x0f\x00\xff\x81\x03")
    assert "vegeta encode" in fault(tmp_path / "bin")
    cut = written(tmp_path, "1769842800000000001,200,20000000,0,5,,,,0,GET,http://x,", "17698,200")
    assert "log:2: has 2 cells" in fault(cut)


# AIPerf: one record a request; its schedule is when credits were issued.


def aiperf_record(n: int, phase: str = "profiling", **other: Any) -> dict[str, Any]:
    start = 1769842800 * SECOND + n * 100_000_000
    metadata = {
        "session_num": n,
        "credit_issued_ns": start - 1_000_000,
        "request_start_ns": start,
        "request_end_ns": start + 500_000_000,
        "worker_id": "w",
        "benchmark_phase": phase,
        "was_cancelled": False,
    }
    metrics = {
        "request_latency": {"value": 500.0, "unit": "ms"},
        "time_to_first_token": {"value": 45.5, "unit": "ms"},
        "inter_token_latency": {"value": 5000, "unit": "us"},
    }
    return {"metadata": metadata, "metrics": metrics, "error": None, **other}


def test_aiperf_records_count_from_when_their_credit_was_issued(tmp_path: Path) -> None:
    failed = aiperf_record(2, error={"code": 500, "message": "no"}, metrics={})
    one_token = aiperf_record(3, metrics={"output_token_count": {"value": 1, "unit": "tokens"}})
    found = read_recording(
        written(tmp_path, aiperf_record(0, "warmup"), aiperf_record(1), failed, one_token)
    )
    run = found.run
    assert found.format == "AIPerf JSON lines"
    assert run.scheduled
    assert (run.ended - run.intended).tolist() == [501_000_000] * 3
    assert run.ok.tolist() == [True, False, True]
    assert run.first_token is not None
    assert run.inter_token is not None
    assert (run.first_token - run.sent).tolist()[0] == 45_500_000
    assert run.inter_token.tolist() == [5_000_000, NEVER, 0]
    # Not every request was timed by the second clock, so it is none.
    assert run.service is None


def test_aiperf_without_credits_has_no_schedule_and_units_are_not_guessed(tmp_path: Path) -> None:
    without = aiperf_record(0)
    del without["metadata"]["credit_issued_ns"]
    assert not read_recording(written(tmp_path, without)).run.scheduled
    odd = aiperf_record(0, metrics={"request_latency": {"value": 3, "unit": "fortnights"}})
    assert "unit='fortnights'" in fault(written(tmp_path, odd))


# GuideLLM: a report of benchmarks.


def guidellm_request(n: int, end: float | None = 0.5, **times: float | None) -> dict[str, Any]:
    start = 1769842800.0 + n / 10
    timings = {
        "targeted_start": start - 0.001,
        "request_start": start,
        "request_end": None if end is None else start + end,
        "resolve_end": start + 0.6,
        "first_token_iteration": start + 0.05,
        **times,
    }
    return {"info": {"timings": timings}, "inter_token_latency_ms": 4.5, "output_tokens": 10}


def guidellm_report(*strategies: str, told: int = 2) -> dict[str, Any]:
    requests = {
        "successful": [guidellm_request(0), guidellm_request(1)],
        "errored": [guidellm_request(2)],
        "incomplete": [
            guidellm_request(3, end=None),
            guidellm_request(4, targeted_start=None, request_start=None),
        ],
    }
    benchmarks = [
        {
            "config": {"strategy": {"type_": strategy, "rate": 10}},
            "metrics": {"request_totals": {"successful": told, "errored": 1, "incomplete": 2}},
            "requests": requests,
        }
        for strategy in strategies
    ]
    return {"metadata": {"version": 1}, "benchmarks": benchmarks}


@pytest.mark.parametrize("indent", [None, 2])
def test_guidellm_requests_count_from_when_they_were_targeted(
    tmp_path: Path, indent: int | None
) -> None:
    text = json.dumps(guidellm_report("poisson"), indent=indent)
    found: Recording = read_recording(written(tmp_path, text))
    run = found.run
    assert found.notes == ("strategy poisson",)
    assert run.scheduled
    assert run.ok.tolist() == [True, True, False, False]
    assert (run.ended == NEVER).tolist() == [False, False, False, True]
    assert (run.ended - run.intended).tolist()[0] == pytest.approx(501_000_000, abs=1000)


def test_guidellm_strategies_that_follow_answers_are_no_schedule(tmp_path: Path) -> None:
    for strategy in ("concurrent", "synchronous", "throughput"):
        assert not read_recording(written(tmp_path, guidellm_report(strategy))).run.scheduled


def test_a_guidellm_report_of_several_rates_needs_to_be_told_which(tmp_path: Path) -> None:
    path = written(tmp_path, guidellm_report("constant", "concurrent"))
    assert "--benchmark 1 to 2" in fault(path)
    assert read_recording(path, benchmark=1).run.scheduled
    assert not read_recording(path, benchmark=2).run.scheduled
    assert "is not there" in fault(path, benchmark=3)


def test_a_guidellm_report_that_holds_a_sample_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, guidellm_report("constant", told=500))
    assert "holds 2 of 500 successful requests" in fault(path)


# What is none of them.


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("metric_name,timestamp,metric_value", "http_reqs,1,1"), "run k6 with --out json"),
        (("Type,Name,Request Count,Failure Count", "GET,/,5,0"), "Locust's statistics"),
        (('{"metrics": {}, "root_group": {}}',), "say which with --format"),
        (('{"config": 1}',), "say which with --format"),
        (("[1, 2]",), "say which with --format"),
        (("hello",), "lack start, status, end"),
    ],
)
def test_what_cannot_be_told_for_certain_is_refused_with_the_way_out(
    tmp_path: Path, lines: tuple[str, ...], told: str
) -> None:
    assert told in fault(written(tmp_path, *lines))


def test_a_file_that_is_not_there_is_refused_and_an_empty_one_is_a_run_without_requests(
    tmp_path: Path,
) -> None:
    assert "is no file" in fault(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    assert len(read_recording(tmp_path / "empty").run) == 0


@pytest.mark.parametrize("log_format", ["jsonl", "k6", "vegeta-json", "aiperf", "guidellm", "csv"])
def test_a_format_that_is_named_wrongly_never_makes_requests_up(
    tmp_path: Path, log_format: Any
) -> None:
    path = written(tmp_path, "hello,world", "1,2")
    with suppress(InputError):
        assert len(read_recording(path, log_format).run) == 0


def test_a_rate_gives_a_run_its_schedule_back_and_a_wrong_one_makes_it_invalid(
    tmp_path: Path,
) -> None:
    lines = [vegeta_result(n) for n in range(800)]
    run = read_recording(written(tmp_path, *lines)).run
    slo = [quantile_objective("latency", 0.99, 50)]
    assert judge(measure(run, slo), slo).answer is Answer.INCONCLUSIVE
    assert judge(measure(on_schedule(run, 1000), slo), slo).answer is Answer.PASS
    for wrong in (800, 1300):
        verdict = judge(measure(on_schedule(run, wrong), slo), slo)
        assert verdict.answer is not Answer.PASS


def test_the_first_seconds_can_be_left_out(tmp_path: Path) -> None:
    run = read_recording(written(tmp_path, *[vegeta_result(n) for n in range(100)])).run
    assert len(after_warmup(run, 0.05)) == 50
    assert len(after_warmup(run, 0.0)) == 100


@pytest.mark.parametrize("seed", range(8))
def test_a_log_that_is_damaged_anywhere_is_read_or_refused_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    made = random.Random(seed)
    logs = [
        k6_log(tmp_path).read_bytes(),
        json.dumps(vegeta_result(1)).encode() + b"\n" + json.dumps(vegeta_result(2)).encode(),
        json.dumps(aiperf_record(1)).encode() + b"\n" + json.dumps(aiperf_record(2)).encode(),
        json.dumps(guidellm_report("constant")).encode(),
        b"start_ms,end_ms,status,in_flight\n0,5,200,1\n10,15,500,2\n",
        b'{"start_ms": 1, "end_ms": 5.5, "status": "ok"}\n' * 2,
        b"1769842800000000001,200,20000000,0,5,,,,0,GET,http://x,\n" * 2,
    ]
    pieces = [b"null", b"[]", b"{}", b'"', b"\n", b",", b"-1", b"1e999", b"\xff", b"\0", b"true"]
    for log in logs:
        for _ in range(60):
            at, length = made.randrange(len(log)), made.choice([0, 1, 4, 20])
            path = tmp_path / "damaged"
            path.write_bytes(log[:at] + made.choice(pieces) + log[at + length :])
            with suppress(InputError):
                read_recording(path, benchmark=None)
