"""Triton's `config.pbtxt`: from a spec, to text and back, and as a host without GPUs can load it.

    ModelSpec ──render_config──► ModelConfig ──to_pbtxt──► config.pbtxt, kept in the registry
                                      └──on_cpu──► the same without GPUs, for the local stack

`tritonclient.grpc` takes most of a second to import, so functions import it, not this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serving.engines.batching import ControlInput, SequenceBatching
from serving.engines.kinds import PLATFORMS, InstanceGroup, TritonEngine
from serving.errors import SpecError
from serving.spec import ModelSpec
from serving.strict import Strict
from serving.tensors import Input, Tensor
from serving.warmup import Sample, Warmup

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

Message = dict[str, Any]
"""A protobuf message as a dict, by the names in `model_config.proto`."""


def render_config(spec: ModelSpec) -> ModelConfig:
    """The configuration that Triton loads the model with, on the hardware of the spec.

    Raises:
        SpecError: if the spec's engine is not Triton.
    """
    from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    engine = spec.engine
    if not isinstance(engine, TritonEngine):
        raise SpecError([f"{spec.name}: engine.kind={engine.kind} has no config.pbtxt; use triton"])
    return ParseDict(_config(spec, engine), ModelConfig())


def _config(spec: ModelSpec, engine: TritonEngine) -> Message:
    parts: dict[str, Any] = {
        "name": spec.name,
        PLATFORMS[engine.platform].key: engine.platform,
        "max_batch_size": engine.max_batch_size,
        "input": [_tensor(tensor) for tensor in spec.inputs],
        "output": [_tensor(tensor) for tensor in spec.outputs],
        "dynamic_batching": _stated(engine.dynamic_batching),
        "sequence_batching": _sequence_batching(engine.sequence_batching),
        "instance_group": [_instance_group(engine.instance_group, spec.hardware.gpu != "none")],
        "optimization": engine.optimization
        and {"execution_accelerators": _stated(engine.optimization)},
        "model_transaction_policy": {"decoupled": True} if engine.decoupled else None,
        "parameters": {key: {"string_value": text} for key, text in engine.parameters.items()},
        "model_warmup": list(_warmups(spec.warmup, spec.inputs)),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _stated(settings: Strict | None) -> Message | None:
    """Settings that differ from their defaults, which are Triton's defaults as well."""
    return None if settings is None else settings.model_dump(mode="json", exclude_defaults=True)


def _tensor(tensor: Tensor) -> Message:
    message: Message = {
        "name": tensor.name,
        "data_type": tensor.data_type,
        "dims": list(tensor.dims),
    }
    if isinstance(tensor, Input) and tensor.optional:
        message["optional"] = True
    return message


def _instance_group(group: InstanceGroup, on_gpu: bool) -> Message:
    if not on_gpu:
        return {"count": group.count, "kind": "KIND_CPU"}
    return {"count": group.count, "kind": "KIND_GPU", "gpus": list(group.gpus or (0,))}


FALSE_TRUE: Mapping[str, Message] = {
    "TYPE_BOOL": {"bool_false_true": [False, True]},
    "TYPE_INT32": {"int32_false_true": [0, 1]},
    "TYPE_FP32": {"fp32_false_true": [0.0, 1.0]},
}
"""Type of a control input that says yes or no → how it says so."""


def _control_input(control: ControlInput) -> Message:
    is_id = control.kind == "CONTROL_SEQUENCE_CORRID"
    says = {"data_type": control.data_type} if is_id else FALSE_TRUE[control.data_type]
    return {"name": control.name, "control": [{"kind": control.kind, **says}]}


def _sequence_batching(batching: SequenceBatching | None) -> Message | None:
    if batching is None:
        return None
    strategy = batching.strategy.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    return {
        "max_sequence_idle_microseconds": batching.max_sequence_idle_microseconds,
        "control_input": [_control_input(control) for control in batching.control_input],
        batching.strategy.kind: strategy,
    }


