"""One process of the hop: `python -m serving.gateway.prediction.server settings.json`."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from serving.gateway.prediction.app import Hop
from serving.gateway.prediction.embedded import embedded
from serving.gateway.prediction.settings import Settings, read_settings

# With what it takes to close, less than supervisord waits before it kills.
STOP_SECONDS = 10.0


async def serve(settings: Settings) -> None:
    """Answer until SIGTERM or SIGINT, then finish what has begun within `STOP_SECONDS`."""
    hop = Hop(settings)
    server = embedded(hop, settings.host, settings.port)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve())

    interrupt: Callable[[], None] = server.stop

    def stop() -> None:
        interrupt()
        loop.call_later(STOP_SECONDS, serving.cancel)

    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, stop)
    try:
        with suppress(asyncio.CancelledError):
            await serving
    finally:
        await hop.close()


def main(path: Path) -> None:
    """Run one process."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    uvloop.run(serve(read_settings(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
