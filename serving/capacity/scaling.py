"""What the autoscaler is told: requests that a replica should have, fewest and most replicas.

It scales on requests in flight. Between the moment that load grows and the moment that a new
replica answers, load goes on growing; what is running must bear that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from serving.capacity.exact import exact
from serving.capacity.littles_law import InFlight
from serving.hardware.instances import Instance
from serving.spec import ModelSpec
from serving.strict import Fault

METRIC_SECONDS = 30
"""Prometheus is scraped every 15 s, and the HPA looks every 15 s."""
NODE_SECONDS = 90
"""A GPU machine from request to ready, driver included. An estimate; measure yours."""
START_SECONDS = 90
"""Image, runtime and warm-up of a pod: 30 to 90 seconds are usual for a large model."""
NETWORK_RATIO = 0.8
RAMP_SECONDS = 3600
"""Time from idle to peak that is assumed where nobody declares it."""
LEAST_WINDOW_SECONDS = 300
"""The HPA's own scale-down window."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long from the decision for a replica to its first answer, in seconds."""

    node_seconds: float
    start_seconds: float
    weights_seconds: float

    @property
    def seconds(self) -> float:
        """All of it, on a machine that is not there yet."""
        return self.node_seconds + self.start_seconds + self.weights_seconds

    @property
    def sum(self) -> str:
        """The sum as people write it."""
        return (
            f"{self.node_seconds:.0f} s machine + {self.start_seconds:.0f} s image and warm-up + "
            f"{self.weights_seconds:.0f} s weights = {self.seconds:.0f} s (estimate)"
        )


def cold_start(weight_bytes: int | None, instance: Instance | None) -> ColdStart:
    """An estimate for weights of this size on this instance.

    15 GiB over the 2.5 Gbit/s that a g6.xlarge has at all times:

    >>> from serving.hardware.instances import read_instances
    >>> cold_start(15 * 2**30, read_instances().named("g6.xlarge")).sum
    '90 s machine + 90 s image and warm-up + 64 s weights = 244 s (estimate)'
    """
    network = instance.network_mbps if instance else None
    weights = 0.0
    if weight_bytes and network:
        weights = weight_bytes * 8 / (network * 1e6 * NETWORK_RATIO)
    return ColdStart(NODE_SECONDS, START_SECONDS, weights)


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Numbers for the autoscaler."""

    target_in_flight: int
    """Requests in flight on a replica at which another one is added."""
    min_replicas: int
    """Warm floor: the more of what the spec says and what a cold start needs."""
    max_replicas: int
    scale_up_window_seconds: int
    scale_down_window_seconds: int
    cold_start: ColdStart
    warm_floor: int
    """Replicas that must always run, for load to grow as declared."""
    ramp_seconds: float


def target_in_flight(per_replica: int, headroom_ratio: float) -> int:
    """Requests in flight on a replica that leave the headroom free; one at least.

    >>> target_in_flight(20, 1.25)
    16
    """
    return max(1, math.floor(Fraction(per_replica) / exact(headroom_ratio)))


def warm_floor(law: InFlight, reaction_seconds: float, ramp: float) -> int:
    """Replicas that must run however little there is to do.

    Load grows by g = peak / ramp each second, and what is started now helps after R seconds. At
    rate r there are r x headroom of capacity, and r + g x R must be borne: headroom bears that from
    r = g x R / (headroom - 1) on. Below only a floor does, of r + g x R at that rate, which is
    g x R x headroom / (headroom - 1), and never more than the peak.
    """
    peak, headroom = exact(law.rate_rps), exact(law.headroom_ratio)
    grown = peak / exact(ramp) * exact(reaction_seconds)
    rate = min(peak, grown * headroom / (headroom - 1)) if headroom > 1 else peak
    return max(1, math.ceil(rate * exact(law.time_ms) / 1000 / law.per_replica))


def plan_scaling(
    spec: ModelSpec, law: InFlight, start: ColdStart, ramp_seconds: float
) -> Autoscaling:
    """Numbers for a model with so many requests in flight at its peak."""
    floor = warm_floor(law, start.seconds + METRIC_SECONDS, ramp_seconds)
    stated = spec.scaling.min_replicas
    return Autoscaling(
        target_in_flight=target_in_flight(law.per_replica, law.headroom_ratio),
        min_replicas=max(stated, min(floor, spec.scaling.max_replicas)) if stated else 0,
        max_replicas=spec.scaling.max_replicas,
        scale_up_window_seconds=0,
        # Twice a cold start, so that what was just paid for is not thrown away.
        scale_down_window_seconds=max(LEAST_WINDOW_SECONDS, math.ceil(2 * start.seconds)),
        cold_start=start,
        warm_floor=floor,
        ramp_seconds=ramp_seconds,
    )


def zero_faults(spec: ModelSpec, start: ColdStart) -> Iterator[Fault]:
    """Why a model may not be turned off when idle: its next request would wait for too long."""
    if spec.scaling.min_replicas > 0:
        return
    where = ("scaling", "min_replicas")
    waits = start.seconds + METRIC_SECONDS
    budget = spec.scaling.cold_start_budget_seconds or 0
    if waits > budget:
        yield Fault(
            where,
            0,
            f"makes the first request wait about {waits:.0f} s ({start.sum}, and "
            f"{METRIC_SECONDS} s until it is noticed), above cold_start_budget_seconds={budget:g}",
            f"use min_replicas: 1, or cold_start_budget_seconds: {math.ceil(waits)} or more",
        )
    timeout = spec.routing.timeout_ms if spec.routing else None
    if timeout is not None and timeout < waits * 1000:
        yield Fault(
            ("routing", "timeout_ms"),
            timeout,
            f"ends the request that wakes the model, which waits about {waits:.0f} s",
            f"use min_replicas: 1, or timeout_ms: {math.ceil(waits) * 1000} or more",
        )
