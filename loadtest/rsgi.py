"""Serves an RSGI application in this very process, as the prediction hop is served."""

import asyncio
import signal
from typing import Any

import uvloop

from serving.gateway.prediction.embedded import embedded


async def _serve(app: Any, port: int) -> None:
    server = embedded(app, "127.0.0.1", port)
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, server.stop)
    await server.serve()


def run(app: Any, port: int) -> None:
    """Answer on a loopback port until SIGTERM or SIGINT."""
    uvloop.run(_serve(app, port))
