"""What is started: on loopback alone, each port once, nothing reported to anybody."""

import re
from pathlib import Path

import pytest

from serving.gateway.envoy import render_bootstrap
from serving.local.engines import Engines
from serving.local.gateway import empty_gateway
from serving.local.home import Home, Secrets, State
from serving.local.prediction import hop_settings
from serving.local.processes import (
    PORTS,
    Process,
    plan_processes,
    port_names,
    s3_identities,
    valkey_conf,
)
from serving.local.replica import triton_command
from serving.local.supervisor import render_conf


@pytest.fixture
def processes(home: Home, state: State, engines: Engines) -> dict[str, Process]:
    return {process.name: process for process in plan_processes(home, state, engines)}


@pytest.fixture
def words(
    home: Home, state: State, engines: Engines, secrets: Secrets, processes: dict[str, Process]
) -> dict[str, str]:
    """All that each process, the supervisor included, is told about where to listen."""
    texts = {name: "\n".join(process.command) for name, process in processes.items()}
    for name in state.replica_names:
        command, _ = triton_command(home, state, engines, name, ("ranker",))
        texts[name] += "\n" + "\n".join(command)
    # These learn their ports from files; those of their servers are no listeners of their own.
    texts["envoy"] += "\n" + render_bootstrap(empty_gateway(state), home.xds)
    texts["valkey"] += "\n" + valkey_conf(state, secrets)
    for name in state.hop_names:
        asked = hop_settings(home, state, secrets, name)
        texts[name] += f"\n{asked['host']} {asked['port']}"
    texts["supervisord"] = render_conf(home, state, secrets, ())
    return texts


def test_servers_start_in_the_order_of_who_needs_whom(processes: dict[str, Process]) -> None:
    assert list(processes) == [
        *("seaweedfs", "valkey", "shipper", "triton-0", "triton-1"),
        *("prediction-0", "prediction-1", "envoy"),
    ]


def test_there_are_as_many_tritons_as_replicas(home: Home, state: State, engines: Engines) -> None:
    for replicas in (1, 3):
        ports = {name: 20_000 + place for place, name in enumerate(port_names(replicas))}
        changed = state.model_copy(update={"replicas": replicas, "ports": ports})
        names = [process.name for process in plan_processes(home, changed, engines)]
        assert [name for name in names if name.startswith("triton")] == [
            f"triton-{number}" for number in range(replicas)
        ]


def test_every_port_of_the_stack_is_used_by_exactly_one_process(
    words: dict[str, str], state: State
) -> None:
    users = {
        name: [process for process, text in words.items() if re.search(rf"\b{port}\b", text)]
        for name, port in state.ports.items()
    }
    assert {name: len(found) for name, found in users.items()} == dict.fromkeys(state.ports, 1)
    assert users["gateway"] == users["envoy-admin"] == ["envoy"]
    assert users["supervisor"] == ["supervisord"]
    assert users["triton-1-grpc"] == ["triton-1"]
    assert users["filer-grpc"] == ["seaweedfs"]


def test_clients_of_a_process_use_a_port_of_its_own(
    processes: dict[str, Process], state: State
) -> None:
    ports = {name: process.port for name, process in processes.items()}
    assert ports == {
        "seaweedfs": state.ports["s3"],
        "valkey": state.ports["valkey"],
        "shipper": None,
        "triton-0": state.ports["triton-0-http"],
        "triton-1": state.ports["triton-1-http"],
        "prediction-0": state.ports["prediction-0"],
        "prediction-1": state.ports["prediction-1"],
        "envoy": state.ports["gateway"],
    }


def test_every_server_is_told_to_listen_on_loopback_and_none_on_everything(
    words: dict[str, str],
    processes: dict[str, Process],
) -> None:
    for name, text in words.items():
        assert not re.search(r"0\.0\.0\.0|\[?::\]?(?!\w)|localhost|=\*|port=:", text), name
        assert "127.0.0.1" in text or processes[name].port is None, name
    assert "-ip.bind=127.0.0.1" in words["seaweedfs"]
    assert "bind 127.0.0.1\n" in words["valkey"]
    for kind in ("http", "grpc", "metrics"):
        assert f"--{kind}-address=127.0.0.1" in words["triton-0"]
    assert re.search(r"\nport = 127\.0\.0\.1:\d+\n", words["supervisord"])
    assert words["envoy"].count('"address": "127.0.0.1"') == 3  # clients, hops, administration


