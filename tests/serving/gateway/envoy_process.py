"""A real Envoy with its files, and small real servers that play hops and model servers."""

import http.client
import json
import random
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
KEYS: Mapping[str, Sequence[str]] = {
    "uploads": ("key-of-uploads", "second-key-of-uploads"),
    "scanner": ("key-of-scanner",),
    "ads": ("key-of-ads",),
    "operator": ("key-of-operator",),
}


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
        return httpx.get(url, params=query, trust_env=False).text

    def stats(self, pattern: str) -> dict[str, str]:
        text = self.admin("/stats", filter=pattern)
        return dict(line.split(": ", 1) for line in text.splitlines())

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
            if httpx.get(url, trust_env=False).json()["state"] == "LIVE":
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"Envoy did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


class Backend(ThreadingHTTPServer):
    """A server that answers with what has reached it, or as the request's body asks it to.

    `500:words` is answered with that status and those words; `sleep:seconds`, late; `events:n`, by
    as many events, one every tenth of a second; `die`, by closing the connection.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.frozen = threading.Event()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.server_port)

    def requests(self, path: str) -> list[dict[str, str]]:
        """Headers of the requests for a path, in order."""
        return [headers for _, asked, headers in self.asked if asked == path]

    def handle_error(self, *_: object) -> None:
        """Nothing: clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        health = (
            self.path.endswith(("/ready", "/live"))
            and "envoy" in (self.headers.get("User-Agent") or "").lower()
        )
        if not health:
            names = {name.lower() for name in self.headers}
            # Each value of a header that came more than once, or its doubling would not be seen.
            seen = {name: ", ".join(self.headers.get_all(name) or ()) for name in names}
            self.server.asked.append((self.command, self.path, seen))
            while self.server.frozen.is_set():
                time.sleep(0.01)
        kind, _, words = body.partition(b":")
        if kind in (b"400", b"500", b"503"):
            self._reply(int(kind), words)
        elif kind == b"die":
            self.close_connection = True
            self.connection.close()
        elif kind == b"events":
            self._events(int(words))
        else:
            if kind == b"sleep":
                time.sleep(float(words))
            found = {"path": self.path, "size": len(body), "port": self.server.server_port}
            self._reply(200, json.dumps(found).encode())

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(count):
            event = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(0.1)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at what comes back."""


@contextmanager
def backends(count: int) -> Iterator[list[Backend]]:
    """So many servers, until the block ends."""
    found = [Backend() for _ in range(count)]
    threads = [threading.Thread(target=server.serve_forever) for server in found]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        for server, thread in zip(found, threads, strict=True):
            server.frozen.clear()
            server.shutdown()
            server.server_close()
            thread.join()
