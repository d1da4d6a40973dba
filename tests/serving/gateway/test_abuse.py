"""The real Envoy refuses or cuts what no client means well by, and serves the others."""

import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

import pytest

from tests.serving.gateway.envoy_process import AUTHORIZED, Envoy, raw

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT a:443 HTTP/1.1\r\n" + AUTHORIZED + b"\r\n",
        b"POST /v2/models/ranker/infer HTTP/1.1\r\n"
        + AUTHORIZED
        + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2/models/ranker/infer HTTP/1.1\r\n"
        + AUTHORIZED
        + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        b"POST /v2/models/ranker/infer HTTP/1.1\r\n"
        + AUTHORIZED
        + b"Transfer-Encoding: xchunked\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"x: a\0b\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"x : a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"inference_header_content_length: 1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"a: b\r\n" * 70 + b"\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"a: " + b"b" * 40_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"a: " + b"b" * 10_000_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"Upgrade: foo\r\nConnection: upgrade\r\n\r\n",
        b"GET /v2 HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
    ],
    ids=[
        *("CONNECT", "length and chunks", "two lengths", "odd coding", "NUL", "space in a name"),
        *("underscore", "70 headers", "40 KB header", "10 MB header", "upgrade", "HTTP/1.0", "TLS"),
    ],
)
def test_what_no_client_means_well_by_is_refused_or_cut_and_others_are_served(
    envoy: Envoy, sent: bytes
) -> None:
    found = raw(envoy, sent)
    assert found == b"" or found.split()[1][:1] in (b"4", b"5")
    assert found == b"" or found.split()[1] not in (b"500", b"502", b"503")
    assert envoy.send("GET", "/v2").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT a:443 HTTP/1.1\r\n" + AUTHORIZED,
        b"GET /v2 HTTP/1.1\r\n" + AUTHORIZED + b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    ],
    ids=["CONNECT", "upgrade"],
)
def test_who_asks_for_another_protocol_is_told_that_there_is_none(
    envoy: Envoy, sent: bytes
) -> None:
    found = raw(envoy, sent + b"\r\n")
    assert found.split()[1] == b"403"
    assert b"no other protocol" in found


def test_who_sends_headers_slowly_is_cut_and_others_are_served(envoy: Envoy) -> None:
    # Sooner than the 15 s that a whole request may take.
    found = raw(envoy, b"GET /v2 HTTP/1.1\r\nHost: x\r\n", seconds=10)
    assert found.split()[1] == b"408"
    assert envoy.send("GET", "/v2").status == 200


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def packed(*headers: tuple[bytes, bytes]) -> bytes:
    """Headers as HPACK, each in full."""
    found = (
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers
    )
    return b"".join(found)


def test_who_begins_and_resets_streams_without_end_is_cut_and_others_are_served(
    envoy: Envoy,
) -> None:
    context = ssl.create_default_context(cafile=envoy.folder / "ca.pem")
    context.set_alpn_protocols(["h2"])
    asking = packed(
        *((b":method", b"GET"), (b":path", b"/v2"), (b":scheme", b"https"), (b":authority", b"x")),
        (b"authorization", b"Bearer key-of-operator"),
    )
    with (
        socket.create_connection(("127.0.0.1", envoy.gateway.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.selected_alpn_protocol() == "h2"
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        with suppress(OSError):
            for stream in range(1, 10_000, 2):
                secure.sendall(frame(1, 4, stream, asking) + frame(3, 0, stream, b"\0\0\0\x08"))
            while secure.recv(65536):
                pass
    assert envoy.stat("http.gateway.downstream_rq_too_many_premature_resets") >= 1
    assert envoy.send("GET", "/v2").status == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_older_tls_than_1_2_is_refused(envoy: Envoy) -> None:
    context: Any = ssl.create_default_context(cafile=envoy.folder / "ca.pem")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")  # or this side would not offer it
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1):
        context.maximum_version = version
        with socket.create_connection(("127.0.0.1", envoy.gateway.port), timeout=10) as plain:
            if version is ssl.TLSVersion.TLSv1_2:
                context.wrap_socket(plain, server_hostname="localhost").close()
                continue
            with pytest.raises(ssl.SSLError, match="alert protocol version"):
                context.wrap_socket(plain, server_hostname="localhost")
