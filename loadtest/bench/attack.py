"""A mixed attack on a local stack, and what it costs others: `python -m loadtest.bench.attack`.

    attackers   threads that send what no client should, each of its own kind, for a bounded time
    a client    20 good requests a second meanwhile; every one of them is to be answered
    the hops    their memory, looked at twice a second

It tells what happened, and a whole run writes its section of RESULTS.md. It exits with 1 where a
hop grew beyond its budget, a server died, or the good client was refused.
"""

import gzip
import json
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import httpx
import psutil
import typer

from loadtest.bench.end_to_end import stack_with_ranker
from loadtest.bench.machine import machine
from loadtest.bench.sections import RESULTS, markdown_table, with_section
from serving.console import Json, print_json, print_line, print_table, say
from serving.local.access import operator_client
from serving.local.home import Home
from serving.local.stack import status

SECONDS: Final = 600.0
QUICK_SECONDS: Final = 20.0
MOST_HOP_BYTES: Final = 300_000_000
GOOD_RPS: Final = 20
INFER: Final = "/v2/models/ranker/infer"
BEGIN: Final = "<!-- begin: attack -->"
END: Final = "<!-- end: attack -->"


@dataclass
class Found:
    """What was seen."""

    answers: dict[str, Counter[str]] = field(default_factory=dict)
    good: Counter[str] = field(default_factory=Counter)
    hop_peak_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, outcome: object) -> None:
        """One more request of this kind, and what came of it."""
        with self.lock:
            self.answers.setdefault(kind, Counter())[str(outcome)] += 1


def question(number: float) -> dict[str, Any]:
    """A good request for the ranker."""
    tensor = {"name": "input0", "shape": [1, 512], "datatype": "FP32", "data": [number] * 512}
    return {"inputs": [tensor]}


def mutated(rng: random.Random) -> bytes:
    """A good request with some of its bytes changed, removed or doubled."""
    body = bytearray(json.dumps(question(rng.random())).encode())
    for _ in range(rng.randint(1, 20)):
        place = rng.randrange(len(body))
        change = rng.randrange(3)
        if change == 0:
            body[place] = rng.randrange(256)
        elif change == 1:
            del body[place : place + rng.randint(1, 40)]
        else:
            body[place:place] = body[place : place + rng.randint(1, 40)]
    return bytes(body)


def poison(rng: random.Random) -> bytes:
    """What is known to kill or to blow up: sizes beyond all bounds, depth, many tiny lists."""
    deep = rng.randint(1_000, 200_000)
    huge = rng.choice([2**31, 2**62, 2**63, 2**64, -1, 0])
    tensor = {"name": "input0", "shape": [huge, 512], "datatype": "FP32", "data": [1.0]}
    return rng.choice(
        [
            json.dumps({"inputs": [tensor]}).encode(),
            b"[" * deep,
            b'{"inputs":' + b"[" * deep + b"]" * deep + b"}",
            b'{"inputs":[{"data":[' + b"[]," * 250_000 + b"[]]}]}",
            b'{"inputs":[' + b"{}," * 250_000 + b"{}]}",
            b'{"id":"' + b"x" * 900_000 + b'"}',
            b'{"inputs":[{"data":[' + b"1e999," * 100_000 + b"1]}]}",
            b'{"inputs": "\xff\xfe"}',
        ]
    )


