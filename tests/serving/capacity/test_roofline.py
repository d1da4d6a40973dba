"""Bounds of speed, against sums on paper."""

import pytest

from serving.capacity.architecture import Architecture
from serving.capacity.kv_cache import Cache
from serving.capacity.llm_memory import Budget, LengthMix
from serving.capacity.roofline import Roofline, roofline
from serving.hardware.gpus import GIB, Gpu, gpu_named

Shapes = dict[str, Architecture]
H100 = gpu_named("h100")


def bounds_of(model: Architecture, gpu: Gpu = H100, degree: int = 1) -> Roofline:
    weights = model.parameters * 2 // degree
    found = roofline(Budget(gpu, 0.9, weights, GIB, Cache(model, "auto", degree)))
    assert found is not None
    return found


def test_one_sequence_is_as_fast_as_the_weights_are_read(shapes: Shapes) -> None:
    # 16.06 GB at 0.85 x 3,350 GB/s.
    step = bounds_of(shapes["llama-3-8b"]).step_ms(1, 0)
    assert step == pytest.approx(16.0605 / (0.85 * 3350) * 1000, rel=1e-3)


def test_keys_and_values_of_every_sequence_are_read_besides(shapes: Shapes) -> None:
    bounds = bounds_of(shapes["llama-3-8b"])
    more = bounds.step_ms(32, 4096) - bounds.step_ms(32, 0)
    assert more == pytest.approx(32 * 4096 * 131_072 / (0.85 * 3.35e12) * 1000, rel=1e-6)


def test_large_batches_are_bound_by_compute(shapes: Shapes) -> None:
    bounds = bounds_of(shapes["llama-3-8b"])
    expected = 2 * 8_030_261_248 * 4096 / 794e12 * 1000
    assert bounds.step_ms(4096, 0) == pytest.approx(expected, rel=1e-6)


def test_a_prompt_takes_two_operations_a_parameter_and_token(shapes: Shapes) -> None:
    bounds = bounds_of(shapes["llama-3-8b"])
    attention = 2 * 32 * 32 * 128 * 1024**2
    expected = (2 * 8_030_261_248 * 1024 + attention) / 794e12 * 1000
    assert bounds.prompt_ms(1024) == pytest.approx(expected, rel=1e-6)


def test_experts_that_nobody_needs_are_not_read(shapes: Shapes) -> None:
    model = shapes["mixtral-8x7b"]
    bounds = bounds_of(model, gpu_named("h200"))
    alone = bounds.step_ms(1, 0) * 0.85 * 4.8e12 / 1000 / 2
    # Two of eight experts and all the rest are the 12.9 billion active ones.
    assert alone == pytest.approx(model.active_parameters, rel=0.01)
    many = bounds.step_ms(64, 0) * 0.85 * 4.8e12 / 1000 / 2
    assert many == pytest.approx(model.parameters, rel=0.01)


def test_as_many_sequences_as_keep_the_time_between_tokens_and_not_one_more(
    shapes: Shapes,
) -> None:
    bounds = bounds_of(shapes["llama-3-8b"])
    most = bounds.sequences_within(20, 4096, 1024)
    assert 0 < most < 1024
    assert bounds.step_ms(most, 4096) <= 20 < bounds.step_ms(most + 1, 4096)
    assert bounds.sequences_within(0.1, 4096, 1024) == 0


def test_two_gpus_are_faster_than_one_but_not_twice(shapes: Shapes) -> None:
    one, two = (bounds_of(shapes["llama-3-8b"], degree=n).step_ms(8, 1024) for n in (1, 2))
    assert one / 2 < two < one


def test_more_at_once_is_more_a_second(shapes: Shapes) -> None:
    bounds, mix = bounds_of(shapes["llama-3-8b"]), LengthMix(512, 256)
    rates = [bounds.request_rps(count, mix) for count in (1, 8, 64)]
    assert rates == sorted(rates)


def test_nothing_is_foretold_of_a_gpu_whose_speed_is_not_known(shapes: Shapes) -> None:
    gpu = gpu_named("rtx-pro-4500")
    assert roofline(Budget(gpu, 0.9, GIB, GIB, Cache(shapes["llama-3-8b"], "auto"))) is None
