"""A real Envoy with its files, and requests to it."""

import http.client
import json
import random
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.gateway.envoy import (
    PRIVATE,
    render_bootstrap,
    render_certificate,
    render_watched,
)
from serving.gateway.routes import Endpoint, Gateway, ModelRoute
from serving.local.engines import find_engines
from serving.local.home import write_atomically
from serving.local.ports import choose_ports
from serving.local.tls import write_certificate

START_SECONDS = 30.0
# One for all: each new one reads the system's certificates, which takes longer than an answer.
HTTP = httpx.Client(trust_env=False, timeout=30, limits=httpx.Limits(max_connections=100))
KEYS: Mapping[str, Sequence[str]] = {
    "uploads": ("key-of-uploads", "second-key-of-uploads"),
    "scanner": ("key-of-scanner",),
    "ads": ("key-of-ads",),
    "operator": ("key-of-operator",),
}

AUTHORIZED = b"Host: x\r\nAuthorization: Bearer key-of-operator\r\n"


@dataclass(frozen=True)
class Reply:
    """What a client gets."""

    status: int
    headers: dict[str, str]
    json: Any


@dataclass
class Envoy:
    """A running Envoy, driven through its files as the stack drives its own."""

    gateway: Gateway
    folder: Path
    process: "subprocess.Popen[bytes]"

    def admin(self, path: str, **query: str) -> str:
        url = f"http://127.0.0.1:{self.gateway.admin_port}{path}"
        return HTTP.get(url, params=query).text

    def stats(self, pattern: str) -> dict[str, str]:
        text = self.admin("/stats", filter=pattern)
        return dict(line.split(": ", 1) for line in text.splitlines())

    def stat(self, name: str) -> int:
        """One counter or gauge; 0 where Envoy has none of this name yet."""
        return int(self.stats(f"^{re.escape(name)}$").get(name, 0))

    def until_healthy(self, cluster: str, count: int) -> None:
        """Wait until so many servers of a cluster are."""
        until(lambda: self.stat(f"cluster.{cluster}.membership_healthy") == count)

    def change(
        self, gateway: Gateway, keys: Mapping[str, Sequence[str]] = KEYS, seconds: float = 15
    ) -> None:
        """Replace the watched files, and wait until Envoy has read them."""
        before = self.stats("(update_success|update_rejected)$")
        for name, text in render_watched(gateway, self.folder, keys).items():
            write_atomically(self.folder / name, text, private=name == PRIVATE)
        self.gateway = gateway
        deadline = time.monotonic() + seconds
        # Files are read one by one; nothing more comes once counts have stood still for a while.
        still = 0
        while still < 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            now = self.stats("(update_success|update_rejected)$")
            still = still + 1 if now == before else 0
            before = now
        assert not [name for name, value in before.items() if "rejected" in name and value != "0"]

    def connect(self, port: int | None = None) -> http.client.HTTPSConnection:
        trusted = ssl.create_default_context(cafile=self.folder / "ca.pem")
        return http.client.HTTPSConnection(
            "127.0.0.1", port or self.gateway.port, timeout=30, context=trusted
        )

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        chunked: bool = False,
        headers: Mapping[str, str] | None = None,
        key: str | None = "key-of-operator",
    ) -> Reply:
        """One request, its path sent as it is."""
        connection = self.connect()
        sent = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        try:
            connection.request(
                method,
                path,
                iter([body or b""]) if chunked else body,
                sent,
                encode_chunked=chunked,
            )
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            text = response.read()
            return Reply(response.status, found, json.loads(text) if text else None)
        finally:
            connection.close()

    def burst(self, path: str, keys: Sequence[str], count: int, **headers: str) -> list[int]:
        """Statuses of requests as fast as one connection carries them, with the keys in turn."""
        connection, found = self.connect(), []
        for number in range(count):
            sent = {"authorization": f"Bearer {keys[number % len(keys)]}", **headers}
            connection.request("GET", path, headers=sent)
            response = connection.getresponse()
            response.read()
            found.append(response.status)
        connection.close()
        return found


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that is bound to come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def raw(envoy: Envoy, sent: bytes, seconds: float = 10) -> bytes:
    """What comes back for these bytes, until the other side closes or says nothing more."""
    trusted = ssl.create_default_context(cafile=envoy.folder / "ca.pem")
    with (
        socket.create_connection(("127.0.0.1", envoy.gateway.port), timeout=seconds) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = b""
        try:
            secure.sendall(sent)
            while piece := secure.recv(65536):
                found += piece
                if b"\r\n\r\n" in found:
                    break
        except OSError:
            pass
        return found


def write(gateway: Gateway, folder: Path) -> Path:
    """Envoy's files in `folder`; the one it starts from."""
    write_certificate(folder)
    files = {
        **render_watched(gateway, folder, KEYS),
        **render_certificate(folder / "server.pem", folder / "server.key"),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    bootstrap = folder / "bootstrap.json"
    bootstrap.write_text(render_bootstrap(gateway, folder, [40.0]))
    return bootstrap


def gateway_of(
    models: Sequence[ModelRoute], servers: Sequence[Endpoint], hops: Sequence[Endpoint]
) -> Gateway:
    """A gateway on free ports."""
    ports = choose_ports(("gateway", "inner", "admin"), {}, random.Random())
    return Gateway(
        port=ports["gateway"],
        inner_port=ports["inner"],
        admin_port=ports["admin"],
        servers=tuple(servers),
        hops=tuple(hops),
        models=tuple(models),
    )


@contextmanager
def running(gateway: Gateway, folder: Path) -> Iterator[Envoy]:
    """Envoy, until the block ends."""
    command = [str(find_engines().envoy), "-c", str(write(gateway, folder))]
    command += ["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_until_live(gateway, process, folder / "log")
            yield Envoy(gateway, folder, process)
        finally:
            process.kill()
            process.wait()


def _wait_until_live(gateway: Gateway, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            url = f"http://127.0.0.1:{gateway.admin_port}/server_info"
            if HTTP.get(url).json()["state"] == "LIVE":
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"Envoy did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)
