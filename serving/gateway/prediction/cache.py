"""Answers a request from the cache, or computes the answer once for all who ask for it.

In one process, requests for one key that are there at the same time share one flight. Between
processes, the one that put its claim under the key computes, and the others look again until the
answer is there. Whatever the cache does, a request is answered by the model at the latest: only
requests for one key ever wait for each other.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Final, Literal, TypeAlias

from serving.gateway.prediction.answer import Answer
from serving.gateway.prediction.entry import (
    LONGEST_SECRET,
    SHORTEST_SECRET,
    Claim,
    decode,
    encode,
    encode_claim,
)
from serving.gateway.prediction.resp import CacheUnavailable, Reason, Reply
from serving.gateway.prediction.valkey import Valkey, forget, get_or_claim, store

CacheState: TypeAlias = Literal["hit", "miss", "bypass"]
Fetch: TypeAlias = Callable[[], Awaitable[Answer]]
Outcome: TypeAlias = tuple[Answer, CacheState]

KEY_PREFIX: Final = b"galley:prediction:"

FIRST_LOOK_SECONDS: Final = 0.001
LONGEST_LOOK_SECONDS: Final = 0.032
# An answer expires up to this part of its time early, so that those stored together do not all
# have to be computed again together.
JITTER_RATIO: Final = 0.1

# The command may have reached the server, and with it a claim of ours.
_MAYBE_CLAIMED: Final = frozenset({"timeout", "unreachable"})


class _Flight:
    """A key for which an answer is on its way, and who waits for it."""

    __slots__ = ("claim_seconds", "fetch", "give_up_at", "key", "looks", "ttl_seconds", "waiters")

    def __init__(self, key: bytes, ttl_seconds: float, claim_seconds: float, fetch: Fetch) -> None:
        self.key = key
        self.ttl_seconds = ttl_seconds
        self.claim_seconds = claim_seconds
        self.fetch = fetch
        self.waiters: list[asyncio.Future[Outcome]] = []
        self.looks = 0
        self.give_up_at = 0.0


class PredictionCache:
    """Answers through `valkey`, whose entries count only if made with `secret`.

    `claim_seconds` is how long computing an answer may take, where a call does not say; a process
    that dies meanwhile holds others up no longer than that, nor than `wait_seconds`. Bodies above
    `largest_bytes` are not stored. `on_fault` hears of every time the cache was no help.
    """

    def __init__(
        self,
        valkey: Valkey,
        secret: bytes,
        on_fault: Callable[[Reason], None],
        claim_seconds: float = 30.0,
        wait_seconds: float = 2.0,
        largest_bytes: int = 1 << 20,
        rng: random.Random | None = None,
    ) -> None:
        if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
            raise ValueError(
                f"secret of {len(secret)} bytes cannot authenticate entries; "
                f"use {SHORTEST_SECRET} to {LONGEST_SECRET}"
            )
        self._valkey = valkey
        self._secret = secret
        self._owner = os.urandom(8)
        self._on_fault = on_fault
        self._claim_seconds = claim_seconds
        self._wait_seconds = wait_seconds
        self._largest_bytes = largest_bytes
        self._rng = rng or random.Random()  # noqa: S311 - spreads expiries, nothing else
        self._flights: dict[bytes, _Flight] = {}
        self._computing: set[asyncio.Task[None]] = set()

    async def answer(
        self, key: bytes, ttl_seconds: float, fetch: Fetch, claim_seconds: float | None = None
    ) -> Outcome:
        """The answer to the request that `key` stands for, and where it came from.

        One of those that are here for `key` at the same time calls its `fetch`, the others share
        what comes of it: an answer of status 200 is a hit for them, any other is the answer of
        all, and so is what `fetch` raises. `fetch` runs on when the client it was made for goes
        away, and has to end by itself. Answers of status 200 are kept for `ttl_seconds` or up to
        a tenth less.
        """
        flight = self._flights.get(key)
        if flight is None:
            claim_seconds = claim_seconds or self._claim_seconds
            flight = self._flights[key] = _Flight(key, ttl_seconds, claim_seconds, fetch)
            try:
                self._look_up(flight)
            except BaseException:
                # Nobody is to join a flight that never left.
                self._flights.pop(key, None)
                raise
        # Each waits on its own future, so that one that is cancelled takes nothing from the rest.
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        return await waiter

    async def close(self) -> None:
        """Wait for what is being computed, so that its claims go; the client is closed after."""
        while self._computing:
            await asyncio.wait(self._computing)

    def _look_up(self, flight: _Flight) -> None:
        claim = encode_claim(flight.key, self._owner, self._secret)
        command = get_or_claim(KEY_PREFIX + flight.key, claim, _milliseconds(flight.claim_seconds))
        try:
            self._valkey.send(command, partial(self._looked_up, flight))
        except CacheUnavailable as error:
            self._bypass(flight, error.reason, claimed=False)

    def _looked_up(self, flight: _Flight, reply: Reply) -> None:
        if type(reply) is bytes:
            found = decode(flight.key, reply, self._secret)
            if type(found) is Answer:
                self._land(flight, found, "hit")
            elif type(found) is not Claim:
                self._replace(flight)
            elif found.owner == self._owner:
                # Its command was given up, and was carried out after all.
                self._compute(flight, "miss", claimed=True)
            else:
                self._look_later(flight)
        elif reply is None:
            self._compute(flight, "miss", claimed=True)
        elif isinstance(reply, CacheUnavailable) and reply.reason != "corrupt":
            self._bypass(flight, reply.reason, claimed=reply.reason in _MAYBE_CLAIMED)
        else:
            self._replace(flight)

    def _look_later(self, flight: _Flight) -> None:
        now = monotonic()
        if flight.looks == 0:
            flight.give_up_at = now + min(self._wait_seconds, flight.claim_seconds)
        delay = min(FIRST_LOOK_SECONDS * 2**flight.looks, LONGEST_LOOK_SECONDS)
        flight.looks += 1
        if now + delay > flight.give_up_at:
            self._compute(flight, "miss", claimed=True)
        else:
            asyncio.get_running_loop().call_later(delay, self._look_up, flight)

    def _replace(self, flight: _Flight) -> None:
        # What is there is no entry of ours. Two processes may both compute now; that is seldom.
        self._on_fault("corrupt")
        self._compute(flight, "miss", claimed=True)

    def _bypass(self, flight: _Flight, reason: Reason, *, claimed: bool) -> None:
        self._on_fault(reason)
        self._compute(flight, "bypass", claimed=claimed)

    def _compute(self, flight: _Flight, state: CacheState, *, claimed: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._fetched(flight, state, claimed))
        self._computing.add(task)
        task.add_done_callback(self._computing.discard)

    async def _fetched(self, flight: _Flight, state: CacheState, claimed: bool) -> None:
        try:
            answer = await flight.fetch()
        except BaseException as error:
            self._crash(flight, error)
            if claimed:
                name = KEY_PREFIX + flight.key
                self._send(forget(name), name)
            if not isinstance(error, Exception):
                raise
            return
        self._land(flight, answer, state)
        if claimed:
            self._keep(flight, answer)

    def _keep(self, flight: _Flight, answer: Answer) -> None:
        """Put the answer in the claim's place; one that is not to be stored leaves it empty."""
        name = KEY_PREFIX + flight.key
        ttl_seconds = flight.ttl_seconds * (1.0 - JITTER_RATIO * self._rng.random())
        command = forget(name)
        if answer.status == 200 and len(answer.body) <= self._largest_bytes:
            with contextlib.suppress(ValueError):  # a content type that is no text
                value = encode(flight.key, answer, self._secret)
                command = store(name, value, _milliseconds(ttl_seconds))
        self._send(command, name)

    def _send(self, command: bytes, name: bytes) -> None:
        """Send what no request waits for, once; a failure is told and not tried again."""
        try:
            self._valkey.send(command, partial(self._sent, name))
        except CacheUnavailable as error:
            self._on_fault(error.reason)

    def _sent(self, name: bytes, reply: Reply) -> None:
        if isinstance(reply, CacheUnavailable):
            self._on_fault(reply.reason)
            if reply.reason == "full":
                # No room for the answer: its claim must not hold others up.
                self._send(forget(name), name)

    def _land(self, flight: _Flight, answer: Answer, state: CacheState) -> None:
        del self._flights[flight.key]
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_result((answer, state))
                if answer.status == 200:
                    # It was computed for the first of them only.
                    state = "hit"

    def _crash(self, flight: _Flight, error: BaseException) -> None:
        del self._flights[flight.key]
        for waiter in flight.waiters:
            if not waiter.done():
                if isinstance(error, Exception):
                    waiter.set_exception(error)
                else:
                    waiter.cancel()


def _milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded down, but at least the one that an expiry has to have."""
    return max(int(seconds * 1000), 1)
