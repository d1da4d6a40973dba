"""The folder of one local stack: what is in it, and the state that is kept there."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.errors import StackError

# Everything that a stack puts into its folder, and so all that `down` may remove from it.
ENTRIES = frozenset(
    {
        *("lock", "stack.json", "secrets.json", "s3.json", "supervisord.conf", "supervisord.pid"),
        *("clients.json", "valkey.conf", "tls", "prediction"),
        *("logs", "store", "artifacts", "envoy", "backends", "replicas"),
        *("filer.sock", "s3.sock"),
    }
)


HOPS = 2


def new_api_key() -> str:
    """A key for the gateway that nobody can guess."""
    return f"galley-{secrets.token_urlsafe(32)}"


class Secrets(BaseModel):
    """Made at `up`, kept in a file that only its owner reads, shown nowhere."""

    model_config = ConfigDict(frozen=True)
    s3_access_key: str = Field(repr=False)
    s3_secret_key: str = Field(repr=False)
    supervisor_password: str = Field(repr=False)
    operator_key: str = Field(repr=False)
    cache_password: str = Field(repr=False)
    probe_password: str = Field(repr=False)
    cache_mac_key: str = Field(repr=False)

    @classmethod
    def generate(cls) -> "Secrets":
        """New random secrets."""
        return cls(
            s3_access_key=secrets.token_hex(8),
            s3_secret_key=secrets.token_hex(20),
            supervisor_password=secrets.token_hex(16),
            operator_key=new_api_key(),
            cache_password=secrets.token_hex(16),
            probe_password=secrets.token_hex(16),
            cache_mac_key=secrets.token_hex(32),
        )


class State(BaseModel):
    """What a running stack is: its identity, its ports, its number of Triton replicas."""

    model_config = ConfigDict(frozen=True)
    stack_id: str
    replicas: int
    ports: dict[str, int]

    def address(self, port: str) -> str:
        """`host:port` of the named port."""
        return f"127.0.0.1:{self.ports[port]}"

    @property
    def gateway_url(self) -> str:
        """Where clients send requests."""
        return f"https://{self.address('gateway')}"

    @property
    def replica_names(self) -> tuple[str, ...]:
        """Names of the Triton replicas."""
        return tuple(f"triton-{n}" for n in range(self.replicas))

    @property
    def hop_names(self) -> tuple[str, ...]:
        """Names of the prediction hops: two, so that one can die."""
        return tuple(f"prediction-{n}" for n in range(HOPS))


def is_own(name: str) -> bool:
    """Whether a stack makes an entry of this name, or a half-written one of it."""
    return name in ENTRIES or any(name.startswith(f".{entry}.") for entry in ENTRIES)


class Home:
    """Paths of one local stack."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / "stack.json"
        self.secrets_file = root / "secrets.json"
        self.supervisor_conf = root / "supervisord.conf"
        self.supervisor_pid = root / "supervisord.pid"
        self.logs = root / "logs"
        self.store = root / "store"
        self.artifacts = root / "artifacts"
        self.envoy = root / "envoy"
        self.xds = self.envoy / "xds"
        self.backends = root / "backends"
        self.clients_file = root / "clients.json"
        self.valkey_conf = root / "valkey.conf"
        self.tls = root / "tls"
        self.prediction = root / "prediction"
        self.prediction_logs = self.logs / "predictions"

    def replica(self, name: str) -> Path:
        """Folder of one Triton replica."""
        return self.root / "replicas" / name

    def state(self) -> State | None:
        """The recorded stack, or None where none was started.

        Raises:
            StackError: the record is damaged.
        """
        try:
            return State.model_validate_json(self.state_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise StackError(
                f"{self.state_file} is damaged; stop its processes and remove {self.root}"
            ) from error

    def secrets(self) -> Secrets:
        """The stack's secrets."""
        return Secrets.model_validate_json(self.secrets_file.read_bytes())

    def running_state(self) -> State:
        """The recorded stack.

        Raises:
            StackError: none was started.
        """
        state = self.state()
        if state is None:
            raise StackError(f"no local stack at {self.root}; run: galley up")
        return state

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the stack for changes, so that two commands cannot start or deploy at once.

        Raises:
            StackError: another command holds it.
        """
        path = self.root / "lock"
        self.root.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                flock(handle, LOCK_EX | LOCK_NB)
                # `down` removes the folder while it holds the lock: a file that is no longer
                # there locks nothing.
                held = path.stat().st_ino == os.fstat(handle.fileno()).st_ino
            except OSError:
                held = False
            if not held:
                raise StackError(
                    f"stack={self.root} is being changed by another galley command; wait for it"
                )
            yield


def write_atomically(path: Path, content: str, *, private: bool = False) -> None:
    """Replace `path` in one step, so that a reader sees the old or the new content, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if private else 0o644
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON, in one step."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
