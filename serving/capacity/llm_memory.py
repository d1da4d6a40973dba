"""The memory of one GPU with a language model: weights, reserve, and what is left for tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serving.capacity.architecture import Architecture
from serving.capacity.exact import MINUS, OVER, TIMES
from serving.capacity.kv_cache import ITEM_BYTES, Cache
from serving.engines.kinds import VllmEngine
from serving.errors import InputError
from serving.hardware.gpus import GIB, Gpu
from serving.strict import Fault

CONTEXT_BYTES = int(0.6 * GIB)
"""CUDA context and allocator; 0.6 to 1 GB are commonly seen. An estimate."""
GRAPH_BYTES = int(0.57 * GIB)
"""CUDA graphs; what vLLM's log said of Llama 3.1 8B on an L4."""
COMMUNICATION_BYTES = int(0.5 * GIB)
"""Buffers of GPUs that work together. An estimate."""


@dataclass(frozen=True, slots=True)
class LengthMix:
    """How long requests are, in tokens, on average."""

    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """All of one request."""
        return self.prompt_tokens + self.output_tokens


def engine_defaults(gpu: Gpu) -> tuple[int, int]:
    """Tokens in a step and sequences at once that vLLM takes on this GPU where nobody says.

    Source: vllm 0.33, EngineArgs for the API server.

    >>> from serving.hardware.gpus import gpu_named
    >>> [engine_defaults(gpu_named(name)) for name in ("l4", "h100", "b200")]
    [(2048, 256), (8192, 1024), (16384, 1024)]
    """
    if gpu.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * GIB and gpu.name != "a100":
        return 8192, 1024
    return 2048, 256


def serving_dtype(model: Architecture, stated: str) -> str:
    """Type in which the model runs: `auto` halves what is stored as float32, as vLLM does."""
    if stated != "auto":
        return stated
    return "bfloat16" if model.dtype == "float32" else model.dtype


def weight_bytes(model: Architecture, dtype: str, stored_bytes: int | None, where: str) -> int:
    """Bytes of all the weights, as they lie in GPU memory.

    Llama 3 8B in two bytes a number is 15 GiB:

    >>> from serving.capacity.architecture import architecture_of
    >>> llama = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...     "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    ...     "torch_dtype": "bfloat16"}
    >>> round(weight_bytes(architecture_of(llama, ""), "bfloat16", None, "") / 2**30, 2)
    14.96

    Raises:
        InputError: the weights are quantized in a way that does not tell their size.
    """
    item = ITEM_BYTES[dtype]
    if model.quantization is None:
        if stored_bytes is not None:
            return stored_bytes * item // ITEM_BYTES.get(model.dtype, item)
        return model.parameters * item
    if stored_bytes is not None:
        return stored_bytes
    if model.quantization_bits is None:
        raise InputError(
            f"{where}: quantization={model.quantization} does not say how large the weights are; "
            "put the .safetensors files or model.safetensors.index.json beside config.json"
        )
    embeddings = model.vocabulary * model.hidden * (1 if model.tied else 2)
    return int((model.parameters - embeddings) * model.quantization_bits / 8) + embeddings * item


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory of one GPU is spent, in bytes."""

    gpu: Gpu
    utilization: float
    weights: int
    reserve: int
    cache: Cache

    @property
    def free(self) -> int:
        """Left for keys and values; below 0 where the weights alone do not fit."""
        return int(self.gpu.memory_bytes * self.utilization) - self.weights - self.reserve

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds, as vLLM logs them."""
        return self.cache.logged_tokens(max(0, self.free))

    def sequences(self, tokens: int) -> int:
        """Whole sequences of this length at once."""
        return int(self.cache.sequences(max(0, self.free), tokens))

    @property
    def sum(self) -> str:
        """The sum as people write it."""
        return (
            f"{self.gpu.memory_bytes / GIB:.1f} GiB {TIMES} {self.utilization:g} {MINUS} "
            f"{self.weights / GIB:.1f} weights {MINUS} {self.reserve / GIB:.1f} reserve = "
            f"{self.free / GIB:.1f} GiB; "
            f"{OVER} {self.cache.token_bytes:,} B a token = {self.tokens:,} tokens"
        )


def reserve_bytes(model: Architecture, batched_tokens: int, sequences: int, degree: int) -> int:
    """What activations, graphs and the driver take on one GPU; an estimate, on the safe side.

    The widest moment of a step: gate and up of the feed-forward, the residual twice, queries, keys
    and values, in two bytes; and scores over the vocabulary, in two and in four.
    """
    width = (
        2 * model.intermediate // degree
        + 2 * model.hidden
        + (model.heads + 2 * model.kv_heads) * model.head_dim // degree
    )
    if model.experts is not None:
        width += 2 * model.experts.per_token * model.experts.intermediate // degree
    activations = batched_tokens * width * 2 + sequences * model.vocabulary * 6
    together = COMMUNICATION_BYTES if degree > 1 else 0
    return activations + CONTEXT_BYTES + GRAPH_BYTES + together


def plan_budget(
    engine: VllmEngine,
    model: Architecture,
    gpu: Gpu,
    stored_bytes: int | None = None,
    *,
    cache_dtype: str = "auto",
    where: str = "config.json",
) -> Budget:
    """The budget of one GPU of a replica.

    Raises:
        InputError: the size of the weights cannot be told.
    """
    dtype = serving_dtype(model, engine.dtype)
    batched = engine.max_num_batched_tokens or engine_defaults(gpu)[0]
    degree = engine.tensor_parallel_size
    return Budget(
        gpu=gpu,
        utilization=engine.gpu_memory_utilization,
        weights=-(-weight_bytes(model, dtype, stored_bytes, where) // degree),
        reserve=reserve_bytes(model, batched, engine.max_num_seqs, degree),
        cache=Cache(
            model,
            dtype if cache_dtype == "auto" else cache_dtype,
            degree,
            max_num_batched_tokens=batched,
        ),
    )


def memory_faults(budget: Budget, max_model_len: int) -> Iterator[Fault]:
    """What does not fit: the weights, or a single sequence of the longest length."""
    gpu, degree = budget.gpu, budget.cache.tensor_parallel_size
    have = int(gpu.memory_bytes * budget.utilization)
    if budget.free <= 0:
        need = budget.weights + budget.reserve
        yield Fault(
            ("hardware", "gpu"),
            gpu.name,
            f"has {have / GIB:.1f} GiB to use, and weights and reserve take {need / GIB:.1f} GiB "
            f"with tensor_parallel_size={degree} (estimate)",
            f"use a GPU with {need / budget.utilization / GIB:.0f} GiB or more, or split the model "
            "over more GPUs",
        )
        return
    where = ("engine", "max_model_len")
    limit = budget.cache.architecture.max_positions
    if max_model_len > limit:
        yield Fault(
            where,
            max_model_len,
            f"is above max_position_embeddings={limit}, beyond which the model was not trained",
            f"use {limit} or less",
        )
    longest = budget.cache.longest(budget.free, max_model_len)
    if longest < max_model_len:
        yield Fault(
            where,
            max_model_len,
            f"is more than the {longest:,} tokens that fit beside the weights: {budget.sum} "
            "(estimate)",
            f"use {longest} or less, or a larger tensor_parallel_size",
        )
