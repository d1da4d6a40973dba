"""The gateway's way for answers token by token, as it is rendered for a stack: Envoy alone.

TLS, keys, who may call what, a limit for each client and one for the model, the access log: all
that a client's request meets before a model server.
"""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.envoys import Certificate, bare_envoy, envoy
from loadtest.bench.load import Target
from loadtest.bench.servers import Server, python_app, running
from serving.gateway.envoy import (
    PRIVATE,
    render_bootstrap,
    render_certificate,
    render_watched,
)
from serving.gateway.routes import Caller, Endpoint, Gateway, Limits, ModelRoute, Version
from serving.local.engines import Engines
from serving.local.home import new_api_key, write_atomically
from serving.local.tls import write_certificate

MODEL: Final = "chat"
PATH: Final = f"/v2/models/{MODEL}/generate_stream"
CLIENT: Final = "bench"
# There is a bucket to count in, and never an empty one.
RATE_RPS: Final = 1_000_000


@dataclass(frozen=True)
class OurPath:
    """The running Envoy, and what a client needs to use it."""

    server: Server
    target: Target
    headers: dict[str, str]


def stream_gateway(ports: dict[str, int], stub_port: int) -> Gateway:
    """Routes for one model that answers with streams, at `stub_port`."""
    stub = Endpoint("127.0.0.1", stub_port)
    limits = Limits(
        kind="stream",
        max_request_bytes=1024 * 1024,
        timeout_seconds=60.0,
        per_try_timeout_seconds=None,
        idle_timeout_seconds=300.0,
        max_in_flight=4096,
        retries_in_flight=64,
        rate_rps=RATE_RPS,
        callers=(Caller(CLIENT, RATE_RPS),),
    )
    version = Version(1, "sha256:" + 64 * "0", (stub,))
    return Gateway(
        port=ports["ours"],
        inner_port=ports["ours-inner"],
        admin_port=ports["ours-admin"],
        servers=(stub,),
        hops=(),
        models=(ModelRoute(MODEL, limits, (version,)),),
    )


@contextmanager
def our_path(engines: Engines, folder: Path, gateway: Gateway) -> Iterator[OurPath]:
    """Envoy with the gateway's own files."""
    xds, tls = folder / "xds", folder / "tls"
    key = new_api_key()
    write_certificate(tls)
    files = {
        **render_certificate(tls / "server.pem", tls / "server.key"),
        **render_watched(gateway, xds, {CLIENT: [key]}),
    }
    for name, content in files.items():
        write_atomically(xds / name, content, private=name == PRIVATE)
    bootstrap = folder / "bootstrap.json"
    write_atomically(bootstrap, render_bootstrap(gateway, xds))
    with envoy(engines, "our-envoy", gateway.port, folder, bootstrap) as server:
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {key}"}
        yield OurPath(server, Target(gateway.port, trusting(tls)), headers)


@contextmanager
def beside_a_bare_one(
    engines: Engines, folder: Path, ports: dict[str, int]
) -> Iterator[tuple[OurPath, Server, Certificate]]:
    """Our path and a bare Envoy with the same certificate, both in front of the stub."""
    with ExitStack() as stack:
        stub = python_app("stub_app", ports["stub"])
        stack.enter_context(running("stub", stub, ports["stub"], folder, ready_path="/"))
        ours = stack.enter_context(our_path(engines, folder, stream_gateway(ports, ports["stub"])))
        certificate = certificate_of(folder / "tls")
        bare = bare_envoy(engines, folder, ports["bare"], (ports["stub"],), certificate)
        yield ours, stack.enter_context(bare), certificate


def certificate_of(folder: Path) -> Certificate:
    """The certificate in a stack's folder of them."""
    return Certificate(folder / "server.pem", folder / "server.key")


def trusting(folder: Path) -> ssl.SSLContext:
    """What a client needs to trust a stack's certificate."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.set_alpn_protocols(["http/1.1"])
    return context
