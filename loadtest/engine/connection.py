"""`Connection`: one HTTP/1.1 connection of a user, with the moments that a measurement needs.

httptools parses, gevent waits. The clients that Locust brings along take more processor time (see
bench/RESULTS.md), and say nothing of when the first byte left. Here nothing is sent twice, and both
moments are taken beside the system call. A connection that the server closed while it was idle is
opened anew before it is used.
"""

from __future__ import annotations

import errno
import socket as plain_socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import gevent.socket
import gevent.ssl
import httptools

from loadtest.records import CONNECTION, GENERATOR, TIMEOUT
from serving.errors import InputError
from serving.judge.run import NEVER

RECEIVE_BYTES: Final = 65_536
IDLE_NS: Final = 1_000_000_000
"""Idle time after which it is worth a system call to see whether the server is still there."""

OWN: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
)
"""What goes wrong on the side of the one who asks: open files, ports, memory."""

Sink = Callable[[int, bytes], None]


@dataclass(slots=True)
class Response:
    """What came back. Moments are of the monotonic clock in ns.

    Attributes:
        sent: just before the first byte left; NEVER where this machine could not send it.
        ended: just after the last byte came, or when it failed.
        status: of HTTP; CONNECTION, TIMEOUT or GENERATOR where there was none.
        headers: by name in lower case.
        content: the body; empty where a sink took it.
        error: why there is no whole answer; None where there is one.
    """

    sent: int
    ended: int
    status: int
    headers: Mapping[bytes, bytes]
    content: bytes
    error: str | None = None


class Connection:
    """Asks one server, one request at a time.

    Args:
        url: the server, `http://` or `https://`.
        headers: sent with every request.
        timeout_seconds: after which a request, or a handshake, is given up.
        context: for TLS.

    Raises:
        InputError: for another kind of address, or a header that HTTP does not allow.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout_seconds: float,
        context: gevent.ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"url={url}: is no http or https address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._context = context if parts.scheme == "https" else None
        self._timeout = timeout_seconds
        self._shared = _lines({"Host": parts.netloc.rpartition("@")[2], **headers})
        self._heads: dict[tuple[str, str, int], bytes] = {}
        self._socket: Any = None
        self._used = 0
        self._reset()

    def connect(self) -> None:
        """Open it now, so that no request pays for it.

        Raises:
            OSError: it cannot be opened.
        """
        if self._socket is None:
            address = (self._host, self._port)
            opened = gevent.socket.create_connection(address, self._timeout)
            opened.setsockopt(plain_socket.IPPROTO_TCP, plain_socket.TCP_NODELAY, 1)
            if self._context is not None:
                opened = self._context.wrap_socket(opened, server_hostname=self._host)
            self._socket, self._used = opened, time.monotonic_ns()

    def close(self) -> None:
        """Close it; the next request opens it anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        sink: Sink | None = None,
    ) -> Response:
        """POST a body, and wait for the whole answer.

        Args:
            path: of the request.
            body: of the request.
            headers: of this kind of request; the same object each time is fastest.
            sink: is given each piece of the body with its moment, as it comes.
        """
        if self._socket is not None and time.monotonic_ns() - self._used > IDLE_NS:
            self._look()
        self._reset(sink)
        head = self._head(path, headers) + b"%d\r\n\r\n" % len(body)
        sent = time.monotonic_ns()
        try:
            self.connect()
            self._exchange(head + body, sent)
        except (OSError, httptools.HttpParserError) as error:
            return self._failed(sent, error)
        except BaseException:
            # Whoever is stopped in the middle leaves half an answer on the wire.
            self.close()
            raise
        ended = self._used = time.monotonic_ns()
        status = self._parser.get_status_code()
        if not self._kept_alive:
            self.close()
        return Response(sent, ended, status, self._headers, b"".join(self._pieces))

    def _exchange(self, request: bytes, sent: int) -> None:
        # One wait for each piece; together they may take no longer than the time-out.
        opened, left = self._socket, self._timeout
        opened.settimeout(left)
        opened.sendall(request)
        while not self._complete:
            data = opened.recv(RECEIVE_BYTES)
            self._now = time.monotonic_ns()
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._parser.feed_data(data)
            if not self._complete:
                left = self._timeout - (self._now - sent) / 1e9
                if left <= 0:
                    raise TimeoutError("timed out")
                opened.settimeout(left)

    def _failed(self, sent: int, error: Exception) -> Response:
        ended = time.monotonic_ns()
        self.close()
        if isinstance(error, OSError) and error.errno in OWN:
            # This machine ran out of something; the server was never asked.
            return Response(NEVER, ended, GENERATOR, {}, b"", f"{error}")
        timed_out = isinstance(error, TimeoutError)
        what = "no whole answer in time" if timed_out else f"{type(error).__name__}: {error}"
        status = TIMEOUT if timed_out else CONNECTION
        return Response(sent, ended, status, self._headers, b"", what)

    def _look(self) -> None:
        """Close it where the server has, or has sent what nobody asked for."""
        opened = self._socket
        try:
            opened.settimeout(0)
            opened.recv(1)
        except (BlockingIOError, gevent.ssl.SSLWantReadError):
            return
        except OSError:
            pass
        self.close()

    def _head(self, path: str, headers: Mapping[str, str]) -> bytes:
        key = ("POST", path, id(headers))
        head = self._heads.get(key)
        if head is None:
            lines = _lines(headers)
            head = b"POST %s HTTP/1.1\r\n%s%sContent-Length: " % (
                (self._prefix + path).encode("ascii"),
                self._shared,
                lines,
            )
            self._heads[key] = head
        return head

    def _reset(self, sink: Sink | None = None) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._complete, self._kept_alive, self._now, self._sink = False, False, 0, sink

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._sink is None:
            self._pieces.append(body)
        else:
            self._sink(self._now, body)

    def on_message_complete(self) -> None:
        """All of the answer is there."""
        # Asked later, the parser speaks of the next answer.
        self._kept_alive = self._parser.should_keep_alive()
        self._complete = True


def _lines(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not name.isascii() or any(letter in "\r\n\0" for letter in name + value):
            # The value may be a key: it is not said.
            raise InputError(f"header={name}: has a character that HTTP does not allow; mend it")
    return b"".join(
        f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers.items()
    )
