"""The cache of keys and values: bytes for each token, and tokens that fit, as vLLM counts them.

Source: vllm/v1/kv_cache_interface.py and vllm/v1/core/kv_cache_utils.py. Layers of one kind form
groups of equal size; all groups share one pool of blocks, and a block is `block_size` tokens of one
group. So the number that vLLM logs at start is blocks / groups x block_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serving.capacity.architecture import Architecture, Layer

BLOCK_SIZE = 16
"""Tokens in a block; vLLM's default on GPUs."""

ITEM_BYTES: Mapping[str, int] = {
    "bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1,
    "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
PACKED_MLA_BYTES: Mapping[str, int] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Of one token in one layer, scales included."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What one GPU keeps, in vLLM's terms."""

    architecture: Architecture
    dtype: str
    """`auto` is the type of the weights."""
    tensor_parallel_size: int = 1
    block_size: int = BLOCK_SIZE
    max_num_batched_tokens: int = 2048

    @property
    def layer_bytes(self) -> int:
        """Bytes of one token in one layer on one GPU.

        Heads are shared out; below one head for each GPU they are copied, so bytes stop falling.
        """
        model = self.architecture
        if self.dtype in PACKED_MLA_BYTES and model.latent is not None:
            return PACKED_MLA_BYTES[self.dtype]
        item = ITEM_BYTES[model.dtype if self.dtype == "auto" else self.dtype]
        if model.latent is not None:
            # One vector for all heads, the same on every GPU.
            return (model.latent.kv_rank + model.latent.rope_dim) * item
        heads = max(1, model.kv_heads // self.tensor_parallel_size)
        return 2 * heads * model.head_dim * item

    @property
    def token_bytes(self) -> int:
        """Bytes that a token adds on one GPU while every layer keeps it."""
        return self.layer_bytes * sum(layer.kind != "state" for layer in self.architecture.layers)

    @property
    def groups(self) -> tuple[tuple[Layer, int], ...]:
        """Kind of each group of layers, and layers in it, padding included."""
        counts: dict[Layer, int] = {}
        for layer in self.architecture.layers:
            if layer.kind != "state":
                counts[layer] = counts.get(layer, 0) + 1
        if not counts:
            return ()
        least, most = min(counts.values()), max(counts.values())
        size = most if most < least * 1.5 else least
        return tuple(
            (layer, size) for layer, count in counts.items() for _ in range(-(-count // size))
        )

    def blocks(self, free_bytes: int) -> int:
        """Blocks that fit; none where nothing is kept for tokens."""
        groups = self.groups
        if not groups:
            return 0
        return max(0, free_bytes // (self.layer_bytes * self.block_size * groups[0][1]))

    def logged_tokens(self, free_bytes: int) -> int:
        """The `GPU KV cache size` in tokens that vLLM logs for so much free memory."""
        groups = self.groups
        return self.blocks(free_bytes) // len(groups) * self.block_size if groups else 0

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks of one sequence of this length; layers with a window stop asking for more."""
        return sum(self._group_blocks(layer, tokens) for layer, _ in self.groups)

    def _group_blocks(self, layer: Layer, tokens: int) -> int:
        if layer.window is None:
            return -(-tokens // self.block_size)
        if layer.kind == "chunked":
            return -(-min(layer.window + self.max_num_batched_tokens, tokens) // self.block_size)
        kept = min(layer.window - 1 + self.max_num_batched_tokens, tokens)
        # A window need not begin where a block does.
        return -(-kept // self.block_size) + 1

    def sequences(self, free_bytes: int, tokens: float) -> float:
        """Sequences of this length that fit at once; vLLM's `Maximum concurrency`."""
        return self.blocks(free_bytes) / max(1, self.sequence_blocks(int(-(-tokens // 1))))

    def longest(self, free_bytes: int, limit: int) -> int:
        """Longest single sequence up to `limit` that fits, in tokens; 0 where none does."""
        blocks = self.blocks(free_bytes)
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low
