"""A real Valkey on a free port, with the users that the hop and a health probe have."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import valkey as client

from serving.gateway.prediction.cache import KEY_PREFIX
from serving.gateway.prediction.valkey import Valkey
from serving.local.engines import find_engines
from serving.local.ports import choose_ports

HOST = "127.0.0.1"
START_SECONDS = 30.0
PASSWORDS = {"prediction": "the hop's", "probe": "the probe's", "admin": "the test's"}
USERS = f"""\
user default off
user prediction on #{{prediction}} ~{KEY_PREFIX.decode()}* resetchannels -@all +set +del
user probe on #{{probe}} resetkeys resetchannels -@all +ping +info
user admin on #{{admin}} allkeys allchannels +@all
"""


class Server:
    """A Valkey process; started again it has the same port and nothing of what it held."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port = choose_ports(("valkey",), {}, random.Random())["valkey"]
        hashes = {name: sha256(word.encode()).hexdigest() for name, word in PASSWORDS.items()}
        (folder / "users.acl").write_text(USERS.format(**hashes))
        self._command = [str(find_engines().valkey), "--bind", HOST, "--port", str(self.port)]
        self._command += ["--aclfile", str(folder / "users.acl"), "--dir", str(folder)]
        self._command += ["--save", "", "--appendonly", "no", *options]
        self._log = folder / "valkey.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(client.ConnectionError), self.client("probe") as probe:
                probe.ping()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"Valkey did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The process holds its connections, and does nothing."""
        self.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send_signal(signal.SIGCONT)

    def client(self, user: str = "admin") -> client.Valkey:
        return client.Valkey(HOST, self.port, username=user, password=PASSWORDS[user])

    def hop(self, timeout_seconds: float = 5.0, password: str = PASSWORDS["prediction"]) -> Valkey:
        """The hop's client, not started; patient, for a machine that is busy with other tests."""
        return Valkey(HOST, self.port, "prediction", password, timeout_seconds)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