def test_the_object_store_reports_nothing_to_its_makers_and_opens_no_other_service(
    processes: dict[str, Process],
) -> None:
    command = processes["seaweedfs"].command
    assert "-master.telemetry=false" in command
    assert {"-s3.port.iceberg=0", "-s3.port.lance=0"} <= set(command)


def test_the_object_store_names_every_port_since_it_would_add_10000_to_find_others(
    processes: dict[str, Process],
) -> None:
    named = {word.split("=")[0] for word in processes["seaweedfs"].command if ".port" in word}
    assert named >= {
        f"-{part}.port{kind}"
        for part in ("s3", "master", "volume", "filer")
        for kind in ("", ".grpc")
    }


def test_the_object_stores_folder_is_one_even_with_a_comma_in_the_home(
    state: State, engines: Engines
) -> None:
    seaweedfs = plan_processes(Home(Path("/a,b")), state, engines)[0]
    assert [word for word in seaweedfs.command if word.startswith("-dir=")] == ["-dir=store"]


def test_the_cache_writes_nothing_to_disk_and_has_an_end(state: State, secrets: Secrets) -> None:
    lines = valkey_conf(state, secrets).splitlines()
    assert {'save ""', "appendonly no", "maxmemory 64mb", "maxmemory-policy allkeys-lru"} <= {
        *lines
    }


def test_the_cache_knows_passwords_by_their_hashes_and_lets_nobody_else_in(
    state: State, secrets: Secrets
) -> None:
    text = valkey_conf(state, secrets)
    assert not any(hidden in text for hidden in secrets.model_dump().values())
    users = [line for line in text.splitlines() if line.startswith("user ")]
    assert users[0] == "user default off"
    assert all("-@all" in user and "allkeys" not in user for user in users[1:])


def test_a_replica_is_told_where_its_stack_and_its_servers_are(
    processes: dict[str, Process], home: Home
) -> None:
    assert processes["triton-1"].environment == {
        "GALLEY_HOME": str(home.root),
        "GALLEY_ENGINES": "/engines",
    }
    assert processes["triton-1"].command[1:] == ("-m", "serving.local.replica", "triton-1")


def test_a_replica_is_stopped_later_than_it_takes_to_finish_requests(
    home: Home, state: State, engines: Engines, processes: dict[str, Process]
) -> None:
    command, _ = triton_command(home, state, engines, "triton-0", ())
    exit_seconds = next(
        int(word.split("=")[1]) for word in command if word.startswith("--exit-timeout-secs=")
    )
    assert processes["triton-0"].stop_wait_seconds > exit_seconds


def test_the_same_stack_gives_the_same_plan_and_leaves_nothing_on_disk(
    home: Home, state: State, engines: Engines
) -> None:
    assert plan_processes(home, state, engines) == plan_processes(home, state, engines)
    assert not home.root.exists()


def test_no_secret_is_on_a_command_line_or_in_an_environment(
    home: Home, state: State, engines: Engines, secrets: Secrets, processes: dict[str, Process]
) -> None:
    for process in processes.values():
        for hidden in secrets.model_dump().values():
            assert hidden not in repr(process)


def test_the_object_stores_only_user_is_the_stacks_own(secrets: Secrets) -> None:
    text = s3_identities(secrets)
    assert text.count('"accessKey"') == 1
    assert secrets.s3_access_key in text
    assert secrets.s3_secret_key in text
    assert secrets.supervisor_password not in text


def test_every_port_has_its_own_name() -> None:
    names = port_names(3)
    assert len(set(names)) == len(names) == len(PORTS) + 2 + 9
