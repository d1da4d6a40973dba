"""Behind the hops: each version by its path, second attempts where they do no harm, and copies."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serving.gateway.clusters import clusters
from serving.gateway.inner import render_inner
from serving.gateway.routes import Endpoint, Gateway, Limits, Mirror, ModelRoute, Version
from tests.serving.gateway.backend import Backend, backends
from tests.serving.gateway.envoy_process import HTTP, Envoy, gateway_of, running, until
from tests.serving.gateway.models import LIMITS

PATH = "/v2/models/ranker/versions/1/infer"
TRIES = replace(LIMITS, timeout_seconds=5.0, per_try_timeout_seconds=0.5)
ONCE = replace(TRIES, per_try_timeout_seconds=None)


def route(limits: Limits, servers: list[Backend], mirror: Mirror | None = None) -> ModelRoute:
    endpoints = tuple(server.endpoint for server in servers)
    return ModelRoute("ranker", limits, (Version(1, "sha256:a", endpoints),), mirror)


Starter = Callable[[ModelRoute], Envoy]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts an Envoy with one model; it is stopped with the test."""
    with ExitStack() as stack:

        def started(model: ModelRoute) -> Envoy:
            [hop] = stack.enter_context(backends(1))
            gateway = gateway_of([model], [], [hop.endpoint])
            envoy = stack.enter_context(running(gateway, tmp_path))
            envoy.until_healthy("ranker-v1", len(model.main.endpoints))
            return envoy

        yield started


def post(envoy: Envoy, body: bytes = b"x", path: str = PATH) -> httpx.Response:
    url = f"http://127.0.0.1:{envoy.gateway.inner_port}{path}"
    return HTTP.post(url, content=body)


def asked(*servers: Backend, path: str = PATH) -> int:
    return sum(len(server.requests(path)) for server in servers)


# Versions


@pytest.mark.live
def test_a_version_is_reached_by_its_path_alone(start: Starter) -> None:
    with backends(1) as [one]:
        envoy = start(route(TRIES, [one]))
        assert post(envoy).json()["path"] == PATH
        for path in (PATH.replace("/1/", "/2/"), "/v2/models/ranker/infer", "/v2/health/ready"):
            answer = post(envoy, path=path)
            assert (answer.status_code, "not served" in answer.json()["error"]) == (503, True)


# Second attempts


@pytest.mark.live
def test_a_frozen_server_costs_time_and_no_answer(start: Starter) -> None:
    with backends(2) as servers:
        envoy = start(route(TRIES, servers))
        servers[0].frozen.set()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: post(envoy), range(40)))
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["port"] for answer in answers} == {servers[1].server_port}


@pytest.mark.live
def test_a_server_that_refuses_connections_costs_no_answer(tmp_path: Path) -> None:
    with socket.socket() as reserved, backends(1) as [one]:
        reserved.bind(("127.0.0.1", 0))  # and never listens
        dead = Endpoint("127.0.0.1", reserved.getsockname()[1])
        version = Version(1, "sha256:a", (dead, one.endpoint))
        gateway = gateway_of([ModelRoute("ranker", ONCE, (version,))], [], [one.endpoint])
        with running(gateway, tmp_path) as envoy:
            envoy.until_healthy("ranker-v1", 1)
            assert {post(envoy).status_code for _ in range(20)} == {200}


@pytest.mark.live
def test_a_large_request_is_tried_again_as_well(start: Starter) -> None:
    with backends(2) as servers:
        envoy = start(route(TRIES, servers))
        servers[0].frozen.set()
        answers = [post(envoy, b"x" * 3_000_000) for _ in range(4)]
        assert {answer.json()["size"] for answer in answers} == {3_000_000}


@pytest.mark.live
@pytest.mark.parametrize(
    ("body", "status"), [(b"500:{}", 500), (b"503:{}", 503), (b"die:", 503), (b"sleep:1", 200)]
)
def test_what_must_not_run_twice_is_asked_once_whatever_comes_of_it(
    start: Starter, body: bytes, status: int
) -> None:
    with backends(2) as servers:
        envoy = start(route(ONCE, servers))
        assert post(envoy, body).status_code == status
        assert asked(*servers) == 1


@pytest.mark.live
def test_a_server_error_that_a_model_answers_is_the_models_and_is_not_asked_again(
    start: Starter,
) -> None:
    with backends(2) as servers:
        envoy = start(route(TRIES, servers))
        assert post(envoy, b"500:{}").status_code == 500
        assert asked(*servers) == 1


@pytest.mark.live
def test_no_number_of_errors_takes_all_servers_out(start: Starter) -> None:
    with backends(2) as servers:
        envoy = start(route(TRIES, servers))
        for body in (b"500:{}", b"die:", b"503:{}"):
            for _ in range(15):
                post(envoy, body)
        assert post(envoy).status_code == 200


# One replica for a sequence


@pytest.mark.live
def test_requests_with_one_value_of_the_models_header_go_to_one_server(start: Starter) -> None:
    with backends(2) as servers:
        envoy = start(route(replace(ONCE, hash_header="x-sequence-id"), servers))
        url = f"http://127.0.0.1:{envoy.gateway.inner_port}{PATH}"
        found = {
            value: {
                HTTP.post(url, content=b"x", headers={"x-sequence-id": value}).json()["port"]
                for _ in range(5)
            }
            for value in map(str, range(30))
        }
        assert {len(ports) for ports in found.values()} == {1}
        assert set.union(*found.values()) == {server.server_port for server in servers}


