"""The client gives every command its own reply in time, or says at once that it cannot."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
import valkey as client
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.prediction import resp
from serving.gateway.prediction.breaker import REST_SECONDS, STRIKES, Breaker
from serving.gateway.prediction.cache import KEY_PREFIX
from serving.gateway.prediction.resp import CacheUnavailable, Reply, reason_of
from serving.gateway.prediction.valkey import Valkey, forget, get_or_claim, store
from tests.serving.gateway.prediction.fake_server import serving
from tests.serving.gateway.prediction.valkey_server import (
    HOST,
    PASSWORDS,
    Server,
    free_port,
    running,
)

OK = b"+OK\r\n"
KEY = KEY_PREFIX + b"key"
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`main` on the hop's own event loop; nothing here takes as long as this gives it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main, 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def reply_to(valkey: Valkey, command: bytes) -> Reply:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    try:
        valkey.send(command, future.set_result)
    except CacheUnavailable as error:
        return error
    return await future


async def reason(valkey: Valkey, command: bytes = forget(KEY)) -> str | None:
    """Why a command failed; None if it did not."""
    reply = await reply_to(valkey, command)
    return reply.reason if isinstance(reply, CacheUnavailable) else None


@contextlib.asynccontextmanager
async def started(valkey: Valkey, *, wait: bool = True) -> AsyncIterator[Valkey]:
    valkey.start()
    try:
        if wait:
            await until(lambda: valkey.connected)
        yield valkey
    finally:
        await valkey.close()


def to(port: int, timeout_seconds: float = 5.0) -> Valkey:
    return Valkey(HOST, port, "prediction", "word", timeout_seconds, random.Random(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.mark.live
def test_the_first_to_ask_claims_and_the_next_gets_the_claim_then_the_answer(
    server: Server,
) -> None:
    async def main() -> list[Reply]:
        async with started(server.hop()) as one, started(server.hop()) as two:
            return [
                await reply_to(one, forget(KEY)),
                await reply_to(one, get_or_claim(KEY, b"mine", 60_000)),
                await reply_to(two, get_or_claim(KEY, b"yours", 60_000)),
                await reply_to(one, store(KEY, b"answer", 60_000)),
                await reply_to(two, get_or_claim(KEY, b"yours", 60_000)),
                await reply_to(two, forget(KEY)),
            ]

    assert run(main())[1:] == [None, b"mine", b"OK", b"answer", 1]


@pytest.mark.live
def test_ten_thousand_commands_at_once_get_each_its_own_reply(server: Server) -> None:
    async def one(valkey: Valkey, number: int) -> bool:
        key, value = KEY + b"%d" % number, b"%d" % number * (number % 700)
        await reply_to(valkey, store(key, value, 60_000))
        return await reply_to(valkey, get_or_claim(key, b"no", 60_000)) == value

    async def main() -> list[bool]:
        async with started(server.hop(30.0)) as valkey:
            found = []
            for first in range(0, 10_000, 2_000):
                numbers = range(first, first + 2_000)
                found += await asyncio.gather(*(one(valkey, number) for number in numbers))
            return found

    assert run(main()) == [True] * 10_000


def test_nothing_listens_and_every_command_is_refused_at_once() -> None:
    async def main() -> list[str | None]:
        async with started(to(free_port()), wait=False) as valkey:
            return [await reason(valkey) for _ in range(1000)]

    assert run(main()) == ["unreachable"] * 1000


def test_a_client_that_is_not_started_or_closed_refuses_too() -> None:
    async def main() -> list[str | None]:
        valkey = to(free_port())
        before = await reason(valkey)
        async with started(valkey, wait=False):
            pass
        await valkey.close()
        return [before, await reason(valkey)]

    assert run(main()) == ["unreachable", "unreachable"]


@pytest.mark.live
def test_a_killed_server_fails_what_is_pending_and_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        with running(tmp_path) as server:
            async with started(server.hop(30.0)) as valkey:
                with server.frozen():
                    pending = asyncio.ensure_future(reason(valkey))
                    await asyncio.sleep(0)
                    server.kill()
                    assert await pending == "unreachable"
                    server.start()
                assert await reason(valkey) in ("unreachable", None)
                await until(lambda: valkey.connected)
                assert await reason(valkey) is None

    run(main())


@pytest.mark.live
def test_a_frozen_server_costs_one_timeout_then_nothing_and_is_found_again(
    server: Server,
) -> None:
    async def main() -> None:
        async with started(server.hop(0.005)) as valkey:
            with server.frozen():
                pending = [asyncio.ensure_future(reason(valkey)) for _ in range(100)]
                assert set(await asyncio.gather(*pending)) == {"timeout"}
                # The kernel goes on taking connections, and no one greets.
                for _ in range(20):
                    assert await reason(valkey) == "unreachable"
                    await asyncio.sleep(0.01)
            await until(lambda: valkey.connected)

    run(main())


@pytest.mark.live
def test_a_reply_that_came_while_the_loop_was_busy_is_not_late(server: Server) -> None:
    async def main() -> list[str | None]:
        async with started(server.hop(0.1)) as valkey:
            reasons = []
            for _ in range(3):
                pending = asyncio.ensure_future(reason(valkey))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                time.sleep(0.3)
                reasons.append(await pending)
            return reasons

    assert run(main()) == [None] * 3


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"-MOVED 2246 10.0.0.9:6379\r\n", "moved"),
        (b"-ASK 2246 10.0.0.9:6379\r\n", "moved"),
        (b"-CLUSTERDOWN Hash slot not served\r\n", "moved"),
        (b"-READONLY You can't write against a read only replica.\r\n", "moved"),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "full"),
        (b"-NOPERM User prediction has no permissions\r\n", "denied"),
        (b"-ERR unknown command\r\n", "denied"),
        (b"-\r\n", "denied"),
        (b"-\xff\xfe\r\n", "denied"),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", "unreachable"),
        (b"-WRONGTYPE Operation against a key\r\n", "corrupt"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "unreachable"),
        (b"*4294967295\r\n", "unreachable"),
        (b"$-7\r\n", "unreachable"),
        (b"*1\r\n+x\r\n", "unreachable"),
        (b"#t\r\n", "unreachable"),
        (b"$99999999999999\r\nx", "timeout"),
        (b"$5\r\nab", "timeout"),
        (b"", "timeout"),
        (None, "unreachable"),
    ],
)
def test_whatever_a_server_says_the_command_fails_with_a_reason(
    reply: bytes | None, expected: str
) -> None:
    async def main() -> tuple[str | None, bool]:
        async with (
            serving(lambda word: OK if word == b"AUTH" else reply) as fake,
            started(to(fake.port, 0.1)) as valkey,
        ):
            first = await reason(valkey)
            fake.script = lambda _: OK
            await until(lambda: valkey.connected)
            return first, await reason(valkey) is None

    assert run(main()) == (expected, True)


@given(st.binary(max_size=60))
def test_no_bytes_from_a_server_raise_in_the_client(sent: bytes) -> None:
    async def main() -> None:
        async with (
            serving(lambda word: OK if word == b"AUTH" else sent) as fake,
            started(to(fake.port, 0.01)) as valkey,
        ):
            for _ in range(3):
                await reply_to(valkey, forget(KEY))

    run(main())


def test_a_reply_to_no_command_ends_the_connection() -> None:
    async def main() -> list[Reply]:
        async with (
            serving(lambda word: OK if word == b"AUTH" else b":1\r\n:2\r\n") as fake,
            started(to(fake.port)) as valkey,
        ):
            first = await reply_to(valkey, forget(KEY))
            await until(lambda: not valkey.connected)
            await until(lambda: valkey.connected)
            return [first, await reply_to(valkey, forget(KEY))]

    assert run(main()) == [1, 1]


def test_a_late_reply_is_never_given_to_the_next_command() -> None:
    async def main() -> list[Reply]:
        async with (
            serving(lambda word: OK if word == b"AUTH" else b"") as fake,
            started(to(fake.port, 0.01)) as valkey,
        ):
            assert await reason(valkey) == "timeout"
            fake.script = lambda word: OK if word == b"AUTH" else b":%d\r\n" % fake.connections
            await until(lambda: valkey.connected)
            return [await reply_to(valkey, forget(KEY)), fake.connections]

    first, connections = run(main())
    assert first == connections
    assert connections != 1


@pytest.mark.parametrize("reply", [b"", None, b"garbage\r\n", b"-WRONGPASS invalid\r\n"])
def test_a_server_that_does_not_greet_is_tried_with_pauses_and_never_asked(
    reply: bytes | None,
) -> None:
    async def main() -> tuple[set[str | None], set[bytes], int]:
        async with (
            serving(lambda _: reply) as fake,
            started(to(fake.port), wait=False) as valkey,
        ):
            reasons = set()
            await until(lambda: bool(fake.commands))
            await asyncio.sleep(0.3)
            for _ in range(50):
                reasons.add(await reason(valkey))
            return reasons, set(fake.commands), fake.connections

    reasons, commands, connections = run(main())
    assert reasons == {"denied" if reply and b"WRONGPASS" in reply else "unreachable"}
    assert commands == {b"AUTH"}
    assert connections < 12


def test_three_timeouts_in_a_row_open_the_breaker_and_one_answer_closes_it() -> None:
    async def main() -> tuple[list[str | None], int]:
        async with (
            serving(lambda word: OK if word == b"AUTH" else b"") as fake,
            started(to(fake.port, 0.005)) as valkey,
        ):
            reasons = []
            for _ in range(STRIKES):
                await until(lambda: valkey.connected)
                reasons.append(await reason(valkey))
            await until(lambda: valkey.connected)
            reasons += [await reason(valkey) for _ in range(100)]
            asked = fake.commands.count(b"DEL")
            fake.script = lambda _: OK
            while await reason(valkey) == "open":
                await asyncio.sleep(0.01)
            reasons += [await reason(valkey) for _ in range(2)]
            return reasons, asked

    assert run(main()) == (["timeout"] * 3 + ["open"] * 100 + [None] * 2, STRIKES)


@given(st.lists(st.sampled_from(["timed out", "answered", "asked", "time passes"])))
def test_an_open_breaker_lets_one_command_through_in_each_rest(events: list[str]) -> None:
    now = 0.0
    breaker = Breaker(lambda: now)
    strikes, tried_at = 0, -REST_SECONDS
    for event in events:
        match event:
            case "timed out":
                breaker.timed_out()
                strikes, tried_at = strikes + 1, now
            case "answered":
                breaker.answered()
                strikes = 0
            case "time passes":
                now += REST_SECONDS / 2
            case "asked":
                assert breaker.is_open is (strikes >= STRIKES)
                if breaker.is_open:
                    tried = breaker.try_once()
                    assert tried is (now >= tried_at + REST_SECONDS)
                    tried_at = now if tried else tried_at


def test_more_commands_than_a_server_answers_are_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resp, "MOST_PENDING", 8)

    async def main() -> list[str | None]:
        async with (
            serving(lambda word: OK if word == b"AUTH" else b"") as fake,
            started(to(fake.port, 0.1)) as valkey,
        ):
            return await asyncio.gather(*(reason(valkey) for _ in range(20)))

    assert run(main()) == ["timeout"] * 8 + ["open"] * 12


def test_a_reply_longer_than_any_entry_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp, "MOST_REPLY_BYTES", 1000)
    endless = b"$99999999\r\n" + bytes(5000)

    async def main() -> str | None:
        async with (
            serving(lambda word: OK if word == b"AUTH" else endless) as fake,
            started(to(fake.port, 30.0)) as valkey,
        ):
            return await reason(valkey)

    assert run(main()) == "unreachable"


@pytest.mark.live
def test_more_bytes_than_a_server_reads_are_not_sent(server: Server) -> None:
    async def main() -> list[str | None]:
        async with started(server.hop(0.2)) as valkey:
            with server.frozen():
                command = store(KEY, bytes(1 << 20), 60_000)
                return await asyncio.gather(*(reason(valkey, command) for _ in range(100)))

    reasons = run(main())
    assert set(reasons) == {"timeout", "open"}
    assert reasons.count("timeout") < 30  # of 1 MiB each: what the sockets take, and the limit


@pytest.mark.live
def test_a_wrong_password_is_denied_and_the_server_stays_calm(server: Server) -> None:
    async def main() -> str | None:
        async with started(server.hop(password="another"), wait=False) as valkey:
            while (why := await reason(valkey)) == "unreachable":
                await asyncio.sleep(0.01)
            return why

    assert run(main()) == "denied"


@pytest.mark.live
@pytest.mark.parametrize(
    "words",
    [
        ("GET", "galley:prediction:key"),
        ("GET", "other"),
        ("SET", "other", "x"),
        ("SET", "other", "x", "NX", "GET", "PX", "1000"),
        ("SET", "galley:predictio", "x"),
        ("DEL", "other"),
        ("DEL", "galley:prediction:key", "other"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("ACL", "WHOAMI"),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "ID", "1"),
        ("CLIENT", "SETNAME", "x"),
        ("EVAL", "return 1", "0"),
        ("FUNCTION", "LIST"),
        ("RESTORE", "galley:prediction:key", "0", "x"),
        ("DUMP", "galley:prediction:key"),
        ("PERSIST", "galley:prediction:key"),
        ("RENAME", "galley:prediction:key", "galley:prediction:b"),
        ("COPY", "galley:prediction:key", "galley:prediction:b"),
        ("SUBSCRIBE", "x"),
        ("PUBLISH", "x", "y"),
        ("MONITOR",),
        ("MODULE", "LIST"),
        ("REPLICAOF", "NO", "ONE"),
        ("SHUTDOWN",),
        ("SELECT", "1"),
        ("INFO",),
        ("PING",),
        ("MULTI",),
    ],
)
def test_the_hop_may_do_nothing_but_what_it_does(server: Server, words: tuple[str, ...]) -> None:
    with server.client("prediction") as hop, pytest.raises(client.exceptions.NoPermissionError):
        hop.execute_command(*words)


@pytest.mark.live
@pytest.mark.parametrize(
    "words", [("GET", "galley:prediction:key"), ("SET", "x", "y"), ("CONFIG", "GET", "*")]
)
def test_the_probe_may_only_ping_and_read_figures(server: Server, words: tuple[str, ...]) -> None:
    with server.client("probe") as probe:
        assert probe.ping()
        assert "used_memory" in probe.info("memory")
        with pytest.raises(client.exceptions.NoPermissionError):
            probe.execute_command(*words)


@pytest.mark.live
def test_who_does_not_log_in_may_do_nothing(server: Server) -> None:
    with client.Valkey(HOST, server.port) as nobody:
        for words in (("GET", KEY), ("PING",), ("INFO",), ("SET", KEY, "x")):
            with pytest.raises(client.exceptions.AuthenticationError, match="required"):
                nobody.execute_command(*words)


@pytest.mark.live
def test_the_files_of_the_server_hold_no_password(server: Server) -> None:
    text = "".join(path.read_text() for path in server.folder.iterdir())
    assert not [word for word in PASSWORDS.values() if word in text]


def test_every_reason_has_errors_that_lead_to_it() -> None:
    assert {reason_of(error) for error in ("MOVED 1 x", "OOM x", "LOADING", "WRONGTYPE", "")} == {
        "moved",
        "full",
        "unreachable",
        "corrupt",
        "denied",
    }


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_stops_is_found_again_after_it_is_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def main() -> None:
        with running(tmp_path) as server:
            async with started(server.hop()) as valkey:
                for _ in range(2):
                    server.send_signal(number)
                    await until(lambda: not valkey.connected)
                    assert await reason(valkey) == "unreachable"
                    server.kill()
                    server.start()
                    await until(lambda: valkey.connected)
                    assert await reason(valkey) is None

    run(main())
