"""Prompts in OpenAI's form, a pure function of seed, salt and place in the schedule.

Lengths are log-normal around the workload's means, as those of real traffic are. Each prompt begins
with a number of its own, so that no prefix of it is in a cache; below a `distinct_ratio` of 1 they
repeat on purpose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from loadtest.payloads.tensors import place_of

if TYPE_CHECKING:
    from loadtest.job import Job

SPREAD: Final = 0.6
"""Standard deviation of the logarithm of a length: one in a thousand is 5 times the mean."""
WORDS: Final = (
    *("the", "ship", "cook", "bread", "salt", "water", "stove", "night", "harbour", "crew"),
    *("north", "wind", "sail", "rope", "deck", "map", "star", "tide", "storm", "port"),
)
PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class Prompts:
    """Everything that all users of a worker ask, by its place in the schedule.

    Args:
        job: the load test; its workload asks for chats or completions.
    """

    def __init__(self, job: Job) -> None:
        request: Any = job.workload.request
        self.kind: str = request.kind
        self.stream: bool = request.stream
        self.path = PATHS[self.kind]
        self.headers = {
            "Accept": "text/event-stream" if self.stream else "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        self._model, self._seed = job.spec.name, (job.seed, job.salt)
        self._means = request.prompt_tokens, request.output_tokens
        self._requests, self._distinct = len(job.schedule), job.workload.distinct_ratio

    def body(self, position: int) -> bytes:
        """The body of the request at this place."""
        place = place_of(position, self._requests, self._distinct)
        random = np.random.default_rng([*self._seed, place])
        prompt, output = (_length(random, mean) for mean in self._means)
        # About one token a word; a number is several, and tells this prompt from every other.
        words = [WORDS[n] for n in random.integers(0, len(WORDS), max(prompt - 4, 1))]
        text = f"{place} {random.integers(0, 10**9)}: {' '.join(words)}"
        said: dict[str, Any] = {
            "model": self._model,
            "max_tokens": output,
            "temperature": 0,
            "stream": self.stream,
        }
        if self.stream:
            said["stream_options"] = {"include_usage": True}
        if self.kind == "chat":
            said["messages"] = [{"role": "user", "content": text}]
        else:
            said["prompt"] = text
        return orjson.dumps(said)


def _length(random: np.random.Generator, mean: int) -> int:
    return max(1, round(random.lognormal(math.log(mean) - SPREAD**2 / 2, SPREAD)))
