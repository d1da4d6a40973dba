"""Envoy takes over what is rendered, and lets nothing through that is not listed there."""

import http.client
import json
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.envoy import (
    ROUTES,
    SERVERS_CLUSTER,
    cluster_name,
    render_bootstrap,
    render_watched,
    version_of,
)
from serving.gateway.routes import Endpoint, Gateway, ModelRoute
from serving.local.engines import find_engines
from serving.local.ports import choose_ports

FOLDER = Path("/galley/xds")
LIMIT_BYTES = 70_000
START_SECONDS = 30.0


@pytest.fixture(scope="module")
def program() -> str:
    """The installed Envoy."""
    return str(find_engines().envoy)


def validate(program: str, bootstrap: Path) -> "subprocess.CompletedProcess[str]":
    command = [program, "--mode", "validate", "-c", str(bootstrap)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def write(gateway: Gateway, folder: Path) -> Path:
    """Envoy's files in `folder`; the one it starts from."""
    for name, text in render_watched(gateway, folder).items():
        (folder / name).write_text(text)
    bootstrap = folder / "bootstrap.yaml"
    bootstrap.write_text(render_bootstrap(gateway, folder))
    return bootstrap


def test_a_gateway_of_two_models_renders_as_recorded(
    gateway: Gateway, golden: Callable[[str, str], None]
) -> None:
    golden("gateway/bootstrap.yaml", render_bootstrap(gateway, FOLDER))
    watched = render_watched(gateway, FOLDER)
    assert list(watched) == [
        "eds-servers.yaml",
        "eds-filetype-v1.yaml",
        "eds-ranker-v12.yaml",
        "cds.yaml",
        "rds.yaml",
    ]
    for name, text in watched.items():
        golden(f"gateway/{name}", text)


def test_the_same_gateway_gives_the_same_bytes(gateway: Gateway) -> None:
    assert render_watched(gateway, FOLDER) == render_watched(gateway, FOLDER)
    assert render_bootstrap(gateway, FOLDER) == render_bootstrap(gateway, FOLDER)


def test_only_files_whose_content_differs_get_another_version(gateway: Gateway) -> None:
    fewer = replace(gateway.models[0], endpoints=gateway.models[0].endpoints[:1])
    before = render_watched(gateway, FOLDER)
    after = render_watched(gateway.with_route(fewer), FOLDER)
    changed = {name for name in before if version_of(before[name]) != version_of(after[name])}
    assert changed == {"eds-filetype-v1.yaml"}


names = st.from_regex(r"a[a1]?(-v[0-9]{1,2}){0,2}", fullmatch=True)
versions = st.integers(1, 120)


@given(names, versions, names, versions)
def test_clusters_have_one_name_exactly_if_they_are_of_one_version_of_one_model(
    model: str, version: int, other_model: str, other_version: int
) -> None:
    here, there = (
        cluster_name(ModelRoute(name, number, "", 1, 1, ()))
        for name, number in ((model, version), (other_model, other_version))
    )
    assert (here == there) is ((model, version) == (other_model, other_version))


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,62}", fullmatch=True), versions)
def test_no_model_takes_the_name_of_the_servers_cluster(model: str, version: int) -> None:
    assert cluster_name(ModelRoute(model, version, "", 1, 1, ())) != SERVERS_CLUSTER


def test_the_version_of_a_file_is_what_yaml_reads_in_it(gateway: Gateway) -> None:
    for text in render_watched(gateway, FOLDER).values():
        assert version_of(text) == yaml.safe_load(text)["version_info"]
        # Digits alone, or digits around an e, would be a number to YAML.
        assert re.fullmatch("v[0-9a-f]{16}", version_of(text))


def test_the_answer_to_an_unknown_path_stays_below_envoys_limit_with_any_number_of_models(
    gateway: Gateway,
) -> None:
    models = tuple(
        replace(gateway.models[0], model=f"m{number:03}".ljust(63, "x")) for number in range(60)
    )
    rules = yaml.safe_load(render_watched(replace(gateway, models=models), FOLDER)["rds.yaml"])
    last = rules["resources"][0]["virtual_hosts"][0]["routes"][-1]
    answer = last["direct_response"]["body"]["inline_string"]
    assert len(answer) <= 4096
    assert answer.endswith(" and 10 more")


def test_a_gateway_without_models_says_that_it_has_none(gateway: Gateway) -> None:
    rules = yaml.safe_load(render_watched(replace(gateway, models=()), FOLDER)["rds.yaml"])
    last = rules["resources"][0]["virtual_hosts"][0]["routes"][-1]
    assert last["direct_response"]["body"]["inline_string"].endswith("models: none")


def test_envoy_accepts_its_start_up_file(program: str, gateway: Gateway, tmp_path: Path) -> None:
    folder = tmp_path / "a folder: 100% #1 'quoted'"
    folder.mkdir()
    done = validate(program, write(gateway, folder))
    assert done.returncode == 0, done.stderr


