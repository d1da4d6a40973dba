"""The capacity plan: from specs to replicas, machines, limits and dollars.

The same specs and files give the same plan; nothing is asked of a cloud or a clock.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from serving.capacity.assumptions import assumptions
from serving.capacity.batching import Batched, batched
from serving.capacity.checks import (
    Pool,
    Rollout,
    plan_rollout,
    pool_faults,
    quota_faults,
    replica_faults,
    slo_faults,
    warnings,
)
from serving.capacity.choice import Candidate, Choice, choose
from serving.capacity.cost import Rung, ladder, per_million, per_month, usd_per_gpu_hour
from serving.capacity.floor_plan import FloorPlan, Sharer, plan_floors
from serving.capacity.known import Known
from serving.capacity.littles_law import InFlight
from serving.capacity.placement import (
    Llm,
    fit_llm,
    fit_stated,
    gpus_per_replica,
    llm_law,
    llm_replicas,
    place_llm,
    shares,
    sharing_faults,
    time_faults,
)
from serving.capacity.queue_delay import DELAYS_MICROSECONDS, Batcher, Dial, dial
from serving.capacity.scaling import (
    RAMP_SECONDS,
    Autoscaling,
    cold_start,
    plan_scaling,
    zero_faults,
)
from serving.engines.kinds import TritonEngine, VllmEngine
from serving.hardware.gpus import gpu_named
from serving.hardware.instances import read_instances
from serving.slo import LatencySlo
from serving.spec import ModelSpec
from serving.strict import Fault, sentence


@dataclass(frozen=True, slots=True)
class Settings:
    """What is declared besides specs."""

    environment: str = "local"
    ramp_seconds: float | None = None
    """Time from idle to peak; assumed where it is None."""
    pool: Pool = field(default_factory=Pool)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What one model takes."""

    spec: ModelSpec
    law: InFlight
    served: Batched | None
    dial: Dial | None
    llm: Llm | None
    replicas: int
    """At the peak, headroom included."""
    choice: Choice
    chosen: Candidate | None
    """The cheapest machine with the spec's GPU."""
    scaling: Autoscaling
    rollout: Rollout
    ladder: tuple[Rung, ...]
    sums: tuple[str, ...]
    assumed: tuple[str, ...]
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    known: Known = field(repr=False, default=Known())

    @property
    def usd_per_hour(self) -> float | None:
        """At the peak, on demand; where GPUs are shared, only the part that the model takes."""
        spec = self.spec
        if self.chosen is None or spec.hardware.sharing == "none":
            return self.chosen.usd_per_hour if self.chosen else None
        price = usd_per_gpu_hour(spec.hardware.gpu)
        share = max(shares(spec, self.known, gpu_named(spec.hardware.gpu), self.replicas))
        return None if price is None else price * share * self.replicas

    @property
    def usd_per_month(self) -> float | None:
        """As if the peak lasted all month."""
        return None if self.usd_per_hour is None else per_month(self.usd_per_hour)

    @property
    def usd_per_million_predictions(self) -> float | None:
        """At the peak rate; more when machines idle."""
        if self.usd_per_hour is None:
            return None
        return per_million(self.usd_per_hour, self.spec.traffic.peak_rps)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Tokens that are written, at the peak rate; None without a mix of lengths."""
        mix = self.known.mix
        if self.usd_per_hour is None or mix is None:
            return None
        return per_million(self.usd_per_hour, self.spec.traffic.peak_rps * mix.output_tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all the models take."""

    environment: str
    prices_of: str
    prices_from: str
    models: tuple[ModelPlan, ...]
    floors: tuple[FloorPlan, ...]

    @property
    def usd_per_hour(self) -> float:
        """Of all that has a price, at the peak; what shares GPUs counts in the floor plan."""
        alone = (
            model.usd_per_hour or 0
            for model in self.models
            if model.spec.hardware.sharing == "none"
        )
        return sum(alone) + sum(floor.usd_per_hour or 0 for floor in self.floors)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Every reason why a spec cannot keep its promise."""
        return tuple(text for model in self.models for text in model.refusals)


def plan_fleet(specs: Sequence[ModelSpec], known: Mapping[str, Known], settings: Settings) -> Plan:
    """The plan of all `specs`.

    Raises:
        InputError: what is known of a model cannot be used.
    """
    table = read_instances()
    models = tuple(plan_model(spec, known.get(spec.name, Known()), settings) for spec in specs)
    sharers = [Sharer(model.spec, model.known, model.replicas) for model in models]
    return Plan(settings.environment, table.date, table.source, models, tuple(plan_floors(sharers)))


def plan_model(spec: ModelSpec, known: Known, settings: Settings) -> ModelPlan:
    """The plan of one model.

    Raises:
        InputError: what is known of it cannot be used.
    """
    traffic = spec.traffic
    stated = InFlight(
        traffic.peak_rps,
        traffic.service_time_ms,
        traffic.concurrency_per_replica,
        traffic.headroom_ratio,
    )
    llm, faults = _llm(spec, known)
    law = llm_law(spec, llm) if llm else stated
    served = _served(spec, known)
    replicas, sums = law.replicas, [law.sum]
    if llm is not None:
        replicas = llm_replicas(spec, llm)
        faults += time_faults(spec, llm)
        sums += [llm.budget.sum, llm.sum, *_speed(spec, llm, known)]
    if served is not None:
        need = math.ceil(traffic.peak_rps * traffic.headroom_ratio / served.rps)
        sums.append(f"{served.sum}; {need:,} for the peak with headroom")
        sums += [f"batch curve: {known.curve.source}"] if known.curve is not None else []
        replicas = max(replicas, need)
    if known.maximum is not None:
        shown = known.maximum
        need = math.ceil(traffic.peak_rps * traffic.headroom_ratio / shown.per_replica_rps)
        sums.append(
            f"shown to keep its SLO at {shown.rate_rps:,.4g} rps on {shown.replicas} replicas "
            f"({shown.source}); {need:,} for the peak with headroom"
        )
        replicas = max(replicas, need)
    measured = known.architecture is not None and isinstance(spec.engine, VllmEngine)
    fit = partial(fit_llm, spec, known) if measured else partial(fit_stated, spec, known, replicas)
    choice = choose(read_instances().instances, fit)
    chosen = _chosen(spec, choice)
    instance = chosen.instance if chosen else None
    weights = known.stored_bytes or (_stored(llm) if llm else None)
    start = cold_start(weights, instance)
    ramp = settings.ramp_seconds or RAMP_SECONDS
    scaling = plan_scaling(spec, law, start, ramp)
    whole = 0 if spec.hardware.sharing != "none" else gpus_per_replica(spec)
    rollout = plan_rollout(replicas, whole, settings.pool.gpus)
    faults += replica_faults(spec, replicas, law.sum if replicas == law.replicas else sums[-1])
    faults += slo_faults(spec, served, measured=known.curve is not None)
    faults += zero_faults(spec, start)
    faults += sharing_faults(spec)
    faults += pool_faults(spec, replicas, whole, rollout, settings.pool)
    if chosen is not None:
        faults += quota_faults(chosen.instance, chosen.instances, settings.pool)
    elif not faults:
        faults.append(_nowhere(spec, choice))
    return ModelPlan(
        spec=spec,
        law=law,
        served=served,
        dial=_dial(spec, known, replicas),
        llm=llm,
        replicas=replicas,
        choice=choice,
        chosen=chosen,
        scaling=scaling,
        rollout=rollout,
        ladder=_ladder(chosen, scaling, replicas),
        sums=tuple(sums),
        assumed=tuple(assumptions(spec, known, settings.ramp_seconds)),
        refusals=tuple(sentence(spec.name, fault) for fault in faults),
        warnings=tuple(
            sentence(spec.name, fault) for fault in warnings(spec, scaling, law.per_replica)
        ),
        known=known,
    )


def _llm(spec: ModelSpec, known: Known) -> tuple[Llm | None, list[Fault]]:
    """The language model on the spec's GPU, or what is wrong on the instance that suits it best."""
    if not isinstance(spec.engine, VllmEngine) or known.architecture is None:
        return None, []
    if spec.hardware.gpu == "none":
        return None, []
    faults: list[Fault] = []
    sizes: dict[int, int] = defaultdict(int)
    for instance in read_instances().instances:
        if instance.gpu is not None and instance.gpu.name == spec.hardware.gpu and instance.gpus:
            memory = instance.gpu.memory_mib
            sizes[memory] = max(sizes[memory], instance.gpus)
    for memory in sorted(sizes):
        found = place_llm(spec, known, gpu_named(spec.hardware.gpu, memory), sizes[memory])
        if isinstance(found, Llm):
            return found, []
        faults = found
    return None, faults


