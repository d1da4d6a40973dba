"""The engines a model can run on: one type for each kind, with only that engine's own settings.

Triton's settings keep Triton's names and are nested as in its config, so that rendering them is
almost a copy (`serving/engines/triton.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Discriminator, Field, Tag

from serving.engines.batching import Count, DynamicBatching, Oldest, SequenceBatching
from serving.strict import ABSENT, Fault, Rule, Strict, refuse, tagged
from serving.tensors import LARGEST_INT32

Format = Literal[
    "onnx", "tensorrt_plan", "torchscript", "openvino_ir", "python", "safetensors", "saved_model"
]
PlatformName = Literal[
    "onnxruntime_onnx", "tensorrt_plan", "pytorch_libtorch", "openvino", "python"
]


class Platform(NamedTuple):
    """What a Triton platform reads, which key of the config names it, and where it runs."""

    format: Format
    key: Literal["platform", "backend"]
    needs_gpu: bool


PLATFORMS: Mapping[PlatformName, Platform] = {
    "onnxruntime_onnx": Platform("onnx", "platform", needs_gpu=False),
    "tensorrt_plan": Platform("tensorrt_plan", "platform", needs_gpu=True),
    "pytorch_libtorch": Platform("torchscript", "platform", needs_gpu=False),
    "openvino": Platform("openvino_ir", "backend", needs_gpu=False),
    "python": Platform("python", "backend", needs_gpu=False),
}


class InstanceGroup(Strict):
    """Copies of the model inside one server."""

    count: Count = Field(default=1, description="instances on each GPU, or on the CPU")
    gpus: tuple[Annotated[int, Field(ge=0, le=LARGEST_INT32)], ...] | None = Field(
        default=None, min_length=1, description="GPUs by number; [0] when absent on GPU hardware"
    )


class GpuAccelerator(Strict):
    """An execution provider that needs a GPU."""

    name: Literal["tensorrt"] = Field(description="name of the accelerator")
    parameters: Mapping[str, str] = Field(default={}, description="its settings, as text")


class CpuAccelerator(Strict):
    """An execution provider for CPUs."""

    name: Literal["openvino"] = Field(description="name of the accelerator")
    parameters: Mapping[str, str] = Field(default={}, description="its settings, as text")


class Optimization(Strict):
    """Execution providers that ONNX Runtime puts before its own kernels."""

    gpu_execution_accelerator: tuple[GpuAccelerator, ...] = Field(
        default=(), description="accelerators where the model runs on a GPU"
    )
    cpu_execution_accelerator: tuple[CpuAccelerator, ...] = Field(
        default=(), description="accelerators where the model runs on a CPU"
    )


class TritonEngine(Strict):
    """NVIDIA Triton Inference Server. Which version serves is the release's business."""

    kind: Literal["triton"] = Field(description="triton")
    platform: PlatformName = Field(description="what runs the model inside Triton")
    max_batch_size: int = Field(
        default=0, ge=0, le=LARGEST_INT32, description="largest batch in requests; 0 is no batching"
    )
    dynamic_batching: DynamicBatching | None = Field(
        default=None, description="batches of requests that arrive apart"
    )
    sequence_batching: SequenceBatching | None = Field(
        default=None, description="batches for models that keep state between requests"
    )
    instance_group: InstanceGroup = Field(
        default=InstanceGroup(), description="copies of the model inside one server"
    )
    decoupled: bool = Field(
        default=False, description="whether one request may have no or many answers"
    )
    optimization: Optimization | None = Field(
        default=None, description="execution accelerators of ONNX Runtime"
    )
    parameters: Mapping[str, str] = Field(
        default={}, description="settings handed to the backend, as text"
    )

    @property
    def largest_batch(self) -> int:
        """Requests in the largest batch that one execution takes."""
        return max(1, self.max_batch_size)

    @Rule
    def _dynamic_batching_can_batch(self) -> Iterator[Fault]:
        batching = self.dynamic_batching
        if batching is None or self.max_batch_size != 0:
            return
        sizes = batching.preferred_batch_size
        if "max_batch_size" in self.model_fields_set:
            yield Fault(
                ("max_batch_size",),
                0,
                "makes dynamic_batching batch nothing, without a word from the server",
                "use 1 or more, or remove dynamic_batching",
            )
        elif sizes:
            yield Fault(
                ("dynamic_batching", "preferred_batch_size"),
                sizes,
                "needs max_batch_size, which is unset: a server-wide default does not count",
                f"write max_batch_size: {max(1, *sizes)} or more in this spec",
            )
        else:
            yield Fault(
                ("max_batch_size",),
                ABSENT,
                "is unset beside dynamic_batching: a server-wide default does not count",
                "write the largest batch in this spec",
            )

    @Rule
    def _preferred_sizes_fit(self) -> Iterator[Fault]:
        if self.dynamic_batching is not None:
            where = ("dynamic_batching", "preferred_batch_size")
            sizes = self.dynamic_batching.preferred_batch_size
            yield from _size_faults(where, sizes, self.max_batch_size)

    @Rule
    def _preferred_sequence_sizes_fit(self) -> Iterator[Fault]:
        if self.sequence_batching is not None and isinstance(
            self.sequence_batching.strategy, Oldest
        ):
            where = ("sequence_batching", "strategy", "preferred_batch_size")
            sizes = self.sequence_batching.strategy.preferred_batch_size
            yield from _size_faults(where, sizes, self.largest_batch)

    @Rule
    def _one_batcher(self) -> Iterator[Fault]:
        if self.dynamic_batching is not None and self.sequence_batching is not None:
            yield Fault(
                ("dynamic_batching",),
                ABSENT,
                "stands beside sequence_batching",
                "keep one: sequence_batching if the model keeps state between requests",
            )

    @Rule
    def _accelerators_fit_platform(self) -> Iterator[Fault]:
        if self.optimization is not None and self.platform != "onnxruntime_onnx":
            yield Fault(
                ("optimization",),
                ABSENT,
                f"is for platform onnxruntime_onnx and not {self.platform}",
                "remove it",
            )