def bodies(make: Callable[[random.Random], bytes]) -> Callable[..., None]:
    """An attacker that sends such bodies."""

    def attack(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
        found.count(kind, client.post(INFER, content=make(rng)).status_code)

    return attack


def lying(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
    """Lengths of tensors and of JSON that are not so."""
    length = rng.choice(["-1", "0", "5", "99999999999999999999", "x", str(rng.randrange(10_000))])
    headers = {"inference-header-content-length": length}
    body = json.dumps(question(1.0)).encode() + rng.randbytes(rng.randrange(4_000))
    found.count(kind, client.post(INFER, content=body, headers=headers).status_code)


def compressed(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
    """A small body that would be 64 MB."""
    body = gzip.compress(bytes(1_000_000))
    answer = client.post(INFER, content=body, headers={"content-encoding": "gzip"})
    found.count(kind, answer.status_code)


def chunked(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
    """Thousands of chunks of one byte."""
    pieces = [b" "] * rng.randint(1_000, 20_000)
    found.count(kind, client.post(INFER, content=iter(pieces)).status_code)


def oversized(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
    """More than a full batch needs."""
    body = b" " * rng.randint(1_100_000, 8_000_000)
    found.count(kind, client.post(INFER, content=body).status_code)


def raw(kind: str, found: Found, client: httpx.Client, rng: random.Random) -> None:
    """Bytes by hand: smuggling, huge headers, half requests that stay silent."""
    head = b"POST /v2/models/ranker/infer HTTP/1.1\r\nHost: x\r\n"
    sent = rng.choice(
        [
            head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            head + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
            head + b"x: " + b"y" * rng.randint(10_000, 2_000_000) + b"\r\n\r\n",
            head,
            head + b"Content-Length: 100000\r\n\r\nabc",
            rng.randbytes(2_000),
        ]
    )
    url = httpx.URL(str(client.base_url))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((url.host, url.port or 443), timeout=2) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(sent)
        answer = secure.recv(64)
    found.count(kind, answer.split()[1].decode(errors="replace") if answer else "closed")


ATTACKERS: Final[dict[str, Callable[..., None]]] = {
    "random bytes": bodies(lambda rng: rng.randbytes(rng.randrange(1, 5_000))),
    "changed bytes": bodies(mutated),
    "known poison": bodies(poison),
    "lying lengths": lying,
    "compressed": compressed,
    "tiny chunks": chunked,
    "oversized": oversized,
    "raw connections": raw,
}


def attack_stack(home: Home, seconds: float, seed: int) -> tuple[Found, list[str]]:
    """Attack for that long; what was seen, and every promise that was broken."""
    state, found, ended = home.running_state(), Found(), threading.Event()
    before = {row.name: row.pid for row in status(home)}

    def attacker(kind: str) -> None:
        rng = random.Random(f"{seed} {kind}")  # noqa: S311 - to be the same in every run
        with operator_client(home, state, timeout_seconds=20) as client:
            while not ended.is_set():
                try:
                    ATTACKERS[kind](kind, found, client, rng)
                except (httpx.HTTPError, OSError) as error:
                    found.count(kind, f"closed ({type(error).__name__})")

    def good_client() -> None:
        with operator_client(home, state) as client:
            number = 0
            while not ended.is_set():
                number += 1
                with suppress(httpx.HTTPError):
                    answer = client.post(INFER, json=question(number * 1e-3))
                    found.good[str(answer.status_code)] += 1
                    ended.wait(1 / GOOD_RPS)
                    continue
                found.good["no answer"] += 1

    def watcher() -> None:
        hops = [psutil.Process(before[name]) for name in state.hop_names]
        while not ended.wait(0.5):
            peak = max(hop.memory_info().rss for hop in hops)
            found.hop_peak_bytes = max(found.hop_peak_bytes, peak)

    workers = [
        *(threading.Thread(target=attacker, args=(kind,)) for kind in ATTACKERS),
        threading.Thread(target=good_client),
        threading.Thread(target=watcher),
    ]
    for worker in workers:
        worker.start()
    ended.wait(seconds)
    ended.set()
    for worker in workers:
        worker.join()
    return found, list(broken_promises(found, before, {row.name: row.pid for row in status(home)}))


def broken_promises(found: Found, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What a run shows that must not be; `before` and `after` are the pids of all servers."""
    broken = [f"{name} died" for name, pid in before.items() if after.get(name) != pid]
    if set(found.good) != {"200"}:
        broken.append(f"the good client was answered {dict(found.good)}")
    if found.hop_peak_bytes > MOST_HOP_BYTES:
        broken.append(f"a hop grew to {found.hop_peak_bytes} bytes, above {MOST_HOP_BYTES}")
    for kind, outcomes in found.answers.items():
        servers = {o: n for o, n in outcomes.items() if o[:1] == "5" and o not in ("501", "505")}
        if servers:
            broken.append(f"{kind} was answered as if the server were to blame: {servers}")
    return broken


def rows(found: Found) -> list[tuple[str, str, str]]:
    """Each attack, how often it was sent, and how it was answered."""
    return [
        (kind, f"{sum(each.values()):,}", ", ".join(f"{o}: {n:,}" for o, n in each.most_common()))
        for kind, each in sorted(found.answers.items())
    ]


def markdown(found: Found, broken: list[str], seconds: float) -> str:
    """The section of RESULTS.md."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    good = ", ".join(f"{outcome}: {count:,}" for outcome, count in found.good.most_common())
    return "\n".join(
        [
            BEGIN,
            f"Machine: {facts}.",
            "",
            f"{seconds:g} s, every attacker as fast as it is answered. A changed request that is "
            "still good is a 200.",
            "",
            *markdown_table(("attack", "sent", "answered"), rows(found)),
            "",
            f"The good client was answered {good}. The larger hop's memory (RSS) peaked at "
            f"{found.hop_peak_bytes / 1e6:.1f} MB, of {MOST_HOP_BYTES / 1e6:.0f}.",
            *(f"BROKEN: {line}." for line in broken),
            END,
        ]
    )


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="20 seconds instead of 10 minutes.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(help="How long.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is sent.")] = 1,
    json: Json = False,
) -> None:
    """Attack a local stack of its own, and tell what it cost others."""
    length = seconds or (QUICK_SECONDS if quick else SECONDS)
    with (
        TemporaryDirectory(prefix="galley-attack-") as folder,
        stack_with_ranker(Path(folder), 2, say) as home,
    ):
        say(f"attacking for {length:g} s")
        found, broken = attack_stack(home, length, seed)
    if length >= SECONDS:
        RESULTS.write_text(with_section(RESULTS.read_text(), markdown(found, broken, length)))
    if json:
        print_json(
            {
                "seconds": length,
                "answers": {kind: dict(each) for kind, each in found.answers.items()},
                "good": dict(found.good),
                "hop_peak_bytes": found.hop_peak_bytes,
                "broken": broken,
            }
        )
    else:
        print_table(("attack", "sent", "answered"), rows(found))
        print_line(f"good client: {dict(found.good)}; a hop's peak: {found.hop_peak_bytes:,} bytes")
        for line in broken:
            print_line(f"BROKEN: {line}")
    if broken:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