def _stored(llm: Llm) -> int:
    return llm.budget.weights * llm.budget.cache.tensor_parallel_size


def _served(spec: ModelSpec, known: Known) -> Batched | None:
    engine, slo = spec.engine, spec.slo
    if known.curve is None or not isinstance(engine, TritonEngine):
        return None
    if not isinstance(slo, LatencySlo):
        return None
    queue = engine.dynamic_batching.max_queue_delay_microseconds if engine.dynamic_batching else 0
    largest = engine.largest_batch if engine.dynamic_batching else 1
    return batched(
        known.curve, largest, engine.instance_group.count, queue / 1000, slo.latency_p99_ms
    )


def _dial(spec: ModelSpec, known: Known, replicas: int) -> Dial | None:
    engine, slo = spec.engine, spec.slo
    if known.curve is None or not isinstance(engine, TritonEngine):
        return None
    if engine.dynamic_batching is None or not isinstance(slo, LatencySlo):
        return None
    batcher = Batcher(
        known.curve,
        engine.largest_batch,
        engine.dynamic_batching.preferred_batch_size,
        engine.instance_group.count,
    )
    stated = engine.dynamic_batching.max_queue_delay_microseconds
    delays = sorted({*DELAYS_MICROSECONDS, stated})
    seed = zlib.crc32(spec.name.encode())
    return dial(batcher, spec.traffic.peak_rps / replicas, slo.latency_p99_ms, seed, delays)


