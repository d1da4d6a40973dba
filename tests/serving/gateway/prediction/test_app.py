"""A real hop process with a real cache, in front of a server that counts what reaches it."""

import asyncio
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serving.gateway.prediction.schema import CacheRule, ModelSchema, Served, TensorSchema
from serving.gateway.prediction.table import encode_table
from serving.local.ports import choose_ports
from tests.serving.gateway.prediction.valkey_server import PASSWORDS, Server, running

pytestmark = pytest.mark.live

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
SCHEMA = ModelSchema(
    (TensorSchema("x", "FP32", (4,)),), (TensorSchema("y", "FP32", (1,)),), max_batch_size=8
)
MODEL = Served("m", 1, A, SCHEMA, 2.0, 50.0, CacheRule(60.0, per_client=False))
TABLE = (
    MODEL,
    replace(MODEL, version=2, digest=B),
    replace(MODEL, model="private", cache=CacheRule(60.0, per_client=True)),
    replace(MODEL, model="uncached", cache=None),
    replace(MODEL, model="sequence", cache=None, hash_header="x-sequence-id"),
)
SECRET = "ab" * 32
BINARY = "application/octet-stream"


@dataclass
class Upstream:
    """A model server that answers with how often it was asked."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    status: int = 200
    seconds: float = 0.0
    broken: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[-1].split("\r\n")[0])
                asked = await reader.readexactly(length)
                self.asked.append(head.split()[1])
                self.heads.append(head)
                number = len(self.asked)
                await asyncio.sleep(self.seconds)
                body = json.dumps({"model_name": "m", "outputs": [number]}).encode()
                kind = "application/json"
                if b'"binary_data":true' in asked:
                    kind = f"{BINARY}\r\ninference-header-content-length: {len(body)}"
                    body += struct.pack("<f", number)
                length = len(body) + 10 * self.broken
                writer.write(
                    f"HTTP/1.1 {self.status} X\r\ncontent-type: {kind}\r\n"
                    f"content-length: {length}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
                if self.broken:
                    break
        writer.close()

    def run(self, ready: threading.Event, stop: asyncio.Event, loop: Any) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()
            server.close()

        loop.run_until_complete(main())


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    found, ready, loop = Upstream(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=found.run, args=(ready, stop, loop))
    thread.start()
    ready.wait()
    yield found
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@pytest.fixture(autouse=True)
def healthy(upstream: Upstream) -> None:
    upstream.asked.clear()
    upstream.status, upstream.seconds, upstream.broken = 200, 0.0, False


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@dataclass(frozen=True)
class Hop:
    """A running hop."""

    client: httpx.Client
    process: "subprocess.Popen[bytes]"
    folder: Path

    def ask(self, number: float = 0.5, model: str = "m", **settings: Any) -> httpx.Response:
        return self.client.post(
            f"/v2/models/{model}/infer",
            content=settings.pop("content", None) or json.dumps(question(number)),
            headers={**gateway_headers(), **settings.pop("headers", {})},
            **settings,
        )

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def gateway_headers(version: str = "1", digest: str = A, client: str = "ads") -> dict[str, str]:
    return {
        "x-galley-version": version,
        "x-galley-digest": digest,
        "x-galley-client": client,
        "x-request-id": f"r-{random.random()}",
    }


def question(number: float, **members: object) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number, 0, 0, 0]}
    return {"inputs": [tensor], **members}


@contextmanager
def hop_process(folder: Path, upstream_port: int, cache: Server | None) -> Iterator[Hop]:
    port = choose_ports(("hop",), {}, random.Random())["hop"]
    (folder / "table.json").write_bytes(encode_table(TABLE))
    settings = {
        "name": "hop",
        "host": "127.0.0.1",
        "port": port,
        "table": str(folder / "table.json"),
        "upstream": {"host": "127.0.0.1", "port": upstream_port},
        "valkey": cache
        and {
            "host": "127.0.0.1",
            "port": cache.port,
            "username": "prediction",
            "password": PASSWORDS["prediction"],
        },
        "mac_key": SECRET,
        "log_folder": str(folder / "log"),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "serving.gateway.prediction.server"]
    process = subprocess.Popen([*command, str(folder / "settings.json")])
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False)
    try:
        deadline = time.monotonic() + 30
        while True:
            with suppress(httpx.HTTPError):
                if client.get("/live").status_code == 200:
                    break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Hop(client, process, folder)
    finally:
        client.close()
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def hop(
    upstream: Upstream, cache: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hop]:
    with hop_process(tmp_path_factory.mktemp("hop"), upstream.port, cache) as found:
        until_cached(found, upstream)
        yield found


def until_cached(hop: Hop, upstream: Upstream) -> None:
    deadline = time.monotonic() + 20
    while [hop.ask(number).headers["x-galley-cache"] for number in [random.random()] * 2] != [
        "miss",
        "hit",
    ]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    upstream.asked.clear()


@pytest.fixture
def number() -> float:
    """A question that nobody has asked yet."""
    return random.random()


def states(*answers: httpx.Response) -> list[str]:
    return [answer.headers["x-galley-cache"] for answer in answers]


def test_the_second_of_two_equal_requests_is_a_hit_and_reaches_no_model(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    first, second = hop.ask(number), hop.ask(number)
    assert states(first, second) == ["miss", "hit"]
    assert first.json() == second.json()
    assert upstream.asked == ["/v2/models/m/versions/1/infer"]
    for answer in (first, second):
        assert answer.headers["x-galley-version"] == "1"
        assert answer.headers["x-galley-digest"] == A


def test_order_spaces_and_id_do_not_matter_and_the_id_is_the_callers(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    [tensor] = question(number)["inputs"]
    turned = {"id": "7", "inputs": [dict(reversed(tensor.items()))]}
    hop.ask(number)
    answer = hop.ask(content=json.dumps(turned, indent=3))
    assert states(answer) == ["hit"]
    assert answer.json()["id"] == "7"
    assert len(upstream.asked) == 1


def test_another_version_is_another_answer_and_flips_need_no_flush(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    old, new = gateway_headers("1", A), gateway_headers("2", B)
    answers = [hop.ask(number, headers=headers) for headers in (old, new) * 3]
    assert states(*answers) == ["miss", "miss", "hit", "hit", "hit", "hit"]
    assert [answer.json()["outputs"] for answer in answers] == [[1], [2]] * 3
    assert upstream.asked == [f"/v2/models/m/versions/{number}/infer" for number in (1, 2)]


def test_clients_share_answers_unless_the_rule_says_otherwise(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    def ask(model: str, client: str) -> httpx.Response:
        return hop.ask(number, model, headers=gateway_headers(client=client))

    shared = [ask("m", client) for client in ("ads", "feed")]
    private = [ask("private", client) for client in ("ads", "feed") * 3]
    assert states(*shared) == ["miss", "hit"]
    assert states(*private) == ["miss", "miss", "hit", "hit", "hit", "hit"]
    assert [answer.json()["outputs"] for answer in private] == [[2], [3]] * 3


def test_json_and_binary_tensors_both_hit_and_never_mix(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    json_, binary = [hop.ask(number) for _ in range(3)], [ask_binary(hop, number) for _ in range(3)]
    assert states(*json_) == states(*binary) == ["miss", "hit", "hit"]
    assert {answer.headers["content-type"] for answer in json_} == {"application/json"}
    for answer in binary:
        assert answer.headers["content-type"] == BINARY
        head, tensor = parts(answer)
        assert head == {"id": "7", "model_name": "m", "outputs": [2]}
        assert struct.unpack("<f", tensor) == (2.0,)
    head, tensor = parts(ask_binary(hop, number, "a longer id"))
    assert (head["id"], tensor) == ("a longer id", struct.pack("<f", 2))
    assert len(upstream.asked) == 2


def ask_binary(hop: Hop, number: float, id_: str = "7") -> httpx.Response:
    raw = struct.pack("<4f", number, 0, 0, 0)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    asked = {
        "id": id_,
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(asked).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": BINARY}
    return hop.ask(content=head + raw, headers=headers)


def parts(answer: httpx.Response) -> tuple[dict[str, Any], bytes]:
    length = int(answer.headers["inference-header-content-length"])
    return json.loads(answer.content[:length]), answer.content[length:]


def test_what_was_asked_before_is_computed_anew_once_its_answer_is_gone(
    hop: Hop, cache: Server, upstream: Upstream, number: float
) -> None:
    body = json.dumps(question(number))
    before = [hop.ask(content=body) for _ in range(3)]
    with cache.client() as admin:
        admin.flushall()
    after = [hop.ask(content=body) for _ in range(2)]
    assert states(*before, *after) == ["miss", "hit", "hit", "miss", "hit"]
    assert [answer.json()["outputs"] for answer in after] == [[2], [2]]


def test_a_model_without_a_rule_and_a_client_that_says_so_are_never_answered_from_the_cache(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    answers = [hop.ask(number, "uncached") for _ in range(2)]
    hop.ask(number)
    for control in ("no-store", "max-age=0, no-cache"):
        answers.append(hop.ask(number, headers={"cache-control": control}))
    assert states(*answers) == ["bypass"] * 4
    assert len(upstream.asked) == 5


def test_the_header_that_finds_a_replica_goes_on_and_no_other_one(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    sent = {"x-sequence-id": "s-7", "x-other": "s-8"}
    for model in ("sequence", "uncached"):
        assert hop.ask(number, model, headers=sent).status_code == 200
    with_it, without = upstream.heads[-2:]
    assert "x-sequence-id: s-7\r\n" in with_it
    assert "x-other" not in with_it
    assert "x-sequence-id" not in without


@pytest.mark.parametrize("status", [400, 429, 500, 503, 504])
def test_errors_pass_and_are_not_kept(
    hop: Hop, upstream: Upstream, number: float, status: int
) -> None:
    upstream.status = status
    assert hop.ask(number).status_code == status
    upstream.status = 200
    assert hop.ask(number).status_code == 200
    assert states(hop.ask(number)) == ["hit"]


def test_an_answer_that_breaks_off_is_an_error_and_not_kept(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    upstream.broken = True
    assert hop.ask(number).status_code == 502
    upstream.broken = False
    assert states(hop.ask(number)) == ["miss"]


def test_a_model_that_is_too_slow_is_given_up_at_its_time(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    upstream.seconds = 2.5
    answer = hop.ask(number)
    assert answer.status_code == 504
    assert "in time" in answer.json()["error"]


def test_many_equal_requests_at_once_ask_the_model_once(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    upstream.seconds = 0.3
    before = hop.metric("galley_predictions_total")
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: hop.ask(number), range(64)))
    assert hop.metric("galley_predictions_total") == before + 64
    assert hop.metric("galley_prediction_in_flight") == 0
    assert {answer.text for answer in answers} == {answers[0].text}
    assert sorted(states(*answers))[-1] == "miss"
    assert len(upstream.asked) == 1


def test_a_client_that_leaves_takes_no_answer_from_those_who_wait_with_it(
    hop: Hop, upstream: Upstream, number: float
) -> None:
    upstream.seconds = 0.5
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(httpx.ReadTimeout):
            hop.ask(number, timeout=0.1)
        assert pool.submit(hop.ask, number).result().status_code == 200
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"content": b"{"}, 400),
        ({"content": json.dumps({"inputs": []})}, 400),
        ({"headers": {"content-encoding": "gzip"}}, 415),
        ({"content": iter([b"{}"])}, 411),
        ({"headers": {"x-galley-digest": "sha256:other"}}, 503),
        ({"model": "nonesuch"}, 503),
        ({"headers": {"x-galley-version": "1/../2"}}, 503),
    ],
    ids=[
        *("no JSON", "no inputs", "compressed", "no length", "unknown digest", "unknown model"),
        "no version",
    ],
)
def test_what_cannot_be_answered_is_told_as_json_and_reaches_no_model(
    hop: Hop, upstream: Upstream, settings: dict[str, Any], status: int
) -> None:
    answer = hop.ask(**settings)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert states(answer) == ["bypass"]
    assert upstream.asked == []


def test_a_body_that_breaks_off_is_the_clients_fault_and_holds_nothing_up(hop: Hop) -> None:
    failures, refusals = hop.metric("galley_hop_failures"), hop.metric("galley_refusals_total")
    headers = {"host": "hop", "content-length": "100000", **gateway_headers()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    url = hop.client.base_url
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(f"POST /v2/models/m/infer HTTP/1.1\r\n{lines}\r\n{{".encode())
        until(lambda: hop.metric("galley_request_bytes_held") == 100_000)
    until(lambda: hop.metric("galley_request_bytes_held") == 0)
    until(lambda: hop.metric("galley_refusals_total") == refusals + 1)
    assert hop.metric("galley_hop_failures") == failures


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_other_paths_lead_nowhere_and_make_no_series(hop: Hop) -> None:
    paths = [f"/v2/models/random-{n}/infer" for n in range(20)] + ["/", "/v2/models/a/b/infer"]
    before = hop.metric("galley_unserved_total")
    for path in paths:
        assert hop.client.post(path, content=b"{}").status_code in (404, 503)
    assert "random-" not in hop.client.get("/metrics").text
    assert hop.metric("galley_unserved_total") == before + 20


def test_a_table_that_changes_is_seen_by_the_next_request_for_what_is_new(
    hop: Hop, number: float
) -> None:
    new = "sha256:" + "c" * 64
    headers = gateway_headers("3", new)
    assert hop.ask(number, headers=headers).status_code == 503
    path = hop.folder / "table.json"
    changed = path.with_suffix(".new")
    changed.write_bytes(encode_table((*TABLE, replace(MODEL, version=3, digest=new))))
    changed.replace(path)
    assert hop.ask(number, headers=headers).status_code == 200


@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_whatever_happens_to_the_cache_every_request_is_answered(
    hop: Hop, cache: Server, upstream: Upstream, fault: str
) -> None:
    before = hop.metric("galley_cache_faults_total")
    if fault == "frozen":
        with cache.frozen():
            answers = [hop.ask(random.random()) for _ in range(50)]
    else:
        cache.kill()
        answers = [hop.ask(random.random()) for _ in range(50)]
        cache.start()
    assert [answer.status_code for answer in answers] == [200] * 50
    assert "bypass" in states(*answers)
    assert hop.metric("galley_cache_faults_total") > before
    until_cached(hop, upstream)


def test_a_hop_without_a_cache_answers(upstream: Upstream, tmp_path: Path) -> None:
    with hop_process(tmp_path, upstream.port, None) as hop:
        assert states(*(hop.ask(0.1) for _ in range(2))) == ["bypass"] * 2


def test_large_bodies_at_once_are_bounded_and_refused_beyond(hop: Hop, upstream: Upstream) -> None:
    body = json.dumps(question(0.1)).encode() + b" " * 4_000_000
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: hop.ask(content=body), range(120)))
    assert {answer.status_code for answer in answers} <= {200, 400, 429}
    # Each is told so, on a connection that stays.
    assert not any(answer.headers.get("connection") == "close" for answer in answers)
    process = psutil.Process(hop.process.pid)
    assert process.memory_info().rss < 300_000_000
    assert hop.metric("galley_request_bytes_held") == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-galley-version": "no number"}, 503),
        ({"content-encoding": "gzip"}, 415),
    ],
)
def test_a_refusal_reaches_whoever_is_still_sending(
    hop: Hop, headers: dict[str, str], status: int
) -> None:
    large = b" " * 8_000_000
    for _ in range(5):
        assert hop.ask(content=large, headers=headers).status_code == status


def test_a_hop_that_is_stopped_finishes_what_it_has_and_closes_its_log(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.seconds = 0.5
    with hop_process(tmp_path, upstream.port, None) as hop, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(hop.ask, 0.1)
        deadline = time.monotonic() + 10
        while not upstream.asked:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(hop.process.pid, signal.SIGTERM)
        assert asked.result().status_code == 200
        assert hop.process.wait(timeout=20) == 0
    [log] = (tmp_path / "log").glob("*.jsonl")
    [line] = map(json.loads, log.read_text().splitlines())
    assert (line["model"], line["status"], line["cache"]) == ("m", 200, "bypass")
    assert line["compute_ms"] >= 400
