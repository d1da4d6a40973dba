"""Workloads are strict, have a reason, and the shipped ones are all used as they are written."""

from pathlib import Path

import pytest

from loadtest.arrivals import Replay
from loadtest.schedule import schedule_of
from loadtest.workload import WORKLOADS, load_workload, workload_of, workloads
from serving.errors import GalleyError, InputError

GOOD = """
name: mine
because: it shows something
arrivals: {kind: poisson, rate_ratio: 0.5}
request: {kind: triton_http, framing: json, batch_size: 4}
"""


def written(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_workload_is_named_for_its_file_and_has_a_schedule(path: Path) -> None:
    found = load_workload(path)
    assert found.name == path.stem
    assert len(found.because) > 80
    assert len(schedule_of(found, peak_rps=40, seed=found.seed)) > 50


def test_the_folder_holds_what_it_is_known_for() -> None:
    kinds = {found.arrivals.kind for found in workloads()}
    assert kinds == {"constant", "poisson", "gamma", "ramp", "step", "replay"}
    assert {found.request.kind for found in workloads()} == {
        *("triton_http", "triton_grpc", "chat", "completions")
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("because: it shows something\n", ""), "because"),
        (GOOD.replace("it shows something", "'  '"), "gives no reason"),
        (GOOD.replace("poisson", "poison"), "poison"),
        (GOOD.replace("rate_ratio: 0.5", "rate_ratio: 0"), "rate_ratio"),
        (GOOD + "second: 4\n", "second"),
        (GOOD.replace("name: mine", "name: yours"), "name=yours is not the file's own"),
        (GOOD + "distinct_ratio: 1.5\n", "distinct_ratio"),
        (GOOD.replace("{kind: poisson, rate_ratio: 0.5}", "{kind: step, steps: []}"), "steps"),
    ],
)
def test_what_is_wrong_is_told_with_the_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(GalleyError, match=said):
        load_workload(written(tmp_path, text))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("framing: json", "framing: xml") + "seconds: -1\n"
    text = text.replace("name: mine", "name: yours")
    with pytest.raises(InputError) as told:
        load_workload(written(tmp_path, text))
    assert "name=yours" in str(told.value)
    assert "framing" in str(told.value)
    assert "seconds" in str(told.value)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"workload=stedy: is not known.*steady"):
        workload_of("stedy")


def test_a_trace_is_found_beside_the_workload_from_anywhere(tmp_path: Path) -> None:
    text = GOOD.replace("{kind: poisson, rate_ratio: 0.5}", "{kind: replay, trace: t.txt}")
    (tmp_path / "t.txt").write_text("0\n1\n")
    found = workload_of(str(written(tmp_path, text)))
    assert isinstance(found.arrivals, Replay)
    assert found.arrivals.trace == str(tmp_path / "t.txt")
