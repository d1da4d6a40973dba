"""Bytes for each token are those that are published, tokens those that vLLM logs."""

import pytest

from serving.capacity.architecture import Architecture, Layer, architecture_of
from serving.capacity.kv_cache import Cache
from serving.hardware.gpus import GIB

Shapes = dict[str, Architecture]
KIB = 1024


@pytest.mark.parametrize(
    ("name", "dtype", "degree", "expected"),
    [
        # 2 x 32 layers x 8 heads x 128 x 2 bytes; published for Llama 3 8B as 128 KiB.
        ("llama-3-8b", "auto", 1, 128 * KIB),
        ("llama-3-8b", "fp8", 1, 64 * KIB),
        ("llama-3-8b", "auto", 2, 64 * KIB),
        # 8 heads on 16 GPUs are copied, and so are never less than one.
        ("llama-3-8b", "auto", 16, 16 * KIB),
        ("llama-3-70b", "auto", 1, 320 * KIB),
        # Every head has its own keys and values: four times as much.
        ("llama-2-7b", "auto", 1, 512 * KIB),
        # PagedAttention (arXiv:2309.06180): 800 KB for a token of OPT-13B.
        ("opt-13b", "auto", 1, 800 * KIB),
        # All heads share one: 2 x 40 x 128 x 2.
        ("starcoder", "auto", 1, 20 * KIB),
        ("qwen2.5-7b", "auto", 1, 56 * KIB),
        # One vector of 512 + 64 for each of 61 layers, on every GPU whole.
        ("deepseek-v3", "auto", 1, 61 * 576 * 2),
        ("deepseek-v3", "auto", 8, 61 * 576 * 2),
        ("deepseek-v3", "fp8_ds_mla", 1, 61 * 656),
        ("deepseek-v3", "nvfp4_ds_mla", 8, 61 * 352),
    ],
)
def test_a_token_takes_as_many_bytes_as_is_published(
    shapes: Shapes, name: str, dtype: str, degree: int, expected: int
) -> None:
    assert Cache(shapes[name], dtype, degree).token_bytes == expected


def test_tokens_are_those_of_a_server_log(shapes: Shapes) -> None:
    # vLLM with Llama 3.1 8B on an L4: "Available KV cache memory: 12.14 GiB",
    # "GPU KV cache size: 99,440 tokens".
    assert Cache(shapes["llama-3-8b"], "auto").logged_tokens(int(12.14 * GIB)) == 99_440


def test_tokens_come_in_whole_blocks(shapes: Shapes) -> None:
    cache = Cache(shapes["llama-3-8b"], "auto")
    block = cache.token_bytes * 16
    for free in (0, block - 1, block, 5 * block + 1, 10**10):
        assert cache.logged_tokens(free) == free // block * 16


def test_layers_of_two_kinds_share_the_pool_in_groups_of_equal_size(shapes: Shapes) -> None:
    cache = Cache(shapes["gemma-3-like"], "auto")
    # 34 layers, each sixth sees all: 5 such and 29 with a window, in groups of 5.
    assert [size for _, size in cache.groups] == [5] * 7
    assert sum(layer.kind == "full" for layer, _ in cache.groups) == 1
    block = cache.layer_bytes * 16 * 5
    assert cache.blocks(1000 * block) == 1000
    assert cache.logged_tokens(1000 * block) == 1000 // 7 * 16


def test_nearly_equal_counts_make_one_group_of_each_kind() -> None:
    # As in gpt-oss with a drafter: 12 and 13 are padded to 13 and 13.
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 25, "vocab_size": 32,
        "sliding_window": 128,
        "layer_types": ["full_attention"] * 13 + ["sliding_attention"] * 12,
    }  # fmt: skip
    cache = Cache(architecture_of(config, "x"), "float16")
    assert [size for _, size in cache.groups] == [13, 13]


def test_a_window_ends_what_a_sequence_asks_for(shapes: Shapes) -> None:
    cache = Cache(shapes["mistral-7b"], "auto")
    assert cache.architecture.layers[0] == Layer("sliding", 4096)
    most = -(-(4095 + 2048) // 16) + 1
    assert cache.sequence_blocks(100_000) == cache.sequence_blocks(10_000) == most
    assert cache.sequence_blocks(160) == 11


def test_the_longest_sequence_is_found_and_one_more_token_does_not_fit(shapes: Shapes) -> None:
    for name in ("llama-3-8b", "gemma-3-like", "deepseek-v3"):
        cache = Cache(shapes[name], "auto")
        free = 3 * GIB
        longest = cache.longest(free, 10**7)
        assert cache.sequence_blocks(longest) <= cache.blocks(free)
        assert cache.sequence_blocks(longest + 1) > cache.blocks(free)


def test_a_model_that_keeps_only_state_has_no_cache_of_tokens() -> None:
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 32,
        "layer_types": ["mamba", "mamba"],
    }  # fmt: skip
    cache = Cache(architecture_of(config, "x"), "float16")
    assert (cache.token_bytes, cache.blocks(GIB), cache.logged_tokens(GIB)) == (0, 0, 0)
