"""What people write for Locust by hand: a FastHttpUser that asks again once it is answered."""

import os
from pathlib import Path

from locust import task
from locust.contrib.fasthttp import FastHttpUser

_folder = Path(os.environ["BENCH_BODY"])


class Plain(FastHttpUser):
    """A closed loop."""

    body = (_folder / "body").read_bytes()
    headers = dict(  # noqa: RUF012 - read only
        line.split(": ", 1) for line in (_folder / "headers").read_text().splitlines()
    )
    path = (_folder / "path").read_text()

    @task
    def ask(self) -> None:
        """Ask for as long as Locust lets it."""
        while True:
            # Bytes work as well as the text that its type speaks of.
            self.client.post(self.path, data=self.body, headers=self.headers)  # type: ignore[arg-type]
