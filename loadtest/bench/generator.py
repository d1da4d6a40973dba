"""This load generator beside others, against a server that computes nothing.

    python -m loadtest.bench.generator [--quick] [--json]

    throughput   requests a second of one process: ours, a plain FastHttpUser, wrk with one thread
    accuracy     p50, p99 and p99.9 of a service of known speed at half of what the generator is
                 calibrated for, beside a second open loop (bench/load.py, on uvloop) and h2load at
                 the same constant rate, round by round
    stall        a server that is stopped for two seconds: what p99 says of it

wrk and h2load are Debian packages (wrk, nghttp2-client); what is not installed is not measured.
Writes its section of RESULTS.md, save with --quick. The whole takes about nine minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtest import account
from loadtest.arrivals import Constant, Poisson
from loadtest.bench.bodies import http_request
from loadtest.bench.load import Target, open_loop
from loadtest.bench.machine import machine
from loadtest.bench.sections import RESULTS, markdown_table, with_section
from loadtest.bench.servers import Server, free_ports, running
from loadtest.calibration import calibrate
from loadtest.folders import new_run
from loadtest.job import Job
from loadtest.payloads.triton import TensorBodies
from loadtest.records import Records
from loadtest.running import run_load
from loadtest.workload import TritonHttp, Workload
from serving.judge.run import NEVER
from serving.paths import SPECS
from serving.publish import spec_of

BEGIN: Final = "<!-- begin: generator -->"
END: Final = "<!-- end: generator -->"
USERS: Final = 64
OVERLOAD_RPS: Final = 10_000.0
MEAN_MS: Final = 20.0
STALL_SECONDS: Final = 2.0
QUANTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds, and seconds of each."""

    rounds: int
    seconds: float
    accuracy_rounds: int
    accuracy_seconds: float
    stall_seconds: float


QUICK: Final = Plan(1, 2.0, 1, 4.0, 5.0)
WHOLE: Final = Plan(5, 8.0, 3, 30.0, 10.0)


@dataclass
class Found:
    """What was measured; None or empty where a tool is not installed. Times in ms."""

    throughput_rps: dict[str, list[float]] = field(default_factory=dict)
    calibrated_rps: float = 0.0
    accuracy_rps: float = 0.0
    ours_ms: list[dict[str, float]] = field(default_factory=list)
    second_ms: list[dict[str, float]] = field(default_factory=list)
    h2load_ms: list[dict[str, float]] = field(default_factory=list)
    stall_p99_ms: dict[str, float] = field(default_factory=dict)

    def ratio(self, ours: str, theirs: str) -> float | None:
        """Median over the rounds of one throughput by the other, of the same round."""
        a, b = self.throughput_rps.get(ours, []), self.throughput_rps.get(theirs, [])
        return statistics.median(x / y for x, y in zip(a, b, strict=True)) if a and b else None

    def apart(self, quantile: str) -> float | None:
        """Median over the rounds of ours by the second open loop's, less one."""
        pairs = zip(self.ours_ms, self.second_ms, strict=False)
        found = [a[quantile] / b[quantile] - 1 for a, b in pairs]
        return statistics.median(found) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look in a minute; not written")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    chosen = parser.parse_args(arguments)
    found = measure(QUICK if chosen.quick else WHOLE, quick=chosen.quick)
    section = markdown(found)
    sys.stdout.write((json.dumps(asdict(found), indent=2) if chosen.json else section) + "\n")
    if not chosen.quick:
        RESULTS.write_text(with_section(RESULTS.read_text(), section))
    return 0


def measure(plan: Plan, *, quick: bool) -> Found:
    """Run all of it, on loopback."""
    found = Found()
    with tempfile.TemporaryDirectory(prefix="galley-bench-") as name:
        folder = Path(name)
        for _ in range(plan.rounds):
            _throughput(found, folder, plan.seconds)
        # A quick look takes half of what one process can do for granted.
        found.calibrated_rps = 2000.0 if quick else calibrate(_job("http://127.0.0.1:9")).rate_rps
        found.accuracy_rps = float(round(found.calibrated_rps / 2 / USERS) * USERS)
        for _ in range(plan.accuracy_rounds):
            _accuracy(found, folder, plan.accuracy_seconds)
        _stall(found, folder, plan.stall_seconds)
    return found


def _job(url: str, arrivals: Any = None, **fields: Any) -> Job:
    workload = Workload(
        name="bench",
        because="what a generator can do is measured where a server does nothing",
        arrivals=arrivals or Poisson(kind="poisson"),
        warmup_seconds=1.0,
        request=TritonHttp(kind="triton_http", framing="binary"),
        timeout_seconds=10.0,
    )
    known = {"peak_rps": 100.0, "seconds": 5.0, "max_in_flight": USERS}
    return Job(
        spec=spec_of("ranker", SPECS),
        workload=workload,
        url=url,
        environment="bench",
        seed=1,
        exact=True,
        **(known | fields),
    )


