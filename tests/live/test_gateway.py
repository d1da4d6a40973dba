"""The whole data path: keys, limits, checks, a cache that is right, and what deaths cost."""

import gzip
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc
import valkey

from serving.gateway.prediction import body as bodies
from serving.gateway.prediction.cache import KEY_PREFIX
from serving.inference import infer
from serving.local.access import authorization
from serving.local.prediction import read_served
from serving.recipes import ranker
from tests.live.conftest import ROOT, Stack
from tests.live.load import INFER, constant_load
from tests.live.test_recovery import kill, wait_until_back

pytestmark = pytest.mark.live

# More than any 64-bit size can hold: kills a Triton that sees it.
POISON = {"inputs": [{"name": "input0", "shape": [2**62, 512], "datatype": "FP32", "data": [1.0]}]}


def question(number: float, **members: object) -> dict[str, Any]:
    """A request for the ranker whose answer nobody has asked for before."""
    data = [number] + [0.25] * 511
    tensor = {"name": "input0", "shape": [1, 512], "datatype": "FP32", "data": data}
    return {"inputs": [tensor], **members}


@pytest.fixture(scope="module")
def fresh() -> Iterator[float]:
    """Numbers that no other test of this run asks about."""
    return iter(np.linspace(1000, 2000, 100_000).tolist())


@contextmanager
def key_of(stack: Stack, client: str) -> Iterator[dict[str, str]]:
    """A key for the time of a block, as the header that carries it."""
    made = stack.json("client", "add", client)
    try:
        yield authorization(made["key"])
    finally:
        stack.galley("client", "revoke", client, made["id"])


def ask(stack: Stack, body: object, **settings: Any) -> httpx.Response:
    return stack.ask("POST", INFER, json=body, **settings)


def metric(stack: Stack, pattern: str) -> float:
    """Sum over both hops of the series that match."""
    total = 0.0
    for hop in stack.state.hop_names:
        text = httpx.get(f"http://{stack.state.address(hop)}/metrics", trust_env=False).text
        total += sum(float(value) for value in re.findall(rf"(?m)^{pattern} (\S+)$", text))
    return total


def pids(stack: Stack) -> dict[str, int | None]:
    return {name: stack.process(name).pid for name in stack.state.replica_names}


# Keys


