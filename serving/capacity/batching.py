"""How long a batch takes by its size, and what that makes of a GPU.

A batch reads the weights once for all its requests, so it costs little more than one request.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from serving.capacity.exact import TIMES
from serving.errors import InputError
from serving.slo import Positive
from serving.strict import Strict


class Point(Strict):
    """One measured batch size."""

    batch: int
    ms: Positive


class BatchCurve(Strict):
    """Time of one execution by batch size, as measured on the hardware of the spec.

    3 ms alone and 4 ms for 16 make 333 and 4,000 predictions a second, and so 12 times as many:

    >>> curve = curve_of({1: 3, 16: 4}, "an example")
    >>> round(curve.rate_rps(1)), round(curve.rate_rps(16)), round(curve.gain)
    (333, 4000, 12)
    """

    points: tuple[Point, ...]
    source: str

    def ms(self, batch: int) -> float:
        """Milliseconds that a batch of this size takes, by lines between the measured sizes.

        Above the largest one, each request adds as much as those of the last measured stretch.
        """
        first = self.points[0]
        if batch <= first.batch or len(self.points) == 1:
            return first.ms if batch <= first.batch else first.ms * batch / first.batch
        low, high = next(
            ((a, b) for a, b in pairwise(self.points) if batch <= b.batch), self.points[-2:]
        )
        slope = (high.ms - low.ms) / (high.batch - low.batch)
        return low.ms + slope * (batch - low.batch)

    def rate_rps(self, batch: int) -> float:
        """Requests a second of one instance that only runs batches of this size."""
        return batch * 1000 / self.ms(batch)

    def best_batch(self, largest: int, within_ms: float) -> int | None:
        """The size up to `largest` with the highest rate among those that end in time."""
        sizes = [size for size in range(1, largest + 1) if self.ms(size) <= within_ms]
        return max(sizes, key=self.rate_rps, default=None)

    @property
    def gain(self) -> float:
        """How many times as many requests the best measured size makes of the smallest."""
        rates = [self.rate_rps(point.batch) for point in self.points]
        return max(rates) / rates[0]


def curve_of(ms_by_batch: dict[int, float], source: str) -> BatchCurve:
    """A curve from batch sizes and milliseconds.

    Raises:
        InputError: it is empty, starts above 1, or falls.
    """
    points = tuple(Point(batch=size, ms=float(ms)) for size, ms in sorted(ms_by_batch.items()))
    if not points:
        raise InputError(f"{source}: has no points; measure at least batch sizes 1 and the largest")
    if points[0].batch != 1:
        raise InputError(f"{source}: starts at batch={points[0].batch}, not 1; measure 1 as well")
    for low, high in pairwise(points):
        if high.ms < low.ms:
            raise InputError(
                f"{source}: batch={high.batch} takes {high.ms:g} ms, less than batch={low.batch} "
                f"with {low.ms:g}; measure again with more repetitions"
            )
    return BatchCurve(points=points, source=source)


def read_curve(path: Path) -> BatchCurve:
    """The curve in a JSON file: `{"1": 3.0, "16": 4.0}`, milliseconds by batch size.

    Raises:
        InputError: the file holds no such curve.
    """
    try:
        found = {int(size): float(ms) for size, ms in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        found = {}
    if not found or any(size < 1 or not 0 < ms < math.inf for size, ms in found.items()):
        raise InputError(
            f'{path}: is no batch curve; write milliseconds by batch size, as {{"1": 3, "16": 4}}'
        )
    return curve_of(found, str(path))


@dataclass(frozen=True, slots=True)
class Batched:
    """What one replica answers when its batches are as full as the SLO lets them be."""

    batch: int
    batch_ms: float
    instances: int

    @property
    def rps(self) -> float:
        """Requests a second of the replica."""
        return self.batch * 1000 / self.batch_ms * self.instances

    @property
    def sum(self) -> str:
        """The sum as people write it."""
        return (
            f"{self.batch} requests in {self.batch_ms:g} ms {TIMES} {self.instances} instances = "
            f"{self.rps:,.0f} rps a replica"
        )


def batched(
    curve: BatchCurve, largest: int, instances: int, queue_ms: float, latency_ms: float
) -> Batched | None:
    """The best that a replica does within the SLO; None where not even a batch of 1 is in time.

    A request may arrive just after a batch was sent: it waits for that one, then for its own
    delay, then for its own batch. Instances on one GPU are taken to run side by side, as the
    curve was measured with so many of them.
    """
    batch = curve.best_batch(largest, (latency_ms - queue_ms) / 2)
    return None if batch is None else Batched(batch, curve.ms(batch), instances)