@contextmanager
def _null(folder: Path, mean_ms: float = 0.0) -> Iterator[Server]:
    port = free_ports("null")["null"]
    job = folder / "null.json"
    job.write_text(_job("http://127.0.0.1:9").as_text())
    words = (sys.executable, "-m", "loadtest.null_server", str(job), str(port), str(mean_ms))
    with running("null", words, port, folder, ready_path="/") as server:
        yield server


def _ours(folder: Path, url: str, **fields: Any) -> Records:
    job = _job(url, **fields)
    run = new_run(job, folder / "ours")
    return run_load(job, run).finished.records.measured(job.schedule)


def _throughput(found: Found, folder: Path, seconds: float) -> None:
    """Each in turn against the same server; ours with more due than it can send."""
    with _null(folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        rows = _ours(folder, url, peak_rps=OVERLOAD_RPS, seconds=seconds).rows
        ended = rows["ended"][(rows["ok"] == 1) & (rows["ended"] != NEVER)]
        window = ended[(ended > 1.5e9) & (ended < (1 + seconds) * 1e9)]
        _add(found, "ours", len(window) / (seconds - 0.5))
        _add(found, "FastHttpUser", _plain(folder, url, seconds))
        _add(found, "wrk", _wrk(folder, url, seconds))


def _add(found: Found, name: str, value: float | None) -> None:
    if value is not None:
        found.throughput_rps.setdefault(name, []).append(value)


def _written(folder: Path) -> TensorBodies:
    bodies = TensorBodies(_job("http://127.0.0.1:9"))
    (folder / "body").write_bytes(bodies.body(0))
    (folder / "path").write_text(bodies.path)
    lines = "\n".join(f"{name}: {value}" for name, value in bodies.headers.items())
    (folder / "headers").write_text(lines)
    return bodies


def _plain(folder: Path, url: str, seconds: float) -> float:
    _written(folder)
    prefix = folder / "plain"
    subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("fast_http.py"))),
            *("--headless", "--only-summary", "--host", url, "--csv", str(prefix)),
            *("-u", str(USERS), "-r", str(USERS), "-t", f"{seconds + 1:.0f}s"),
        ],
        env={**os.environ, "BENCH_BODY": str(folder)},
        cwd=folder,
        capture_output=True,
        timeout=seconds + 60,
        check=True,
    )
    rows = Path(f"{prefix}_stats.csv").read_text().splitlines()
    columns = dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    return float(columns["Requests/s"])


def _wrk(folder: Path, url: str, seconds: float) -> float | None:
    wrk = shutil.which("wrk")
    if wrk is None:
        return None
    bodies = _written(folder)
    script = folder / "post.lua"
    headers = "".join(f'wrk.headers["{k}"] = "{v}"\n' for k, v in bodies.headers.items())
    script.write_text(
        f'wrk.method = "POST"\n{headers}'
        f'local file = io.open("{folder / "body"}", "rb")\nwrk.body = file:read("*a")\n'
    )
    done = subprocess.run(
        [wrk, "-t1", f"-c{USERS}", f"-d{seconds:.0f}s", "-s", str(script), url + bodies.path],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=True,
    )
    rate = re.search(r"Requests/sec:\s*([\d.]+)", done.stdout)
    return float(rate[1]) if rate else None


def _accuracy(found: Found, folder: Path, seconds: float) -> None:
    """The same service at the same rate, by one generator after the other."""
    with _null(folder, MEAN_MS) as server:
        url = f"http://127.0.0.1:{server.port}"
        rows = _ours(
            folder,
            url,
            arrivals=Constant(kind="constant"),
            peak_rps=found.accuracy_rps,
            seconds=seconds,
            max_in_flight=4 * USERS,
        ).rows
        found.ours_ms.append(_quantiles((rows["ended"] - rows["intended"]) / 1e6))
        found.second_ms.append(_quantiles(_second(server.port, found.accuracy_rps, seconds)))
        times = _h2load(folder, url, found.accuracy_rps, seconds)
        if times is not None:
            found.h2load_ms.append(_quantiles(times))


def _second(port: int, rate_rps: float, seconds: float) -> np.ndarray[Any, Any]:
    """Times in ms from the intended send, by the open loop that the other benches use."""
    bodies = TensorBodies(_job("http://127.0.0.1:9"))
    request = http_request(bodies.path, bodies.body(0), {"host": "bench", **bodies.headers})
    count = round((seconds + 1) * rate_rps)
    moments = [n / rate_rps for n in range(count)]
    done = open_loop(Target(port), [request] * count, moments, 4 * USERS, seconds + 30)
    return np.array(done.latencies[round(rate_rps) :]) * 1e3


