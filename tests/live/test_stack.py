"""The stack starts, is what it says, stops, and leaves nothing."""

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from serving.environments import LOCAL, local_store
from serving.gateway.prediction.shipping import read_predictions
from serving.local.replica import SHARED_MEMORY
from serving.local.stack import last_lines
from serving.local.supervisor import Supervisor
from tests.live.conftest import Stack
from tests.live.load import BODY, INFER

pytestmark = pytest.mark.live

MOST_IDLE_BYTES = 1_200_000_000


def members(stack_id: str) -> list[psutil.Process]:
    """Every process that was started by this stack."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GALLEY_STACK_ID") == stack_id:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_status_lists_every_process_with_pid_port_version_and_health(stack: Stack) -> None:
    report = stack.json("status")
    rows = {row["name"]: row for row in report["processes"]}
    assert list(rows) == [
        *("supervisord", "seaweedfs", "valkey", "shipper", "triton-0", "triton-1"),
        *("prediction-0", "prediction-1", "envoy"),
    ]
    for row in rows.values():
        assert row["healthy"]
        assert row["version"]
        assert psutil.Process(row["pid"]).environ()["GALLEY_STACK_ID"] == stack.state.stack_id
        if row["name"] != "shipper":
            socket.create_connection(("127.0.0.1", row["port"])).close()
    assert rows["triton-0"]["version"] == "2.51.0"
    assert rows["envoy"]["version"] == "1.40.0"
    served = [(model["model"], model["version"], model["replicas"]) for model in report["models"]]
    assert served == [("filetype", 1, 2), ("ranker", 1, 2)]


def test_every_socket_of_the_stack_listens_on_loopback_alone(stack: Stack) -> None:
    listening = [
        connection.laddr
        for process in members(stack.state.stack_id)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    # Go listens on ::ffff:127.0.0.1, which is the same address.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == set(stack.state.ports.values())


def test_model_processes_hold_no_socket_of_their_triton(stack: Stack) -> None:
    # They are started while Triton serves, and would keep its connections open after its death.
    for name in stack.state.replica_names:
        models = psutil.Process(stack.process(name).pid).children(recursive=True)
        assert len(models) >= 3
        assert [model.net_connections("inet") for model in models] == [[] for _ in models]


def test_the_idle_stack_with_both_models_stays_below_its_memory_budget(stack: Stack) -> None:
    report = stack.json("status")
    assert report["memory_bytes"] == sum(row["memory_bytes"] for row in report["processes"])
    assert 0 < report["memory_bytes"] < MOST_IDLE_BYTES
    assert all(row["memory_bytes"] > 0 for row in report["processes"])


def test_secrets_are_readable_by_their_owner_alone_and_shown_nowhere(stack: Stack) -> None:
    secrets = stack.home.secrets()
    shown = stack.galley("status", "--json").stdout + stack.galley("logs").stdout
    for path in stack.home.root.rglob("*"):
        if not path.is_file() or path.is_relative_to(stack.home.store):
            continue
        text = path.read_bytes()
        holds = any(hidden.encode() in text for hidden in secrets.model_dump().values())
        assert not holds or path.stat().st_mode & 0o077 == 0, path
    assert not any(hidden in shown for hidden in secrets.model_dump().values())


def test_logs_show_one_process_or_all_and_refuse_an_unknown_name(stack: Stack) -> None:
    assert "Started HTTPService" in stack.galley("logs", "triton-0", "-n", "500").stdout
    assert set(stack.json("logs")) >= {"envoy", "seaweedfs", "triton-0", "triton-1", "valkey"}
    done = stack.galley("logs", "nginx", check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_second_up_says_that_one_is_running_and_changes_nothing(stack: Stack) -> None:
    before = stack.json("status")["processes"]
    done = stack.galley("up")
    assert "running already" in done.stdout
    assert [row["pid"] for row in before] == [
        row["pid"] for row in stack.json("status")["processes"]
    ]


def test_two_stacks_run_side_by_side_and_down_leaves_nothing_of_one(
    stack: Stack, fresh_stack: Callable[[], Stack]
) -> None:
    second = fresh_stack()
    second.galley("up", "--replicas", "1")
    second.galley("push", "ranker")
    second.galley("deploy", "ranker")
    state = second.state
    assert not set(state.ports.values()) & set(stack.state.ports.values())
    assert list(SHARED_MEMORY.glob(f"galley-{state.stack_id}-*"))

    temporary = set(Path("/tmp").iterdir())  # noqa: S108 - where servers leave sockets
    second.galley("down")
    assert members(state.stack_id) == []
    assert not second.home.root.exists()
    assert not list(SHARED_MEMORY.glob(f"galley-{state.stack_id}-*"))
    assert not {path for path in set(Path("/tmp").iterdir()) - temporary if "weed" in path.name}  # noqa: S108
    for port in state.ports.values():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    assert "no local stack" in second.galley("down").stdout
    assert stack.json("status")["healthy"]


def test_a_kept_registry_is_served_again_by_the_next_up(fresh_stack: Callable[[], Stack]) -> None:
    stack = fresh_stack()
    stack.galley("up", "--replicas", "1")
    stack.galley("push", "ranker")
    stack.galley("deploy", "ranker")
    digest = stack.json("show", "ranker", "1")["digest"]
    asked = stack.ask("POST", INFER, json=BODY).headers["x-request-id"]
    stack.galley("down", "--keep-registry")
    assert [path.name for path in stack.home.root.iterdir()] == ["store"]
    assert stack.json("up")["models"] == {"ranker": 1}
    assert stack.json("status")["models"] == [
        {"model": "ranker", "version": 1, "digest": digest, "replicas": 2}
    ]
    # What was answered last was shipped on the way down.
    now = datetime.now(UTC)
    with local_store(stack.home) as store:
        lines = list(read_predictions(store, LOCAL, "ranker", now - timedelta(hours=1), now))
    assert asked in {line["request_id"] for line in lines}
    stack.galley("down")


def test_a_taken_gateway_port_is_refused_before_anything_starts(
    fresh_stack: Callable[[], Stack],
) -> None:
    stack = fresh_stack()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = stack.galley("up", "--gateway-port", str(port), check=False)
    assert done.returncode == 2
    assert f"gateway={port} is taken" in done.stderr
    assert not stack.home.root.exists()


def test_an_up_that_fails_names_the_process_and_leaves_nothing(
    fresh_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    stack = fresh_stack()
    engines = tmp_path / "engines"
    engines.mkdir()
    source = Path(os.environ.get("GALLEY_ENGINES", Path(__file__).parents[2] / ".engines"))
    for path in source.rglob("*"):
        target = engines / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        elif path.name == "envoy" and path.parent.name == "_bin":
            target.write_text("#!/bin/sh\necho the disk ate my binary\nexit 3\n")
            target.chmod(0o755)
        else:
            target.symlink_to(path.resolve() if path.name != "python" else path)
    done = stack.galley("up", check=False, GALLEY_ENGINES=str(engines))
    assert done.returncode == 5
    assert "envoy did not become healthy" in done.stderr
    assert "the disk ate my binary" in done.stderr
    assert not stack.home.root.exists()


def test_leftovers_of_a_killed_supervisor_are_swept_by_the_next_up(
    fresh_stack: Callable[[], Stack],
) -> None:
    stack = fresh_stack()
    stack.galley("up", "--replicas", "1")
    old = stack.state.stack_id
    psutil.Process(stack.process("supervisord").pid).kill()
    orphans = members(old)
    assert orphans
    stack.galley("up", "--replicas", "1")
    psutil.wait_procs(orphans, timeout=10)
    assert members(old) == []
    assert stack.json("status")["healthy"]
    stack.galley("down")


def test_a_stopped_supervisor_does_not_hold_up_down(fresh_stack: Callable[[], Stack]) -> None:
    stack = fresh_stack()
    stack.galley("up", "--replicas", "1")
    stack_id = stack.state.stack_id
    psutil.Process(stack.process("supervisord").pid).suspend()
    stack.galley("down")
    assert members(stack_id) == []
    assert not stack.home.root.exists()


def test_the_newest_lines_of_a_log_are_found_without_reading_it_whole(stack: Stack) -> None:
    assert len(last_lines(stack.home, "seaweedfs", 3).splitlines()) == 3


def test_a_folder_that_holds_anything_else_is_neither_used_nor_removed(
    fresh_stack: Callable[[], Stack],
) -> None:
    stack = fresh_stack()
    stack.home.root.mkdir()
    precious = stack.home.root / "thesis.tex"
    precious.write_text("years of work")
    for command in ("up", "down"):
        done = stack.galley(command, check=False)
        assert (done.returncode, "thesis.tex" in done.stderr) == (2, True)
    assert [path.name for path in stack.home.root.iterdir()] == ["thesis.tex"]
    precious.unlink()


def test_a_shipper_that_does_not_run_is_not_called_healthy(
    fresh_stack: Callable[[], Stack],
) -> None:
    stack = fresh_stack()
    stack.galley("up", "--replicas", "1")
    supervisor = Supervisor(stack.home, stack.state, stack.home.secrets())
    supervisor._call("supervisor.stopProcess", "shipper")
    assert not stack.process("shipper").healthy
    assert stack.galley("status", check=False).returncode == 1
    stack.galley("down")
