"""Versions exchanged again and again under a load of mostly equal requests, each answer checked."""

import json
import ssl
import threading
import time
from collections import Counter
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import numpy as np

from serving.local.access import authorization
from serving.recipes import ranker
from tests.live.conftest import Stack
from tests.live.load import INFER

QUESTIONS = 400
THREADS = 3
MOST_SECONDS = 240.0
TOLERANCE = 1e-4


def checked_flips(stack: Stack, folder: Path, answers: int) -> tuple[int, Counter[str]]:
    """Exchange versions 1 and 2 of the ranker until so many answers were checked.

    An answer is checked against the score of the version whose digest it names; the versions have
    different weights, and only questions are asked that they answer differently. Leaves version 1
    served.

    Returns:
        How many answers were checked, and how often each cache state occurred.
    """
    vectors = ranker.sample_inputs(2 * QUESTIONS, seed=77)
    models = {
        1: ranker.build(folder / "1")["model.onnx"],
        2: ranker.build(folder / "2", seed=2)["model.onnx"],
    }
    if 2 not in {each["version"] for each in stack.json("versions", "ranker")}:
        stack.galley("push", "ranker", "--file", str(models[2]), "--version", "2")
    known = {number: ranker.reference(path, vectors).ravel() for number, path in models.items()}
    # Only questions that tell the versions apart.
    apart = np.flatnonzero(np.abs(known[1] - known[2]) > 10 * TOLERANCE)[:QUESTIONS]
    assert len(apart) == QUESTIONS
    vectors = vectors[apart]
    scores = {
        stack.json("show", "ranker", str(number))["digest"]: found[apart]
        for number, found in known.items()
    }
    check = _Check(stack, vectors, scores, answers)
    threads = [threading.Thread(target=check.work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    flips = 0
    try:
        while any(thread.is_alive() for thread in threads):
            stack.galley("deploy", "ranker", "1" if flips % 2 else "2")
            flips += 1
    finally:
        check.stop.set()
        for thread in threads:
            thread.join()
        stack.galley("deploy", "ranker", "1")
    assert check.faults == []
    assert flips >= 4
    return check.checked, check.states


class _Check:
    """Asks, and compares each answer with the score that its digest stands for."""

    def __init__(self, stack: Stack, vectors: Any, scores: dict[str, Any], answers: int) -> None:
        self.port = stack.state.ports["gateway"]
        self.trusted = ssl.create_default_context(cafile=stack.home.tls / "ca.pem")
        self.headers = {
            **authorization(stack.home.secrets().operator_key),
            "content-type": "application/json",
        }
        self.bodies = [_body(vector) for vector in vectors]
        self.scores = scores
        self.answers = answers
        self.checked = 0
        self.states: Counter[str] = Counter()
        self.faults: list[str] = []
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def work(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        deadline = time.monotonic() + MOST_SECONDS
        # http.client: half of what httpx costs, and this load is to be large.
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.trusted)
        while self.checked < self.answers and not self.stop.is_set() and not self.faults:
            if time.monotonic() > deadline:
                self.faults.append(f"only {self.checked} answers in {MOST_SECONDS:g} s")
                return
            place = int(rng.integers(QUESTIONS))
            try:
                connection.request("POST", INFER, self.bodies[place], self.headers)
                response = connection.getresponse()
                text = response.read()
            except (OSError, HTTPException) as error:
                self.faults.append(repr(error))
                return
            fault = self._fault(response.status, response.headers, text, place)
            with self.lock:
                self.checked += 1
                self.states[response.headers["x-galley-cache"]] += 1
                if fault:
                    self.faults.append(fault)
        connection.close()

    def _fault(self, status: int, headers: Any, text: bytes, place: int) -> str | None:
        if status != 200:
            return f"{status}: {text[:200]!r}"
        answer = json.loads(text)
        score = answer["outputs"][0]["data"][0]
        expected = self.scores[headers["x-galley-digest"]][place]
        if answer["model_version"] != headers["x-galley-version"] or abs(score - expected) > (
            TOLERANCE
        ):
            return f"{headers['x-galley-digest']}: {score} is not {expected}"
        return None


def _body(vector: Any) -> bytes:
    data = [round(float(value), 6) for value in vector]
    tensor = {"name": "input0", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()
