"""supervisord: keeps the servers running, restarts what crashes, rotates what they print."""

import configparser
import io
import os
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

from serving.errors import StackError
from serving.local.home import Home, Secrets, State, write_atomically
from serving.local.processes import Process

STACK_ID = "GALLEY_STACK_ID"
USER = "galley"


def render_conf(home: Home, state: State, secrets: Secrets, processes: Sequence[Process]) -> str:
    """supervisord's configuration for these processes."""
    conf = configparser.RawConfigParser()
    conf["supervisord"] = {
        "logfile": str(home.logs / "supervisord.log"),
        "logfile_maxbytes": "1MB",
        "logfile_backups": "1",
        "pidfile": str(home.supervisor_pid),
        "childlogdir": str(home.logs),
        "directory": str(home.root),
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
        conf[f"program:{process.name}"] = _program(home, process, priority)
    text = io.StringIO()
    conf.write(text)
    return text.getvalue()


def _program(home: Home, process: Process, priority: int) -> dict[str, str]:
    environment = ",".join(f'{k}="{_escape(v)}"' for k, v in process.environment.items())
    return {
        "command": " ".join(f"'{_escape(part)}'" for part in process.command),
        "directory": str(home.root),
        "priority": str(priority),
        "environment": environment,
        "autorestart": "true",
        "startsecs": "1",
        # Waits one second longer after each failure; after these it stays down and status says so.
        "startretries": "20",
        "stopsignal": process.stop_signal,
        "stopwaitsecs": str(process.stop_wait_seconds),
        # Triton's model processes go with the server.
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": str(home.logs / f"{process.name}.log"),
        "stdout_logfile_maxbytes": "5MB",
        "stdout_logfile_backups": "2",
    }


def _escape(text: str) -> str:
    # supervisord expands %(name)s in every value.
    return text.replace("%", "%%")


class Supervisor:
    """The running supervisord of one stack."""

    def __init__(self, home: Home, state: State, secrets: Secrets) -> None:
        self._home = home
        self._stack_id = state.stack_id
        address = f"http://{USER}:{secrets.supervisor_password}@{state.address('supervisor')}/RPC2"
        self._proxy = xmlrpc.client.ServerProxy(address)

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
            # By this every process of the stack can be told from all others on the machine.
            env={**os.environ, STACK_ID: self._stack_id},
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise StackError(f"supervisord did not start: {' '.join(said)}")
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
        """supervisord's view of each process by name: `statename`, `pid`, `start`, `description`."""
        return {info["name"]: info for info in self._call("supervisor.getAllProcessInfo")}

    def restart(self, name: str) -> None:
        """Stop a process as `down` would, then start it."""
        self._call("supervisor.stopProcess", name)
        self._call("supervisor.startProcess", name)

    def shutdown(self) -> None:
        """Stop every process, then supervisord."""
        self._call("supervisor.shutdown")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._proxy, method)(*arguments)
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise StackError(f"supervisord does not answer ({error}); run: galley up") from error
