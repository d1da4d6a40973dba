"""What supervisord reads is what was planned, whatever the user's folders are called."""

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from serving.errors import StackError
from serving.local.engines import Engines
from serving.local.home import Home, Secrets, State
from serving.local.ports import choose_ports
from serving.local.processes import Process, plan_processes
from serving.local.supervisor import STACK_ID, Supervisor, render_conf

FOLDERS = [
    "plain",
    "with spaces  in it",
    "100% done %(here)s %d %%",
    "it's",
    'the "quoted" one',
    "both ' and \"",
    "my #1 ;home ; # x",
    "a,b=c:d[e]",
    "$HOME `id` \\n \\",
    "größe 日本\u3000#2",
    "~",
]
WAIT_SECONDS = 20.0


def eventually(happens: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := happens()):
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.05)
    return found


@pytest.fixture(params=FOLDERS)
def odd_home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    home = Home(tmp_path / request.param / "home")
    home.logs.mkdir(parents=True)
    return home


@pytest.fixture
def parsed(
    odd_home: Home,
    state: State,
    secrets: Secrets,
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """The configuration as supervisord's own parser understands it."""
    from supervisor.options import ServerOptions

    odd_home.supervisor_conf.write_text(
        render_conf(odd_home, state, secrets, plan_processes(odd_home, state, engines)),
        encoding="utf-8",
    )
    # As `Supervisor.start` starts it.
    monkeypatch.chdir(odd_home.root)
    options = ServerOptions()
    options.realize(args=["-c", str(odd_home.supervisor_conf)])
    return options


def test_supervisord_reads_every_command_as_it_was_planned(
    parsed: Any, odd_home: Home, state: State, engines: Engines
) -> None:
    planned = plan_processes(odd_home, state, engines)
    read = [group.process_configs[0] for group in parsed.process_group_configs]
    assert [program.name for program in read] == [process.name for process in planned]
    for program, process in zip(read, planned, strict=True):
        variables = [f"{name}={value}" for name, value in process.environment.items()]
        environment = ["/usr/bin/env", *variables] if variables else []
        assert shlex.split(program.command) == [*environment, *process.command]
        assert program.environment == {}


def test_supervisord_keeps_its_files_in_the_home_folder(parsed: Any, odd_home: Home) -> None:
    assert Path(parsed.logfile).absolute() == odd_home.logs / "supervisord.log"
    assert Path(parsed.pidfile).absolute() == odd_home.supervisor_pid
    assert Path(parsed.childlogdir).absolute() == odd_home.logs
    for group in parsed.process_group_configs:
        program = group.process_configs[0]
        assert Path(program.stdout_logfile).absolute() == odd_home.logs / f"{program.name}.log"
        assert program.redirect_stderr
        assert 0 < program.stdout_logfile_maxbytes <= 10 * 2**20
        assert program.stdout_logfile_backups > 0


def test_what_crashes_is_started_again_and_what_is_stopped_takes_its_children_along(
    parsed: Any, odd_home: Home, state: State, engines: Engines
) -> None:
    from supervisor.datatypes import RestartUnconditionally

    planned = plan_processes(odd_home, state, engines)
    for group, process in zip(parsed.process_group_configs, planned, strict=True):
        program = group.process_configs[0]
        assert program.autostart
        assert program.autorestart is RestartUnconditionally
        assert program.startretries >= 10
        assert program.killasgroup
        assert program.stopwaitsecs == process.stop_wait_seconds
        assert program.stopsignal == getattr(signal, f"SIG{process.stop_signal}")


def test_programs_start_in_the_planned_order(parsed: Any) -> None:
    priorities = [group.process_configs[0].priority for group in parsed.process_group_configs]
    assert priorities == sorted(set(priorities))


def test_supervisord_answers_on_loopback_to_its_own_password_alone(
    parsed: Any, state: State, secrets: Secrets
) -> None:
    (server,) = parsed.server_configs
    assert (server["host"], server["port"]) == ("127.0.0.1", state.ports["supervisor"])
    assert (server["username"], server["password"]) == ("galley", secrets.supervisor_password)
    assert parsed.identifier == state.stack_id


class Stranger(BaseHTTPRequestHandler):
    """Some other program on the port: it wants another password."""

    def do_POST(self) -> None:
        self.send_response(401, "Unauthorized")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def stranger(state: State) -> Iterator[State]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        ports = {**state.ports, "supervisor": server.server_port}
        yield state.model_copy(update={"ports": ports})
        server.shutdown()
        thread.join()


def test_another_program_on_the_port_is_not_taken_for_the_stack_and_told_no_password(
    home: Home, stranger: State, secrets: Secrets
) -> None:
    supervisor = Supervisor(home, stranger, secrets)
    assert not supervisor.alive()
    with pytest.raises(StackError, match="supervisord does not answer") as caught:
        supervisor.processes()
    assert secrets.supervisor_password not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_supervisord_that_is_gone_is_told_with_what_starts_it(
    home: Home, state: State, secrets: Secrets
) -> None:
    port = choose_ports(("supervisor",), {}, Random())["supervisor"]
    gone = state.model_copy(update={"ports": {**state.ports, "supervisor": port}})
    with pytest.raises(StackError, match=r"; run: galley up$"):
        Supervisor(home, gone, secrets).processes()


TELL = """
import json, os, pathlib, sys, time
told = {"words": sys.argv[1:], "home": os.environ["GALLEY_HOME"], "cwd": os.getcwd(),
        "stack": os.environ["GALLEY_STACK_ID"], "pid": os.getpid()}
pathlib.Path("told.part").write_text(json.dumps(told))
os.rename("told.part", "told.json")
time.sleep(300)
"""


@pytest.fixture
def running(tmp_path: Path, state: State, secrets: Secrets) -> Iterator[tuple[Home, Supervisor]]:
    """A supervisord that runs one process, which writes down what it was told."""
    home = Home(tmp_path / 'it\'s a "home"; #1, 100% mine')
    home.logs.mkdir(parents=True)
    port = choose_ports(("supervisor",), {}, Random())["supervisor"]
    state = state.model_copy(update={"ports": {**state.ports, "supervisor": port}})
    process = Process(
        name="teller",
        server="Teller",
        command=(sys.executable, "-c", TELL, *FOLDERS),
        port=1,
        environment={"GALLEY_HOME": str(home.root)},
    )
    supervisor = Supervisor(home, state, secrets)
    supervisor.start(render_conf(home, state, secrets, (process,)))
    daemon = psutil.Process(int(home.supervisor_pid.read_text()))
    try:
        yield home, supervisor
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [daemon, *daemon.children(recursive=True)]
            for member in family:
                member.kill()
            psutil.wait_procs(family, timeout=WAIT_SECONDS)


@pytest.mark.live
def test_a_real_supervisord_starts_a_process_as_planned_and_again_when_it_is_killed(
    running: tuple[Home, Supervisor], state: State
) -> None:
    home, supervisor = running
    note = home.root / "told.json"
    told = json.loads(eventually(lambda: note.exists() and note.read_text(), "the first start"))
    assert told["words"] == FOLDERS
    assert told["home"] == told["cwd"] == str(home.root)
    assert told["stack"] == state.stack_id
    assert psutil.Process(told["pid"]).environ()[STACK_ID] == state.stack_id
    # supervisord calls it started after a second, and before that a crash counts as a failed start.
    eventually(
        lambda: supervisor.processes()["teller"]["statename"] == "RUNNING", "the state RUNNING"
    )
    assert supervisor.processes()["teller"]["pid"] == told["pid"]
    os.kill(told["pid"], signal.SIGKILL)
    eventually(lambda: json.loads(note.read_text())["pid"] != told["pid"], "the second start")
    supervisor.shutdown()
    eventually(lambda: not supervisor.alive(), "the end")
