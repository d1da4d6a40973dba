"""Small real servers that play hops and model servers."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from serving.gateway.routes import Endpoint


class Backend(ThreadingHTTPServer):
    """A server that answers with what has reached it, or as the request's body asks it to.

    `500:words` is answered with that status and those words; `sleep:seconds`, late; `events:n`, by
    as many events, one every tenth of a second; `silent:n`, the same without an end; `broken:n`, by
    closing the connection after them; `die`, by closing it at once.
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
    # One write for an answer: two would wait for each other's acknowledgement, 40 ms.
    wbufsize = 65536
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
        elif kind in (b"events", b"silent", b"broken"):
            self._events(int(words))
            if kind == b"silent":
                self.rfile.read(1)  # until the other side gives up
            if kind == b"events":
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True
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
            self.wfile.flush()
            time.sleep(0.1)

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
