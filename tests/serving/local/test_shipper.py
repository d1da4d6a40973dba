"""The shipping process: it ends when told, closes what the dead left open, and outlives S3."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.record import Record
from serving.gateway.prediction.shipping import read_predictions
from serving.local import shipper
from serving.local.home import Home, Secrets, State, write_json
from serving.local.processes import BUCKET
from serving.registry.store import Store, StoreConfig
from tests.serving.registry.conftest import free_ports, s3_server

__all__ = ["s3_server"]

ROOT = Path(__file__).parents[3]
START, END = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 2, tzinfo=UTC)


def record(request_id: str, model: str) -> Record:
    now = START.timestamp()
    return Record(now, request_id, "uploads", model, 1, "", "hit", 200, 0, 0, 0, 1, 1)


def log(folder: Path, *records: Record) -> None:
    written = PredictionLog(folder, "hop-0")
    for each in records:
        written.write(each)
    written.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.fixture
def stack(tmp_path: Path, s3_server: StoreConfig) -> Iterator[tuple[Home, Store]]:
    """The folder of a stack whose store is the real one, and that store."""
    home = Home(tmp_path)
    port = int(str(s3_server.endpoint_url).rsplit(":", 1)[1])
    write_json(home.state_file, State(stack_id="s", replicas=1, ports={"s3": port}).model_dump())
    secrets = Secrets.generate().model_copy(
        update={"s3_access_key": s3_server.access_key, "s3_secret_key": s3_server.secret_key}
    )
    write_json(home.secrets_file, secrets.model_dump())
    with Store(replace(s3_server, bucket=BUCKET)) as store:
        store.ensure_bucket()
        yield home, store


@contextmanager
def running(home: Home) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "serving.local.shipper"],
        cwd=ROOT,
        env={**os.environ, "GALLEY_HOME": str(home.root)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_ships_what_is_closed_or_abandoned_and_ends_cleanly_when_told(
    stack: tuple[Home, Store],
) -> None:
    home, store = stack
    folder = home.prediction_logs

    def shipped() -> set[str]:
        found = read_predictions(store, "local", "shipper-a", START, END)
        return {line["request_id"] for line in found}

    with running(home) as process:
        log(folder, record("closed", "shipper-a"))
        until(lambda: shipped() == {"closed"})
        log(folder, record("abandoned", "shipper-a"))
        for path in folder.glob("*.jsonl"):
            path.rename(path.with_name(f"{path.name}.open"))
        until(lambda: shipped() == {"closed", "abandoned"})
        log(folder, record("last", "shipper-a"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert shipped() == {"closed", "abandoned", "last"}
    assert list(folder.iterdir()) == []


def test_it_waits_for_a_stack_and_says_so_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    log(home.prediction_logs, record("a", "shipper-b"))
    with running(home) as process:
        assert process.stderr is not None
        assert "no local stack at" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    assert len(list((home.prediction_logs).iterdir())) == 1


def test_it_goes_on_once_a_store_is_back(
    stack: tuple[Home, Store],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, store = stack
    monkeypatch.setattr(shipper, "EVERY_SECONDS", 0.05)
    (port,) = free_ports(1)
    down = Store(replace(store.config, endpoint_url=f"http://127.0.0.1:{port}"))
    stores = iter([down, down])
    log(home.prediction_logs, record("a", "shipper-c"))
    stop = threading.Event()
    thread = threading.Thread(
        target=shipper.run,
        args=(home.prediction_logs, lambda: next(stores, store), stop.wait),
    )
    thread.start()
    until(lambda: any(read_predictions(store, "local", "shipper-c", START, END)))
    stop.set()
    thread.join()
    down.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "cannot be reached" in said[0]
    assert said[1] == "shipper: shipping again"
