"""The stack's prediction hops: their settings, and the table of versions that they check for."""

import json
import re
from typing import Any

import httpx

from serving.engines.triton import parse_pbtxt
from serving.gateway.limits import limits_of
from serving.gateway.prediction.from_config import schema_of
from serving.gateway.prediction.schema import CacheRule, LogRule, Served
from serving.gateway.prediction.table import decode_table, encode_table
from serving.gateway.routes import Gateway
from serving.local.home import Home, Secrets, State, write_atomically
from serving.local.processes import CACHE_USER
from serving.registry.manifest import Manifest
from serving.slo import LatencySlo
from serving.spec import ModelSpec

TABLE = "table.json"
ASK_SECONDS = 2.0


def write_settings(home: Home, state: State, secrets: Secrets) -> None:
    """Write what each hop is started with, and a table of no versions."""
    for name in state.hop_names:
        settings = json.dumps(hop_settings(home, state, secrets, name), indent=2)
        write_atomically(home.prediction / f"{name}.json", settings, private=True)
    _write_table(home, ())


def hop_settings(home: Home, state: State, secrets: Secrets, name: str) -> dict[str, Any]:
    """What a hop is started with; it holds secrets, so the file is its owner's alone."""
    return {
        "name": name,
        "host": "127.0.0.1",
        "port": state.ports[name],
        "table": str(home.prediction / TABLE),
        "upstream": {"host": "127.0.0.1", "port": state.ports["inner"]},
        "valkey": {
            "host": "127.0.0.1",
            "port": state.ports["valkey"],
            "username": CACHE_USER,
            "password": secrets.cache_password,
        },
        "mac_key": secrets.cache_mac_key,
        "log_folder": str(home.prediction_logs),
    }


def served_of(spec: ModelSpec, manifest: Manifest, config: str) -> Served:
    """What hops do with requests for a version.

    Its tensors come from the published config, as the way back to an older version takes what that
    one took; how long answers are kept and what is logged are the spec's, as it is today.
    """
    schema, cache = schema_of(parse_pbtxt(config)), spec.cache
    names = {tensor.name for tensor in (*schema.inputs, *schema.outputs)}
    # Where a version calls its tensors otherwise, nobody can say which of them are private.
    log = spec.log if spec.log and names.issuperset(spec.log.redact) else None
    return Served(
        model=spec.name,
        version=manifest.version,
        digest=manifest.digest,
        schema=schema,
        timeout_seconds=limits_of(spec, replicas=1).timeout_seconds,
        latency_p99_ms=spec.slo.latency_p99_ms if isinstance(spec.slo, LatencySlo) else None,
        hash_header=spec.routing.hash_header if spec.routing else None,
        cache=CacheRule(cache.ttl_seconds, cache.scope == "client") if cache else None,
        log=LogRule(log.sample_ratio, log.redact) if log else None,
    )


def add_served(home: Home, served: Served) -> None:
    """Tell the hops of a version, before any request is for it."""
    kept = [each for each in read_served(home) if _identity(each) != (served.model, served.digest)]
    _write_table(home, (*kept, served))


def forget_unserved(home: Home, gateway: Gateway) -> None:
    """Take out of the table what no route leads to any more."""
    wanted = {
        (route.model, version.digest) for route in gateway.models for version in route.versions
    }
    _write_table(home, tuple(each for each in read_served(home) if _identity(each) in wanted))


def read_served(home: Home) -> tuple[Served, ...]:
    """Every version in the hops' table."""
    return decode_table((home.prediction / TABLE).read_bytes())


def held_by_hop(state: State, hop: str, model: str, version: int) -> int:
    """Requests for a version that a hop is working on; none where the hop is gone."""
    try:
        url = f"http://{state.address(hop)}/metrics"
        text = httpx.get(url, timeout=ASK_SECONDS, trust_env=False).text
    except httpx.HTTPError:
        return 0
    labels = f'model="{re.escape(model)}",version="{version}"'
    found = re.search(rf"^galley_prediction_in_flight{{{labels}}} ([0-9.e+]+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def _identity(served: Served) -> tuple[str, str]:
    return served.model, served.digest


def _write_table(home: Home, served: tuple[Served, ...]) -> None:
    write_atomically(home.prediction / TABLE, encode_table(served).decode())