def _quantiles(times: np.ndarray[Any, Any]) -> dict[str, float]:
    return {name: float(np.quantile(times, quantile)) for name, quantile in QUANTILES.items()}


def _h2load(folder: Path, url: str, rate_rps: float, seconds: float) -> np.ndarray[Any, Any] | None:
    """Times in ms of each request; its first second is warm-up, as ours is."""
    h2load = shutil.which("h2load")
    if h2load is None:
        return None
    bodies = _written(folder)
    log = folder / "h2load.log"
    log.unlink(missing_ok=True)
    headers = [word for k, v in bodies.headers.items() for word in ("-H", f"{k}: {v}")]
    clients = 4 * USERS
    subprocess.run(
        [
            *(h2load, "--h1", "-t1", f"-c{clients}", f"--rps={rate_rps / clients:g}"),
            *(f"-D{seconds + 1:.0f}", f"--log-file={log}", "-d", str(folder / "body")),
            *(*headers, url + bodies.path),
        ],
        capture_output=True,
        timeout=seconds + 60,
        check=True,
    )
    lines = [line.split() for line in log.read_text().splitlines()]
    started = min(int(start) for start, _, _ in lines)
    kept = [int(took) / 1e3 for start, _, took in lines if int(start) > started + 1_000_000]
    return np.array(kept)


def _stall(found: Found, folder: Path, seconds: float) -> None:
    """Stopped for two seconds: a fifth of the requests or more are due meanwhile."""
    with _null(folder) as server:
        url = f"http://127.0.0.1:{server.port}"

        def stop(after: float) -> threading.Thread:
            def go() -> None:
                time.sleep(after)
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(STALL_SECONDS)
                os.kill(server.pid, signal.SIGCONT)

            thread = threading.Thread(target=go)
            thread.start()
            return thread

        job = _job(url, peak_rps=200.0, seconds=seconds, max_in_flight=1000)
        run = new_run(job, folder / "stall")
        rows_path = run / account.RECORDS
        waiting: list[threading.Thread] = []

        def watch(_: object) -> None:
            if not waiting and rows_path.exists():
                waiting.append(stop(0.4 * seconds))

        rows = run_load(job, run, watch=watch).finished.records.measured(job.schedule).rows
        for thread in waiting:
            thread.join()
        good = np.where(rows["ok"] == 1, rows["ended"] - rows["intended"], NEVER)
        found.stall_p99_ms["ours"] = float(np.quantile(good, 0.99)) / 1e6
        # Locust takes two seconds to start.
        thread = stop(2.0 + 0.4 * seconds)
        _plain(folder, url, seconds)
        thread.join()
        text = Path(f"{folder / 'plain'}_stats.csv").read_text().splitlines()
        columns = dict(zip(text[0].split(","), text[-1].split(","), strict=True))
        found.stall_p99_ms["FastHttpUser"] = float(columns["99%"])


def markdown(found: Found) -> str:
    """The section of RESULTS.md."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    return "\n".join(
        [
            BEGIN,
            f"Machine: {facts}.",
            "",
            *markdown_table(
                ("one process against a server that does nothing", "median rps", "ours / it"),
                list(_throughput_rows(found)),
            ),
            "",
            f"Calibrated for {found.calibrated_rps:,.0f} rps within 2.5 ms. At "
            f"{found.accuracy_rps:,.0f} rps, a service of {MEAN_MS:g} ms on average:",
            "",
            *markdown_table(
                ("quantile", "ours, ms", "second open loop, ms", "apart", "target", "h2load, ms"),
                list(_accuracy_rows(found)),
            ),
            "",
            *markdown_table(
                ("p99 with a server that was stopped for two seconds", "ms"),
                [[name, f"{value:,.0f}"] for name, value in found.stall_p99_ms.items()],
            ),
            END,
        ]
    )


def _throughput_rows(found: Found) -> Iterator[list[str]]:
    targets = {"FastHttpUser": " (target: 0.8)"}
    for name, values in found.throughput_rps.items():
        ratio = found.ratio("ours", name)
        told = "" if ratio is None or name == "ours" else f"{ratio:.2f}{targets.get(name, '')}"
        yield [name, f"{statistics.median(values):,.0f}", told]


def _accuracy_rows(found: Found) -> Iterator[list[str]]:
    for name in QUANTILES:
        ours = statistics.median(one[name] for one in found.ours_ms)
        apart = found.apart(name)
        theirs = "not measured"
        if found.h2load_ms:
            theirs = f"{statistics.median(one[name] for one in found.h2load_ms):.2f}"
        second = statistics.median(one[name] for one in found.second_ms)
        told = "" if apart is None else f"{apart:+.1%}"
        yield [name, f"{ours:.2f}", f"{second:.2f}", told, "3%", theirs]


if __name__ == "__main__":
    sys.exit(main())
