"""Versions come and go behind the gateway without a failed or mislabelled answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from serving.errors import StackError
from serving.local.gateway import read_gateway, swap
from serving.recipes import ranker
from tests.live.conftest import ROOT, Stack
from tests.live.load import BODY, INFER, constant_load
from tests.live.test_recovery import kill, wait_until_back

pytestmark = pytest.mark.live

Keys = tuple[Path, Path]


@pytest.fixture(scope="module")
def two_versions(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Version 1 and 2 of the ranker, published; version → its score for BODY."""
    vector = np.full((1, 512), 0.5, dtype=np.float32)
    first = ranker.build(tmp_path_factory.mktemp("v1"))["model.onnx"]
    second = ranker.build(tmp_path_factory.mktemp("v2"), seed=2)["model.onnx"]
    stack.galley("push", "ranker", "--file", str(second), "--version", "2")
    return {
        "1": ranker.reference(first, vector).item(),
        "2": ranker.reference(second, vector).item(),
    }


def score(stack: Stack) -> tuple[str, float]:
    answer = stack.ask("POST", INFER, json=BODY).json()
    return answer["model_version"], answer["outputs"][0]["data"][0]


def assert_scored(stack: Stack, version: str, scores: dict[str, float]) -> None:
    """The gateway answers with this version's own score."""
    answered, value = score(stack)
    assert answered == version
    assert value == pytest.approx(scores[version], abs=1e-4)


def test_a_new_version_and_the_way_back_fail_no_request_and_mislabel_none(
    stack: Stack, two_versions: dict[str, float]
) -> None:
    with constant_load(stack.client, INFER, BODY) as load:
        for version in ("2", "1"):
            stack.galley("deploy", "ranker", version)
            load.wait_for(50)
            assert_scored(stack, version, two_versions)
    assert load.failed == []
    order = [sample.version for sample in sorted(load.samples, key=lambda each: each.end)]
    assert set(order) == {"1", "2"}
    assert order[0] == order[-1] == "1"


def test_deploying_what_is_served_changes_nothing(stack: Stack) -> None:
    before = stack.json("status")["models"]
    assert stack.json("deploy", "ranker", "1")["version"] == 1
    assert stack.json("status")["models"] == before


def test_an_older_version_is_served_while_newer_ones_stay_published(
    stack: Stack, two_versions: dict[str, float]
) -> None:
    assert [row["version"] for row in stack.json("versions", "ranker")][:2] == [1, 2]
    assert_scored(stack, "1", two_versions)


