"""The small words of Envoy's API that every part of its configuration is made of."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

EXTENSIONS = "type.googleapis.com/envoy.extensions"
HTTP_FILTERS = f"{EXTENSIONS}.filters.http"

ALWAYS = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


def typed(kind: str, **settings: Any) -> Json:
    """A message of the extension type `kind`, which is named without its common prefix."""
    return {"@type": f"{EXTENSIONS}.{kind}", **settings}


def http_filter(name: str, kind: str, **settings: Any) -> Json:
    """An HTTP filter of the listener."""
    return {"name": name, "typed_config": typed(f"filters.http.{kind}", **settings)}


def off() -> Json:
    """Turns a filter off for one route."""
    return {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}


def address(host: str, port: int) -> Json:
    """A TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}


def watched(folder: Path, name: str) -> Json:
    """A file that Envoy reads again when it is replaced."""
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": str(folder / name),
            "watched_directory": {"path": str(folder)},
        },
    }


def resources(kind: str, items: Sequence[Json]) -> str:
    """A watched file that holds these resources."""
    named = [{"@type": f"type.googleapis.com/envoy.{kind}", **each} for each in items]
    version = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
    return text({"version_info": version, "resources": named})


def version_of(file: str) -> str:
    """The version that Envoy reports once it has taken over this watched file."""
    # Always the first member; reading all of it is slow with many models.
    return file.split('"', 4)[3]


def set_header(name: str, value: str) -> Json:
    """A header that takes the place of any that is there."""
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def seconds(value: float) -> str:
    """A duration as Envoy reads it.

    >>> seconds(0.25), seconds(5.0)
    ('0.25s', '5s')
    """
    return f"{value:g}s"


def text(value: Json) -> str:
    """JSON, which Envoy reads ten times as fast as YAML."""
    return json.dumps(value, indent=1) + "\n"
