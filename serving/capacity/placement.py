"""How one model sits on one type of instance: whether it can, and with how many replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from serving.capacity.choice import Fit
from serving.capacity.known import Known
from serving.capacity.littles_law import InFlight
from serving.capacity.llm_memory import Budget, LengthMix, memory_faults, plan_budget
from serving.capacity.roofline import Roofline, roofline
from serving.capacity.tensor_parallel import degree_faults
from serving.engines.kinds import TritonEngine, VllmEngine
from serving.hardware.gpus import GIB, Gpu
from serving.hardware.instances import Instance
from serving.slo import TokenSlo
from serving.spec import ModelSpec
from serving.strict import ABSENT, Fault, shown, spelled

DEFAULT_SHARE = 0.15
"""Of a GPU, for a model that shares one and was not measured: what counts as small."""
LARGEST_SHARE = 0.5
"""Of a GPU's memory, for an engine that takes all that it is allowed at its start."""
RUNTIME_BYTES = int(0.6 * GIB)
"""CUDA context and library of a small model's server. An estimate."""
ACTIVATION_RATIO = 1.5
"""Weights and activations over weights. An estimate."""


@dataclass(frozen=True, slots=True)
class Llm:
    """A language model on one kind of GPU."""

    budget: Budget
    bounds: Roofline | None
    limits: tuple[tuple[str, int], ...]
    """What caps the sequences on a replica, by name."""
    mix: LengthMix | None = None

    @property
    def per_replica(self) -> int:
        """Sequences at once on one replica: the least of the limits."""
        return min(value for _, value in self.limits)

    @property
    def request_ms(self) -> float:
        """Milliseconds that a request takes at best on a full replica; 0 where nobody can say."""
        if self.bounds is None or self.mix is None:
            return 0.0
        step = self.bounds.step_ms(self.per_replica, self.mix.tokens)
        return self.bounds.prompt_ms(self.mix.prompt_tokens) + self.mix.output_tokens * step

    @property
    def request_rps(self) -> float:
        """Requests a second of a full replica at best; without end where nobody can say."""
        if self.bounds is None or self.mix is None:
            return math.inf
        return self.bounds.request_rps(self.per_replica, self.mix)

    @property
    def sum(self) -> str:
        """The limits as people write them."""
        return (
            "least of "
            + ", ".join(f"{value:,} ({name})" for name, value in self.limits)
            + f" = {self.per_replica:,} a replica"
        )


def gpus_per_replica(spec: ModelSpec) -> int:
    """Whole GPUs that one replica takes; 0 on CPU nodes."""
    if spec.hardware.gpu == "none":
        return 0
    if isinstance(spec.engine, VllmEngine):
        return spec.engine.tensor_parallel_size
    if isinstance(spec.engine, TritonEngine) and spec.engine.instance_group.gpus:
        return max(spec.engine.instance_group.gpus) + 1
    return 1


def memory_of(known: Known) -> int | None:
    """Bytes of GPU memory that a model of another kind takes; None where its size is not known."""
    if known.stored_bytes is None:
        return None
    return int(known.stored_bytes * ACTIVATION_RATIO) + RUNTIME_BYTES


def shares(spec: ModelSpec, known: Known, gpu: Gpu, replicas: int) -> tuple[float, float]:
    """Share of one GPU's memory and time that a replica takes."""
    memory = memory_of(known)
    if isinstance(spec.engine, VllmEngine):
        memory = int(gpu.memory_bytes * spec.engine.gpu_memory_utilization)
    time = DEFAULT_SHARE
    if known.curve is not None and isinstance(spec.engine, TritonEngine):
        rate = max(known.curve.rate_rps(size) for size in (1, spec.engine.largest_batch))
        time = spec.traffic.peak_rps / replicas / rate
    return (DEFAULT_SHARE if memory is None else memory / gpu.memory_bytes), time


def unusable(spec: ModelSpec, instance: Instance) -> str | None:
    """Why the machine is of the wrong kind, whatever the model's size."""
    wants_gpu = spec.hardware.gpu != "none"
    if instance.accelerator == "neuron":
        return "has AWS Neuron devices, for which no engine here compiles"
    if instance.accelerator == "none":
        return "has no GPU" if wants_gpu else None
    if not wants_gpu:
        return "has a GPU, which hardware.gpu=none does not use"
    if not instance.gpus:
        return f"holds {instance.gpu_ratio:g} of a GPU, which Kubernetes counts as none"
    return None


def fit_stated(spec: ModelSpec, known: Known, replicas: int, instance: Instance) -> Fit | str:
    """A model whose speed is stated for one GPU, and known on that GPU alone."""
    reason = unusable(spec, instance)
    if reason is not None:
        return reason
    gpu = instance.gpu
    if gpu is None:
        return Fit(replicas, 1)
    if gpu.name != spec.hardware.gpu:
        return f"service_time_ms is stated for {spec.hardware.gpu}; measure it on {gpu.name} first"
    memory = memory_of(known)
    if memory is not None and memory > gpu.memory_bytes:
        return (
            f"has {gpu.memory_bytes / GIB:.1f} GiB, and the model takes {memory / GIB:.1f} GiB "
            "(estimate)"
        )
    whole = gpus_per_replica(spec)
    if whole > instance.gpus:
        return f"has {instance.gpus} GPUs, and a replica takes {whole}"
    if spec.hardware.sharing == "none":
        return Fit(replicas, whole)
    # Replicas of one model are on different GPUs; what is left of each is for other models.
    return Fit(replicas, 1, "one replica on a GPU, beside other models")


