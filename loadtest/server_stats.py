"""What Triton itself says of the requests of a run: queue, compute, batches, restarts.

Source: the statistics extension of the v2 protocol; durations are sums in ns since the model was
loaded, so what counts is the difference of two readings of one replica.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from loadtest.report.report import ServerTimes

if TYPE_CHECKING:
    from loadtest.job import Job

EVERY_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 0.9


@dataclass(frozen=True, slots=True)
class Reading:
    """Sums of one replica since it loaded the model."""

    requests: int
    executions: int
    inferences: int
    queue_ns: int
    compute_ns: int

    def since(self, before: Reading) -> Reading | None:
        """What came after `before`; None where the replica began anew in between."""
        if self.requests < before.requests or self.executions < before.executions:
            return None
        return Reading(
            self.requests - before.requests,
            self.executions - before.executions,
            self.inferences - before.inferences,
            self.queue_ns - before.queue_ns,
            self.compute_ns - before.compute_ns,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """All replicas over about a second; means in ms."""

    at_ns: int
    requests: int
    executions: int
    queue_ms: float
    compute_ms: float
    batch_size: float


def reading_of(answer: Mapping[str, Any]) -> Reading:
    """One replica's answer about one version of a model.

    Raises:
        KeyError, IndexError, TypeError: it is none.
    """
    stats = answer["model_stats"][0]
    times = stats["inference_stats"]
    compute = sum(
        times[part]["ns"] for part in ("compute_input", "compute_infer", "compute_output")
    )
    return Reading(
        requests=times["success"]["count"],
        executions=stats["execution_count"],
        inferences=stats["inference_count"],
        queue_ns=times["queue"]["ns"],
        compute_ns=compute,
    )


def sample_of(at_ns: int, parts: Sequence[Reading]) -> Sample:
    """The replicas together."""
    requests = sum(part.requests for part in parts)
    executions = sum(part.executions for part in parts)
    return Sample(
        at_ns=at_ns,
        requests=requests,
        executions=executions,
        queue_ms=_each(sum(part.queue_ns for part in parts), requests) / 1e6,
        compute_ms=_each(sum(part.compute_ns for part in parts), requests) / 1e6,
        batch_size=_each(sum(part.inferences for part in parts), executions),
    )


def times_of(samples: Sequence[Sample], restarts: int) -> ServerTimes | None:
    """All samples together; None where nothing was seen."""
    requests = sum(one.requests for one in samples)
    executions = sum(one.executions for one in samples)
    if not requests:
        return None
    inferences = sum(one.batch_size * one.executions for one in samples)
    return ServerTimes(
        requests=requests,
        executions=executions,
        queue_ms=sum(one.queue_ms * one.requests for one in samples) / requests,
        compute_ms=sum(one.compute_ms * one.requests for one in samples) / requests,
        batch_size=_each(inferences, executions),
        restarts=restarts,
    )


def _each(total: float, count: int) -> float:
    return total / count if count else 0.0


def replicas_of(job: Job) -> tuple[str, ...]:
    """Where each replica of the local stack says it; none for another environment."""
    if job.home is None or job.version is None:
        return ()
    from serving.local.home import Home

    state = Home(Path(job.home)).running_state()
    path = f"/v2/models/{job.spec.name}/versions/{job.version}/stats"
    return tuple(f"http://{state.address(f'{name}-http')}{path}" for name in state.replica_names)


class Sampler:
    """Reads every replica once a second while a run goes on, in a thread of its own."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._last: dict[str, Reading] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.samples: list[tuple[float, Sample]] = []
        """(seconds since 1970, what happened since the reading before)."""
        self.restarts = 0

    def __enter__(self) -> Sampler:
        if self._urls:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._urls:
            self._thread.join()

    def since(self, started_unix: float) -> tuple[Sample, ...]:
        """The samples as seen from the start of a run."""
        return tuple(
            Sample(
                round((at - started_unix) * 1e9),
                one.requests,
                one.executions,
                one.queue_ms,
                one.compute_ms,
                one.batch_size,
            )
            for at, one in self.samples
        )

    def _go_on(self) -> None:
        with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            while not self._over.is_set():
                parts = [part for url in self._urls if (part := self._read(client, url))]
                self.samples.append((time.time(), sample_of(0, parts)))
                self._over.wait(EVERY_SECONDS)

    def _read(self, client: httpx.Client, url: str) -> Reading | None:
        try:
            answer = client.get(url)
            answer.raise_for_status()
            now = reading_of(answer.json())
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
            # A replica that is gone says nothing; that it began anew shows when it is back.
            return None
        before, self._last[url] = self._last.get(url), now
        if before is None:
            return None
        part = now.since(before)
        if part is None:
            self.restarts += 1
        return part