def test_a_key_opens_the_models_whose_specs_list_its_client_and_no_others(
    stack: Stack, fresh: Iterator[float]
) -> None:
    with key_of(stack, "ads") as key, stack.client() as client:
        assert client.post(INFER, json=question(next(fresh)), headers=key).status_code == 200
        refused = client.get("/v2/models/filetype", headers=key)
    assert refused.status_code == 403
    assert "may not call" in refused.json()["error"]


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer x", "Bearer " + "k" * 8000])
def test_without_a_valid_key_nothing_but_health_is_answered(stack: Stack, key: str | None) -> None:
    with stack.client() as client:
        client.headers.pop("authorization")
        headers = {} if key is None else {"authorization": key}
        answer = client.post(INFER, json=question(1), headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "key" in answer.json()["error"]
        assert client.get("/nonesuch", headers=headers).status_code == 401
        assert client.get("/v2/health/ready").status_code == 200


def test_a_key_is_shown_once_and_refused_from_the_moment_it_is_revoked(
    stack: Stack, fresh: Iterator[float]
) -> None:
    made = stack.galley("client", "add", "feed")
    secret = made.stdout.strip()
    header = authorization(secret)
    listed = stack.json("client", "list")
    [held] = [row["keys"] for row in listed if row["client"] == "feed"]
    assert [key["id"] for key in held] == [held[0]["id"]]
    with stack.client() as client:
        assert client.post(INFER, json=question(next(fresh)), headers=header).status_code == 200
        stack.galley("client", "revoke", "feed", held[0]["id"])
        assert client.post(INFER, json=question(next(fresh)), headers=header).status_code == 401
    shown = stack.galley("client", "list").stdout + stack.galley("logs", "-n", "500").stdout
    assert secret not in shown + json.dumps(listed)
    for path in (path for path in stack.home.root.rglob("*") if path.is_file()):
        assert secret.encode() not in path.read_bytes(), path


def test_keys_are_exchanged_without_a_failed_request(stack: Stack, fresh: Iterator[float]) -> None:
    with key_of(stack, "ads") as old:
        new_client = lambda: _with(stack, old)  # noqa: E731
        with constant_load(new_client, INFER, question(next(fresh)), threads=2) as load:
            for _ in range(3):
                with key_of(stack, "ads") as new, _with(stack, new) as client:
                    assert client.get("/v2/models/ranker").status_code == 200
                load.wait_for(20)
    assert load.failed == []


def _with(stack: Stack, header: dict[str, str]) -> httpx.Client:
    client = stack.client()
    client.headers.update(header)
    return client


def test_a_client_that_no_spec_lists_gets_no_key(stack: Stack) -> None:
    done = stack.galley("client", "add", "nobody", check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "ads" in done.stderr
    done = stack.galley("client", "revoke", "ads", "00000000", check=False)
    assert done.returncode == 2


def test_a_client_over_its_rate_is_told_when_to_come_back_and_others_are_served(
    stack: Stack, fresh: Iterator[float]
) -> None:
    with key_of(stack, "scanner") as key, _with(stack, key) as client:
        answers = [client.get("/v2/models/filetype") for _ in range(40)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert answers[0].headers["x-ratelimit-limit"].startswith("10")
        assert {"retry-after", "x-ratelimit-reset"} <= set(refused[0].headers)
        assert "rate limit" in refused[0].json()["error"]
        # Neither another address nor another spelling of the key refills the bucket.
        forged = {"x-forwarded-for": "203.0.113.9", "x-galley-client": "operator"}
        again = [client.get("/v2/models/filetype", headers=forged) for _ in range(40)]
        assert sum(answer.status_code == 429 for answer in again) >= 15
    assert stack.ask("GET", "/v2/models/filetype").status_code == 200


# Answers


def test_an_equal_request_is_answered_from_the_cache_with_its_own_id(
    stack: Stack, fresh: Iterator[float]
) -> None:
    number = next(fresh)
    first = ask(stack, question(number, id="one"))
    second = ask(stack, question(number, id='tw"o'))
    third = ask(stack, question(number))
    states = [answer.headers["x-galley-cache"] for answer in (first, second, third)]
    assert states == ["miss", "hit", "hit"]
    assert [answer.json().get("id") for answer in (first, second, third)] == ["one", 'tw"o', None]
    assert first.json()["outputs"] == second.json()["outputs"] == third.json()["outputs"]
    digest = stack.json("show", "ranker", "1")["digest"]
    for answer in (first, second):
        assert answer.headers["x-galley-version"] == "1"
        assert answer.headers["x-galley-digest"] == digest


def test_json_and_binary_tensors_both_hit_and_never_mix(
    stack: Stack, fresh: Iterator[float]
) -> None:
    number = next(fresh)
    vector = np.array([question(number)["inputs"][0]["data"]], dtype=np.float32)
    as_json = [ask(stack, question(number)) for _ in range(2)]
    states: list[str] = []
    with stack.client() as client:
        client.event_hooks["response"] = [
            lambda answer: states.append(answer.headers["x-galley-cache"])
        ]
        url = stack.state.gateway_url
        scores = [
            infer(url, "ranker", {"input0": vector}, timeout_seconds=20, client=client)["score"]
            for _ in range(2)
        ]
    assert [answer.headers["x-galley-cache"] for answer in as_json] == ["miss", "hit"]
    assert states == ["miss", "hit"]
    value = as_json[0].json()["outputs"][0]["data"][0]
    assert [score.item() for score in scores] == pytest.approx([value] * 2, rel=1e-6)


def test_a_client_can_ask_past_the_cache(stack: Stack, fresh: Iterator[float]) -> None:
    number = next(fresh)
    ask(stack, question(number))
    answer = ask(stack, question(number), headers={"cache-control": "no-store"})
    assert answer.headers["x-galley-cache"] == "bypass"


def test_many_equal_requests_at_once_are_computed_once(
    stack: Stack, fresh: Iterator[float]
) -> None:
    def computed() -> int:
        total = 0
        for name in stack.state.replica_names:
            url = f"http://{stack.state.address(f'{name}-http')}/v2/models/ranker/stats"
            stats = httpx.get(url, trust_env=False).json()["model_stats"]
            total += sum(int(each["inference_stats"]["success"]["count"]) for each in stats)
        return total

    body, before = question(next(fresh)), computed()
    answers: list[httpx.Response] = []
    with stack.client() as client:
        client.get("/v2/models/ranker")
        threads = [
            threading.Thread(target=lambda: answers.append(client.post(INFER, json=body)))
            for _ in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [200] * 32
    assert len({json.dumps(answer.json()["outputs"]) for answer in answers}) == 1
    assert computed() - before == 1


# Bad input


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(POISON).encode(),
        # The first of two equal members is what Triton reads, the last what others do.
        json.dumps(question(1)).encode().replace(b'"shape"', b'"shape": [%d], "shape"' % 2**62),
        b'{"inputs":[{"name":"input0","shape":[%d],"datatype":"FP32","data":[1]}]}' % 2**62,
        b"[" * 100_000,
        b'{"inputs":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        json.dumps(question(float("nan"))).encode(),
        json.dumps(question(1e39)).encode(),
        b'{"inputs": "\xff"}',
    ],
    ids=["2^62", "2^62 behind", "90 bytes", "deep", "deep inside", "NaN", "infinite", "not UTF-8"],
)
def test_what_would_kill_or_confuse_a_model_server_never_reaches_one(
    stack: Stack, body: bytes
) -> None:
    before = pids(stack)
    answers = [stack.ask("POST", INFER, content=body) for _ in range(3)]
    duplicate = body.count(b'"shape"') == 2
    assert {answer.status_code for answer in answers} == ({200} if duplicate else {400})
    assert pids(stack) == before


def test_a_million_tiny_chunks_are_one_request_or_none(stack: Stack) -> None:
    before = pids(stack)
    with stack.client() as client:
        answer = client.post(INFER, content=iter([b" "] * 20_000))
    assert answer.status_code == 400
    assert pids(stack) == before


def test_compressed_requests_are_refused(stack: Stack) -> None:
    body = gzip.compress(json.dumps(question(1)).encode())
    answer = stack.ask("POST", INFER, content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize("length", ["-1", "5000", "99999999999999999999", "x", "1e3", "1_0"])
def test_a_header_length_that_lies_is_refused(stack: Stack, length: str) -> None:
    headers = {"inference-header-content-length": length}
    body = json.dumps(question(1)).encode()
    assert stack.ask("POST", INFER, content=body, headers=headers).status_code == 400


# Deaths


@pytest.mark.parametrize("name", ["prediction-0", "prediction-1", "valkey"])
def test_a_killed_hop_or_cache_costs_nobody_an_answer(
    stack: Stack, name: str, fresh: Iterator[float]
) -> None:
    with cached_load(stack, fresh) as load:
        old, _ = kill(stack, name)
        wait_until_back(stack, name, old)
        load.wait_for(100)
    assert load.failures == []


def test_a_frozen_cache_is_passed_by_and_counted(stack: Stack, fresh: Iterator[float]) -> None:
    pid = stack.process("valkey").pid
    assert pid
    before = metric(stack, r'galley_cache_faults_total\{reason="(?:timeout|open)"\}')
    with cached_load(stack, fresh) as load:
        os.kill(pid, signal.SIGSTOP)
        try:
            load.wait_for(200)
        finally:
            os.kill(pid, signal.SIGCONT)
        load.wait_for(50)
    assert load.failures == []
    assert "bypass" in load.states
    assert metric(stack, r'galley_cache_faults_total\{reason="(?:timeout|open)"\}') > before
    wait_for_hits(stack, fresh)


def test_a_frozen_triton_costs_time_and_no_answer(stack: Stack, fresh: Iterator[float]) -> None:
    pid = stack.process("triton-1").pid
    assert pid
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    with constant_load(stack.client, INFER, question(next(fresh))) as load:
        for process in family:
            process.suspend()
        try:
            load.wait_for(100)
        finally:
            for process in family:
                process.resume()
        load.wait_for(50)
    assert load.failed == []


@pytest.mark.parametrize("damage", [bytes.upper, lambda entry: entry[:-1], lambda _: b"poison"])
def test_a_damaged_entry_is_a_miss_and_counted(
    stack: Stack, fresh: Iterator[float], damage: Callable[[bytes], bytes]
) -> None:
    body = question(next(fresh))
    right = ask(stack, body).json()["outputs"]
    [served] = (each for each in read_served(stack.home) if each.model == "ranker")
    request = bodies.read_request(served.schema, json.dumps(body).encode(), None)
    key = KEY_PREFIX + bodies.key_of(request, f"ranker/1@{served.digest}", None)
    before = metric(stack, r'galley_cache_faults_total\{reason="corrupt"\}')
    cache = valkey.Valkey(
        port=stack.state.ports["valkey"],
        username="prediction",
        password=stack.home.secrets().cache_password,
    )
    with cache:
        entry = cache.set(key, b"", get=True)
        assert isinstance(entry, bytes)
        cache.set(key, damage(entry), px=60_000)
        with pytest.raises(valkey.exceptions.NoPermissionError):
            # Keys cannot be listed by whoever holds the hops' password.
            cache.keys("*")
    again = ask(stack, body)
    assert (again.headers["x-galley-cache"], again.json()["outputs"]) == ("miss", right)
    assert metric(stack, r'galley_cache_faults_total\{reason="corrupt"\}') == before + 1
    assert ask(stack, body).headers["x-galley-cache"] == "hit"


def wait_for_hits(stack: Stack, fresh: Iterator[float]) -> None:
    """Wait until the cache is used again."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        body = question(next(fresh))
        if [ask(stack, body).headers["x-galley-cache"] for _ in range(2)] == ["miss", "hit"]:
            return
    pytest.fail("the cache is not used again")


class CachedLoad:
    """Requests of which most are answered from the cache."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.states: set[str] = set()
        self.answered = 0
        self.stop = threading.Event()

    def wait_for(self, more: int, seconds: float = 60) -> None:
        wanted, deadline = self.answered + more, time.monotonic() + seconds
        while self.answered < wanted:
            assert time.monotonic() < deadline, self.failures[-3:]
            time.sleep(0.02)


@contextmanager
def cached_load(stack: Stack, fresh: Iterator[float], threads: int = 3) -> Iterator[CachedLoad]:
    load = CachedLoad()
    bodies = [question(next(fresh)) for _ in range(40)]
    deadline = time.monotonic() + 90

    def work() -> None:
        with stack.client() as client:
            while not load.stop.is_set() and time.monotonic() < deadline:
                try:
                    answer = client.post(INFER, json=bodies[load.answered % len(bodies)])
                except httpx.HTTPError as error:
                    load.failures.append(repr(error))
                    continue
                if answer.status_code != 200:
                    load.failures.append(f"{answer.status_code} {answer.text[:200]}")
                    continue
                load.states.add(answer.headers["x-galley-cache"])
                load.answered += 1

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        load.wait_for(50)
        yield load
    finally:
        load.stop.set()
        for worker in workers:
            worker.join()


# gRPC


@pytest.fixture
def grpc_client(stack: Stack) -> Iterator[Callable[[], Any]]:
    made: list[Any] = []

    def make() -> Any:
        made.append(
            tritonclient.grpc.InferenceServerClient(
                f"localhost:{stack.state.ports['gateway']}",
                ssl=True,
                root_certificates=str(stack.home.tls / "ca.pem"),
            )
        )
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_the_official_grpc_client_is_answered_as_over_http_and_only_with_a_key(
    stack: Stack, grpc_client: Callable[[], Any], tmp_path: Path
) -> None:
    client = grpc_client()
    vector = ranker.sample_inputs(4, seed=11)
    tensor = tritonclient.grpc.InferInput("input0", list(vector.shape), "FP32")
    tensor.set_data_from_numpy(vector)
    headers = authorization(stack.home.secrets().operator_key)
    assert client.is_server_live()
    answer = client.infer("ranker", [tensor], headers=headers)
    model = ranker.build(tmp_path)["model.onnx"]
    np.testing.assert_allclose(answer.as_numpy("score"), ranker.reference(model, vector), atol=1e-4)
    # The version that a client names is the gateway's choice all the same.
    pinned = client.infer("ranker", [tensor], model_version="7", headers=headers)
    assert pinned.get_response().model_version == "1"
    for key, status in ((None, "UNAUTHENTICATED"), ("wrong", "UNAUTHENTICATED")):
        sent = authorization(key) if key else {}
        with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
            client.infer("ranker", [tensor], headers=sent)
        assert status in str(caught.value.status())
    with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
        client.get_model_repository_index(headers=headers)
    assert "UNIMPLEMENTED" in str(caught.value.status())


# What is recorded


def test_each_answer_is_a_line_in_the_prediction_log_without_what_is_private(
    stack: Stack, fresh: Iterator[float]
) -> None:
    answer = ask(stack, question(next(fresh)))
    line = line_of(stack, answer.headers["x-request-id"])
    assert (line["client"], line["model"], line["version"]) == ("operator", "ranker", 1)
    assert (line["cache"], line["status"]) == ("miss", 200)
    assert line["digest"] == answer.headers["x-galley-digest"]
    assert 0 <= line["compute_ms"] <= line["total_ms"]
    assert not {"inputs", "outputs"} & set(line)


def line_of(stack: Stack, request_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for path in stack.home.prediction_logs.glob("*.jsonl*"):
            for text in path.read_text().splitlines():
                if request_id in text:
                    line: dict[str, Any] = json.loads(text)
                    return line
        time.sleep(0.1)
    pytest.fail("no line of this request")


def test_the_slo_is_an_exact_edge_of_latency_histograms(
    stack: Stack, fresh: Iterator[float]
) -> None:
    for _ in range(4):
        ask(stack, question(next(fresh)))
    assert metric(stack, r'galley_prediction_latency_seconds_bucket\{[^}]*le="0\.05"[^}]*\}') > 0
    url = f"http://{stack.state.address('envoy-admin')}/stats/prometheus"
    text = httpx.get(url, trust_env=False).text
    assert re.search(r'envoy_cluster_upstream_rq_time_bucket\{[^}]*ranker-v1[^}]*le="50"', text)


def test_promotion_and_the_way_back_never_give_an_answer_of_another_version(
    stack: Stack, tmp_path: Path
) -> None:
    from tests.live.flips import checked_flips

    checked, states = checked_flips(stack, tmp_path, answers=50_000)
    assert checked >= 50_000
    assert states["hit"] > states["miss"] > 0


def test_the_shipped_specs_name_the_clients_that_readme_names() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "galley client add ads" in readme