def test_envoy_does_refuse_a_start_up_file_with_an_unknown_key(
    program: str, gateway: Gateway, tmp_path: Path
) -> None:
    bootstrap = write(gateway, tmp_path)
    bootstrap.write_text(bootstrap.read_text().replace("merge_slashes", "merge_all_slashes"))
    done = validate(program, bootstrap)
    assert done.returncode != 0
    assert "merge_all_slashes" in done.stderr


class Backend(BaseHTTPRequestHandler):
    """A model server: answers with what has reached it, or fails with the words it is sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, {"path": self.path})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, _, words = body.partition(b":")
        if status in (b"400", b"500"):
            self.reply(int(status), words)
        else:
            self.answer(200, {"path": self.path, "size": len(body)})

    def answer(self, status: int, value: object) -> None:
        self.reply(status, json.dumps(value).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at what comes back."""


@pytest.fixture(scope="module")
def backend() -> Iterator[Endpoint]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Endpoint("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Reply:
    """What a client gets."""

    status: int
    headers: dict[str, str]
    json: Any


@dataclass(frozen=True)
class Envoy:
    """A running Envoy with its files."""

    gateway: Gateway
    folder: Path

    def stats(self, pattern: str) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.gateway.admin_port}/stats"
        text = httpx.get(url, params={"filter": pattern}, trust_env=False).text
        return dict(line.split(": ", 1) for line in text.splitlines())

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        chunked: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request, its path sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=20)
        try:
            connection.request(
                method,
                path,
                iter([body or b""]) if chunked else body,
                headers or {},
                encode_chunked=chunked,
            )
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, json.loads(response.read()))
        finally:
            connection.close()


@pytest.fixture(scope="module")
def envoy(
    program: str, backend: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Envoy]:
    folder = tmp_path_factory.mktemp("an envoy's files: 100% #1")
    ports = choose_ports(("gateway", "admin"), {}, random.Random())
    gateway = Gateway(
        ports["gateway"],
        ports["admin"],
        servers=(backend,),
        models=(
            ModelRoute("filetype", 1, "sha256:" + "a" * 64, 200_000, 30.0, (backend,)),
            ModelRoute("idle", 4, "sha256:" + "c" * 64, LIMIT_BYTES, 30.0, ()),
            ModelRoute("ranker", 12, "sha256:" + "b" * 64, LIMIT_BYTES, 30.0, (backend,)),
        ),
    )
    command = [program, "-c", str(write(gateway, folder)), "--disable-hot-restart"]
    command += ["--concurrency", "1", "--log-level", "warning"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until_live(gateway.admin_port, process, folder / "log")
            yield Envoy(gateway, folder)
        finally:
            process.kill()
            process.wait()


def wait_until_live(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            url = f"http://127.0.0.1:{port}/server_info"
            if httpx.get(url, trust_env=False).json()["state"] == "LIVE":
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"Envoy did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


@pytest.mark.live
def test_a_live_envoy_has_taken_over_every_file_and_rejected_none(envoy: Envoy) -> None:
    files = render_watched(envoy.gateway, envoy.folder)
    expected = {
        f"http.gateway.rds.{ROUTES}.version_text": files["rds.yaml"],
        "cluster_manager.cds.version_text": files["cds.yaml"],
    } | {
        f"cluster.{name}.version_text": files[f"eds-{name}.yaml"]
        for name in ("servers", "filetype-v1", "idle-v4", "ranker-v12")
    }
    assert envoy.stats("version_text$") == {
        name: f'"{version_of(text)}"' for name, text in expected.items()
    }
    rejected = envoy.stats("update_rejected$")
    assert len(rejected) == len(expected)
    assert set(rejected.values()) == {"0"}


@pytest.mark.live
@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/v2", "/v2"),
        ("/v2/health/live", "/v2/health/live"),
        ("/v2/health/ready", "/v2/health/ready"),
        ("/v2/models/ranker", "/v2/models/ranker/versions/12"),
        ("/v2/models/ranker?x=1", "/v2/models/ranker/versions/12?x=1"),
        ("/v2/models/ranker/ready", "/v2/models/ranker/versions/12/ready"),
        ("/v2/models/x/../ranker", "/v2/models/ranker/versions/12"),
    ],
)
def test_what_is_listed_reaches_the_released_version(envoy: Envoy, path: str, reached: str) -> None:
    reply = envoy.send("GET", path)
    assert (reply.status, reply.json) == (200, {"path": reached})


@pytest.mark.live
def test_an_answer_says_which_version_gave_it(envoy: Envoy) -> None:
    headers = envoy.send("POST", "/v2/models/ranker/infer", b"x").headers
    assert headers["x-galley-version"] == "12"
    assert headers["x-galley-digest"] == "sha256:" + "b" * 64


