"""Prompts are a function of seed, salt and place, no two begin alike, and lengths are as asked."""

import numpy as np
import orjson
import pytest

from loadtest.payloads.chat import Prompts
from tests.loadtest.runs import job_of


def prompts(workload: str = "chat", **fields: object) -> Prompts:
    return Prompts(job_of("ranker", workload, seconds=60, **fields))


@pytest.mark.parametrize("workload", ["chat", "completions"])
def test_a_prompt_depends_on_seed_salt_and_place_alone(workload: str) -> None:
    one, same, other = prompts(workload), prompts(workload), prompts(workload, salt=9)
    assert [one.body(place) for place in (0, 5)] == [same.body(place) for place in (0, 5)]
    assert one.body(0) != one.body(1)
    assert one.body(0) != other.body(0)


# P17: prompts that repeat make a prefix cache look like capacity.


def test_no_two_prompts_begin_alike() -> None:
    made = prompts()
    texts = [orjson.loads(made.body(n))["messages"][0]["content"] for n in range(300)]
    assert len({text[:12] for text in texts}) == 300


def test_lengths_have_the_mean_that_is_asked_for_and_a_tail() -> None:
    made = prompts()
    asked = [orjson.loads(made.body(n)) for n in range(2000)]
    outputs = np.array([one["max_tokens"] for one in asked])
    words = np.array([len(one["messages"][0]["content"].split()) for one in asked])
    assert outputs.mean() == pytest.approx(128, rel=0.06)
    assert words.mean() == pytest.approx(256, rel=0.06)
    assert outputs.max() > 4 * outputs.mean()


def test_a_stream_asks_for_the_servers_own_count() -> None:
    asked = orjson.loads(prompts("completions").body(0))
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}
    assert isinstance(asked["prompt"], str)
