"""Load tests of the real local stack, by the real generator, as a user starts them."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from loadtest import account
from loadtest.records import Records
from loadtest.report.report import report_from
from serving.environments import local_store
from serving.local.ports import choose_ports
from serving.registry import evidence
from tests.live.conftest import ROOT, Stack

pytestmark = pytest.mark.live

GALLEY = ROOT / ".venv" / "bin" / "galley"
SECONDS = 240


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs, so that the generator is calibrated once for each kind."""
    return tmp_path_factory.mktemp("runs")


def environment(stack: Stack, runs: Path) -> dict[str, str]:
    return {**os.environ, "GALLEY_HOME": str(stack.home.root), "GALLEY_RUNS": str(runs)}


def loadtest(
    stack: Stack, runs: Path, *arguments: str, model: str = "filetype"
) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a load test."""
    done = subprocess.run(
        [str(GALLEY), "loadtest", model, "--json", *arguments],
        env=environment(stack, runs),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def generators(runs: Path) -> list[psutil.Process]:
    """Every process of a generator that works in a folder of these runs."""
    found = []
    for process in psutil.process_iter():
        try:
            if "locust" in " ".join(process.cmdline()) and str(runs) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left_running(runs: Path) -> Iterator[None]:
    yield
    assert generators(runs) == []


def test_a_load_test_ends_with_a_verdict_a_page_an_exit_code_and_evidence(
    stack: Stack, runs: Path
) -> None:
    code, told = loadtest(stack, runs, "--workload", "steady", "--error-ratio", "0.02")
    assert (code, told["verdict"]) == (0, "PASS"), told
    assert told["outcomes"] == {"200": told["requests"]}
    folder = Path(told["folder"])
    page = (folder / account.REPORT_PAGE).read_text()
    assert "PASS" in page
    report = report_from((folder / account.REPORT_JSON).read_bytes())
    # What was measured from outside is what the servers say of themselves, and a little more.
    assert report.server is not None
    assert report.server.restarts == 0
    assert 0 < report.server.compute_ms < (report.percentiles_ms["p50"] or 0) * 1.5
    assert report.generator.cache_hit_ratio == 0
    kept = evidence.newest(local_store(stack.home), "filetype", told["version"], "loadtest")
    assert kept is not None
    assert kept.digest == report.digest
    assert told["evidence"] == evidence.key_of(kept)
    # Nothing secret is in anything that a run leaves.
    key = stack.home.secrets().operator_key
    assert not [path for path in folder.iterdir() if key.encode() in path.read_bytes()]


def test_its_log_judges_to_the_same_counts(stack: Stack, runs: Path) -> None:
    _, told = loadtest(stack, runs, "--seconds", "8", "--no-evidence")
    log = Path(told["folder"]) / account.REQUESTS_CSV
    done = subprocess.run(
        [str(GALLEY), "judge", str(log), "--slo", "filetype", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    judged = json.loads(done.stdout)
    assert judged["verdict"] == told["verdict"] == "INCONCLUSIVE"
    pairs = zip(judged["gates"], told["gates"], strict=True)
    assert [(a["n"], a["bad"]) == (b["n"], b["bad"]) for a, b in pairs] == [True, True]


def test_an_impossible_promise_fails_and_the_run_is_broken_off(stack: Stack, runs: Path) -> None:
    begun = time.monotonic()
    code, told = loadtest(stack, runs, "--p99-ms", "2", "--no-evidence", "--no-calibrate")
    assert (code, told["verdict"]) == (1, "FAIL"), told
    assert told["requests"] < 2000
    assert time.monotonic() - begun < 200


def test_fifty_requests_are_inconclusive(stack: Stack, runs: Path) -> None:
    code, told = loadtest(stack, runs, "--seconds", "1.25", "--no-evidence")
    assert 30 < told["requests"] < 80
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE"), told


def test_a_throttled_generator_makes_the_run_invalid(stack: Stack, runs: Path) -> None:
    over = threading.Event()

    def throttle() -> None:
        """What cpulimit does: stop it and let it go on, ten times a second."""
        while not over.wait(0.02):
            for process in generators(runs):
                try:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(0.08)
                    process.send_signal(signal.SIGCONT)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        code, told = loadtest(stack, runs, "--seconds", "6", "--no-evidence", "--no-calibrate")
    finally:
        over.set()
        thread.join()
    assert (code, told["verdict"]) == (4, "INVALID"), told
    assert {fault["what"] for fault in told["faults"]} & {"dispatch lag", "event loop lag"}


@pytest.mark.parametrize("workload", ["grpc", "json", "cached"])
def test_other_kinds_of_requests_are_answered_well(stack: Stack, runs: Path, workload: str) -> None:
    arguments = ("--workload", workload, "--seconds", "4", "--no-evidence", "--no-calibrate")
    _, told = loadtest(stack, runs, *arguments)
    assert told["outcomes"] == {"200": told["requests"]}
    folder = Path(told["folder"])
    report = report_from((folder / account.REPORT_JSON).read_bytes())
    hits = report.generator.cache_hit_ratio
    assert hits is not None
    assert (hits > 0.5) == (workload == "cached")


def test_several_processes_share_one_schedule_and_reconcile(stack: Stack, runs: Path) -> None:
    arguments = ("--processes", "2", "--seconds", "6", "--no-evidence", "--no-calibrate")
    code, told = loadtest(stack, runs, *arguments)
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE"), told
    folder = Path(told["folder"])
    records = Records.read(folder / account.RECORDS)
    assert records.workers() == (0, 1)
    report = report_from((folder / account.REPORT_JSON).read_bytes())
    assert (report.generator.workers, report.generator.workers_lost) == (2, 0)
    assert report.generator.recorded == report.generator.expected


def test_a_worker_that_is_killed_makes_the_run_invalid(stack: Stack, runs: Path) -> None:
    killed = threading.Event()

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not killed.is_set():
            for master in generators(runs):
                rows = Path(master.cwd()) / account.RECORDS
                workers = [one for one in master.children() if one in generators(runs)]
                if workers and rows.exists() and rows.stat().st_size > 5000:
                    workers[0].kill()
                    killed.set()
                    return
            time.sleep(0.1)

    thread = threading.Thread(target=kill)
    thread.start()
    arguments = ("--processes", "2", "--seconds", "8", "--no-evidence", "--no-calibrate")
    code, told = loadtest(stack, runs, *arguments)
    thread.join()
    assert killed.is_set()
    assert (code, told["verdict"]) == (4, "INVALID"), told
    assert "workers" in {fault["what"] for fault in told["faults"]}


def test_the_generator_ends_with_whoever_started_it(stack: Stack, runs: Path) -> None:
    command = [str(GALLEY), "loadtest", "filetype", "--no-evidence", "--no-calibrate"]
    process = subprocess.Popen(
        command,
        env=environment(stack, runs),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not generators(runs) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert generators(runs)
        time.sleep(3)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while generators(runs) and time.monotonic() < deadline:
        time.sleep(0.2)


def test_locust_alone_runs_the_same_test_and_exits_with_the_verdict(
    stack: Stack, runs: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless"),
            *("--only-summary", "--model", "filetype", "--workload", "smoke"),
        ],
        cwd=ROOT,
        env=environment(stack, runs),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "verdict: INCONCLUSIVE" in done.stderr
    assert "/v2/models/filetype/infer" in done.stderr


def test_locusts_page_starts_a_run_from_what_is_typed_there(stack: Stack, runs: Path) -> None:
    port = choose_ports(("page",), {}, random.Random())["page"]
    page = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py"),
            *("--web-host", "127.0.0.1", "--web-port", str(port)),
        ],
        cwd=ROOT,
        env=environment(stack, runs),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(
            base_url=page, trust_env=False, transport=httpx.HTTPTransport(retries=5)
        ) as ask:
            for typed in (
                {"workload": "no such"},
                {"workload": "smoke", "rate_rps": "20", "seed": ""},
            ):
                before = set(runs.glob("*-filetype-smoke*"))
                ask.post("/swarm", data={"model": "filetype", **typed}).raise_for_status()
                deadline = time.monotonic() + 60
                found: set[Path] = set()
                while typed["workload"] == "smoke" and not found and time.monotonic() < deadline:
                    new = set(runs.glob("*-filetype-smoke*")) - before
                    found = {one for one in new if (one / account.REPORT_JSON).exists()}
                    time.sleep(0.2)
        (run,) = found
        report = report_from((run / account.REPORT_JSON).read_bytes())
        assert report.outcomes == {"200": report.requests}
        assert report.rate_rps == 20
    finally:
        process.terminate()
        process.wait(30)


def test_a_batch_curve_is_measured_and_the_plan_reckons_with_it(stack: Stack, runs: Path) -> None:
    code, told = loadtest(stack, runs, "--curve", model="ranker")
    assert code == 0
    times = [told["curve_ms"][size] for size in ("1", "2", "4", "8", "16", "32", "64")]
    assert times == sorted(times)
    assert told["crowd"]["batch_size"] > 1
    done = subprocess.run(
        [str(GALLEY), "plan", "ranker"],
        env=environment(stack, runs),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "batch curve: evidence of" in done.stdout


def test_the_highest_rate_is_confirmed_and_kept(stack: Stack, runs: Path, tmp_path: Path) -> None:
    """A loose promise and short runs: what is tested is the search, not the service."""
    workload = tmp_path / "short.yaml"
    workload.write_text(
        "name: short\nbecause: a search is many runs\narrivals: {kind: poisson}\n"
        "warmup_seconds: 1\nrequest: {kind: triton_http, framing: binary}\n"
    )
    arguments = (
        *("--find-max", "--rate-rps", "400", "--seconds", "6", "--no-calibrate"),
        *("--workload", str(workload), "--width", "0.6"),
    )
    loose = ("--p99-ms", "400", "--error-ratio", "0.2")
    code, told = loadtest(stack, runs, *arguments, *loose, model="ranker")
    assert told["probes"]
    assert {"rate_rps", "confirms", "answer"} == set(told["probes"][0])
    if code == 0:
        assert told["rate_rps"] in [probe["rate_rps"] for probe in told["probes"]]
        assert evidence.newest(local_store(stack.home), "ranker", 1, "maximum") is not None
    else:
        assert (code, told["rate_rps"]) == (3, None)
