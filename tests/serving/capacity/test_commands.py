"""`galley plan` as people and machines call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import app
from serving.errors import InputError
from serving.paths import SPECS
from tests.serving.capacity.conftest import CONFIGS

RUN = CliRunner()


def ran(*arguments: str, code: int = 0) -> str:
    result = RUN.invoke(app, ["plan", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder with the ranker alone."""
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "ranker.yaml").write_text((SPECS / "ranker.yaml").read_text())
    return folder


def test_the_plan_shows_the_sum_and_the_money() -> None:
    text = ran("--env", "prod")
    assert "100 in flight" in text
    assert "so 7 replicas" in text
    assert "prod: 6.44 USD an hour" in text
    assert "prices of 2026-07-20" in text


def test_one_model_may_be_asked_for() -> None:
    assert "filetype" not in ran("ranker")


def test_machines_show_why_each_will_not_do() -> None:
    text = ran("ranker", "--machines")
    assert "service_time_ms is stated for l4; measure it on h100 first" in text
    assert "capacity reservation" in text


def test_json_is_one_document() -> None:
    data = json.loads(ran("--env", "staging", "--json"))
    assert data["environment"] == "staging"
    assert data["models"]["ranker"]["replicas"] == 7


def test_a_plan_that_is_refused_ends_with_1(specs: Path) -> None:
    text = (specs / "ranker.yaml").read_text().replace("max_replicas: 20", "max_replicas: 6")
    (specs / "ranker.yaml").write_text(text)
    assert "REFUSED: scaling.max_replicas=6" in ran("--specs", str(specs), code=1)
    data = json.loads(ran("--specs", str(specs), "--json", code=1))
    assert len(data["refusals"]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nobody",), "nobody: no such model in .*; use one of filetype, ranker"),
        (("--env", "mars"), "env=mars is not one of local, dev, staging, prod"),
        (("--lengths", "chat"), "lengths=chat: is not MODEL=PROMPT:OUTPUT"),
        (("--lengths", "chat=1:0"), "lengths=chat=1:0: is not MODEL=PROMPT:OUTPUT"),
        (("--lengths", "chat=100:20"), "lengths=chat: no such model is planned"),
    ],
)
def test_what_cannot_be_used_is_told(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        ran(*arguments)


def test_files_beside_the_specs_are_used(specs: Path, tmp_path: Path) -> None:
    (specs / "ranker").mkdir()
    (specs / "ranker" / "batch_curve.json").write_text('{"1": 3, "16": 4, "64": 8}')
    assert "<- use this" in ran("--specs", str(specs))
    elsewhere = tmp_path / "files" / "ranker"
    elsewhere.mkdir(parents=True)
    assert "use this" not in ran("--specs", str(specs), "--files", str(elsewhere.parent))


def test_a_page_is_written(specs: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    ran("--specs", str(specs), "--html", str(page))
    assert page.read_text().startswith("<!doctype html>")


def test_another_spec_is_compared(specs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ranker.yaml"
    other.parent.mkdir()
    text = (specs / "ranker.yaml").read_text().replace("peak_rps: 2000", "peak_rps: 4000")
    other.write_text(text)
    rows = json.loads(ran("--specs", str(specs), "--diff", str(other), "--json"))
    changed = {row["where"]: (row["now"], row["then"]) for row in rows}
    assert changed["models.ranker.replicas"] == (7, 13)
    assert "nothing changes" in ran("--specs", str(specs), "--diff", str(specs))


def test_a_language_model_is_planned_from_its_config(specs: Path) -> None:
    (specs / "ranker.yaml").unlink()
    (specs / "chat.yaml").write_text(
        """
name: chat
artifact: {format: safetensors}
engine: {kind: vllm, max_model_len: 8192, max_num_seqs: 64}
slo:
  time_to_first_token_p99_ms: 2000
  inter_token_latency_p99_ms: 120
  error_ratio: 0.01
  because: people read at this pace
traffic: {peak_rps: 4, service_time_ms: 16000, concurrency_per_replica: 16, headroom_ratio: 1.25}
scaling: {min_replicas: 2, max_replicas: 8}
hardware: {gpu: l4}
clients: [{name: web, rate_limit_rps: 5}]
"""
    )
    (specs / "chat").mkdir()
    (specs / "chat" / "config.json").write_text(json.dumps(CONFIGS["llama-3-8b"]))
    data = json.loads(ran("--specs", str(specs), "--lengths", "chat=400:200", "--json"))
    memory = data["models"]["chat"]["memory"]
    assert memory["kv_bytes_per_token"] == 131_072
    assert memory["kv_cache_tokens"] == memory["kv_cache_bytes"] // (131_072 * 16) * 16
    text = ran("--specs", str(specs), "--lengths", "chat=400:200")
    assert "a token = " in text
    assert "at best: first token after" in text