def _size_faults(where: tuple[str, ...], sizes: Sequence[int], largest: int) -> Iterator[Fault]:
    """Preferred sizes outside 1 to `largest`; 0 as largest has its own rule."""
    for size in sizes:
        if size < 1:
            fix = f"use sizes from 1 to {largest}" if largest else "use sizes from 1 up"
            yield Fault(where, sizes, f"has {size} below 1", fix)
        elif size > largest > 0:
            fix = f"use sizes from 1 to {largest}, or raise max_batch_size"
            yield Fault(where, sizes, f"has {size} above max_batch_size={largest}", fix)


class VllmEngine(Strict):
    """vLLM's OpenAI-compatible server."""

    kind: Literal["vllm"] = Field(description="vllm")
    max_model_len: Count = Field(description="longest prompt and answer together, in tokens")
    max_num_seqs: Count = Field(description="sequences that may run at once")
    max_num_batched_tokens: Count | None = Field(
        default=None, description="tokens in one step; vLLM's choice for the GPU when absent"
    )
    tensor_parallel_size: Count = Field(default=1, description="GPUs that share one model")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="type of the weights and activations"
    )
    gpu_memory_utilization: float = Field(
        default=0.92, gt=0, le=1, description="share of GPU memory that vLLM may take, 0 to 1"
    )

    @Rule
    def _a_step_holds_every_sequence(self) -> Iterator[Fault]:
        tokens = self.max_num_batched_tokens
        if tokens is not None and tokens < self.max_num_seqs:
            yield Fault(
                ("max_num_batched_tokens",),
                tokens,
                f"is below max_num_seqs={self.max_num_seqs}: each sequence takes a token a step",
                f"use {self.max_num_seqs} or more, or lower max_num_seqs",
            )


def _pinned_image(image: str) -> str:
    if not re.fullmatch(r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}", image):
        raise refuse("is not pinned by digest", "write it as name@sha256: and 64 hex digits")
    return image


def _url_path(path: str) -> str:
    plain = re.fullmatch(r"(/[A-Za-z0-9._~:-]+)+/?|/", path)
    if not plain or ".." in path.split("/"):
        raise refuse("is not a plain path", "start with /, without query, dots or escapes")
    return path


UrlPath = Annotated[str, AfterValidator(_url_path)]


class ContainerEngine(Strict):
    """Any image with a health path: TensorFlow Serving, TorchServe, SGLang, BentoML and others."""

    kind: Literal["container"] = Field(description="container")
    image: Annotated[str, AfterValidator(_pinned_image)] = Field(
        description="image with its digest, name@sha256:..."
    )
    port: int = Field(ge=1, le=65535, description="port that serves requests and health")
    ready_path: UrlPath = Field(description="path that answers 200 when requests may come")
    live_path: UrlPath | None = Field(
        default=None,
        description="path that answers 200 while the process is sound; an open port when absent",
    )
    request_paths: tuple[UrlPath, ...] = Field(
        min_length=1, description="paths that clients may call; all others are refused"
    )
    metrics_path: UrlPath | None = Field(default=None, description="Prometheus metrics, if any")
    args: tuple[str, ...] = Field(default=(), description="arguments of the image's entry point")
    env: Mapping[str, str] = Field(default={}, description="environment variables; no secrets")

    @Rule
    def _live_is_not_ready(self) -> Iterator[Fault]:
        if self.live_path == self.ready_path:
            yield Fault(
                ("live_path",),
                self.live_path,
                "is also ready_path, so a model that still loads is killed and loads again",
                "name a path that does not depend on the model, or remove it",
            )


Engine = Annotated[
    Annotated[TritonEngine, Tag("triton")]
    | Annotated[VllmEngine, Tag("vllm")]
    | Annotated[ContainerEngine, Tag("container")],
    Discriminator(tagged),
]