@pytest.mark.live
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metrics",
        "/v2/",
        "/V2/models/ranker",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/stats",
        "/v2/repository/index",
        "/v2/repository/models/ranker/load",
        "/v2/repository/models/ranker/unload",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/x/register",
        "/v2/models/nobody",
        "/v2/models/nobody/infer",
        "/v2/models/ranker/",
        "/v2/models/ranker/stats",
        "/v2/models/ranker/config",
        "/v2/models/ranker/generate",
        "/v2/models/ranker/trace/setting",
        "/v2/models/ranker/versions/11/infer",
        "/v2/models/ranker/versions/12/stats",
        "/v2/models/ranker;x/infer",
        "/v2\\repository\\index",
        "/v2/models/../repository/index",
        "/v2/models/ranker/../../repository/models/ranker/unload",
        "/v2/models/ranker/%2e%2e/%2e%2e/repository/index",
        "//metrics",
    ],
)
def test_a_path_outside_the_list_is_not_found_with_any_method(
    envoy: Envoy, method: str, path: str
) -> None:
    reply = envoy.send(method, path, b"{}" if method in ("POST", "PUT") else None)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    assert reply.json == {
        "error": "no such path or model at this gateway; models: filetype, idle, ranker"
    }


@pytest.mark.live
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v2/models/ranker"), ("GET", "/v2/models/ranker/infer"), ("DELETE", "/v2")],
)
def test_a_listed_path_is_found_with_its_own_method_alone(
    envoy: Envoy, method: str, path: str
) -> None:
    assert envoy.send(method, path).status == 404


@pytest.mark.live
@pytest.mark.parametrize(
    "path",
    [
        "/v2/models%2franker",
        "/v2/models/ranker%2Finfer",
        "/v2/models/ranker/..%2f..%2frepository%2findex",
        "/v2/models/ranker%5cinfer",
        "/v2/models/ranker%00",
        "/v2/models/ranker#infer",
    ],
)
def test_an_encoded_slash_is_refused_and_never_decoded(envoy: Envoy, path: str) -> None:
    reply = envoy.send("GET", path)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert reply.json == {"error": "the gateway refuses the request: path_normalization_failed"}


@pytest.mark.live
def test_a_header_that_a_server_could_take_for_another_is_refused(envoy: Envoy) -> None:
    reply = envoy.send("GET", "/v2", headers={"inference_header_content_length": "1"})
    assert reply.status == 400
    assert "unexpected_underscore" in reply.json["error"]


@pytest.mark.live
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size_bytes", [LIMIT_BYTES - 1, LIMIT_BYTES])
def test_a_body_up_to_the_limit_reaches_the_model_server(
    envoy: Envoy, size_bytes: int, chunked: bool
) -> None:
    reply = envoy.send("POST", "/v2/models/ranker/infer", b"x" * size_bytes, chunked=chunked)
    assert (reply.status, reply.json["size"]) == (200, size_bytes)


@pytest.mark.live
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_one_byte_over_the_limit_is_refused_with_the_limit(
    envoy: Envoy, chunked: bool
) -> None:
    body = b"x" * (LIMIT_BYTES + 1)
    reply = envoy.send("POST", "/v2/models/ranker/infer", body, chunked=chunked)
    assert (reply.status, reply.headers["content-type"]) == (413, "application/json")
    assert reply.json == {
        "error": f"request body is larger than the {LIMIT_BYTES} bytes that a full batch needs"
    }


@pytest.mark.live
def test_each_model_has_its_own_limit(envoy: Envoy) -> None:
    body = b"x" * (LIMIT_BYTES + 1)
    assert envoy.send("POST", "/v2/models/filetype/infer", body).json["size"] == len(body)


@pytest.mark.live
def test_a_model_without_a_server_is_told_as_json(envoy: Envoy) -> None:
    reply = envoy.send("POST", "/v2/models/idle/infer", b"x")
    assert (reply.status, reply.headers["content-type"]) == (503, "application/json")
    assert reply.json == {"error": "no healthy upstream"}


@pytest.mark.live
@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("length", [10, 60_000])
def test_what_the_model_server_says_of_an_error_passes_unchanged(
    envoy: Envoy, status: int, length: int
) -> None:
    said = {"error": "its own words".ljust(length, "!")}
    body = f"{status}:{json.dumps(said)}".encode()
    reply = envoy.send("POST", "/v2/models/ranker/infer", body)
    assert (reply.status, reply.json) == (status, said)


@pytest.mark.live
@pytest.mark.parametrize(
    "words",
    [
        "failed to parse the request JSON buffer: Invalid value. at 0",
        "Unable to parse 'inputs': attempt to access JSON non-object as object",
        "failed to get request params: unknown",
    ],
)
def test_a_client_error_that_triton_calls_its_own_becomes_the_clients(
    envoy: Envoy, words: str
) -> None:
    # Without the space that Python would write: as Triton writes it.
    body = b"500:" + json.dumps({"error": words}, separators=(",", ":")).encode()
    reply = envoy.send("POST", "/v2/models/ranker/infer", body)
    assert (reply.status, reply.json) == (400, {"error": words})
