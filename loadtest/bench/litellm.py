"""LiteLLM's proxy in an environment of its own, with the settings that its documentation advises.

    one worker for each core            here one, as costs are counted and not cores
    LITELLM_MODE=PRODUCTION             no .env file is read
    LITELLM_LOG=ERROR, set_verbose off  no lines for each request
    request_timeout: 600                rather than 6,000 s
    --run_granian                       for more throughput; 7 to 15 % cheaper than uvicorn here
    no database, no callbacks           so no spend is written; aiohttp to model servers by default

And none that reaches out: its own price list, no telemetry.

The lock holds the newest version whose proxy the registry had whole when it was made, by
`uv pip compile --python-version 3.11 --generate-hashes` of `litellm[proxy]`.

Source:
    https://docs.litellm.ai/docs/proxy/prod
    https://docs.litellm.ai/docs/proxy/server_tuning
    https://docs.litellm.ai/docs/aiohttp_benchmarks
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from loadtest.bench.servers import ROOT, Server, running
from serving.errors import InfrastructureError
from serving.local.home import write_atomically

LOCK: Final = Path(__file__).with_name("litellm.lock")
FOLDER: Final = ROOT / ".bench" / "litellm"
INSTALL_SECONDS: Final = 540


@dataclass(frozen=True)
class LiteLlm:
    """The running proxy, and the headers that let a client in."""

    server: Server
    headers: dict[str, str]


def is_installed() -> bool:
    """Whether it is there in the version of the lock."""
    return _stamp().exists() and _stamp().read_bytes() == LOCK.read_bytes()


def install() -> None:
    """Put what the lock names, hashes checked, into a folder of its own.

    Raises:
        InfrastructureError: it cannot be had here.
    """
    uv = Path(sys.executable).with_name("uv")
    python = FOLDER / "bin" / "python"
    commands = (
        (uv, "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, FOLDER),
        # Compiled once, or each start takes twice as long.
        (
            *(uv, "pip", "sync", "--quiet", "--compile-bytecode"),
            *("--python", python, "--require-hashes", LOCK),
        ),
    )
    for command in commands:
        try:
            subprocess.run(
                [str(word) for word in command],
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip()
            raise InfrastructureError(
                f"litellm cannot be installed: {said.splitlines()[-1]}"
            ) from error
    _stamp().write_bytes(LOCK.read_bytes())


def installed_version() -> str:
    """The version that is there."""
    for site in FOLDER.glob("lib/python*/site-packages"):
        for found in distributions(name="litellm", path=[str(site)]):
            return found.version
    return "unknown"


def _stamp() -> Path:
    return FOLDER / "installed.lock"


@contextmanager
def litellm(folder: Path, port: int, stub_port: int) -> Iterator[LiteLlm]:
    """The proxy in front of an OpenAI-style server."""
    key = f"sk-{secrets.token_urlsafe(24)}"
    upstream = {
        "model": "openai/chat",
        "api_key": "sk-stub",
        "api_base": f"http://127.0.0.1:{stub_port}/v1",
    }
    config = {
        "model_list": [{"model_name": "chat", "litellm_params": upstream}],
        "general_settings": {"master_key": key},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
    }
    # JSON is YAML too.
    write_atomically(folder / "litellm.yaml", json.dumps(config), private=True)
    command = (
        *(FOLDER / "bin" / "litellm", "--config", folder / "litellm.yaml", "--run_granian"),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        *("--telemetry", "False"),
    )
    environment = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(folder),
    }
    ready = "/health/liveliness"
    with running("litellm", command, port, folder, environment, ready) as server:
        yield LiteLlm(server, {"host": "127.0.0.1", "authorization": f"Bearer {key}"})
