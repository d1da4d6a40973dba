"""Whatever the cache server does, a request gets the answer that is its own, computed once."""

import asyncio
import contextlib
import multiprocessing
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.prediction.answer import Answer
from serving.gateway.prediction.cache import KEY_PREFIX, CacheState, PredictionCache
from serving.gateway.prediction.entry import encode, encode_claim
from serving.gateway.prediction.valkey import Valkey
from tests.serving.gateway.prediction.fake_server import serving
from tests.serving.gateway.prediction.valkey_server import HOST, Server, free_port, running

SECRET = b"of sixteen bytes"
OTHER = b"another process"
KEY = b"key"
NAME = KEY_PREFIX + KEY
TTL_SECONDS = 600.0
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`main` on the hop's own event loop; nothing here takes as long as this gives it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main, 60))


def good(body: bytes = b"answer") -> Answer:
    return Answer(200, body, 2, "application/octet-stream")


class Model:
    """A model server: counts its calls, and answers once it is let go."""

    def __init__(self, answer: Answer | Exception | None = None, *, held: bool = False) -> None:
        self.answer = answer or good()
        self.calls = 0
        self.go = asyncio.Event()
        self.called = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self) -> Answer:
        self.calls += 1
        self.called.set()
        await self.go.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Hop(PredictionCache):
    """A cache with its connection, as a process has them; `faults` are what it told."""

    def __init__(self, valkey: Valkey, **options: Any) -> None:
        self.valkey = valkey
        self.faults: list[str] = []
        super().__init__(valkey, SECRET, self.faults.append, rng=random.Random(1), **options)

    async def ask(self, fetch: Callable[[], Coroutine[Any, Any, Answer]]) -> tuple[Answer, str]:
        return await self.answer(KEY, TTL_SECONDS, fetch)


@contextlib.asynccontextmanager
async def hop(valkey: Valkey, *, wait: bool = True, **options: Any) -> AsyncIterator[Hop]:
    one = Hop(valkey, **options)
    valkey.start()
    try:
        while wait and not valkey.connected:
            await asyncio.sleep(0.002)
        yield one
    finally:
        await one.close()
        await valkey.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    """A server that holds nothing."""
    with shared.client() as client:
        client.flushall()
    return shared


def held(server: Server) -> dict[bytes, int]:
    """What the server holds, with the milliseconds each has left."""
    with server.client() as client:
        keys: Sequence[bytes] = client.keys("*")
        return {key: client.pttl(key) for key in keys}


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_that_authenticates_nothing_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"secret of {length} bytes"):
        PredictionCache(Valkey(HOST, 1), bytes(length), lambda _: None)


