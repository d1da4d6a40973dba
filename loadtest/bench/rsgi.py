"""Serves an RSGI application in this very process, as the prediction hop is served."""

import asyncio
import signal
from typing import Any

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from serving.gateway.prediction.server import HEADER_MILLISECONDS


async def _serve(app: Any, port: int) -> None:
    server = Server(
        app,
        address="127.0.0.1",
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_MILLISECONDS),
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, server.stop)
    await server.serve()


def run(app: Any, port: int) -> None:
    """Answer on a loopback port until SIGTERM or SIGINT."""
    uvloop.run(_serve(app, port))