def _warmups(warmups: Sequence[Warmup], inputs: Sequence[Input]) -> Iterator[Message]:
    seen: Counter[int] = Counter()
    for warmup in warmups:
        size = warmup.batch_size
        seen[size] += 1
        # Names show in the server's log; two samples of one size differ by their shapes.
        name = f"batch_{size}" if seen[size] == 1 else f"batch_{size}_{seen[size]}"
        samples = warmup.samples(inputs)
        yield {
            "name": name,
            "batch_size": size,
            "inputs": {key: _sample(sample) for key, sample in samples.items()},
        }


def _sample(sample: Sample) -> Message:
    data = {"zero_data": True} if sample.file is None else {"input_data_file": sample.file}
    return {"data_type": sample.data_type, "dims": list(sample.dims), **data}


def to_pbtxt(config: ModelConfig) -> str:
    """`config` as text; equal configs give equal text."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    return str(text_format.MessageToString(config, use_short_repeated_primitives=True))


def parse_pbtxt(text: str) -> ModelConfig:
    """The config that `text` states.

    Raises:
        SpecError: if it is not a Triton model configuration.
    """
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        reason = " ".join(str(error).split())
        raise SpecError([f"config.pbtxt: {reason}; mend it there"]) from error


BRIDGED = ("onnxruntime_onnx", "onnxruntime")
"""What the local stack runs inside Triton's Python backend."""

GPU_ONLY: Mapping[str, str] = {
    "tensorrt_plan": "a TensorRT plan is compiled for one GPU",
    "tensorrt": "a TensorRT plan is compiled for one GPU",
    "tensorrtllm": "TensorRT-LLM engines are compiled for one GPU",
    "vllm": "Triton's vLLM backend needs a GPU",
}
"""Platform or backend → why no CPU can run it."""


def on_cpu(config: ModelConfig) -> tuple[ModelConfig, tuple[str, ...]]:
    """A copy of `config` for the local Triton, which has no GPU and only the Python backend.

    Batching, warm-up and the number of instances stay as they are. The second value says in plain
    words what was changed.

    Raises:
        SpecError: if the model cannot run there, with the reason.
    """
    local = type(config)()
    local.CopyFrom(config)
    notes = [*_move_backend(local), *_move_instances(local), *_drop_accelerators(local)]
    return local, tuple(f"{config.name}: {note}" for note in notes)


def _move_backend(config: ModelConfig) -> Iterator[str]:
    key = "platform" if config.platform else "backend"
    runner = getattr(config, key)
    if runner == "python":
        return
    if runner not in BRIDGED:
        reason = GPU_ONLY.get(runner, "the local Triton has no such backend")
        raise SpecError(
            [
                f"{config.name}: engine.{key}={runner} cannot run on this machine: {reason}; "
                "use an environment with GPUs, or an ONNX export of the model"
            ]
        )
    config.ClearField("platform")
    config.backend = "python"
    yield f"{key} {runner} became backend python, the only backend of the local Triton"


def _move_instances(config: ModelConfig) -> Iterator[str]:
    kinds = type(config).DESCRIPTOR.fields_by_name["instance_group"].message_type
    kind = kinds.enum_types_by_name["Kind"].values_by_name
    for group in config.instance_group:
        gpus = ", ".join(map(str, group.gpus)) or "any"
        if group.kind == kind["KIND_GPU"].number:
            group.kind = kind["KIND_CPU"].number
            yield f"{group.count} x KIND_GPU (gpus {gpus}) became {group.count} x KIND_CPU"
        elif group.gpus:
            yield f"gpus {gpus} of {group.count} instances were dropped"
        group.ClearField("gpus")


def _drop_accelerators(config: ModelConfig) -> Iterator[str]:
    optimization = config.optimization
    accelerators = optimization.execution_accelerators
    for accelerator in accelerators.gpu_execution_accelerator:
        yield f"GPU accelerator {accelerator.name} was dropped"
    accelerators.ClearField("gpu_execution_accelerator")
    if optimization.HasField("cuda"):
        optimization.ClearField("cuda")
        yield "CUDA settings were dropped"
    # An empty shell would differ from a config that never named an accelerator.
    if optimization.HasField("execution_accelerators") and not accelerators.ByteSize():
        optimization.ClearField("execution_accelerators")
    if config.HasField("optimization") and not optimization.ByteSize():
        config.ClearField("optimization")