@pytest.mark.live
def test_the_first_request_is_a_miss_and_every_later_one_a_hit(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            model = Model()
            assert await one.ask(model) == (good(), "miss")
            assert await one.ask(model) == (good(), "hit")
            assert await two.ask(model) == (good(), "hit")
            assert (model.calls, one.faults, two.faults) == (1, [], [])

    run(main())


@pytest.mark.live
def test_an_entry_lives_for_its_ttl_or_up_to_a_tenth_less(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one:
            for number in range(50):
                await one.answer(b"%d" % number, TTL_SECONDS, Model())
            await one.answer(b"short", 0.0001, Model())
            await one.answer(b"last", TTL_SECONDS, Model())
            await one.answer(b"last", TTL_SECONDS, Model())

    run(main())
    left = [milliseconds for name, milliseconds in held(server).items() if b"short" not in name]
    assert len(left) == 51
    assert min(left) > TTL_SECONDS * 850
    assert max(left) <= TTL_SECONDS * 1000
    assert len(set(left)) > 40


@pytest.mark.live
def test_many_requests_at_once_in_one_process_cost_one_call(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one:
            model = Model(held=True)
            asked = [asyncio.ensure_future(one.ask(model)) for _ in range(100)]
            await model.called.wait()
            asked += [asyncio.ensure_future(one.ask(model)) for _ in range(100)]
            await asyncio.sleep(0)
            model.go.set()
            states = Counter(state for answer, state in await asyncio.gather(*asked))
            assert (model.calls, states) == (1, {"miss": 1, "hit": 199})

    run(main())


@pytest.mark.live
def test_many_requests_at_once_in_two_processes_cost_one_call(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            model = Model(held=True)
            asked = [
                asyncio.ensure_future(cache.ask(model)) for _ in range(50) for cache in (one, two)
            ]
            await model.called.wait()
            await asyncio.sleep(0.05)
            model.go.set()
            states = Counter(state for answer, state in await asyncio.gather(*asked))
            assert (model.calls, states) == (1, {"miss": 1, "hit": 99})
            assert one.faults + two.faults == []

    run(main())


def _process(port: int, calls: Any, barrier: Any, states: Any) -> None:
    async def compute() -> Answer:
        with calls.get_lock():
            calls.value += 1
        await asyncio.sleep(0.2)
        return good()

    async def main() -> None:
        valkey = Valkey(HOST, port, "prediction", "the hop's", 5.0)
        async with hop(valkey) as one:
            await asyncio.to_thread(barrier.wait, 60)
            asked = await asyncio.gather(*(one.ask(compute) for _ in range(20)))
            states.put([state for answer, state in asked if answer == good()])

    run(main())


@pytest.mark.live
def test_many_requests_at_once_in_processes_of_their_own_cost_one_call(server: Server) -> None:
    spawn = multiprocessing.get_context("spawn")
    calls, barrier, states = spawn.Value("i", 0), spawn.Barrier(2), spawn.Queue()
    processes = [
        spawn.Process(target=_process, args=(server.port, calls, barrier, states)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    said = [state for _ in processes for state in states.get(timeout=60)]
    for process in processes:
        process.join(60)
    assert (calls.value, Counter(said)) == (1, {"miss": 1, "hit": 39})


@pytest.mark.live
@pytest.mark.parametrize("who", ["first", "all"])
def test_the_answer_is_there_for_the_others_when_a_client_goes_away(
    server: Server, who: str
) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one:
            model = Model(held=True)
            first, second, third = [asyncio.ensure_future(one.ask(model)) for _ in range(3)]
            await model.called.wait()
            leaving = [first] if who == "first" else [first, second, third]
            for client in leaving:
                client.cancel()
            await asyncio.wait(leaving)
            assert all(client.cancelled() for client in leaving)
            model.go.set()
            if who == "first":
                assert await second == (good(), "miss")
                assert await third == (good(), "hit")
            await one.close()
            assert await one.ask(model) == (good(), "hit")
            assert model.calls == 1

    run(main())


@pytest.mark.live
def test_a_client_that_goes_away_before_the_server_replied_takes_nothing_along(
    server: Server,
) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one:
            model = Model()
            first, second = (
                asyncio.ensure_future(one.ask(model)),
                asyncio.ensure_future(one.ask(model)),
            )
            await asyncio.sleep(0)
            first.cancel()
            assert await second == (good(), "miss")
            assert first.cancelled()

    run(main())


@pytest.mark.live
@pytest.mark.parametrize("status", [206, 400, 429, 500, 503])
def test_an_error_is_everybodys_and_is_not_stored(server: Server, status: int) -> None:
    async def main() -> None:
        bad = Answer(status, b"{}", None, "application/json", "1")
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            model = Model(bad)
            asked = await asyncio.gather(*(one.ask(model) for _ in range(3)))
            assert (asked, model.calls) == ([(bad, "miss")] * 3, 1)
            # The claim is gone too: another process need not wait.
            assert await two.ask(Model()) == (good(), "miss")

    run(main())


@pytest.mark.live
def test_what_computing_raises_reaches_everybody_and_the_claim_goes(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            model = Model(RuntimeError("no model"))
            asked = await asyncio.gather(
                *(one.ask(model) for _ in range(3)), return_exceptions=True
            )
            assert [str(error) for error in asked] == ["no model"] * 3
            assert model.calls == 1
            assert await two.ask(Model()) == (good(), "miss")

    run(main())


@pytest.mark.live
@pytest.mark.parametrize(("over", "stored"), [(0, 1), (1, 0)])
def test_an_answer_above_the_limit_is_given_but_not_stored(
    server: Server, over: int, stored: int
) -> None:
    async def main() -> None:
        large = good(bytes(1000 + over))
        async with hop(server.hop(), largest_bytes=1000) as one:
            assert await one.ask(Model(large)) == (large, "miss")

    run(main())
    assert len(held(server)) == stored


@pytest.mark.live
def test_an_answer_of_one_mebibyte_is_stored_in_time(server: Server) -> None:
    async def main() -> None:
        large = good(random.Random(1).randbytes(1 << 20))
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            assert await one.ask(Model(large)) == (large, "miss")
            assert await one.ask(Model()) == (large, "hit")
            assert await two.ask(Model()) == (large, "hit")

    run(main())


@pytest.mark.live
def test_the_claim_of_a_process_that_died_holds_up_no_longer_than_it_lives(
    server: Server,
) -> None:
    async def main() -> None:
        async with hop(server.hop(), wait_seconds=30.0) as one:
            with server.client() as client:
                client.set(NAME, encode_claim(KEY, OTHER, SECRET), px=100)
            assert await one.ask(Model()) == (good(), "miss")
            assert one.faults == []

    run(main())


@pytest.mark.live
@pytest.mark.parametrize("answer", [good(), Answer(503, b"{}", None, "application/json")])
def test_a_claim_that_outlives_the_patience_is_overtaken_and_replaced(
    server: Server, answer: Answer
) -> None:
    async def main() -> None:
        async with hop(server.hop(), wait_seconds=0.05) as one:
            with server.client() as client:
                client.set(NAME, encode_claim(KEY, OTHER, SECRET), ex=3600)
            assert await one.ask(Model(answer)) == (answer, "miss")
            expected = "hit" if answer.status == 200 else "miss"
            assert await one.ask(Model(good())) == (good(), expected)

    run(main())


@pytest.mark.live
def test_a_flush_while_an_answer_is_computed_costs_nobody_anything(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one, hop(server.hop()) as two:
            first, second = Model(held=True), Model()
            asked = asyncio.ensure_future(one.ask(first))
            await first.called.wait()
            waiting = asyncio.ensure_future(two.ask(second))
            await asyncio.sleep(0.02)
            with server.client() as client:
                client.flushall()
            # The claim is gone, so who waited for it computes.
            assert await waiting == (good(), "miss")
            first.go.set()
            assert await asked == (good(), "miss")
            assert await two.ask(second) == (good(), "hit")
            assert (first.calls, second.calls) == (1, 1)

    run(main())


def flipped(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


@pytest.mark.live
@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"OK",
        b'{"outputs": []}',
        flipped(encode(KEY, good(b"poison"), SECRET)),
        encode(KEY, good(b"poison"), SECRET)[:-1],
        encode(b"other", good(b"poison"), SECRET),
        encode(KEY, good(b"poison"), b"another secret, of 32 bytes long"),
        encode_claim(b"other", OTHER, SECRET),
        flipped(encode_claim(KEY, OTHER, SECRET)),
        encode_claim(KEY, OTHER, b"another secret, of 32 bytes long"),
        bytes(3 << 20),
        ["a", "list"],
    ],
)
def test_an_entry_of_another_hand_is_a_miss_told_once_and_replaced(
    server: Server, entry: bytes | list[str]
) -> None:
    async def main() -> None:
        async with hop(server.hop()) as one:
            with server.client() as client:
                if isinstance(entry, list):
                    client.rpush(NAME, *entry)
                else:
                    client.set(NAME, entry)
            assert await one.ask(Model()) == (good(), "miss")
            assert await one.ask(Model()) == (good(), "hit")
            assert one.faults == ["corrupt"]

    run(main())
    assert held(server)[NAME] > 0


def test_without_a_server_requests_are_answered_and_still_share_their_calls() -> None:
    async def main() -> None:
        valkey = Valkey(HOST, free_port(), "prediction", "word")
        async with hop(valkey, wait=False) as one:
            model = Model(held=True)
            asked = [asyncio.ensure_future(one.ask(model)) for _ in range(10)]
            await model.called.wait()
            model.go.set()
            states = [state for answer, state in await asyncio.gather(*asked)]
            assert (states, model.calls) == (["bypass"] + ["hit"] * 9, 1)
            assert await one.ask(model) == (good(), "bypass")
            assert one.faults == ["unreachable"] * 2

    run(main())


@pytest.mark.live
def test_a_server_killed_and_started_again_loses_no_request(tmp_path: Path) -> None:
    async def main() -> set[CacheState]:
        with running(tmp_path) as server:
            async with hop(server.hop(0.1)) as one:
                seen: set[CacheState] = set()
                for _ in range(3):
                    for number in range(200):
                        body = b"%d" % (number % 20)
                        answer, state = await one.answer(body, TTL_SECONDS, Model(good(body)))
                        assert answer == good(body)
                        seen.add(state)
                        if number == 100:
                            server.kill()
                    server.start()
                    while not one.valkey.connected:
                        await asyncio.sleep(0.002)
                assert set(one.faults) <= {"unreachable", "timeout"}
                return seen

    assert run(main()) == {"miss", "hit", "bypass"}


@pytest.mark.live
def test_a_frozen_server_loses_no_request_and_is_used_again_afterwards(server: Server) -> None:
    async def main() -> None:
        async with hop(server.hop(0.005)) as one:
            with server.frozen():
                asked = await asyncio.gather(
                    *(one.answer(b"%d" % n, TTL_SECONDS, Model(good(b"%d" % n))) for n in range(99))
                )
                assert asked == [(good(b"%d" % n), "bypass") for n in range(99)]
                assert await one.ask(Model()) == (good(), "bypass")
                assert one.faults[:99] == ["timeout"] * 99
            while (await one.ask(Model()))[1] != "hit":
                await asyncio.sleep(0.01)

    run(main())


@pytest.mark.live
def test_a_claim_that_a_frozen_server_took_late_does_not_hold_up_its_own_process(
    server: Server,
) -> None:
    async def main() -> None:
        async with hop(server.hop(0.005), wait_seconds=20.0) as one:
            with server.frozen():
                assert await one.ask(Model()) == (good(), "bypass")
            while not one.valkey.connected:
                await asyncio.sleep(0.002)
            assert NAME in held(server)
            # Where the machine is slow this is another timeout, but never a wait for oneself.
            async with asyncio.timeout(10):
                assert (await one.ask(Model()))[0] == good()

    run(main())


@pytest.mark.live
def test_a_server_that_freezes_while_an_answer_is_computed_takes_only_the_entry(
    server: Server,
) -> None:
    async def main() -> None:
        async with hop(server.hop(0.05)) as one:
            model = Model(held=True)
            asked = asyncio.ensure_future(one.ask(model))
            await model.called.wait()
            with server.frozen():
                model.go.set()
                assert await asked == (good(), "miss")
                while not one.faults:
                    await asyncio.sleep(0.002)
            assert one.faults == ["timeout"]

    run(main())


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (b"-MOVED 2246 10.0.0.9:6379\r\n", "moved"),
        (b"-ASK 2246 10.0.0.9:6379\r\n", "moved"),
        (b"-CLUSTERDOWN The cluster is down\r\n", "moved"),
        (b"-READONLY You can't write against a read only replica.\r\n", "moved"),
        (b"-OOM command not allowed\r\n", "full"),
        (b"-NOPERM no\r\n", "denied"),
        (b"-ERR syntax error\r\n", "denied"),
        (b"-LOADING\r\n", "unreachable"),
        (b"garbage", "unreachable"),
        (b":1\r\n", "corrupt"),
    ],
)
def test_a_server_that_refuses_costs_one_command_and_no_answer(error: bytes, fault: str) -> None:
    async def main() -> None:
        async with (
            serving(lambda word: b"+OK\r\n" if word == b"AUTH" else error) as fake,
            hop(Valkey(HOST, fake.port, "prediction", "word", 5.0)) as one,
        ):
            answer, state = await one.ask(Model())
            assert answer == good()
            assert state == ("miss" if fault == "corrupt" else "bypass")
            assert one.faults[0] == fault
            # Redirects above all: what a plain client cannot follow is not sent after the answer.
            assert len(fake.commands) <= (3 if fault in ("corrupt", "unreachable") else 2)

    run(main())


@pytest.mark.live
def test_a_server_in_cluster_mode_is_told_apart_from_one_that_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        with running(tmp_path, "--cluster-enabled", "yes") as server:
            async with hop(server.hop()) as one:
                assert await one.ask(Model()) == (good(), "bypass")
                assert set(one.faults) == {"moved"}

    run(main())


async def fill(server: Server, entries: int) -> tuple[Counter[CacheState], Counter[str]]:
    """Asks for as many different answers of 64 kB, each of which has to be right."""
    states: Counter[CacheState] = Counter()
    async with hop(server.hop()) as one:
        for number in range(entries):
            body = number.to_bytes(2) * 32_000
            answer, state = await one.answer(b"%d" % number, TTL_SECONDS, Model(good(body)))
            assert answer == good(body)
            states[state] += 1
        # In order behind all the others: their stores have been replied to as well.
        last, _ = await one.answer(b"last", TTL_SECONDS, Model())
        assert last == good()
        return states, Counter(one.faults)


@pytest.mark.live
@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
def test_a_full_server_makes_room_since_every_entry_has_an_expiry(
    tmp_path: Path, policy: str
) -> None:
    with running(tmp_path, "--maxmemory", "16mb", "--maxmemory-policy", policy) as server:
        states, faults = run(fill(server, 1000))
        assert (states, faults) == ({"miss": 1000}, {})
        assert 0 < len(held(server)) < 1000
        assert min(held(server).values()) > 0


@pytest.mark.live
@pytest.mark.parametrize(
    ("limit", "policy"),
    [("16mb", "noeviction"), ("2kb", "allkeys-lru"), ("2kb", "volatile-lru")],
)
def test_a_server_without_room_costs_the_entries_and_no_answer(
    tmp_path: Path, limit: str, policy: str
) -> None:
    with running(tmp_path, "--maxmemory", limit, "--maxmemory-policy", policy) as server:
        states, faults = run(fill(server, 1000))
        assert set(states) <= {"miss", "bypass"}
        assert set(faults) == {"full"}
        assert 700 < faults["full"] <= 1001
        # What was refused was not tried again, and its claim holds nobody up.
        with server.client() as client:
            assert client.info("errorstats")["errorstat_OOM"]["count"] == faults["full"]
            assert all(client.strlen(key) >= 64_000 for key in client.keys("*0"))


@pytest.mark.live
def test_a_server_filled_by_others_with_entries_that_stay_costs_no_answer(tmp_path: Path) -> None:
    options = ("--maxmemory", "16mb", "--maxmemory-policy", "volatile-lru")
    with running(tmp_path, *options) as server:
        with server.client() as client, contextlib.suppress(Exception):
            for number in range(1000):
                client.set(f"{number}", bytes(64_000))
        states, faults = run(fill(server, 100))
        assert states["hit"] == 0
        assert (set(faults), faults["full"] >= 100) == ({"full"}, True)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "ask both", "fail", "flush", "swap", "poison", "claim", "expire", "leave"]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=5,
    max_size=30,
)


@pytest.mark.live
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_request_is_ever_given_the_answer_to_another(
    shared: Server, steps: list[tuple[str, int, int]]
) -> None:
    """Two processes and three keys, with everything that can happen to their entries."""

    async def main() -> None:
        async with (
            hop(shared.hop(), wait_seconds=0.01) as one,
            hop(shared.hop(), wait_seconds=0.01) as two,
        ):
            with shared.client() as client:
                client.flushall()
                for step, number, other in steps:
                    await take(step, b"%d" % number, b"%d" % other, (one, two), client)

    run(main())


async def take(step: str, key: bytes, other: bytes, hops: tuple[Hop, Hop], client: Any) -> None:
    name, other_name = KEY_PREFIX + key, KEY_PREFIX + other
    match step:
        case "ask":
            answer, _ = await hops[0].answer(key, TTL_SECONDS, Model(good(key)))
            assert answer == good(key)
        case "ask both":
            asked = [(at, which) for at in hops for which in (key, other, key)]
            answers = await asyncio.gather(
                *(at.answer(which, TTL_SECONDS, Model(good(which))) for at, which in asked)
            )
            assert [answer for answer, _ in answers] == [good(which) for _, which in asked]
        case "fail":
            bad = Answer(500, key, None, "application/json")
            answer, state = await hops[1].answer(key, TTL_SECONDS, Model(bad))
            assert answer == (good(key) if state == "hit" else bad)
        case "flush":
            client.flushall()
        case "swap":
            mine, yours = client.get(name), client.get(other_name)
            for place, value in ((name, yours), (other_name, mine)):
                client.delete(place) if value is None else client.set(place, value)
        case "poison":
            client.set(name, encode(other, good(other), SECRET)[: -int(other)])
        case "claim":
            client.set(name, encode_claim(key, OTHER, SECRET), px=5)
        case "expire":
            client.pexpire(name, 1)
        case "leave":
            asking = asyncio.ensure_future(hops[0].answer(key, TTL_SECONDS, Model(good(key))))
            await asyncio.sleep(0)
            asking.cancel()