def sharing_faults(spec: ModelSpec) -> Iterator[Fault]:
    """Engines that cannot share a GPU as the spec says."""
    engine, sharing = spec.engine, spec.hardware.sharing
    if sharing == "none" or not isinstance(engine, VllmEngine):
        return
    if engine.tensor_parallel_size > 1:
        yield Fault(
            ("engine", "tensor_parallel_size"),
            engine.tensor_parallel_size,
            f"splits a model over GPUs that hardware.sharing={sharing} divides",
            "use sharing: none, or tensor_parallel_size: 1",
        )
    if sharing != "mig" and engine.gpu_memory_utilization > LARGEST_SHARE:
        yield Fault(
            ("engine", "gpu_memory_utilization"),
            engine.gpu_memory_utilization,
            f"leaves no other model room on a GPU that hardware.sharing={sharing} shares",
            f"use {LARGEST_SHARE:g} or less, or sharing: none",
        )


def place_llm(spec: ModelSpec, known: Known, gpu: Gpu, gpus: int) -> Llm | list[Fault]:
    """A language model on GPUs of one kind, of which a machine has so many; else what is wrong."""
    engine, model = spec.engine, known.architecture
    assert isinstance(engine, VllmEngine)  # noqa: S101
    assert model is not None  # noqa: S101
    faults = list(_number_faults(engine, gpu))
    faults += degree_faults(model, engine.tensor_parallel_size, gpus)
    if faults:
        return faults
    budget = plan_budget(engine, model, gpu, known.stored_bytes, where=spec.name)
    faults = list(memory_faults(budget, engine.max_model_len))
    if faults:
        return faults
    tokens = known.mix.tokens if known.mix else engine.max_model_len
    limits = [
        ("concurrency_per_replica", spec.traffic.concurrency_per_replica),
        ("max_num_seqs", engine.max_num_seqs),
        (f"KV cache at {tokens:,} tokens each", budget.sequences(tokens)),
    ]
    bounds = roofline(budget)
    if bounds is not None and isinstance(spec.slo, TokenSlo):
        slo = spec.slo
        prompt = known.mix.prompt_tokens if known.mix else engine.max_model_len
        first = bounds.prompt_ms(prompt)
        if known.mix and first > slo.time_to_first_token_p99_ms:
            return [_too_slow("time_to_first_token_p99_ms", slo.time_to_first_token_p99_ms, first)]
        within = bounds.sequences_within(
            slo.inter_token_latency_p99_ms, tokens, engine.max_num_seqs
        )
        if not within:
            step = bounds.step_ms(1, tokens)
            return [_too_slow("inter_token_latency_p99_ms", slo.inter_token_latency_p99_ms, step)]
        limits.append((f"within {slo.inter_token_latency_p99_ms:g} ms a token", within))
    return Llm(budget, bounds, tuple(limits), known.mix)


def _too_slow(field: str, promised: float, takes: float) -> Fault:
    return Fault(
        ("slo", field),
        promised,
        f"is less than the {takes:,.0f} ms that it takes at best on this GPU",
        "use a faster GPU, a larger tensor_parallel_size or a smaller type of numbers",
    )


def _number_faults(engine: VllmEngine, gpu: Gpu) -> Iterator[Fault]:
    if engine.dtype == "bfloat16" and gpu.capability < (8, 0):
        yield Fault(
            ("engine", "dtype"),
            "bfloat16",
            f"is not a type that a {gpu.name} computes with",
            "use float16, or an l4 or newer",
        )


def fit_llm(spec: ModelSpec, known: Known, instance: Instance) -> Fit | str:
    """A language model on one type of instance."""
    reason = unusable(spec, instance)
    if reason is not None:
        return reason
    gpu = instance.gpu
    assert gpu is not None  # noqa: S101
    found = place_llm(spec, known, gpu, instance.gpus)
    if isinstance(found, list):
        return "; ".join(told(fault) for fault in found)
    other = gpu.name != spec.hardware.gpu
    if other and found.bounds is None:
        return f"the speed of a {gpu.name} is not known here; measure it first"
    note = f"service_time_ms is stated for {spec.hardware.gpu}: measure" if other else ""
    return Fit(llm_replicas(spec, found), gpus_per_replica(spec), note)


def llm_law(spec: ModelSpec, llm: Llm) -> InFlight:
    """Little's law with what the GPU bears and takes, where that is worse than what is stated."""
    traffic = spec.traffic
    time = max(traffic.service_time_ms, float(math.ceil(llm.request_ms)))
    return InFlight(traffic.peak_rps, time, llm.per_replica, traffic.headroom_ratio)


def llm_replicas(spec: ModelSpec, llm: Llm) -> int:
    """Replicas by Little's law, or by what can be read and written at best, if those are more."""
    needed = spec.traffic.peak_rps * spec.traffic.headroom_ratio / llm.request_rps
    return max(llm_law(spec, llm).replicas, math.ceil(needed))


def time_faults(spec: ModelSpec, llm: Llm) -> Iterator[Fault]:
    """A stated time that the GPU cannot keep even at best."""
    stated, best = spec.traffic.service_time_ms, llm.request_ms
    if stated < best and llm.mix is not None:
        yield Fault(
            ("traffic", "service_time_ms"),
            stated,
            f"is less than the {math.ceil(best):,} ms that {llm.mix.prompt_tokens:,} tokens in and "
            f"{llm.mix.output_tokens:,} out take at best on {gpus_per_replica(spec)} "
            f"{spec.hardware.gpu} with {llm.per_replica} at once",
            f"use {math.ceil(best)} or more, a lower concurrency_per_replica, or a faster GPU",
        )


def told(fault: Fault) -> str:
    """A fault without the fix, for a row of a table."""
    value = "" if fault.value is ABSENT else f"={shown(fault.value)}"
    return f"{spelled(fault.where)}{value} {fault.rule}"
