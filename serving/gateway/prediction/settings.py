"""What a hop is started with, in a file that only its owner reads."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheServer:
    """Where answers are kept, and who may do so."""

    host: str
    port: int
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a hop listens, where it asks and keeps, and where its files are.

    Without a cache server nothing is kept. `mac_key` authenticates what is kept.
    """

    name: str
    host: str
    port: int
    table: Path
    upstream_host: str
    upstream_port: int
    cache: CacheServer | None
    mac_key: bytes = field(repr=False)
    log_folder: Path


def read_settings(path: Path) -> Settings:
    """The settings in a file.

    Raises:
        ValueError: the file is not one of settings.
    """
    try:
        return _settings(json.loads(path.read_bytes()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not the settings of a hop: {error!r}") from None


def _settings(given: dict[str, Any]) -> Settings:
    cache = given["valkey"]
    return Settings(
        name=given["name"],
        host=given["host"],
        port=given["port"],
        table=Path(given["table"]),
        upstream_host=given["upstream"]["host"],
        upstream_port=given["upstream"]["port"],
        cache=CacheServer(**cache) if cache else None,
        mac_key=bytes.fromhex(given["mac_key"]),
        log_folder=Path(given["log_folder"]),
    )
