"""What fits on a GPU, and what is said where something does not."""

from dataclasses import replace

import pytest

from serving.capacity.architecture import Architecture
from serving.capacity.kv_cache import Cache
from serving.capacity.llm_memory import Budget, memory_faults, plan_budget, weight_bytes
from serving.capacity.tensor_parallel import degree_faults
from serving.engines.kinds import VllmEngine
from serving.errors import InputError
from serving.hardware.gpus import GIB, Gpu, gpu_named
from serving.strict import sentence

Shapes = dict[str, Architecture]
CARD_24 = gpu_named("l4").model_copy(update={"memory_mib": 24 * 1024})


def engine(**changes: object) -> VllmEngine:
    stated = {"kind": "vllm", "max_model_len": 8192, "max_num_seqs": 64} | changes
    return VllmEngine.model_validate(stated)


def budget_of(model: Architecture, dtype: str = "auto", degree: int = 1) -> Budget:
    """24 GiB, of which 0.9 may be used; 15 GiB of weights, and 1.5 GiB for all else."""
    weights = 15 * GIB // degree
    return Budget(CARD_24, 0.9, weights, int(1.5 * GIB), Cache(model, dtype, degree))


@pytest.mark.parametrize(
    ("max_model_len", "dtype", "degree", "fits"),
    [
        (131_072, "auto", 1, False),
        (32_768, "auto", 1, True),
        (131_072, "fp8", 1, False),
        (131_072, "auto", 2, True),
    ],
)
def test_a_context_longer_than_the_cache_is_refused_with_the_numbers(
    shapes: Shapes, max_model_len: int, dtype: str, degree: int, fits: bool
) -> None:
    budget = budget_of(shapes["llama-3-8b"], dtype, degree)
    told = [sentence("chat", fault) for fault in memory_faults(budget, max_model_len)]
    assert (not told) == fits
    if told:
        assert f"chat: engine.max_model_len={max_model_len} is more than the" in told[0]
        assert f"{budget.tokens:,} tokens" in told[0]
        assert "or a larger tensor_parallel_size" in told[0]


@pytest.mark.parametrize(
    ("dtype", "degree", "estimate"), [("auto", 1, 41_779), ("fp8", 1, 83_558), ("auto", 2, 206_438)]
)
def test_the_tokens_that_fit_are_those_of_the_sum_in_whole_blocks(
    shapes: Shapes, dtype: str, degree: int, estimate: int
) -> None:
    budget = budget_of(shapes["llama-3-8b"], dtype, degree)
    assert budget.free // budget.cache.token_bytes == estimate
    assert budget.tokens == estimate // 16 * 16


def test_the_length_that_is_offered_instead_works(shapes: Shapes) -> None:
    budget = budget_of(shapes["llama-3-8b"])
    (fault,) = memory_faults(budget, 131_072)
    offered = int(fault.fix.split()[1])
    assert list(memory_faults(budget, offered)) == []
    assert list(memory_faults(budget, offered + 1))


def test_weights_that_do_not_fit_are_refused_before_anything_else(shapes: Shapes) -> None:
    budget = plan_budget(engine(), shapes["llama-3-70b"], gpu_named("l4"))
    (fault,) = memory_faults(budget, 8192)
    assert fault.where == ("hardware", "gpu")
    assert "split the model over more GPUs" in fault.fix


def test_a_context_beyond_the_trained_positions_is_refused(shapes: Shapes) -> None:
    budget = plan_budget(engine(), shapes["llama-2-7b"], gpu_named("h200"))
    (fault,) = memory_faults(budget, 8192)
    assert fault.rule.startswith("is above max_position_embeddings=4096")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "degree", "gpus", "expected"),
    [
        (40, 40, 6, 8, "=6 does not divide attention heads=40; use one of 1, 2, 4, 5, 8"),
        (40, 10, 4, 8, "=4 neither divides key-value heads=10 nor is a multiple of them; use one"),
        (32, 8, 2, 1, "=2 is more than the 1 GPUs of the instance; use one of 1"),
        (32, 8, 4, 4, None),
        (32, 4, 8, 8, None),
    ],
)
def test_a_degree_that_cannot_work_is_refused_with_those_that_would(
    shapes: Shapes, heads: int, kv_heads: int, degree: int, gpus: int, expected: str | None
) -> None:
    model = replace(shapes["llama-3-8b"], heads=heads, kv_heads=kv_heads, intermediate=2**7 * 5 * 9)
    told = [sentence("chat", fault) for fault in degree_faults(model, degree, gpus)]
    if expected is None:
        assert told == []
    else:
        assert expected in told[0]


def test_stored_weights_are_believed_before_counted_ones(shapes: Shapes) -> None:
    model = shapes["llama-3-8b"]
    assert weight_bytes(model, "bfloat16", None, "x") == 16_060_522_496
    assert weight_bytes(model, "bfloat16", 16_060_556_376, "x") == 16_060_556_376
    assert weight_bytes(model, "float32", 16_060_556_376, "x") == 2 * 16_060_556_376


def test_quantized_weights_are_smaller_and_unknown_ones_are_asked_for(shapes: Shapes) -> None:
    plain = shapes["llama-3-8b"]
    four = replace(plain, quantization="awq", quantization_bits=4 + 20 / 128)
    # 5.73 GB is the size of the published AWQ files of Llama 3 8B.
    assert 5.6e9 < weight_bytes(four, "float16", None, "x") < 5.8e9
    unknown = replace(plain, quantization="odd", quantization_bits=None)
    with pytest.raises(InputError, match=r"x: quantization=odd does not say .*safetensors"):
        weight_bytes(unknown, "float16", None, "x")
    assert weight_bytes(unknown, "float16", 7, "x") == 7


def test_the_reserve_is_near_what_was_seen_on_an_l4(shapes: Shapes) -> None:
    # 1.5 GiB beside the weights of an 8B model is what reports of failed starts name.
    budget = plan_budget(engine(max_num_seqs=256), shapes["llama-3-8b"], gpu_named("l4"))
    assert 1.2 * GIB < budget.reserve < 2 * GIB


def test_more_gpus_leave_more_room_on_each(shapes: Shapes) -> None:
    gpu: Gpu = gpu_named("h100")
    frees = [
        plan_budget(engine(tensor_parallel_size=n), shapes["llama-3-70b"], gpu).free
        for n in (1, 2, 4, 8)
    ]
    assert frees == sorted(frees)
    assert frees[0] < 0 < frees[1]
