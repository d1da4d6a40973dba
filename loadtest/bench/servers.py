"""Servers that a benchmark starts, what they cost, and their end; each is known by its pid."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import psutil

from serving.errors import InfrastructureError
from serving.local.ports import choose_ports

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 5.0


class Server:
    """A process that was started here, with all that it started itself."""

    def __init__(self, name: str, port: int, pid: int) -> None:
        self.name, self.port, self.pid = name, port, pid

    def cpu_seconds(self) -> float:
        """What it has used of processors since its start."""
        return sum(cpu_seconds(process.pid) for process in self._tree())

    def _tree(self) -> list[psutil.Process]:
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    def pin(self, core: int) -> None:
        """Keep it, and every thread it has, on one core."""
        for process in self._tree():
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {core})

    def stop(self) -> None:
        """Ask it to stop, then make it."""
        with suppress(psutil.NoSuchProcess):
            tree = self._tree()
            tree[0].terminate()
            _, left = psutil.wait_procs(tree, STOP_SECONDS)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, STOP_SECONDS)


def cpu_seconds(pid: int) -> float:
    """What a process has used of processors, in nanoseconds rather than /proc's hundredths.

    Source: clock_getcpuclockid(3), whose clock of a process is this number on Linux.
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        # It has ended.
        return 0.0


def free_ports(*names: str) -> dict[str, int]:
    """A free loopback port for each name."""
    return choose_ports(names, {}, random.Random())  # noqa: S311 - any free port will do


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    port: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    ready_path: str | None = None,
) -> Iterator[Server]:
    """A server that answers on `port`, for as long as the block runs.

    It runs in `folder`, where its output goes to a file. It is ready when it takes connections, or
    where there is a `ready_path`, when that answers 200.

    Raises:
        InfrastructureError: it did not start; the line ends with its last words.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )
    server = Server(name, port, process.pid)
    try:
        _wait_until_ready(server, process, log, ready_path)
        yield server
    finally:
        server.stop()
        process.wait()


def _wait_until_ready(
    server: Server, process: "subprocess.Popen[bytes]", log: Path, ready_path: str | None
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _is_ready(server.port, ready_path):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = f"ended with {process.returncode}" if ended else "did not become ready"
            words = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise InfrastructureError(f"{server.name} {what}: {' | '.join(words)}")
        time.sleep(0.05)


def _is_ready(port: int, path: str | None) -> bool:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}{path or '/'}", timeout=2, trust_env=False)
    except (httpx.ConnectError, httpx.TimeoutException):
        return False
    except httpx.HTTPError:
        # Something is there that speaks otherwise, such as TLS or Valkey's protocol.
        return path is None
    return path is None or answer.status_code == 200


def python_app(module: str, port: int, *arguments: str) -> tuple[str, ...]:
    """Command of an application of this folder."""
    return sys.executable, "-m", f"loadtest.bench.{module}", str(port), *arguments