def _speed(spec: ModelSpec, llm: Llm, known: Known) -> Iterator[str]:
    """What the roofline says, at best."""
    if llm.bounds is None:
        return
    tokens = known.mix.tokens if known.mix else llm.budget.cache.architecture.max_positions
    together = llm.per_replica
    if known.mix:
        step = llm.bounds.step_ms(together, known.mix.tokens)
        first = llm.bounds.prompt_ms(known.mix.prompt_tokens)
        yield (
            f"at best: first token after {first:,.0f} ms, then one each {step:.1f} ms with "
            f"{together:,} at once; {llm.request_rps:.2f} rps a replica, so "
            f"{llm_replicas(spec, llm)} for the peak with headroom"
        )
    else:
        step = llm.bounds.step_ms(1, min(tokens, 1024))
        yield f"at best: a token each {step:.1f} ms for one sequence alone"


def _chosen(spec: ModelSpec, choice: Choice) -> Candidate | None:
    wanted = spec.hardware.gpu
    for candidate in choice.candidates:
        gpu = candidate.instance.gpu
        if (gpu.name if gpu else "none") == wanted:
            return candidate
    return None


def _nowhere(spec: ModelSpec, choice: Choice) -> Fault:
    """No machine with the spec's GPU will do; the first reason of one that has it."""
    reason = next(
        (
            item.reason
            for item in choice.rejected
            if item.instance.gpus
            and item.instance.gpu
            and item.instance.gpu.name == spec.hardware.gpu
        ),
        "is on no instance",
    )
    best = choice.best
    other = best.instance.gpu.name if best and best.instance.gpu else None
    fix = f"use hardware.gpu: {other}" if other else "use fewer GPUs for each replica"
    return Fault(("hardware", "gpu"), spec.hardware.gpu, f"cannot run it: {reason}", fix)


def _ladder(chosen: Candidate | None, scaling: Autoscaling, replicas: int) -> tuple[Rung, ...]:
    if chosen is None or not replicas:
        return ()
    floor = math.ceil(chosen.instances * min(scaling.min_replicas, replicas) / replicas)
    return ladder(chosen.instance, floor, chosen.instances)
