"""A server that says what a test wants it to say, and counts who comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tests.serving.gateway.prediction.valkey_server import HOST

# Given a command's first word, what the server sends back; None closes the connection.
Script = Callable[[bytes], bytes | None]


class FakeServer:
    """Commands it has had are in `commands`, how many connections came in `connections`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.commands: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(length + 2))[:-2])
                self.commands.append(words[0])
                reply = self.script(words[0])
                if reply is None:
                    break
                writer.write(reply)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[FakeServer]:
    fake = FakeServer(script)
    server = await asyncio.start_server(fake._serve, HOST, 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
