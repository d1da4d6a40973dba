"""A language model's shape, read from its Hugging Face `config.json`; none of its code is run.

What is kept of each token differs by layer: keys and values of every head group (attention), of the
last tokens only (sliding window, chunks), one compressed vector (MLA), or nothing per token at all
(state of linear attention and Mamba).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serving.errors import InputError

LARGEST_CONFIG_BYTES = 4 * 1024**2

Kind = Literal["full", "sliding", "chunked", "mla", "state"]


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer keeps of the tokens that it has seen."""

    kind: Kind
    window: int | None = None
    """Tokens that a sliding or chunked layer keeps."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: widths of what is compressed and what is not."""

    kv_rank: int
    rope_dim: int
    q_rank: int | None
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts."""

    count: int
    per_token: int
    intermediate: int
    shared: int
    dense_layers: int
    """Layers, the first ones, that have no experts."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes that memory and speed follow from."""

    layers: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    tied: bool
    """Whether the last matrix is the first one, so that it is stored once."""
    attention_bias: bool
    dtype: str
    """Type of the stored weights: bfloat16, float16 or float32."""
    quantization: str | None
    quantization_bits: float | None
    latent: Latent | None
    experts: Experts | None

    @property
    def parameters(self) -> int:
        """Numbers in the model: those of a decoder of the Llama family, counted from the sizes."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.hidden + sum(map(self._layer_parameters, range(len(self.layers))))

    @property
    def active_parameters(self) -> int:
        """Numbers that one token is multiplied with; fewer where there are experts."""
        experts = self.experts
        if experts is None:
            return self.parameters
        idle = experts.count - experts.per_token
        sparse = len(self.layers) - experts.dense_layers
        return self.parameters - sparse * idle * 3 * self.hidden * experts.intermediate

    def _layer_parameters(self, index: int) -> int:
        norms = 2 * self.hidden
        return norms + self._attention_parameters() + self._feed_forward_parameters(index)

    def _attention_parameters(self) -> int:
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = query + 2 * key if self.attention_bias else 0
        return self.hidden * (query + 2 * key) + query * self.hidden + bias

    def _latent_parameters(self, latent: Latent) -> int:
        query_dim = self.heads * (latent.nope_dim + latent.rope_dim)
        if latent.q_rank is None:
            query = self.hidden * query_dim
        else:
            query = self.hidden * latent.q_rank + latent.q_rank + latent.q_rank * query_dim
        down = self.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return query + down + up + self.heads * latent.value_dim * self.hidden

    def _feed_forward_parameters(self, index: int) -> int:
        experts = self.experts
        if experts is None or index < experts.dense_layers:
            return 3 * self.hidden * self.intermediate
        router = self.hidden * experts.count
        return router + (experts.count + experts.shared) * 3 * self.hidden * experts.intermediate


def read_architecture(path: Path) -> Architecture:
    """The shape in a `config.json`.

    Raises:
        InputError: it is no such file, or says too little.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_CONFIG_BYTES + 1)
        if len(content) > LARGEST_CONFIG_BYTES:
            raise InputError(f"{path}: is larger than 4 MiB; a config.json is a few KiB")
        data = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no config.json of a model: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds no JSON object; give a model's config.json")
    return architecture_of(data, str(path))