def test_an_absent_version_is_refused_and_the_current_one_keeps_serving(stack: Stack) -> None:
    done = stack.galley("deploy", "ranker", "7", check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert score(stack)[0] == "1"


def broken_above(rows: int) -> Any:
    """A ranker that fails for batches of more rows, and for no smaller one."""
    weights = numpy_helper.from_array(np.zeros((512, 1), np.float32), "w")
    # Add cannot match all rows with the first `rows` of them.
    parts = [
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in (("start", 0), ("stop", rows), ("axis", 0))
    ]
    nodes = [
        helper.make_node("MatMul", ["input0", "w"], ["all"]),
        helper.make_node("Slice", ["all", "start", "stop", "axis"], ["some"]),
        helper.make_node("Add", ["all", "some"], ["score"]),
    ]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("input0", 512), ("score", 1))
    }
    graph = helper.make_graph(
        nodes, "broken", [values["input0"]], [values["score"]], [weights, *parts]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("rows", [8, 32])
def test_a_version_that_fails_a_declared_warm_up_size_never_becomes_ready(
    stack: Stack, two_versions: dict[str, float], tmp_path: Path, rows: int
) -> None:
    onnx.save(broken_above(rows), tmp_path / "model.onnx")
    version = stack.json("push", "ranker", "--file", str(tmp_path / "model.onnx"))["version"]
    before = stack.json("status")["models"][1]
    with constant_load(stack.client, INFER, BODY) as load:
        done = stack.galley("deploy", "ranker", str(version), check=False)
        load.wait_for(50)
    assert done.returncode == 5
    assert "could not load ranker" in done.stderr
    assert load.failed == []
    assert {sample.version for sample in load.samples} == {"1"}
    assert_scored(stack, "1", two_versions)
    assert [row["serving"] for row in stack.json("versions", "ranker") if row["version"] == 1] == [
        True
    ]
    report = stack.json("status")
    assert report["healthy"]
    assert report["models"][1] == before


def test_a_damaged_artifact_is_not_loaded_again_but_fetched_anew(stack: Stack) -> None:
    artifact = stack.home.artifacts / "ranker" / "1" / "model.onnx"
    content = bytearray(artifact.read_bytes())
    content[len(content) // 2] ^= 1
    # A new file: the replicas hold links to the old one.
    artifact.unlink()
    artifact.write_bytes(content)
    old, _ = kill(stack, "triton-0")
    wait_until_back(stack, "triton-0", old)
    assert artifact.read_bytes() != bytes(content)
    assert stack.json("status")["healthy"]


def test_an_unsigned_version_is_not_served_where_a_key_is_configured(
    stack: Stack, key_pair: Keys
) -> None:
    _, public = key_pair
    before = stack.json("status")["models"]
    done = stack.galley("deploy", "ranker", "2", check=False, GALLEY_VERIFY_KEY=str(public))
    assert stack.json("status")["models"] == before
    assert done.returncode == 1
    assert "sign" in done.stderr
    assert score(stack)[0] == "1"


def test_a_signed_version_is_pulled_with_its_key_and_with_no_other(
    stack: Stack, key_pair: Keys, make_key_pair: Callable[[], Keys], tmp_path: Path
) -> None:
    private, public = key_pair
    model = ranker.build(tmp_path / "build", seed=9)["model.onnx"]
    pushed = stack.json(*("push", "ranker", "--file", str(model)), GALLEY_SIGNING_KEY=str(private))
    version = str(pushed["version"])
    good = stack.galley(
        *("pull", "ranker", version, "--to", str(tmp_path / "good")),
        GALLEY_VERIFY_KEY=str(public),
    )
    assert "verified" in good.stdout
    assert (tmp_path / "good" / "model.onnx").read_bytes() == model.read_bytes()
    bad = stack.galley(
        *("pull", "ranker", version, "--to", str(tmp_path / "bad")),
        check=False,
        GALLEY_VERIFY_KEY=str(make_key_pair()[1]),
    )
    assert bad.returncode == 1
    assert not (tmp_path / "bad").exists()


def test_a_pickle_under_another_name_is_refused_before_anything_is_sent(
    stack: Stack, tmp_path: Path
) -> None:
    import pickle

    folder = tmp_path / "version"
    files = ranker.build(folder)
    (folder / "vocabulary.txt").write_bytes(pickle.dumps({"a": 1}))
    before = stack.json("versions", "ranker")
    done = stack.galley("push", "ranker", "--file", str(folder), check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pickle" in done.stderr
    assert "vocabulary.txt" in done.stderr
    assert stack.json("versions", "ranker") == before
    assert files["model.onnx"].exists()


def test_the_local_config_runs_on_cpu_and_the_published_one_is_the_cluster_s(
    stack: Stack, tmp_path: Path
) -> None:
    stack.galley("pull", "ranker", "1", "--to", str(tmp_path / "v1"))
    golden = (ROOT / "tests/golden/ranker/3_config/config.pbtxt").read_text()
    assert (tmp_path / "v1" / "config.pbtxt").read_text() == golden
    local = stack.home.replica("triton-0") / "repository" / "ranker" / "config.pbtxt"
    assert "KIND_CPU" in local.read_text()
    assert "KIND_GPU" not in local.read_text()


def test_routes_that_the_gateway_refuses_change_nothing_also_after_its_restart(
    stack: Stack,
) -> None:
    before = read_gateway(stack.home)
    # "nans" is no duration, so Envoy refuses the file of all routes.
    route = before.models[0]
    limits = replace(route.limits, timeout_seconds=float("nan"))
    broken = replace(before, models=(replace(route, limits=limits),))
    with pytest.raises(StackError, match=r"rejected|did not take over"):
        swap(stack.home, stack.state, broken)
    old, _ = kill(stack, "envoy")
    wait_until_back(stack, "envoy", old)
    assert read_gateway(stack.home) == before
    assert stack.json("status")["healthy"]
    assert score(stack)[0] == "1"