# Mirrors


def mirrored(servers: list[Backend], shadow: Endpoint, **settings: float) -> ModelRoute:
    mirror = Mirror(2, "sha256:b", (shadow,), percent=100.0)
    return route(TRIES, servers, replace(mirror, **settings))  # type: ignore[arg-type]


@pytest.mark.live
def test_a_mirror_gets_copies_for_its_own_version_and_its_answers_are_nobodys(
    start: Starter,
) -> None:
    with backends(2) as [one, shadow]:
        envoy = start(mirrored([one], shadow.endpoint))
        shadows = PATH.replace("/1/", "/2/")
        until(lambda: post(envoy).status_code == 200 and asked(shadow, path=shadows) > 0)
        assert post(envoy, b"500:{}").status_code == 500
        assert asked(one) > 0
        assert asked(shadow) == 0  # never under the path of the version that answers
        [*_, headers] = shadow.requests(shadows)
        assert headers["x-galley-shadow"] == "2"


@pytest.mark.live
def test_a_share_of_the_requests_is_copied(start: Starter) -> None:
    with backends(2) as [one, shadow]:
        envoy = start(mirrored([one], shadow.endpoint, percent=20.0, max_in_flight=100))
        envoy.until_healthy("ranker-v2", 1)
        for _ in range(200):
            post(envoy)
        time.sleep(0.5)
        # 40 are expected; 10 to 90 come all but surely.
        assert 10 <= asked(shadow, path=PATH.replace("/1/", "/2/")) <= 90


@contextmanager
def never_reading() -> Iterator[Endpoint]:
    """A server that is healthy, and reads nothing of any request that has a body."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        listener.settimeout(0.1)
        ended, held = threading.Event(), []

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                held.append(connection)
                head = connection.recv(4, socket.MSG_PEEK)
                if head == b"GET ":
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n")
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield Endpoint("127.0.0.1", listener.getsockname()[1])
        finally:
            ended.set()
            thread.join()
            for connection in held:
                connection.close()


@pytest.mark.live
@pytest.mark.parametrize("size", [1_000, 1_000_000, 12_000_000, 20_000_000])
def test_a_mirror_that_reads_nothing_holds_up_no_client(start: Starter, size: int) -> None:
    with backends(1) as [one], never_reading() as stuck:
        # Copied whatever their size, to see that the way itself does no harm.
        envoy = start(mirrored([one], stuck, max_request_bytes=64 * 1024 * 1024))
        envoy.until_healthy("ranker-v2", 1)
        answers = [post(envoy, b"x" * size) for _ in range(12)]
        assert {answer.json()["size"] for answer in answers} == {size}


@pytest.mark.live
def test_stuck_copies_end_and_leave_room_for_others(start: Starter) -> None:
    with backends(1) as [one], never_reading() as stuck:
        envoy = start(mirrored([one], stuck))
        envoy.until_healthy("ranker-v2", 1)
        for _ in range(20):
            post(envoy)
        active = "cluster.ranker-v2-shadow.upstream_rq_active"
        assert 0 < envoy.stat(active) <= 8
        until(lambda: envoy.stat(active) == 0)


@pytest.mark.live
def test_envoy_ends_in_order_while_copies_are_stuck(start: Starter) -> None:
    with backends(1) as [one], never_reading() as stuck:
        envoy = start(mirrored([one], stuck))
        envoy.until_healthy("ranker-v2", 1)
        for _ in range(20):
            post(envoy, b"x" * 500_000)
        assert envoy.stat("cluster.ranker-v2-shadow.upstream_rq_active") > 0
        envoy.process.terminate()
        assert envoy.process.wait(20) == 0


@pytest.mark.live
def test_what_is_too_large_for_the_mirror_is_answered_and_not_copied(start: Starter) -> None:
    with backends(2) as [one, shadow]:
        envoy = start(mirrored([one], shadow.endpoint, max_request_bytes=1000))
        envoy.until_healthy("ranker-v2", 1)
        for size in (1001, 1000):
            assert post(envoy, b"x" * size).json()["size"] == size
        time.sleep(0.5)
        [copy] = shadow.requests(PATH.replace("/1/", "/2/"))
        assert copy["content-length"] == "1000"


def test_a_mirror_whose_version_answers_as_well_is_one_cluster(gateway: Gateway) -> None:
    first = gateway.models[0]
    both = (first.main, Version(2, "sha256:b", first.main.endpoints, weight=5))
    model = replace(first, versions=both, mirror=Mirror(2, "sha256:b", first.main.endpoints, 10))
    names = [cluster.name for cluster in clusters(gateway.with_route(model))]
    assert len(names) == len(set(names))
    assert "filetype-v2-shadow" in names


def test_streams_have_no_inner_route(gateway: Gateway) -> None:
    limits = replace(LIMITS, kind="stream")
    streams = replace(
        gateway, models=tuple(replace(model, limits=limits) for model in gateway.models)
    )
    [host] = render_inner(streams)["virtual_hosts"]
    assert len(host["routes"]) == 1
