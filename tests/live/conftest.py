"""One real local stack for the whole run, with both shipped models behind its gateway."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.local.access import operator_client
from serving.local.home import Home, State
from serving.local.stack import ProcessStatus, down, status

ROOT = Path(__file__).parents[2]
Galley = Callable[..., subprocess.CompletedProcess[str]]


def run_galley(
    home: Path, arguments: Sequence[str], check: bool, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it, from another folder than the checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=home.parent,
        env={**os.environ, "GALLEY_HOME": str(home), "PYTHONPATH": str(ROOT), **environment},
    )
    assert not check or done.returncode == 0, done.stderr + done.stdout
    return done


class Stack:
    """A running stack, as tests see it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)

    @property
    def state(self) -> State:
        return self.home.running_state()

    def galley(
        self, *arguments: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return run_galley(self.home.root, arguments, check, environment)

    def json(self, *arguments: str, **environment: str) -> Any:
        done = run_galley(self.home.root, (*arguments, "--json"), True, environment)
        return json.loads(done.stdout)

    def client(self) -> httpx.Client:
        """A new client with the operator's key."""
        return operator_client(self.home, self.state)

    def ask(self, method: str, path: str, **settings: Any) -> httpx.Response:
        """One request with the operator's key."""
        with self.client() as client:
            return client.request(method, path, **settings)

    def process(self, name: str) -> ProcessStatus:
        return next(row for row in status(self.home) if row.name == name)


@pytest.fixture(scope="session")
def new_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stack]]:
    """Makes stacks that are not started; whatever runs at the end is stopped."""
    made: list[Stack] = []

    def make() -> Stack:
        # A folder with a space and a percent sign: people have them.
        made.append(Stack(tmp_path_factory.mktemp("home") / "a stack 100%"))
        return made[-1]

    yield make
    for stack in made:
        down(stack.home)


@pytest.fixture(scope="session")
def stack(new_stack: Callable[[], Stack]) -> Stack:
    """A running stack that serves version 1 of both shipped models; tests leave it so."""
    stack = new_stack()
    stack.galley("up")
    for model in ("filetype", "ranker"):
        stack.galley("push", model)
        stack.galley("deploy", model, "1")
    return stack


@pytest.fixture(scope="session")
def fresh_stack(new_stack: Callable[[], Stack]) -> Callable[[], Stack]:
    """Makes stacks that are not started, for tests that start, break and stop them."""
    return new_stack
