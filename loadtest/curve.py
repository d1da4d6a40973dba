"""The batch curve of a served model: how long one execution takes, by its batch size.

One request at a time goes to one replica, past the gateway, so that no request shares a batch with
another. What counts is the replica's own account of computing: waiting for a batch to fill is left
out. Then as many clients as fill batches ask for single rows: what batching makes of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from loadtest.job import Job
from loadtest.payloads.triton import TensorBodies
from loadtest.server_stats import Reading, reading_of, replicas_of
from loadtest.workload import TritonHttp, Workload
from serving.capacity.batching import BatchCurve, curve_of
from serving.errors import InfrastructureError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

POINT_SECONDS: Final = 1.0
FEWEST: Final = 20
WARM: Final = 5
CROWD_SECONDS: Final = 5.0
CROWD_MOST: Final = 64
TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """What many clients at once made of one replica. Rates in rows a second."""

    clients: int
    rate_rps: float
    batch_size: float
    alone_rps: float
    """What it would be if every row were computed on its own."""


@dataclass(frozen=True)
class Measured:
    """A batch curve, and what batching makes of it on the served model."""

    curve: BatchCurve
    crowd: Crowd


def sizes_of(largest: int) -> tuple[int, ...]:
    """Batch sizes to measure: powers of two, and the largest.

    >>> sizes_of(20)
    (1, 2, 4, 8, 16, 20)
    """
    found = [1]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return (*found, largest) if found[-1] != largest else tuple(found)


def measure_curve(job: Job, told: Callable[[int, int], None] = lambda _, __: None) -> Measured:
    """Measure the model that a job is for, on its first replica.

    Args:
        job: for a model that the local stack serves with Triton.
        told: is given how many points are done, and of how many.

    Raises:
        InputError: for a model that has no batch axis, or is not served here.
        InfrastructureError: the replica does not answer well.
    """
    largest = getattr(job.spec.engine, "max_batch_size", 0)
    urls = replicas_of(job)
    if largest < 1 or not urls:
        raise InputError(
            f"model={job.spec.name}: has no batch curve; it needs max_batch_size in its spec and "
            "replicas of the local stack that serve it"
        )
    sizes = sizes_of(largest)
    slowest, found = 0.0, {}
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
        replica = _Replica(job, urls[0], client)
        for number, size in enumerate(sizes):
            told(number, len(sizes) + 1)
            # A larger batch cannot take less; what says so is noise.
            slowest = max(slowest, replica.execution_ms(size))
            found[size] = round(slowest, 4)
        told(len(sizes), len(sizes) + 1)
        source = f"measured on version {job.version} in {job.environment}, one replica"
        curve = curve_of(found, source)
        crowd = replica.crowd(min(4 * largest, CROWD_MOST), curve.rate_rps(1))
    told(len(sizes) + 1, len(sizes) + 1)
    return Measured(curve, crowd)


class _Replica:
    """One replica, asked past the gateway."""

    def __init__(self, job: Job, stats: str, client: httpx.Client) -> None:
        self._job, self._stats, self._client = job, stats, client
        self._infer = stats.removesuffix("/stats") + "/infer"

    def execution_ms(self, size: int) -> float:
        """Mean time of an execution of a batch of this size."""
        bodies = TensorBodies(_with_batch(self._job, size))
        for place in range(WARM):
            self._ask(self._client, bodies, place)
        before, end, place = self._read(), time.monotonic() + POINT_SECONDS, WARM
        while place < WARM + FEWEST or time.monotonic() < end:
            self._ask(self._client, bodies, place)
            place += 1
        done = self._since(before)
        return done.compute_ns / done.executions / 1e6

    def crowd(self, clients: int, alone_rps: float) -> Crowd:
        """What so many clients make of it, each with one row at a time."""
        bodies = [TensorBodies(_with_batch(self._job, 1)) for _ in range(clients)]
        before, begun = self._read(), time.monotonic()
        end = begun + CROWD_SECONDS
        faults: list[str] = []

        def ask(mine: TensorBodies) -> None:
            try:
                with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as own:
                    place = 0
                    while time.monotonic() < end:
                        self._ask(own, mine, place)
                        place += 1
            except (httpx.HTTPError, InfrastructureError) as error:
                faults.append(str(error))

        threads = [threading.Thread(target=ask, args=(each,)) for each in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise InfrastructureError(f"{self._infer}: {faults[0]}")
        done, took = self._since(before), time.monotonic() - begun
        return Crowd(clients, done.inferences / took, done.inferences / done.executions, alone_rps)

    def _ask(self, client: httpx.Client, bodies: TensorBodies, place: int) -> None:
        answer = client.post(self._infer, content=bodies.body(place), headers=bodies.headers)
        headers = {name.lower(): value for name, value in answer.headers.raw}
        why = bodies.fault(answer.status_code, headers, answer.content)
        if why is not None:
            raise InfrastructureError(f"{self._infer}: {why}")

    def _read(self) -> Reading:
        answer = self._client.get(self._stats)
        answer.raise_for_status()
        return reading_of(answer.json())

    def _since(self, before: Reading) -> Reading:
        done = self._read().since(before)
        if done is None or not done.executions:
            raise InfrastructureError(
                f"{self._stats}: the replica began anew while it was measured; measure again"
            )
        return done


def _with_batch(job: Job, size: int) -> Job:
    workload = Workload(
        name="curve",
        because="one batch at a time shows what a batch of its size takes",
        arrivals=job.workload.arrivals,
        request=TritonHttp(kind="triton_http", framing="binary", batch_size=size),
    )
    return job.changed(workload=workload, seconds=60.0, exact=True)


def curve_rows(curve: BatchCurve) -> Sequence[tuple[str, ...]]:
    """The curve as rows of a table: batch size, ms, rows a second."""
    return [
        (str(point.batch), f"{point.ms:.3f}", f"{curve.rate_rps(point.batch):,.0f}")
        for point in curve.points
    ]
