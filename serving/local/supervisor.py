"""supervisord: keeps the servers running, restarts what crashes, rotates what they print."""

import configparser
import io
import os
import re
import shlex
import subprocess
import sys
import time
import xmlrpc.client
from base64 import b64encode
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any

from serving.errors import StackError
from serving.local.home import Home, Secrets, State, write_atomically
from serving.local.processes import Process

STACK_ID = "GALLEY_STACK_ID"
USER = "galley"
CALL_SECONDS = 10.0


def render_conf(home: Home, state: State, secrets: Secrets, processes: Sequence[Process]) -> str:
    """The configuration of supervisord for these processes.

    It runs in the home folder, and paths inside that are relative: a path of the user's may hold
    what this format has no way to write in every place.
    """
    conf = configparser.RawConfigParser()
    conf["supervisord"] = {
        "logfile": "logs/supervisord.log",
        "logfile_maxbytes": "1MB",
        "logfile_backups": "1",
        "pidfile": home.supervisor_pid.name,
        "childlogdir": "logs",
        "identifier": state.stack_id,
        "minfds": "4096",
    }
    conf["inet_http_server"] = {
        "port": state.address("supervisor"),
        "username": USER,
        "password": secrets.supervisor_password,
    }
    conf["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    for priority, process in enumerate(processes):
        conf[f"program:{process.name}"] = _program(process, priority)
    for section in conf.values():
        for key, value in section.items():
            # supervisord expands %(name)s in every value.
            section[key] = value.replace("%", "%%")
    text = io.StringIO()
    conf.write(text)
    return text.getvalue()


def _program(process: Process, priority: int) -> dict[str, str]:
    # Not supervisord's own `environment`, whose values cannot hold both kinds of quotes.
    variables = [f"{name}={value}" for name, value in process.environment.items()]
    command = ["/usr/bin/env", *variables] if variables else []
    return {
        "command": _words([*command, *process.command]),
        "priority": str(priority),
        "autorestart": "true",
        "startsecs": "1",
        # Waits one second longer after each failure; after these it stays down and status says so.
        "startretries": "20",
        "stopsignal": process.stop_signal,
        "stopwaitsecs": str(process.stop_wait_seconds),
        # Triton's model processes go with the server.
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": f"logs/{process.name}.log",
        "stdout_logfile_maxbytes": "5MB",
        "stdout_logfile_backups": "2",
    }


def _words(words: Sequence[str]) -> str:
    """The words as supervisord takes them apart again.

    A # or ; behind a space begins a comment even inside quotes, so quotes are put between the two.
    """
    return re.sub(r"(\s)([#;])", r"\1''\2", shlex.join(words))


class _Transport(xmlrpc.client.Transport):
    """Gives up on a supervisord that is stopped, so that `down` can go on to kill it."""

    def make_connection(self, host: Any) -> HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = CALL_SECONDS
        return connection


class Supervisor:
    """The running supervisord of one stack."""

    def __init__(self, home: Home, state: State, secrets: Secrets) -> None:
        self._home = home
        self._stack_id = state.stack_id
        # Not in the address, which errors repeat.
        login = b64encode(f"{USER}:{secrets.supervisor_password}".encode()).decode()
        self._headers = [("Authorization", f"Basic {login}")]
        self._url = f"http://{state.address('supervisor')}/RPC2"

    def start(self, conf: str, timeout_seconds: float = 15) -> None:
        """Start supervisord, and through it every process.

        Raises:
            StackError: it did not come up.
        """
        write_atomically(self._home.supervisor_conf, conf, private=True)
        command = [sys.executable, "-m", "supervisor.supervisord", "-c"]
        done = subprocess.run(
            [*command, self._home.supervisor_conf],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._home.root,
            # By this every process of the stack can be told from all others on the machine.
            env={**os.environ, STACK_ID: self._stack_id},
        )
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise StackError(f"supervisord did not start: {said[:500]}")
        deadline = time.monotonic() + timeout_seconds
        while not self.alive():
            if time.monotonic() > deadline:
                raise StackError(f"supervisord did not answer; see {self._home.logs}")
            time.sleep(0.05)

    def alive(self) -> bool:
        """Whether supervisord answers."""
        try:
            return bool(self._call("supervisor.getState")["statecode"] == 1)
        except StackError:
            return False

    def processes(self) -> dict[str, dict[str, Any]]:
        """Each process by name, as supervisord sees it: `statename`, `pid`, `start` and more."""
        return {info["name"]: info for info in self._call("supervisor.getAllProcessInfo")}

    def shutdown(self) -> None:
        """Stop every process, then supervisord."""
        self._call("supervisor.shutdown")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            transport = _Transport(headers=self._headers)
            with xmlrpc.client.ServerProxy(self._url, transport=transport) as proxy:
                return getattr(proxy, method)(*arguments)
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise StackError(f"supervisord does not answer ({error}); run: galley up") from error
