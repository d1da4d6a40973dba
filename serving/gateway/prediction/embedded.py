"""granian as it serves a hop, and whatever a hop is compared with.

Its embedded server runs in this very process. Its usual one would start a second process for each,
which costs more memory and is what supervisord is there for.
"""

from typing import Any, Final

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

# Longer than the gateway keeps a connection without requests, so that it never sends one on a
# connection that is being closed here.
HEADER_MILLISECONDS: Final = 2 * 3600 * 1000


def embedded(app: Any, host: str, port: int) -> Server:
    """A server of an RSGI application, to be awaited in the running loop."""
    return Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_MILLISECONDS),
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
