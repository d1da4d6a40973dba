"""A constant load on one model, bounded in count and time, every request recorded."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

MOST_REQUESTS = 20_000
MOST_SECONDS = 120.0
# A question for the ranker.
INFER = "/v2/models/ranker/infer"
BODY = {"inputs": [{"name": "input0", "shape": [1, 512], "datatype": "FP32", "data": [0.5] * 512}]}


@dataclass(frozen=True)
class Sample:
    """One request. Times are of the monotonic clock, in seconds."""

    start: float
    end: float
    status: int
    version: str
    error: str = ""


@dataclass
class Load:
    """What a load has come to so far."""

    samples: list[Sample] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def failed(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.status != 200]

    def wait_for(self, more: int, seconds: float = 60) -> None:
        """Wait until that many more requests have been answered with 200."""
        wanted = len(self.samples) - len(self.failed) + more
        deadline = time.monotonic() + seconds
        while len(self.samples) - len(self.failed) < wanted:
            assert time.monotonic() < deadline, (
                f"no {more} answers in {seconds} s: {self.failed[-3:]}"
            )
            time.sleep(0.02)


@contextmanager
def constant_load(
    new_client: Callable[[], httpx.Client], path: str, body: dict[str, Any], threads: int = 4
) -> Iterator[Load]:
    """Requests from a few threads, one after the other in each, while the block runs.

    Past the cache, so that each of them is a model server's to answer.
    """
    load = Load()
    work = (load, new_client, path, body, MOST_REQUESTS // threads)
    workers = [threading.Thread(target=_work, args=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        load.wait_for(20)
        yield load
    finally:
        load.stop.set()
        for worker in workers:
            worker.join()


def _work(
    load: Load, new_client: Callable[[], httpx.Client], path: str, body: dict[str, Any], most: int
) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    with new_client() as client:
        for _ in range(most):
            if load.stop.is_set() or time.monotonic() > deadline:
                return
            start = time.monotonic()
            try:
                answer = client.post(path, json=body, headers={"cache-control": "no-store"})
                status, error = answer.status_code, answer.text if answer.status_code != 200 else ""
                version = answer.headers.get("x-galley-version", "")
                if status == 200 and answer.json()["model_version"] != version:
                    status, error = -1, f"header says {version}, body {answer.text[:80]}"
            except httpx.HTTPError as failure:
                status, version, error = 0, "", repr(failure)
            load.samples.append(Sample(start, time.monotonic(), status, version, error))
