"""What must hold besides the sum: limits, the pool, the quota, the rollout, and the SLO itself.

A refusal is a spec that cannot keep its promise. A warning is one that keeps it only while
something holds that nobody declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from serving.capacity.batching import Batched
from serving.capacity.exact import TIMES
from serving.capacity.scaling import Autoscaling
from serving.engines.kinds import TritonEngine
from serving.hardware.instances import Instance
from serving.slo import LatencySlo
from serving.spec import ModelSpec
from serving.strict import ABSENT, Fault


@dataclass(frozen=True, slots=True)
class Pool:
    """What an environment has; None where nobody says."""

    gpus: int | None = None
    """Most GPUs of the node pool."""
    vcpus: int | None = None
    """EC2's quota of the instance family, which counts vCPUs."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a new version replaces the old one without waiting for a GPU that never comes."""

    max_surge: int
    max_unavailable: int
    gpus: int
    """GPUs in use at the widest moment."""

    @property
    def sum(self) -> str:
        """In words."""
        taken = f"; {self.gpus} GPUs" if self.gpus else ""
        if self.max_surge:
            return f"starts {self.max_surge} new before it stops old ones{taken}"
        return f"stops {self.max_unavailable} old before it starts a new one{taken}"


def plan_rollout(replicas: int, gpus_per_replica: int, pool_gpus: int | None) -> Rollout:
    """One more replica for the change where the pool has room for it, else one fewer.

    A pool with no spare GPU would wait for ever: the new replica for the old one's GPU, the old one
    for the new one's readiness.

    >>> plan_rollout(1, 1, 1), plan_rollout(1, 1, 2).max_surge
    (Rollout(max_surge=0, max_unavailable=1, gpus=1), 1)
    """
    wide = (replicas + 1) * gpus_per_replica
    if pool_gpus is None or wide <= pool_gpus:
        return Rollout(1, 0, wide)
    return Rollout(0, 1, replicas * gpus_per_replica)


def replica_faults(spec: ModelSpec, replicas: int, sum_shown: str) -> Iterator[Fault]:
    """More replicas than the spec allows."""
    most = spec.scaling.max_replicas
    if replicas > most:
        yield Fault(
            ("scaling", "max_replicas"),
            most,
            f"is below the {replicas} replicas of the peak: {sum_shown}",
            f"use {replicas} or more, or a faster GPU",
        )


def slo_faults(spec: ModelSpec, served: Batched | None, measured: bool) -> Iterator[Fault]:
    """Times that cannot be kept on average, let alone in 99 of 100 cases."""
    slo, time = spec.slo, spec.traffic.service_time_ms
    if not isinstance(slo, LatencySlo):
        return
    if time > slo.latency_p99_ms:
        yield Fault(
            ("traffic", "service_time_ms"),
            time,
            f"is on average more than slo.latency_p99_ms={slo.latency_p99_ms:g}",
            f"state what was measured, below {slo.latency_p99_ms:g}, or promise more than {time:g}",
        )
    if measured and served is None:
        yield Fault(
            ("slo", "latency_p99_ms"),
            slo.latency_p99_ms,
            "is not kept by a single request: it may wait for a batch that runs, and for its own",
            "promise twice the measured time of one request and the queue delay, or more",
        )


CANARIES = 1
SHADOWS = 1
"""Replicas of a candidate that stand beside all the stable ones while it is judged."""


def pool_faults(
    spec: ModelSpec, replicas: int, gpus_per_replica: int, rollout: Rollout, pool: Pool
) -> Iterator[Fault]:
    """Scaled out, or with a candidate beside it, the model needs more GPUs than the pool has."""
    if pool.gpus is None or not gpus_per_replica:
        return
    most = spec.scaling.max_replicas
    needed = most * gpus_per_replica
    if needed > pool.gpus:
        allowed = pool.gpus // gpus_per_replica
        yield Fault(
            ("scaling", "max_replicas"),
            most,
            f"takes {needed} GPUs with {gpus_per_replica} for each replica, and the pool has "
            f"{pool.gpus}",
            f"use {allowed} or less, or a pool of {needed} GPUs"
            if allowed
            else f"use a pool of {needed} GPUs",
        )
    stable = replicas * gpus_per_replica
    released = stable + (CANARIES + SHADOWS) * gpus_per_replica
    if released > pool.gpus >= stable and rollout.gpus <= pool.gpus:
        yield Fault(
            ("hardware", "gpu"),
            spec.hardware.gpu,
            f"has no room for a release: {replicas} stable + {CANARIES} canary + {SHADOWS} shadow "
            f"take {released} GPUs at the peak, and the pool has {pool.gpus}",
            f"use a pool of {released} GPUs, or release away from the peak",
        )


def quota_faults(instance: Instance, machines: int, pool: Pool) -> Iterator[Fault]:
    """The machines have more vCPUs than the account may start."""
    if pool.vcpus is None:
        return
    needed = machines * instance.vcpus
    if needed > pool.vcpus:
        yield Fault(
            ("scaling", "max_replicas"),
            ABSENT,
            f"takes {machines} {TIMES} {instance.type} = {needed:,} vCPUs, and the quota is "
            f"{pool.vcpus:,}",
            f"ask AWS for a quota of {needed:,} vCPUs for {instance.family}, or use fewer replicas",
        )


def warnings(spec: ModelSpec, scaling: Autoscaling, per_replica: int) -> Iterator[Fault]:
    """What holds only while something else does."""
    floor, stated = scaling.warm_floor, spec.scaling.min_replicas
    if 0 < stated < floor:
        yield Fault(
            ("scaling", "min_replicas"),
            stated,
            f"does not bear a peak that is reached within {scaling.ramp_seconds:g} s, since a new "
            f"replica takes {scaling.cold_start.seconds:.0f} s",
            f"use {floor} or more, or a larger headroom_ratio",
        )
    slo, time = spec.slo, spec.traffic.service_time_ms
    if isinstance(slo, LatencySlo) and time == slo.latency_p99_ms:
        yield Fault(
            ("traffic", "service_time_ms"),
            time,
            "is the whole of slo.latency_p99_ms, and a mean leaves room for a tail",
            "state the measured mean time in the system",
        )
    yield from _batch_warnings(spec, per_replica)
    allowed = math.ceil(spec.traffic.peak_rps * spec.traffic.headroom_ratio)
    together = sum(client.rate_limit_rps for client in spec.clients)
    if together > allowed:
        yield Fault(
            ("clients",),
            ABSENT,
            f"may send {together:,} rps together; peak_rps {TIMES} headroom_ratio is {allowed:,}",
            "lower a rate_limit_rps, or let the gateway refuse what is above",
        )


def _batch_warnings(spec: ModelSpec, per_replica: int) -> Iterator[Fault]:
    engine = spec.engine
    if not isinstance(engine, TritonEngine) or engine.dynamic_batching is None:
        return
    copies = engine.instance_group.count
    sizes = engine.dynamic_batching.preferred_batch_size
    never = [size for size in sizes if size > per_replica]
    if never:
        yield Fault(
            ("engine", "dynamic_batching", "preferred_batch_size"),
            sizes,
            f"has {never[0]}, and no more than concurrency_per_replica={per_replica} requests are "
            "ever on a replica",
            f"remove it, or raise concurrency_per_replica to {never[0] * copies} or more once "
            "a load test has borne it",
        )
