"""Which specs are read, and what the others are told."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from serving.engines.batching import SequenceBatching
from serving.engines.kinds import ContainerEngine, TritonEngine, VllmEngine
from serving.errors import SpecError
from serving.slo import TokenSlo
from serving.spec import ModelSpec, load_spec, load_specs, parse_spec
from serving.warmup import Sample

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Told = Callable[[Mapping[str, object]], list[str]]
SpecFile = Callable[..., Path]
SPECS = Path(__file__).parents[2] / "serving" / "specs"

SEQUENCES = {
    "engine.dynamic_batching": ...,
    "cache": ...,
    "engine.sequence_batching": {
        "max_sequence_idle_microseconds": 30_000,
        "client_gap_ms": 20,
        "strategy": {"kind": "direct"},
    },
}


def test_the_shipped_specs_are_read() -> None:
    specs = {spec.name: spec for spec in load_specs(SPECS)}
    assert {"filetype", "ranker"} <= set(specs)
    ranker = specs["ranker"].engine
    assert isinstance(ranker, TritonEngine)
    assert ranker.max_batch_size == 64
    assert ranker.parameters == {"model_warm_up": "input0;1x512"}


def test_every_field_of_a_spec_is_described() -> None:
    def nested(annotation: object) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [model for part in get_args(annotation) for model in nested(part)]

    waiting, seen = [ModelSpec], set[type[BaseModel]]()
    while waiting:
        model: type[BaseModel] = waiting.pop()
        seen.add(model)
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            waiting += [part for part in nested(field.annotation) if part not in seen]  # type: ignore[misc]
    assert {TritonEngine, VllmEngine, ContainerEngine, TokenSlo, SequenceBatching, Sample} <= seen


def test_a_sequence_model_on_several_replicas_needs_a_hash_on_the_sequence(
    faults: Told,
    stated: Stated,
) -> None:
    changes = SEQUENCES | {"scaling": {"min_replicas": 3, "max_replicas": 3}}
    assert faults(changes) == [
        "ranker: scaling.max_replicas=3 spreads the requests of a sequence over replicas that do "
        "not share its state; add routing: {hash_header: x-sequence-id}, or use 1"
    ]
    routed = parse_spec(
        stated(changes | {"routing": {"hash_header": "x-sequence-id"}}), "ranker"
    ).routing
    assert routed is not None
    assert routed.hash_header == "x-sequence-id"
    (unhashed,) = faults(changes | {"routing": {"timeout_ms": 500}})
    assert unhashed.endswith("; add routing: {hash_header: x-sequence-id}, or use 1")
    one = stated(SEQUENCES | {"scaling": {"min_replicas": 1, "max_replicas": 1}})
    assert parse_spec(one, "ranker").scaling.max_replicas == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "Ranker"}, "name=Ranker is not a name"),
        ({"name": "rank\n"}, "name='rank\\n' is not a name"),
        ({"name": "ränker"}, "name=ränker is not a name"),
        ({"name": "r" * 64}, "name=" + "r" * 64 + " is not a name"),
        (
            {"inputs.0.data_type": "TYPE_FLOAT32"},
            "inputs[0].data_type=TYPE_FLOAT32 is not one of TYPE_BOOL,",
        ),
        (
            {"outputs.0.dims": [0]},
            "outputs[0].dims[0]=0 is not a size; use 1 or more, or -1 for any size",
        ),
        ({"outputs.0.dims": [-2]}, "outputs[0].dims[0]=-2 is not a size"),
        ({"outputs.0.dims": []}, "outputs[0].dims=[] has fewer entries than 1"),
        (
            {"outputs": [{"name": "score", "data_type": "TYPE_FP32", "dims": [1]}] * 2},
            "outputs[1].name=score appears 2 times in outputs; give each its own name",
        ),
        (
            {"clients": [{"name": "ads", "rate_limit_rps": 1}] * 2},
            "clients[1].name=ads appears 2 times in clients; give each its own name",
        ),
        ({"clients": []}, "clients=[] has fewer entries than 1"),
        (
            {"clients.0.name": "operator"},
            "clients[0].name=operator is who runs the gateway, and may call every model anyway; "
            "name the caller otherwise",
        ),
        (
            {"scaling": {"min_replicas": 3, "max_replicas": 2}},
            "scaling.min_replicas=3 is above max_replicas=2; use 2 or less, or raise max_replicas",
        ),
        (
            {"scaling.min_replicas": 0},
            "scaling.min_replicas=0 makes the first request wait for a cold start; "
            "add cold_start_budget_seconds, or use 1 or more",
        ),
        ({"slo.because": ...}, "slo.because is missing; add it: why these numbers"),
        ({"slo.because": "  "}, "slo.because='  ' gives no reason"),
        ({"slo.error_ratio": 0}, "slo.error_ratio=0 is not above 0"),
        ({"slo.error_ratio": 1}, "slo.error_ratio=1 is not below 1"),
        ({"slo.latency_p99_ms": -5}, "slo.latency_p99_ms=-5 is not above 0"),
        ({"traffic.peak_rps": 0}, "traffic.peak_rps=0 is not above 0"),
        ({"traffic.headroom_ratio": 0.9}, "traffic.headroom_ratio=0.9 is below 1"),
        ({"cache.ttl_seconds": 0}, "cache.ttl_seconds=0 is not above 0"),
        ({"cache.scope": "everyone"}, "cache.scope=everyone is not one of shared, client"),
        ({"artifact.format": "safetensors"}, "artifact.format=safetensors is not what onnxruntime"),
        ({"inputs": ...}, "inputs is missing; list the model's inputs"),
        (
            {"engine.dynamic_batching.max_queue_delay_microseconds": 50_000},
            "engine.dynamic_batching.max_queue_delay_microseconds=50000 uses up "
            "slo.latency_p99_ms=50 before the model starts; use a small part of it",
        ),
        ({"hardware": {"gpu": "l44"}}, "hardware.gpu=l44 is not one of none, t4, "),
        (
            {"hardware": {"gpu": "none", "sharing": "mig"}, "engine.instance_group.gpus": ...},
            "hardware.sharing=mig has no GPU to share; use none, or name a GPU",
        ),
        (
            {"hardware": {"gpu": "none"}},
            "engine.instance_group.gpus=[0] names GPUs, and hardware.gpu is none",
        ),
        (
            {"engine.version_policy": {"latest": 1}},
            "engine.version_policy={'latest': 1} is not a known key; use one of kind, platform",
        ),
        ({"engine.max_num_seqs": 8}, "engine.max_num_seqs=8 is not a known key"),
        ({"routing": {"hash_header": "x y"}}, "routing.hash_header=x y is not a header name"),
        (
            {"routing": {}},
            "routing says nothing; state one of hash_header, timeout_ms, idle_timeout_seconds, "
            "or remove it",
        ),
        ({"routing": {"timeout_ms": 0}}, "routing.timeout_ms=0 is not above 0"),
        (
            {"routing": {"timeout_ms": 49.5}},
            "routing.timeout_ms=49.5 cuts off answers that slo.latency_p99_ms=50 still allows; "
            "use 50 or more",
        ),
        (
            {"routing": {"idle_timeout_seconds": -1}},
            "routing.idle_timeout_seconds=-1 is not above 0",
        ),
        (
            {"log": {"sample_ratio": 0, "redact": []}},
            "log.sample_ratio=0 is not above 0",
        ),
        ({"log": {"sample_ratio": 1.01, "redact": []}}, "log.sample_ratio=1.01 is above 1"),
        (
            {"log": {"sample_ratio": 1}},
            "log.redact is missing; add it: names of the inputs and outputs whose values",
        ),
        (
            {"log": {"sample_ratio": 1, "redact": ["user"]}},
            "log.redact[0]=user is no input and no output; ",
        ),
        (
            {"engine.optimization": {}, "engine.platform": "python"},
            "engine.optimization is for",
        ),
        (
            SEQUENCES
            | {
                "routing": {"hash_header": "x-sequence-id"},
                "cache": {"ttl_seconds": 1, "scope": "shared"},
            },
            "cache would answer a sequence from another sequence's state; remove cache",
        ),
        ({"engine.decoupled": True}, "cache cannot hold the many answers of a decoupled model"),
        (
            {**SEQUENCES, "engine.dynamic_batching": {}, "routing": {"hash_header": "x-id"}},
            "engine.dynamic_batching stands beside sequence_batching",
        ),
    ],
)
def test_a_fault_names_model_field_value_rule_and_fix(
    faults: Told, changes: dict[str, object], expected: str
) -> None:
    found = faults(changes)
    assert any(fault.startswith(f"ranker: {expected}") for fault in found), found
    for fault in found:
        assert "; " in fault
        assert not fault.endswith(".")
        assert fault.isprintable()


def test_an_unknown_data_type_is_met_with_the_nearest_one(faults: Told) -> None:
    (only,) = faults({"inputs.0.data_type": "TYPE_FLOAT32", "warmup": []})
    assert only.endswith("; did you mean TYPE_FP32")


def test_a_redacted_tensor_that_is_none_is_met_with_the_nearest_one(
    faults: Told, stated: Stated
) -> None:
    inputs, outputs = (
        [tensor["name"] for tensor in stated({})[field]] for field in ("inputs", "outputs")
    )
    for name in (*inputs, *outputs):
        (only,) = faults({"log": {"sample_ratio": 1, "redact": [*inputs, f"{name}s"]}})
        assert only == (
            f"ranker: log.redact[{len(inputs)}]={name}s is no input and no output; "
            f"did you mean {name}"
        )


def test_tensors_are_logged_only_where_a_spec_says_so(stated: Stated) -> None:
    assert parse_spec(stated({}), "ranker").log is None
    said = parse_spec(stated({"log": {"sample_ratio": 1, "redact": ["input0"]}}), "ranker").log
    assert said is not None
    assert (said.sample_ratio, said.redact) == (1, ("input0",))
    filetype = load_spec(SPECS / "filetype.yaml")
    assert filetype.log is not None
    assert {tensor.name for tensor in filetype.inputs} <= set(filetype.log.redact)


def test_an_engine_without_tensors_has_none_to_log(faults: Told) -> None:
    found = faults(
        {
            "engine": {"kind": "container"},
            "log": {"sample_ratio": 1, "redact": ["unknown"]},
        }
    )
    told = "log is not something that a container engine has: it logs tensors; remove it"
    assert f"ranker: {told}" in found
    assert not any("redact" in fault for fault in found)


def test_a_request_may_take_as_long_as_is_promised_and_a_stream_be_silent(stated: Stated) -> None:
    routing = {"timeout_ms": 50, "idle_timeout_seconds": 0.5}
    read = parse_spec(stated({"routing": routing}), "ranker").routing
    assert read is not None
    assert (read.hash_header, read.timeout_ms, read.idle_timeout_seconds) == (None, 50, 0.5)


def test_a_file_is_named_after_its_model_and_the_other_faults_are_told_too(
    spec_file: SpecFile,
) -> None:
    path = spec_file({"scaling.min_replicas": 0}, "other.yaml")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert caught.value.faults[0] == (
        "other: name=ranker is in the file other.yaml; name the file and the model alike"
    )
    assert caught.value.faults[1].startswith("other: scaling.min_replicas=0 ")


def test_a_folder_reports_the_faults_of_all_its_files(spec_file: SpecFile, tmp_path: Path) -> None:
    spec_file({}, "ranker.yaml")
    spec_file({"name": "slow", "scaling.min_replicas": 0}, "slow.yaml")
    spec_file({"name": "odd", "clients": [], "colour": 1}, "odd.yaml")
    (tmp_path / "broken.yaml").write_text("a: [", encoding="utf-8")
    (tmp_path / "late.yml").write_text("a: 1", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("a: 1", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_specs(tmp_path)
    starts = [fault.removeprefix(f"{tmp_path}/").split(":")[0] for fault in caught.value.faults]
    assert starts == ["broken.yaml", "late.yml", "odd", "odd", "slow"]


def test_a_folder_of_good_files_is_read_in_the_order_of_names(
    spec_file: SpecFile, tmp_path: Path
) -> None:
    for name in ("b", "a"):
        spec_file({"name": name}, f"{name}.yaml")
    assert [spec.name for spec in load_specs(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize("inside", ["", "missing"])
def test_a_folder_without_specs_is_refused(tmp_path: Path, inside: str) -> None:
    with pytest.raises(SpecError, match=r"holds no specs|not a folder"):
        load_specs(tmp_path / inside)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.floats()
    | st.sampled_from(["triton", "vllm", "TYPE_FP32", "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "name", "dims", "inputs", "x", 1]), inner)
    ),
    max_leaves=8,
)
PATHS = [
    "name",
    "artifact",
    "artifact.format",
    "engine",
    "engine.kind",
    "engine.platform",
    "engine.max_batch_size",
    "engine.dynamic_batching",
    "engine.dynamic_batching.preferred_batch_size",
    "engine.dynamic_batching.priority_queue_policy",
    "engine.sequence_batching",
    "engine.instance_group",
    "engine.parameters",
    "engine.optimization",
    "inputs",
    "inputs.0",
    "inputs.0.name",
    "inputs.0.dims",
    "outputs",
    "warmup",
    "warmup.0",
    "warmup.0.shapes",
    "warmup.0.inputs",
    "slo",
    "slo.because",
    "traffic",
    "scaling",
    "scaling.min_replicas",
    "cache",
    "routing",
    "log",
    "hardware",
    "hardware.gpu",
    "clients",
    "clients.0",
]


@given(st.dictionaries(st.sampled_from(PATHS), values, min_size=1, max_size=3))
def test_any_value_in_any_field_gives_a_spec_or_a_spec_error(
    stated: Stated, changes: dict[str, object]
) -> None:
    deepest_first = sorted(changes, key=lambda path: -path.count("."))
    found: tuple[str, ...] | None = None
    try:
        parse_spec(stated({path: changes[path] for path in deepest_first}), "ranker")
    except SpecError as error:
        found = error.faults
    assert found is None or found
    for fault in found or ():
        assert fault.startswith("ranker: ")
        assert fault.isprintable()


@given(content=st.binary() | st.text().map(str.encode))
def test_any_file_gives_a_spec_or_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        load_spec(path)


def test_importing_specs_imports_no_heavy_library() -> None:
    code = (
        "import sys, serving.spec;"
        "print(*sorted({'onnx', 'numpy', 'tritonclient', 'google', 'boto3'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=SPECS.parents[1],
    )
    assert done.stdout.strip() == ""
