"""Settings are read whole or not at all, and what is secret in them is not printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.prediction.settings import CacheServer, read_settings

GIVEN: dict[str, Any] = {
    "name": "prediction-0",
    "host": "127.0.0.1",
    "port": 1234,
    "table": "/home/table.json",
    "upstream": {"host": "127.0.0.1", "port": 1235},
    "valkey": {"host": "127.0.0.1", "port": 1236, "username": "u", "password": "hidden-1"},
    "mac_key": "ab" * 32,
    "log_folder": "/home/logs",
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "settings.json"
    path.write_text(json.dumps({**GIVEN, **changes}))
    return path


def test_settings_come_back_as_they_were_written(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path))
    assert (settings.name, settings.port, settings.upstream_port) == ("prediction-0", 1234, 1235)
    assert settings.cache == CacheServer("127.0.0.1", 1236, "u", "hidden-1")
    assert settings.mac_key == b"\xab" * 32


def test_a_hop_may_have_no_cache(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path, valkey=None)).cache is None


def test_secrets_are_not_part_of_what_is_printed(tmp_path: Path) -> None:
    shown = repr(read_settings(written(tmp_path)))
    assert "hidden-1" not in shown
    assert "abab" not in shown


@pytest.mark.parametrize("changes", [{"upstream": None}, {"mac_key": 5}, {"valkey": {"host": ""}}])
def test_what_is_no_settings_is_refused_with_the_file(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"settings\.json"):
        read_settings(path)
