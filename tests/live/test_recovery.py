"""A killed server comes back by itself, and costs nobody an answer that it need not cost."""

import os
import signal
import time

import httpx
import psutil
import pytest

from tests.live.conftest import Stack
from tests.live.load import BODY, INFER, Load, constant_load

pytestmark = pytest.mark.live

RECOVERY_SECONDS = 60


def kill(stack: Stack, name: str) -> tuple[int, float]:
    """Kill a server; its pid, and when it was gone."""
    pid = stack.process(name).pid
    assert pid is not None
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    # Not as a zombie: threads of it may still hold its sockets.
    while process.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return pid, time.monotonic()


def wait_until_back(stack: Stack, name: str, old: int) -> None:
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        row = stack.process(name)
        if row.healthy and row.pid not in (None, old):
            return
        assert time.monotonic() < deadline, row
        time.sleep(0.1)


def served_by(stack: Stack) -> dict[str, int]:
    """Successful inferences of the ranker at each replica so far."""
    found = {}
    for name in stack.state.replica_names:
        url = f"http://{stack.state.address(f'{name}-http')}/v2/models/ranker/stats"
        stats = httpx.get(url, trust_env=False).json()["model_stats"]
        found[name] = sum(int(each["inference_stats"]["success"]["count"]) for each in stats)
    return found


def wait_until_in_rotation(stack: Stack, load: Load) -> None:
    """Wait until every replica answers requests of the load."""
    before = served_by(stack)
    deadline = time.monotonic() + RECOVERY_SECONDS
    while not all(count > before[name] + 10 for name, count in served_by(stack).items()):
        assert time.monotonic() < deadline, (before, served_by(stack))
        load.wait_for(10)


@pytest.mark.parametrize("name", ["triton-0", "triton-1"])
def test_with_one_triton_dead_no_request_fails_that_had_not_started_and_it_comes_back(
    stack: Stack, name: str
) -> None:
    with constant_load(stack.client, INFER, BODY) as load:
        # Two dead at once are another matter.
        wait_until_in_rotation(stack, load)
        old, dead = kill(stack, name)
        wait_until_back(stack, name, old)
        wait_until_in_rotation(stack, load)
    late = [sample for sample in load.failed if sample.start > dead]
    assert not late, (dead, late[:2], late[-2:])
    # What it was working on when it was killed may be lost: one request a client at most.
    assert len(load.failed) <= 4, load.failed
    assert {sample.status for sample in load.failed} <= {503}, load.failed


@pytest.mark.parametrize("name", ["seaweedfs", "valkey"])
def test_without_store_or_cache_requests_are_answered_all_the_same(stack: Stack, name: str) -> None:
    with constant_load(stack.client, INFER, BODY) as load:
        old, _ = kill(stack, name)
        load.wait_for(100)
        wait_until_back(stack, name, old)
    assert load.failed == []


def test_a_killed_gateway_comes_back_on_its_port_with_its_routes(stack: Stack) -> None:
    port = stack.state.ports["gateway"]
    with constant_load(stack.client, INFER, BODY) as load:
        old, _ = kill(stack, "envoy")
        wait_until_back(stack, "envoy", old)
        load.wait_for(100)
    assert stack.state.ports["gateway"] == port
    assert [model["model"] for model in stack.json("status")["models"]] == ["filetype", "ranker"]


def test_a_triton_that_dies_while_the_store_is_down_comes_back_from_its_own_copy(
    stack: Stack,
) -> None:
    store = stack.process("seaweedfs").pid
    assert store is not None
    os.kill(store, signal.SIGSTOP)
    try:
        with constant_load(stack.client, INFER, BODY) as load:
            wait_until_in_rotation(stack, load)
            old, dead = kill(stack, "triton-1")
            wait_until_back(stack, "triton-1", old)
            wait_until_in_rotation(stack, load)
        assert [sample for sample in load.failed if sample.start > dead] == []
    finally:
        os.kill(store, signal.SIGCONT)


def test_published_versions_survive_a_killed_store(stack: Stack) -> None:
    before = stack.json("versions", "ranker")
    old, _ = kill(stack, "seaweedfs")
    wait_until_back(stack, "seaweedfs", old)
    assert stack.json("versions", "ranker") == before
