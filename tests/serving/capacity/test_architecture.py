"""A config.json is read as data, and its parameters add up to what is published."""

import json
from pathlib import Path

import pytest

from serving.capacity.architecture import Architecture, architecture_of, read_architecture
from serving.errors import InputError

Shapes = dict[str, Architecture]


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("llama-3-8b", 8_030_261_248, 8_030_261_248),
        ("llama-3-70b", 70_553_706_496, 70_553_706_496),
        ("llama-2-7b", 6_738_415_616, 6_738_415_616),
        ("qwen2.5-7b", 7_615_616_512, 7_615_616_512),
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
    ],
)
def test_parameters_are_those_of_the_model_card(
    shapes: Shapes, name: str, total: int, active: int
) -> None:
    assert (shapes[name].parameters, shapes[name].active_parameters) == (total, active)


def test_parameters_of_deepseek_v3_are_671_billion_of_which_37_are_active(shapes: Shapes) -> None:
    # 671,026,419,200 is published; the bias of 256 numbers in each router is left out here.
    assert shapes["deepseek-v3"].parameters == 671_026_419_200 - 58 * 256
    assert 37.0e9 < shapes["deepseek-v3"].active_parameters < 37.7e9


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": None}, "x: num_hidden_layers is missing"),
        ({"hidden_size": "4096"}, "x: hidden_size='4096' is no size"),
        ({"hidden_size": 0}, "x: hidden_size=0 is no size"),
        ({"num_attention_heads": True}, "x: num_attention_heads=True is no size"),
        ({"layer_types": ["full_attention"]}, "x: layer_types names 1 layers, num_hidden_layers=2"),
        ({"layer_types": ["full_attention", "warp"]}, "x: layer_types has 'warp', which is not"),
    ],
)
def test_a_config_that_says_too_little_is_refused(
    changes: dict[str, object], expected: str
) -> None:
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9,
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        architecture_of(config | changes, "x")
    assert expected in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '"x"'])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError):
        read_architecture(path)


def test_code_that_a_config_names_is_never_run(tmp_path: Path, shapes: Shapes) -> None:
    from tests.serving.capacity.conftest import CONFIGS

    path = tmp_path / "config.json"
    evil = {"auto_map": {"AutoConfig": "evil.Config"}, "trust_remote_code": True}
    path.write_text(json.dumps(CONFIGS["llama-3-8b"] | evil))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert read_architecture(path) == shapes["llama-3-8b"]


@pytest.mark.parametrize(
    ("stated", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "bitsandbytes"}, None),
    ],
)
def test_quantization_tells_the_size_of_a_number_or_that_it_does_not(
    stated: dict[str, object], bits: float | None
) -> None:
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9,
        "quantization_config": stated,
    }  # fmt: skip
    assert architecture_of(config, "x").quantization_bits == bits
