"""An RSGI application that does nothing: it takes the request's body and gives a fixed answer.

    python -m loadtest.bench.empty_app PORT

Served exactly as the prediction hop is, so that what is between the two is the hop's own work.
"""

import sys
from typing import Any

from loadtest.bench.bodies import BINARY_ANSWER, BINARY_ANSWER_HEADERS
from loadtest.rsgi import run


class EmptyApp:
    """The same answer to everything."""

    def __rsgi_init__(self, _: Any) -> None:
        """Nothing to prepare."""

    async def __rsgi__(self, _: Any, protocol: Any) -> None:
        """Answer one request."""
        await protocol()
        protocol.response_bytes(200, BINARY_ANSWER_HEADERS, BINARY_ANSWER)


if __name__ == "__main__":
    run(EmptyApp(), int(sys.argv[1]))
