"""Real models behind the real gateway answer as their references do, and bad input is refused."""

import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gateway.limits import max_request_bytes
from serving.inference import infer
from serving.paths import SPECS
from serving.predict import predict_files
from serving.recipes import filetype, ranker
from serving.recipes.corpus import real_files
from serving.spec import load_spec
from tests.live.conftest import ROOT, Stack

pytestmark = pytest.mark.live

INFER = "/v2/models/ranker/infer"


def tensor(**changes: object) -> dict[str, Any]:
    """A good request for the ranker, with changes to its one input."""
    values = {"name": "input0", "shape": [1, 512], "datatype": "FP32", "data": [0.5] * 512}
    return {"inputs": [{**values, **changes}]}


def test_filetype_labels_hundreds_of_real_files_exactly_as_its_own_package_does(
    stack: Stack,
) -> None:
    paths = real_files(ROOT, 300)
    with stack.client() as client:
        answers = predict_files(client, "filetype", paths)
    expected = filetype.reference(paths)
    assert [answer[0] for _, answer in answers] == expected
    assert len(set(expected)) >= 15  # a corpus of one kind would prove nothing


def test_ranker_scores_as_numpy_does_alone_and_in_batches_of_every_size(
    stack: Stack, tmp_path: Path
) -> None:
    model = ranker.build(tmp_path)["model.onnx"]
    url = stack.state.gateway_url
    with stack.client() as client:
        for rows in (1, 2, 16, 63, 64):
            vectors = ranker.sample_inputs(rows, seed=rows)
            outputs = infer(url, "ranker", {"input0": vectors}, timeout_seconds=20, client=client)
            expected = ranker.reference(model, vectors)
            np.testing.assert_allclose(outputs["score"], expected, atol=1e-4)


def test_predict_prints_the_label_of_a_file(stack: Stack) -> None:
    done = stack.galley("predict", "filetype", "--file", str(ROOT / "pyproject.toml"))
    assert done.stdout.split()[0] == "toml"


def test_predict_takes_many_files_and_answers_in_json(stack: Stack) -> None:
    files = [ROOT / "pyproject.toml", ROOT / "Makefile"]
    arguments = [part for file in files for part in ("--file", str(file))]
    answers = stack.json("predict", "filetype", *arguments)
    assert [(a["file"], a["answer"][0]) for a in answers] == [
        (str(files[0]), "toml"),
        (str(files[1]), "makefile"),
    ]


def test_an_answer_says_which_version_and_digest_gave_it(stack: Stack) -> None:
    answer = stack.ask("POST", INFER, json=tensor())
    digest = stack.json("show", "ranker", "1")["digest"]
    assert answer.headers["x-galley-version"] == answer.json()["model_version"] == "1"
    assert answer.headers["x-galley-digest"] == digest


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [1, 511], "data": [0.5] * 511},
        {"shape": [512]},
        {"shape": [65, 512], "data": [0.5] * 512 * 65},
        {"datatype": "INT64", "data": [1] * 512},
        {"name": "input1"},
        {"data": [0.5] * 511},
    ],
    ids=["short row", "no batch axis", "batch above 64", "wrong type", "wrong name", "few values"],
)
def test_a_tensor_that_does_not_fit_is_refused_and_says_why(
    stack: Stack, changes: Mapping[str, object]
) -> None:
    answer = stack.ask("POST", INFER, json=tensor(**changes))
    assert answer.status_code == 400
    assert len(answer.json()["error"]) > 20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" " * 100,
        b"{",
        b"[]",
        b"{}",
        b'{"inputs": null}',
        b'{"inputs": [{"name": "\xff"}]}',
        json.dumps({**tensor(), "id": 5}).encode(),
        json.dumps({**tensor(), "outputs": "score"}).encode(),
        json.dumps({**tensor(), "parameters": "x"}).encode(),
        json.dumps({**tensor(), "outputs": [{"name": "nonesuch"}]}).encode(),
        json.dumps(tensor(shape=[-1, 512])).encode(),
        json.dumps(tensor(data=["a"] * 512)).encode(),
    ],
)
def test_a_body_that_is_no_request_is_the_client_s_fault(stack: Stack, body: bytes) -> None:
    answer = stack.ask("POST", INFER, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_wrong_shape_is_told_before_anything_is_sent(stack: Stack, tmp_path: Path) -> None:
    vector = tmp_path / "vector.json"
    vector.write_text(json.dumps([0.5] * 10))
    done = stack.galley("predict", "ranker", "--file", str(vector), check=False)
    assert (done.returncode, "512" in done.stderr) == (2, True)
    assert len(done.stderr.splitlines()) == 1


def test_a_body_over_the_limit_is_refused_with_the_limit(stack: Stack) -> None:
    limit = max_request_bytes(load_spec(SPECS / "ranker.yaml"))
    body = b" " * (limit + 1)
    answer = stack.ask("POST", INFER, content=body)
    assert answer.status_code == 413
    assert str(limit) in answer.json()["error"]


def test_an_unknown_model_is_not_found_and_the_answer_lists_the_known_ones(stack: Stack) -> None:
    answer = stack.ask("POST", "/v2/models/nonesuch/infer", json=tensor())
    assert answer.status_code == 404
    assert "filetype, ranker" in answer.json()["error"]
    done = stack.galley("predict", "nonesuch", "--file", str(ROOT / "README.md"), check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/ranker/unload",
        "/v2/models/ranker/stats",
        "/v2/models/ranker/config",
        "/v2/models/stats",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/status",
        "/v2/models/ranker/versions/1/infer",
        "/metrics",
        "/v2/models/ranker/../../repository/index",
        "/v2/models/ranker%2f..%2f..%2frepository%2findex",
    ],
)
def test_only_listed_paths_lead_to_a_model_server(stack: Stack, path: str) -> None:
    for method in ("GET", "POST"):
        trusted = ssl.create_default_context(cafile=stack.home.tls / "ca.pem")
        with (
            socket.create_connection(("127.0.0.1", stack.state.ports["gateway"])) as plain,
            trusted.wrap_socket(plain, server_hostname="localhost") as raw,
        ):
            # By hand: a client library would tidy the path up first.
            raw.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
                f"Authorization: Bearer {stack.home.secrets().operator_key}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            status = raw.makefile("rb").readline().split()[1]
        assert status in (b"404", b"400"), (method, path)
    assert stack.json("status")["healthy"]


def test_health_and_metadata_can_be_read_through_the_gateway(stack: Stack) -> None:
    with stack.client() as client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v2/models/ranker/ready").status_code == 200
        described = client.get("/v2/models/ranker").json()
    assert described["inputs"] == [{"name": "input0", "datatype": "FP32", "shape": [-1, 512]}]
