"""What Triton is told, on GPU hosts and on this machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from serving.engines.kinds import PLATFORMS
from serving.engines.triton import FALSE_TRUE, on_cpu, parse_pbtxt, render_config, to_pbtxt
from serving.errors import SpecError
from serving.spec import load_spec, load_specs, parse_spec
from serving.yaml_file import read_mapping

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
SPEC_FILES = {
    "ranker": ROOT / "serving" / "specs" / "ranker.yaml",
    "bge_large": GOLDEN / "bge_large" / "1_spec.yaml",
}


def rendered(name: str) -> pb.ModelConfig:
    return render_config(parse_spec(read_mapping(SPEC_FILES[name]), name))


def printed(name: str) -> pb.ModelConfig:
    return parse_pbtxt((GOLDEN / name / "background.pbtxt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SPEC_FILES)
def test_the_rendered_config_is_the_golden_one(
    name: str, golden: Callable[[str, str], None]
) -> None:
    golden(f"{name}/3_config/config.pbtxt", to_pbtxt(rendered(name)))


def test_the_printed_config_of_bge_large_comes_out_whole() -> None:
    assert rendered("bge_large") == printed("bge_large")


def test_every_field_of_the_printed_config_of_the_ranker_comes_out() -> None:
    ours, theirs = rendered("ranker"), printed("ranker")
    stated = [field.name for field, _ in theirs.ListFields()]
    assert len(stated) == 6
    for name in stated:
        assert getattr(ours, name) == getattr(theirs, name)
    more = {field.name for field, _ in ours.ListFields()} - set(stated)
    assert more == {"input", "output", "model_warmup"}


def test_warm_ups_are_named_by_their_batch(stated: Stated) -> None:
    assert [warmup.name for warmup in rendered("ranker").model_warmup] == [
        "batch_1",
        "batch_16",
        "batch_64",
    ]
    shapes = [{"batch_size": 4, "shapes": {"ids": [size]}} for size in (8, 128)]
    inputs = [{"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}]
    config = render_config(parse_spec(stated({"inputs": inputs, "warmup": shapes}), "ranker"))
    assert [warmup.name for warmup in config.model_warmup] == ["batch_4", "batch_4_2"]
    assert [list(warmup.inputs["ids"].dims) for warmup in config.model_warmup] == [[8], [128]]
    assert all(warmup.inputs["ids"].zero_data for warmup in config.model_warmup)


def test_a_sample_from_a_file_is_named_and_not_zero(stated: Stated) -> None:
    sample = {"data_type": "TYPE_FP32", "dims": [512], "file": "user.raw"}
    warmup = [{"batch_size": 1, "inputs": {"input0": sample}}]
    config = render_config(parse_spec(stated({"warmup": warmup}), "ranker"))
    tensor = config.model_warmup[0].inputs["input0"]
    assert tensor.input_data_file == "user.raw"
    assert tensor.WhichOneof("input_data_type") == "input_data_file"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_is_named_by_the_key_that_triton_reads(stated: Stated, platform: str) -> None:
    known = {name: entry for name, entry in PLATFORMS.items() if name == platform}
    (entry,) = known.values()
    data = stated({"engine.platform": platform, "artifact.format": entry.format})
    config = render_config(parse_spec(data, "ranker"))
    assert getattr(config, entry.key) == platform
    assert {config.platform, config.backend} == {platform, ""}


def test_hardware_without_a_gpu_runs_instances_on_the_cpu(stated: Stated) -> None:
    data = stated({"hardware": {"gpu": "none"}, "engine.instance_group": {"count": 3}})
    (group,) = render_config(parse_spec(data, "ranker")).instance_group
    assert (group.count, group.kind, list(group.gpus)) == (3, pb.ModelInstanceGroup.KIND_CPU, [])


def test_gpu_zero_is_taken_where_the_spec_names_none(stated: Stated) -> None:
    (group,) = render_config(
        parse_spec(stated({"engine.instance_group": {"count": 1}}), "ranker")
    ).instance_group
    assert (group.kind, list(group.gpus)) == (pb.ModelInstanceGroup.KIND_GPU, [0])


def test_priorities_and_queue_policies_are_rendered(stated: Stated) -> None:
    settings = {
        "preserve_ordering": True,
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": {"timeout_action": "DELAY", "max_queue_size": 9},
        "priority_queue_policy": {1: {"default_timeout_microseconds": 500}, 2: {}},
    }
    batching = render_config(
        parse_spec(stated({"engine.dynamic_batching": settings}), "ranker")
    ).dynamic_batching
    assert batching.preserve_ordering
    assert (batching.priority_levels, batching.default_priority_level) == (2, 2)
    assert batching.default_queue_policy == pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.DELAY, max_queue_size=9
    )
    assert batching.priority_queue_policy[1].default_timeout_microseconds == 500
    assert sorted(batching.priority_queue_policy) == [1, 2]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            {"kind": "direct", "minimum_slot_utilization": 0.5},
            pb.ModelSequenceBatching.StrategyDirect(minimum_slot_utilization=0.5),
        ),
        ({"kind": "direct"}, pb.ModelSequenceBatching.StrategyDirect()),
        (
            {"kind": "oldest", "max_candidate_sequences": 4, "preferred_batch_size": [2]},
            pb.ModelSequenceBatching.StrategyOldest(
                max_candidate_sequences=4, preferred_batch_size=[2]
            ),
        ),
    ],
)
def test_sequence_batching_is_rendered(
    stated: Stated, strategy: Mapping[str, object], expected: object
) -> None:
    controls = [
        {"name": "START", "kind": "CONTROL_SEQUENCE_START", "data_type": "TYPE_INT32"},
        {"name": "ID", "kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"},
    ]
    settings = {
        "max_sequence_idle_microseconds": 5_000_000,
        "client_gap_ms": 20,
        "strategy": strategy,
        "control_input": controls,
    }
    changes = {
        "engine.dynamic_batching": ...,
        "engine.sequence_batching": settings,
        "cache": ...,
        "routing": {"hash_header": "x-sequence-id"},
    }
    batching = render_config(parse_spec(stated(changes), "ranker")).sequence_batching
    assert batching.WhichOneof("strategy_choice") == strategy["kind"]
    assert getattr(batching, str(strategy["kind"])) == expected
    assert batching.max_sequence_idle_microseconds == 5_000_000
    assert list(batching.control_input[0].control[0].int32_false_true) == [0, 1]
    assert batching.control_input[1].control[0].data_type == pb.TYPE_UINT64


def test_each_type_of_a_yes_or_no_input_states_both_answers() -> None:
    control = pb.ModelSequenceBatching.Control
    for message in FALSE_TRUE.values():
        assert [len(answers) for answers in message.values()] == [2]
        assert set(message) <= {field.name for field in control.DESCRIPTOR.fields}


def test_another_engine_has_no_config(stated: Stated) -> None:
    slo = {
        "time_to_first_token_p99_ms": 800,
        "inter_token_latency_p99_ms": 60,
        "error_ratio": 0.01,
        "because": "people read at this pace",
    }
    chat = {
        "artifact.format": "safetensors",
        "engine": {"kind": "vllm", "max_model_len": 4096, "max_num_seqs": 64},
        "slo": slo,
        **dict.fromkeys(("inputs", "outputs", "warmup", "cache"), ...),
    }
    with pytest.raises(SpecError, match=r"engine\.kind=vllm has no config\.pbtxt"):
        render_config(parse_spec(stated(chat), "ranker"))


@pytest.mark.parametrize("text", ['nam: "x"', "max_batch_size: -", "input [", "max_batch_size: x"])
def test_text_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^config\.pbtxt: .*; mend it there$"):
        parse_pbtxt(text)


ACCELERATED = """
name: "ranker"
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { preferred_batch_size: [ 8 ] }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { count: 1 gpus: [ 0 ] } ]
optimization {
  graph { level: 1 }
  cuda { graphs: true }
  execution_accelerators {
    gpu_execution_accelerator: [ { name: "tensorrt" } ]
    cpu_execution_accelerator: [ { name: "openvino" } ]
  }
}
model_warmup { name: "batch_1" batch_size: 1 }
"""


def test_a_config_for_gpus_becomes_one_for_this_machine_and_says_so() -> None:
    config = parse_pbtxt(ACCELERATED)
    before = config.SerializeToString(deterministic=True)
    local, notes = on_cpu(config)
    assert config.SerializeToString(deterministic=True) == before
    expected = ACCELERATED
    for gone, instead in (
        ('platform: "onnxruntime_onnx"', 'backend: "python"'),
        ("kind: KIND_GPU gpus: [ 0, 1 ]", "kind: KIND_CPU"),
        ("count: 1 gpus: [ 0 ]", "count: 1"),
        ("cuda { graphs: true }", ""),
        ('gpu_execution_accelerator: [ { name: "tensorrt" } ]', ""),
    ):
        assert gone in expected
        expected = expected.replace(gone, instead)
    assert local == parse_pbtxt(expected)
    assert notes == (
        "ranker: platform onnxruntime_onnx became backend python, the only backend of the local "
        "Triton",
        "ranker: 2 x KIND_GPU (gpus 0, 1) became 2 x KIND_CPU",
        "ranker: gpus 0 of 1 instances were dropped",
        "ranker: GPU accelerator tensorrt was dropped",
        "ranker: CUDA settings were dropped",
    )


def test_dropping_the_only_accelerator_leaves_no_empty_shell(stated: Stated) -> None:
    data = stated({"engine.optimization": {"gpu_execution_accelerator": [{"name": "tensorrt"}]}})
    plain, _ = on_cpu(rendered("ranker"))
    accelerated = render_config(parse_spec(data, "ranker"))
    assert accelerated.HasField("optimization")
    local, notes = on_cpu(accelerated)
    assert not local.HasField("optimization")
    assert local == plain
    assert "ranker: GPU accelerator tensorrt was dropped" in notes


def test_the_shipped_specs_run_on_this_machine_with_batching_and_warm_up_unchanged() -> None:
    for spec in load_specs(ROOT / "serving" / "specs"):
        if spec.engine.kind != "triton":
            continue
        config = render_config(spec)
        local, _ = on_cpu(config)
        assert (local.backend, local.platform) == ("python", "")
        for kept in ("max_batch_size", "dynamic_batching", "model_warmup", "input", "output"):
            assert getattr(local, kept) == getattr(config, kept)
        assert [group.count for group in local.instance_group] == [
            group.count for group in config.instance_group
        ]


def test_a_config_that_is_local_already_is_left_alone() -> None:
    local, _ = on_cpu(rendered("ranker"))
    assert on_cpu(local) == (local, ())


@pytest.mark.parametrize(
    ("key", "runner", "reason"),
    [
        ("platform", "tensorrt_plan", "a TensorRT plan is compiled for one GPU"),
        ("backend", "vllm", "Triton's vLLM backend needs a GPU"),
        ("backend", "tensorrtllm", "TensorRT-LLM engines are compiled for one GPU"),
        ("platform", "pytorch_libtorch", "the local Triton has no such backend"),
        ("backend", "openvino", "the local Triton has no such backend"),
    ],
)
def test_a_backend_that_this_machine_cannot_run_is_refused_with_the_reason(
    key: str, runner: str, reason: str
) -> None:
    config = parse_pbtxt(f'name: "m" {key}: "{runner}"')
    with pytest.raises(SpecError) as caught:
        on_cpu(config)
    assert caught.value.faults == (
        f"m: engine.{key}={runner} cannot run on this machine: {reason}; "
        "use an environment with GPUs, or an ONNX export of the model",
    )


names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12
)
dims = st.lists(st.just(-1) | st.integers(1, 2**63 - 1), min_size=1, max_size=3)
types = st.sampled_from(["TYPE_FP32", "TYPE_STRING", "TYPE_BF16", "TYPE_UINT8"])


def tensors(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[list[dict[str, object]]]:
    tensor = st.fixed_dictionaries({"name": names, "data_type": types, "dims": dims, **fields})
    return st.lists(tensor, min_size=1, max_size=3, unique_by=lambda entry: str(entry["name"]))


@st.composite
def changes(draw: st.DrawFn) -> dict[str, object]:
    """Changes to the ranker's spec that leave a good one."""
    maximum = draw(st.integers(1, 1000))
    levels = draw(st.integers(0, 3))
    policy = st.fixed_dictionaries(
        {},
        optional={
            "timeout_action": st.sampled_from(["REJECT", "DELAY"]),
            "max_queue_size": st.integers(0, 2**32 - 1),
        },
    )
    inputs = draw(tensors(optional=st.booleans()))
    shapes = {
        str(tensor["name"]): [7 if size == -1 else size for size in draw(st.just(tensor["dims"]))]  # type: ignore[attr-defined]
        for tensor in inputs
    }
    sizes = draw(st.sets(st.integers(1, maximum), max_size=3))
    return {
        "engine.max_batch_size": maximum,
        "engine.dynamic_batching": {
            "preferred_batch_size": sorted(sizes),
            "max_queue_delay_microseconds": draw(st.integers(0, 49_999)),
            "priority_levels": levels,
            "default_priority_level": draw(st.integers(1, levels)) if levels else 0,
            "priority_queue_policy": {
                level: draw(policy) for level in range(1, levels + 1) if draw(st.booleans())
            },
        },
        "engine.instance_group.count": draw(st.integers(1, 8)),
        "engine.parameters": draw(st.dictionaries(st.text(max_size=9), st.text(max_size=9))),
        "inputs": inputs,
        "outputs": draw(tensors()),
        "warmup": [
            {"batch_size": draw(st.integers(1, maximum)), "shapes": shapes},
        ],
    }


@given(changes=changes())
def test_any_config_survives_being_text_and_the_text_is_stable(
    stated: Stated, changes: dict[str, object]
) -> None:
    config = render_config(parse_spec(stated(changes), "ranker"))
    text = to_pbtxt(config)
    assert parse_pbtxt(text) == config
    assert to_pbtxt(parse_pbtxt(text)) == text
    local, notes = on_cpu(config)
    assert notes
    assert parse_pbtxt(to_pbtxt(local)) == local


@given(text=st.text() | st.from_regex(r'([a-z_]{1,9}(: ("[a-z]*"|-?[0-9]{1,20})| \{|\[|\})\s?)*'))
def test_any_text_gives_a_config_or_a_spec_error(text: str) -> None:
    try:
        outcome = parse_pbtxt(text)
    except SpecError as error:
        outcome = error
    assert isinstance(outcome, pb.ModelConfig) or len(outcome.faults) == 1


def test_a_spec_gives_the_same_text_every_time() -> None:
    spec = load_spec(SPEC_FILES["ranker"])
    assert to_pbtxt(render_config(spec)) == to_pbtxt(render_config(spec))
