"""Shapes of published models, as their config.json states them."""

from typing import Any

import pytest

from serving.capacity.architecture import Architecture, architecture_of

LLAMA = {"model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3-8b": LLAMA | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
    "llama-3-70b": LLAMA | {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
    "llama-2-7b": LLAMA | {
        "torch_dtype": "float16", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
        "vocab_size": 32000, "max_position_embeddings": 4096,
    },
    "opt-13b": {
        "model_type": "opt", "torch_dtype": "float16", "hidden_size": 5120,
        "num_hidden_layers": 40, "num_attention_heads": 40, "vocab_size": 50272,
        "max_position_embeddings": 2048,
    },
    "starcoder": {
        "model_type": "gpt_bigcode", "torch_dtype": "float16", "n_embd": 6144, "n_layer": 40,
        "n_head": 48, "multi_query": True, "vocab_size": 49152, "n_positions": 8192,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_size": 3584,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
        "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": False,
    },
    "mistral-7b": LLAMA | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
        "max_position_embeddings": 32768, "sliding_window": 4096,
    },
    "mixtral-8x7b": LLAMA | {
        "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "sliding_window": None,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_size": 7168,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "vocab_size": 129280, "max_position_embeddings": 163840,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"},
    },
    "gemma-3-like": {
        "text_config": {
            "torch_dtype": "bfloat16", "hidden_size": 2560, "num_hidden_layers": 34,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "intermediate_size": 10240, "vocab_size": 262208, "max_position_embeddings": 131072,
            "sliding_window": 1024, "sliding_window_pattern": 6, "tie_word_embeddings": True,
        },
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def shapes() -> dict[str, Architecture]:
    """Every shape by name."""
    return {name: architecture_of(config, name) for name, config in CONFIGS.items()}