def architecture_of(config: Mapping[str, Any], where: str) -> Architecture:
    """The shape that the mapping of a `config.json` states.

    The published number of parameters of Llama 3 8B comes out to the last one (the source is the
    model's card on Hugging Face):

    >>> llama = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...     "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> architecture_of(llama, "llama-3-8b").parameters
    8030261248

    Raises:
        InputError: a size is missing or is no size.
    """
    # Models that also see or hear keep the language model's sizes one level down.
    text = config.get("text_config")
    fields = {**config, **text} if isinstance(text, dict) else dict(config)
    read = _Reader(fields, where)
    hidden, heads = read.size("hidden_size", "n_embd"), read.size("num_attention_heads", "n_head")
    layers = read.size("num_hidden_layers", "n_layer")
    latent = _latent(read)
    quantization, bits = _quantization(read)
    return Architecture(
        layers=_layers(read, layers, latent),
        hidden=hidden,
        heads=heads,
        kv_heads=1 if fields.get("multi_query") else read.size_or(heads, "num_key_value_heads"),
        head_dim=read.size_or(hidden // heads, "head_dim"),
        intermediate=read.size_or(4 * hidden, "intermediate_size", "n_inner"),
        vocabulary=read.size("vocab_size"),
        max_positions=read.size_or(2048, "max_position_embeddings", "n_positions"),
        tied=bool(fields.get("tie_word_embeddings", False)),
        attention_bias=bool(
            fields.get("attention_bias", str(fields.get("model_type", "")).startswith("qwen2"))
        ),
        dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
        quantization=quantization,
        quantization_bits=bits,
        latent=latent,
        experts=_experts(read),
    )


class _Reader:
    """Reads sizes and says what is wrong with one."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def size(self, *names: str) -> int:
        """The first of `names` that is there; it must be."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
                raise InputError(f"{self.where}: {name}={value!r} is no size; use a whole number")
            return value
        raise InputError(f"{self.where}: {names[0]} is missing; give the model's own config.json")

    def size_or(self, default: int, *names: str) -> int:
        """The first of `names` that is there, or the default."""
        return self.size(*names) if any(self.fields.get(n) is not None for n in names) else default


def _layers(read: _Reader, count: int, latent: Latent | None) -> tuple[Layer, ...]:
    if latent is not None:
        return (Layer("mla"),) * count
    window = read.fields.get("sliding_window")
    kinds = read.fields.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != count:
            raise InputError(
                f"{read.where}: layer_types names {len(kinds)} layers, num_hidden_layers={count}; "
                "give the model's own config.json"
            )
        return tuple(_layer(read, str(kind)) for kind in kinds)
    used = read.fields.get("use_sliding_window", True)
    if window is None or not used:
        return (Layer("full"),) * count
    pattern = read.fields.get("sliding_window_pattern")
    sliding = Layer("sliding", read.size("sliding_window"))
    if isinstance(pattern, int) and pattern > 1:
        # Every so many layers one sees all tokens.
        return tuple(Layer("full") if (n + 1) % pattern == 0 else sliding for n in range(count))
    return (sliding,) * count


def _layer(read: _Reader, kind: str) -> Layer:
    match kind:
        case "full_attention" | "attention":
            return Layer("full")
        case "sliding_attention":
            return Layer("sliding", read.size("sliding_window"))
        case "chunked_attention":
            return Layer("chunked", read.size("attention_chunk_size"))
        case "linear_attention" | "mamba":
            return Layer("state")
    raise InputError(
        f"{read.where}: layer_types has {kind!r}, which is not known here; known are "
        "full_attention, sliding_attention, chunked_attention, linear_attention, mamba"
    )


def _latent(read: _Reader) -> Latent | None:
    if read.fields.get("kv_lora_rank") is None:
        return None
    rank = read.fields.get("q_lora_rank")
    return Latent(
        kv_rank=read.size("kv_lora_rank"),
        rope_dim=read.size("qk_rope_head_dim"),
        q_rank=None if rank is None else read.size("q_lora_rank"),
        nope_dim=read.size("qk_nope_head_dim"),
        value_dim=read.size("v_head_dim"),
    )


def _experts(read: _Reader) -> Experts | None:
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    if not any(read.fields.get(name) for name in names):
        return None
    shared = read.fields.get("n_shared_experts") or 0
    return Experts(
        count=read.size(*names),
        per_token=read.size("num_experts_per_tok"),
        intermediate=read.size("moe_intermediate_size", "intermediate_size"),
        shared=int(shared),
        dense_layers=int(read.fields.get("first_k_dense_replace") or 0),
    )


_BITS: Mapping[str, float] = {"fp8": 8, "fbgemm_fp8": 8, "awq": 4, "gptq": 4, "mxfp4": 4}
# Scales and zero points of groups of 128 numbers: 16 + 4 bits for each group.
_GROUP_BITS = 20 / 128


def _quantization(read: _Reader) -> tuple[str | None, float | None]:
    """Name and bits of a number, scales included; bits are None where the config does not say."""
    stated = read.fields.get("quantization_config")
    if not isinstance(stated, dict):
        return None, None
    method = str(stated.get("quant_method") or "unknown")
    bits = stated.get("bits") or _BITS.get(method)
    if isinstance(bits, bool) or not isinstance(bits, int | float):
        return method, None
    return method, bits + (_GROUP_BITS if bits < 8 else 0)
