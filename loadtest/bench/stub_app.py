"""A model server that computes nothing, for measuring what is in front of it.

    python -m loadtest.bench.stub_app PORT

    POST .../infer        a ranker's answer, framed as the request was
    POST anything else    a chat completion in OpenAI's form, or events where those are accepted
    GET  anything         200

Events come at an even pace.
"""

import asyncio
import sys
from typing import Any, Final

from loadtest.bench.bodies import (
    BINARY_ANSWER,
    BINARY_ANSWER_HEADERS,
    CHAT_ANSWER,
    HEADER_LENGTH,
    JSON_ANSWER,
    JSON_ANSWER_HEADERS,
)
from loadtest.rsgi import run

EVENTS: Final = 100
EVERY_SECONDS: Final = 0.005
EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
EVENT_STREAM: Final = "text/event-stream"
_STREAM_HEADERS: Final = [("content-type", EVENT_STREAM), ("cache-control", "no-cache")]


class StubApp:
    """Fixed answers."""

    def __rsgi_init__(self, _: Any) -> None:
        """Nothing to prepare."""

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        await protocol()
        path: str = scope.path
        if path.endswith("/infer"):
            if scope.headers.get(HEADER_LENGTH) is None:
                protocol.response_bytes(200, JSON_ANSWER_HEADERS, JSON_ANSWER)
            else:
                protocol.response_bytes(200, BINARY_ANSWER_HEADERS, BINARY_ANSWER)
        elif scope.headers.get("accept") == EVENT_STREAM:
            await _stream(protocol)
        elif scope.method == "POST":
            protocol.response_bytes(200, JSON_ANSWER_HEADERS, CHAT_ANSWER)
        else:
            protocol.response_empty(200, [])


async def _stream(protocol: Any) -> None:
    stream = protocol.response_stream(200, _STREAM_HEADERS)
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(EVENTS):
        # By the clock: an event that was late does not make the later ones later.
        await asyncio.sleep(start + number * EVERY_SECONDS - loop.time())
        await stream.send_bytes(EVENT)


if __name__ == "__main__":
    run(StubApp(), int(sys.argv[1]))
