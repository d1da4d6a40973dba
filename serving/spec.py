"""A model as its owner states it in `serving/specs/<name>.yaml`; all else is derived from it.

name, artifact          what it is
engine, inputs, outputs what runs it, and what goes in and out
warmup                  what it answers before it is ready
slo, traffic            what is promised, and for how much
scaling, cache, routing how requests are spread and spared
log                     which tensors are kept of what it answered
hardware, clients       where it runs, and for whom
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from serving.engines.batching import Count
from serving.engines.kinds import PLATFORMS, Engine, Format, TritonEngine, VllmEngine
from serving.errors import SpecError
from serving.gateway.routes import OPERATOR
from serving.slo import LatencySlo, Positive, Slo, TokenSlo
from serving.strict import ABSENT, Fault, Rule, Strict, nearest, refuse, sentence, sentences
from serving.tensors import Input, Tensor, TensorName
from serving.warmup import Warmup, warmup_faults, warmup_file_faults
from serving.yaml_file import Key, read_mapping

Gpu = Literal[
    "none", "t4", "t4g", "a10g", "l4", "l40s", "a100", "h100", "h200", "b200", "b300",
    "rtx-pro-4500", "rtx-pro-server-6000",
]  # fmt: skip


def _name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name):
        raise refuse(
            "is not a name",
            "use 1 to 63 lower-case letters, digits, - and _, with a letter first",
        )
    return name


def _header(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise refuse("is not a header name", "use lower-case letters, digits and -")
    return name


Name = Annotated[str, AfterValidator(_name)]


class Artifact(Strict):
    """The kind of file that the registry keeps for this model."""

    format: Format = Field(description="format of the model's files")


class Traffic(Strict):
    """What capacity is planned for."""

    peak_rps: Positive = Field(description="highest rate in requests per second")
    service_time_ms: Positive = Field(description="time in the system in milliseconds")
    concurrency_per_replica: Count = Field(description="requests in flight that a replica bears")
    headroom_ratio: float = Field(ge=1, description="capacity over need, 1 or more")


class Scaling(Strict):
    """Between how many replicas the model runs."""

    min_replicas: int = Field(ge=0, description="fewest replicas; 0 turns it off when idle")
    max_replicas: Count = Field(description="most replicas")
    cold_start_budget_seconds: Positive | None = Field(
        default=None, description="longest wait of a request that finds no replica, in seconds"
    )

    @Rule
    def _min_within_max(self) -> Iterator[Fault]:
        low, high = self.min_replicas, self.max_replicas
        if low > high:
            rule = f"is above max_replicas={high}"
            yield Fault(("min_replicas",), low, rule, f"use {high} or less, or raise max_replicas")

    @Rule
    def _zero_is_deliberate(self) -> Iterator[Fault]:
        if self.min_replicas == 0 and self.cold_start_budget_seconds is None:
            yield Fault(
                ("min_replicas",),
                0,
                "makes the first request wait for a cold start",
                "add cold_start_budget_seconds, or use 1 or more",
            )


class Cache(Strict):
    """Answers kept for equal requests; stating it says that equal inputs have equal answers."""

    ttl_seconds: Positive = Field(description="how long an answer stays good, in seconds")
    scope: Literal["shared", "client"] = Field(description="who may be served a client's answer")


class Routing(Strict):
    """How requests find a replica where the least busy one will not do, and how long they may."""

    hash_header: Annotated[str, AfterValidator(_header)] | None = Field(
        default=None, description="header whose equal values go to the same replica"
    )
    timeout_ms: Positive | None = Field(
        default=None, description="longest a request may take before 504, in milliseconds"
    )
    idle_timeout_seconds: Positive | None = Field(
        default=None, description="longest silence of a stream before it is cut, in seconds"
    )

    @Rule
    def _says_something(self) -> Iterator[Fault]:
        stated = (self.hash_header, self.timeout_ms, self.idle_timeout_seconds)
        if all(value is None for value in stated):
            fix = f"state one of {', '.join(type(self).model_fields)}, or remove it"
            yield Fault((), ABSENT, "says nothing", fix)


class PredictionLog(Strict):
    """Tensors that may be kept beside the log of answers; without it, none ever are."""

    sample_ratio: float = Field(
        gt=0, le=1, description="share of requests whose tensors are logged, above 0 to 1"
    )
    redact: tuple[TensorName, ...] = Field(
        description="names of the inputs and outputs whose values are left out; [] for none"
    )


class Hardware(Strict):
    """Where a replica runs."""

    gpu: Gpu = Field(description="GPU model, or none for CPU nodes")
    sharing: Literal["none", "mig", "time-slicing", "mps"] = Field(
        default="none", description="how a replica shares its GPU"
    )

    @Rule
    def _something_to_share(self) -> Iterator[Fault]:
        if self.gpu == "none" and self.sharing != "none":
            yield Fault(
                ("sharing",), self.sharing, "has no GPU to share", "use none, or name a GPU"
            )


class Client(Strict):
    """One caller with its own key and limit."""

    name: Name = Field(description="name of the caller")
    rate_limit_rps: Count = Field(description="requests per second before refusal")

    @Rule
    def _is_not_the_operator(self) -> Iterator[Fault]:
        if self.name == OPERATOR:
            rule = "is who runs the gateway, and may call every model anyway"
            yield Fault(("name",), self.name, rule, "name the caller otherwise")


class ModelSpec(Strict):
    """Everything that is decided about one model in production."""

    name: Name = Field(description="name of the model and of this file")
    artifact: Artifact = Field(description="the model's files")
    engine: Engine = Field(description="what runs it: kind triton, vllm or container")
    inputs: tuple[Input, ...] = Field(default=(), description="tensors of a request")
    outputs: tuple[Tensor, ...] = Field(default=(), description="tensors of an answer")
    warmup: tuple[Warmup, ...] = Field(default=(), description="requests before readiness")
    slo: Slo = Field(description="what is promised, and why")
    traffic: Traffic = Field(description="what capacity is planned for")
    scaling: Scaling = Field(description="between how many replicas it runs")
    cache: Cache | None = Field(default=None, description="answers kept for equal requests")
    routing: Routing | None = Field(default=None, description="how requests find a replica")
    log: PredictionLog | None = Field(default=None, description="which tensors are logged")
    hardware: Hardware = Field(description="where a replica runs")
    clients: tuple[Client, ...] = Field(min_length=1, description="who may call it")

    @Rule
    def _format_fits_engine(self) -> Iterator[Fault]:
        where, held = ("artifact", "format"), self.artifact.format
        if isinstance(self.engine, TritonEngine):
            wanted = PLATFORMS[self.engine.platform].format
            if held != wanted:
                yield Fault(
                    where, held, f"is not what {self.engine.platform} reads", f"use {wanted}"
                )
        elif isinstance(self.engine, VllmEngine) and held != "safetensors":
            yield Fault(where, held, "is not what vllm reads", "use safetensors")

    @Rule
    def _inputs_fit_engine(self) -> Iterator[Fault]:
        yield from _presence_faults(self.engine, "inputs", self.inputs)

    @Rule
    def _outputs_fit_engine(self) -> Iterator[Fault]:
        yield from _presence_faults(self.engine, "outputs", self.outputs)

    @Rule
    def _inputs_differ(self) -> Iterator[Fault]:
        yield from _duplicates("inputs", [tensor.name for tensor in self.inputs])

    @Rule
    def _outputs_differ(self) -> Iterator[Fault]:
        yield from _duplicates("outputs", [tensor.name for tensor in self.outputs])

    @Rule
    def _clients_differ(self) -> Iterator[Fault]:
        yield from _duplicates("clients", [client.name for client in self.clients])

    @Rule
    def _slo_fits_engine(self) -> Iterator[Fault]:
        by_token = isinstance(self.engine, VllmEngine)
        if by_token and isinstance(self.slo, LatencySlo):
            yield Fault(
                ("slo", "latency_p99_ms"),
                self.slo.latency_p99_ms,
                "says nothing about an answer that comes token by token",
                "use time_to_first_token_p99_ms and inter_token_latency_p99_ms",
            )
        elif isinstance(self.engine, TritonEngine) and isinstance(self.slo, TokenSlo):
            yield Fault(
                ("slo", "time_to_first_token_p99_ms"),
                self.slo.time_to_first_token_p99_ms,
                "is for engines that answer token by token",
                "use latency_p99_ms",
            )

    @Rule
    def _waiting_fits_slo(self) -> Iterator[Fault]:
        if not isinstance(self.engine, TritonEngine) or self.engine.dynamic_batching is None:
            return
        wait = self.engine.dynamic_batching.max_queue_delay_microseconds
        if isinstance(self.slo, LatencySlo) and wait >= self.slo.latency_p99_ms * 1000:
            yield Fault(
                ("engine", "dynamic_batching", "max_queue_delay_microseconds"),
                wait,
                f"uses up slo.latency_p99_ms={self.slo.latency_p99_ms:g} before the model starts",
                "use a small part of it",
            )

    @Rule
    def _warmup_fits_engine(self) -> Iterator[Fault]:
        if self.warmup and not isinstance(self.engine, TritonEngine):
            rule = f"is not something that a {self.engine.kind} engine does"
            yield Fault(("warmup",), ABSENT, rule, "remove it")

    @Rule
    def _warmup_fits_inputs(self) -> Iterator[Fault]:
        if isinstance(self.engine, TritonEngine):
            for place, warmup in enumerate(self.warmup):
                for fault in warmup_faults(warmup, self.inputs, self.engine.largest_batch):
                    where = ("warmup", place, *fault.where)
                    yield Fault(where, fault.value, fault.rule, fault.fix)

    @Rule
    def _sequences_meet_their_state(self) -> Iterator[Fault]:
        keeps_state = isinstance(self.engine, TritonEngine) and self.engine.sequence_batching
        most = self.scaling.max_replicas
        hashed = self.routing is not None and self.routing.hash_header is not None
        if keeps_state and most > 1 and not hashed:
            yield Fault(
                ("scaling", "max_replicas"),
                most,
                "spreads the requests of a sequence over replicas that do not share its state",
                "add routing: {hash_header: x-sequence-id}, or use 1",
            )

    @Rule
    def _cache_can_be_right(self) -> Iterator[Fault]:
        if self.cache is None:
            return
        where, fix = ("cache",), "remove cache"
        if not isinstance(self.engine, TritonEngine):
            rule = f"cannot stand before a {self.engine.kind} engine, whose answers may differ"
            yield Fault(where, ABSENT, rule, fix)
        elif self.engine.sequence_batching is not None:
            rule = "would answer a sequence from another sequence's state"
            yield Fault(where, ABSENT, rule, fix)
        elif self.engine.decoupled:
            yield Fault(where, ABSENT, "cannot hold the many answers of a decoupled model", fix)

    @Rule
    def _slow_answers_are_waited_for(self) -> Iterator[Fault]:
        if self.routing is None or not isinstance(self.slo, LatencySlo):
            return
        timeout, promised = self.routing.timeout_ms, self.slo.latency_p99_ms
        if timeout is not None and timeout < promised:
            rule = f"cuts off answers that slo.latency_p99_ms={promised:g} still allows"
            fix = f"use {promised:g} or more"
            yield Fault(("routing", "timeout_ms"), timeout, rule, fix)

    @Rule
    def _log_fits_engine(self) -> Iterator[Fault]:
        if self.log is not None and not isinstance(self.engine, TritonEngine):
            rule = f"is not something that a {self.engine.kind} engine has: it logs tensors"
            yield Fault(("log",), ABSENT, rule, "remove it")

    @Rule
    def _redacted_tensors_exist(self) -> Iterator[Fault]:
        if self.log is None or not isinstance(self.engine, TritonEngine):
            return
        names = [tensor.name for tensor in (*self.inputs, *self.outputs)]
        for place, name in enumerate(self.log.redact):
            if name not in names:
                meant = nearest(name, names)
                fix = f"did you mean {meant}" if meant else f"use one of {', '.join(names)}"
                yield Fault(("log", "redact", place), name, "is no input and no output", fix)

    @Rule
    def _gpus_exist(self) -> Iterator[Fault]:
        if self.hardware.gpu != "none" or not isinstance(self.engine, TritonEngine):
            return
        if PLATFORMS[self.engine.platform].needs_gpu:
            rule = "runs on GPUs only, and hardware.gpu is none"
            yield Fault(("engine", "platform"), self.engine.platform, rule, "name a GPU")
        gpus = self.engine.instance_group.gpus
        if gpus is not None:
            rule = "names GPUs, and hardware.gpu is none"
            yield Fault(
                ("engine", "instance_group", "gpus"), gpus, rule, "remove it, or name a GPU"
            )


def _presence_faults(engine: Engine, field: str, tensors: Sequence[Tensor]) -> Iterator[Fault]:
    if isinstance(engine, TritonEngine) and not tensors:
        yield Fault((field,), ABSENT, "is missing", f"list the model's {field}")
    elif isinstance(engine, VllmEngine) and tensors:
        rule = "is not something that a vllm engine has: it takes text"
        yield Fault((field,), ABSENT, rule, "remove it")


def _duplicates(field: str, names: Sequence[str]) -> Iterator[Fault]:
    for name, times in Counter(names).items():
        if times > 1:
            place = len(names) - 1 - names[::-1].index(name)
            rule = f"appears {times} times in {field}"
            yield Fault((field, place, "name"), name, rule, "give each its own name")


def parse_spec(data: Mapping[Key, object], model: str) -> ModelSpec:
    """The spec that `data` states; `model` is what messages call it.

    Raises:
        SpecError: with every broken rule.
    """
    try:
        return ModelSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(sentences(model, error)) from error


def load_spec(path: Path) -> ModelSpec:
    """The spec in the file at `path`, which is named after the model.

    Raises:
        SpecError: with everything that is wrong with the file.
    """
    data, model = read_mapping(path), path.stem
    faults = []
    name = data.get("name")
    if isinstance(name, str) and name != model:
        fix = "name the file and the model alike"
        faults.append(sentence(model, Fault(("name",), name, f"is in the file {path.name}", fix)))
    try:
        spec = parse_spec(data, model)
    except SpecError as error:
        raise SpecError([*faults, *error.faults]) from error
    folder = path.parent / spec.name / "warmup"
    faults += [sentence(model, fault) for fault in warmup_file_faults(spec.warmup, folder)]
    if faults:
        raise SpecError(faults)
    return spec


def load_specs(folder: Path) -> tuple[ModelSpec, ...]:
    """Every spec in `folder`, by name.

    Raises:
        SpecError: with everything that is wrong with any of the files.
    """
    if not folder.is_dir():
        raise SpecError([f"{folder}: not a folder; name the one that holds the specs"])
    specs, faults = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".yml":
            faults.append(f"{path}: would be passed over; rename it to {path.stem}.yaml")
        if path.suffix != ".yaml":
            continue
        try:
            specs.append(load_spec(path))
        except SpecError as error:
            faults += error.faults
    if not specs and not faults:
        faults.append(f"{folder}: holds no specs; add a <model>.yaml")
    if faults:
        raise SpecError(faults)
    return tuple(specs)
