"""What a plan takes for granted where nobody said, and what to give it instead."""

from __future__ import annotations

from collections.abc import Iterator

from serving.capacity.known import Known
from serving.capacity.placement import DEFAULT_SHARE
from serving.capacity.scaling import RAMP_SECONDS
from serving.engines.kinds import TritonEngine, VllmEngine
from serving.spec import ModelSpec


def assumptions(spec: ModelSpec, known: Known, ramp_seconds: float | None) -> Iterator[str]:
    """What the plan took for granted, and what to give it instead."""
    engine = spec.engine
    if ramp_seconds is None:
        yield f"load goes from idle to peak in {RAMP_SECONDS:,} s; declare --ramp-seconds"
    if isinstance(engine, VllmEngine):
        if known.architecture is None:
            yield "memory of the GPU is not checked; put the model's config.json in its folder"
        elif known.mix is None:
            yield (
                f"every sequence is as long as max_model_len={engine.max_model_len:,}; declare "
                f"--lengths {spec.name}=PROMPT:OUTPUT"
            )
        if known.architecture is not None and known.stored_bytes is None:
            yield "weights are counted from config.json; put the .safetensors in the folder"
        if known.architecture and any(x.kind == "state" for x in known.architecture.layers):
            yield "state of linear-attention and Mamba layers is not counted"
        return
    if isinstance(engine, TritonEngine) and known.curve is None:
        yield (
            "speed is the spec's service_time_ms and concurrency_per_replica; put a measured "
            "batch_curve.json in the folder"
        )
    if known.stored_bytes is None and spec.hardware.gpu != "none":
        what = f"{DEFAULT_SHARE:.0%} of it" if spec.hardware.sharing != "none" else "that it fits"
        yield f"memory of the GPU: {what}; put the model's file in the folder"
