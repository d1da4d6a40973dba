"""A mixed attack on a real stack costs nobody an answer, no server its life, and bounded memory."""

import random
from collections import Counter
from pathlib import Path

import pytest

from loadtest.bench.attack import (
    ATTACKERS,
    BEGIN,
    END,
    MOST_HOP_BYTES,
    Found,
    attack_stack,
    broken_promises,
    markdown,
    mutated,
    poison,
)
from loadtest.bench.end_to_end import stack_with_ranker


@pytest.mark.parametrize("make", [mutated, poison])
def test_the_same_seed_sends_the_same(make: object) -> None:
    assert callable(make)
    first, second = (make(random.Random(7)) for _ in range(2))
    assert first == second


PIDS = {"triton-0": 1, "prediction-0": 2}


@pytest.mark.parametrize(
    ("found", "after", "word"),
    [
        (Found(good=Counter({"200": 9, "503": 1})), PIDS, "good client"),
        (Found(), PIDS, "good client"),
        (Found(good=Counter({"200": 9})), {**PIDS, "triton-0": 3}, "triton-0 died"),
        (Found(good=Counter({"200": 9}), hop_peak_bytes=MOST_HOP_BYTES + 1), PIDS, "grew"),
        (Found(good=Counter({"200": 9}), answers={"x": Counter({"500": 1})}), PIDS, "to blame"),
    ],
)
def test_each_broken_promise_is_told(found: Found, after: dict[str, int], word: str) -> None:
    [line] = broken_promises(found, PIDS, after)
    assert word in line


@pytest.mark.live
def test_a_short_attack_breaks_no_promise(tmp_path: Path) -> None:
    with stack_with_ranker(tmp_path, 2, lambda _: None) as home:
        found, broken = attack_stack(home, 12.0, seed=2)
    assert broken == []
    assert set(found.answers) == set(ATTACKERS)
    assert found.good["200"] > 50


def test_the_section_holds_every_attack_and_what_was_broken() -> None:
    poison = {"poison": Counter({"400": 1200})}
    found = Found(answers=poison, good=Counter({"200": 9}), hop_peak_bytes=5_000_000)
    section = markdown(found, ["triton-0 died"], 600)
    assert section.startswith(BEGIN)
    assert section.endswith(END)
    assert "| poison | 1,200 | 400: 1,200 |" in section
    assert "BROKEN: triton-0 died." in section
    assert "peaked at 5.0 MB" in section
