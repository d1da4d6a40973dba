"""Envoy takes over what is rendered, and what is rendered is the same for the same gateway."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.clusters import (
    HOPS,
    INNER,
    SERVERS,
    SERVERS_GRPC,
    cluster_name,
    clusters,
    grpc_name,
    shadow_name,
)
from serving.gateway.envoy import PRIVATE, render_bootstrap, render_watched
from serving.gateway.routes import Gateway
from serving.gateway.xds import version_of
from serving.local.engines import find_engines
from tests.serving.gateway.envoy_process import KEYS, write

FOLDER = Path("/galley/xds")


@pytest.fixture(scope="module")
def program() -> str:
    """The installed Envoy."""
    return str(find_engines().envoy)


def validate(program: str, bootstrap: Path) -> "subprocess.CompletedProcess[str]":
    command = [program, "--mode", "validate", "-c", str(bootstrap)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_gateway_of_two_models_renders_as_recorded(
    gateway: Gateway, golden: Callable[[str, str], None]
) -> None:
    golden("gateway/bootstrap.json", render_bootstrap(gateway, FOLDER, [50.0, 33.0]))
    watched = render_watched(gateway, FOLDER, KEYS)
    assert list(watched) == [
        *("eds-servers.json", "eds-servers-grpc.json", "eds-prediction.json", "eds-inner.json"),
        *("eds-filetype-v1.json", "eds-filetype-v1-grpc.json"),
        *("eds-ranker-v12.json", "eds-ranker-v12-grpc.json"),
        *("cds.json", "inner-rds.json", "rds.json"),
    ]
    for name, text in watched.items():
        golden(f"gateway/{name}", text)


def test_the_same_gateway_gives_the_same_bytes(gateway: Gateway) -> None:
    assert render_watched(gateway, FOLDER, KEYS) == render_watched(gateway, FOLDER, KEYS)
    assert render_bootstrap(gateway, FOLDER) == render_bootstrap(gateway, FOLDER)


def changed(gateway: Gateway, other: Gateway) -> set[str]:
    before, after = (render_watched(each, FOLDER, KEYS) for each in (gateway, other))
    return {name for name in after if before.get(name) != after[name]}


def test_another_set_of_endpoints_changes_the_files_of_endpoints_alone(gateway: Gateway) -> None:
    # A cluster that changed would be new to Envoy, and all its servers as well: no slow start.
    route = gateway.models[0]
    fewer = replace(route.main, endpoints=route.main.endpoints[:1])
    other = gateway.with_route(replace(route, versions=(fewer,)))
    assert changed(gateway, other) == {"eds-filetype-v1.json", "eds-filetype-v1-grpc.json"}


def test_other_keys_or_limits_change_the_routes_of_clients_alone(gateway: Gateway) -> None:
    route = gateway.models[0]
    limits = replace(route.limits, rate_rps=1)
    assert changed(gateway, gateway.with_route(replace(route, limits=limits))) == {"rds.json"}
    before = render_watched(gateway, FOLDER, KEYS)
    after = render_watched(gateway, FOLDER, {**KEYS, "ads": ("another",)})
    assert {name for name in before if before[name] != after[name]} == {"rds.json"}


def test_keys_are_in_no_file_but_the_one_that_its_owner_alone_reads(gateway: Gateway) -> None:
    files = {
        **render_watched(gateway, FOLDER, KEYS),
        "bootstrap.json": render_bootstrap(gateway, FOLDER),
    }
    holding = {name for name, text in files.items() if "key-of-ads" in text}
    assert holding == {PRIVATE}


names = st.from_regex(r"a[a1]?(-v[0-9]{1,2}){0,2}(-grpc|-shadow)?", fullmatch=True)
versions = st.integers(1, 120)


@given(names, versions, names, versions)
def test_clusters_have_one_name_exactly_if_they_are_of_one_version_of_one_model(
    model: str, version: int, other_model: str, other_version: int
) -> None:
    kinds = (cluster_name, grpc_name, shadow_name)
    here = {kind(model, version) for kind in kinds}
    there = {kind(other_model, other_version) for kind in kinds}
    assert len(here) == 3
    if (model, version) == (other_model, other_version):
        assert here == there
    else:
        assert not here & there


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,62}", fullmatch=True), versions)
def test_no_model_takes_the_name_of_a_shared_cluster(model: str, version: int) -> None:
    shared = {SERVERS, SERVERS_GRPC, HOPS, INNER}
    assert not shared & {kind(model, version) for kind in (cluster_name, grpc_name, shadow_name)}


def test_every_cluster_of_a_gateway_has_its_own_name(gateway: Gateway) -> None:
    found = [cluster.name for cluster in clusters(gateway)]
    assert len(found) == len(set(found))


def test_the_version_of_a_file_is_what_envoy_reads_in_it(gateway: Gateway) -> None:
    for text in render_watched(gateway, FOLDER, KEYS).values():
        assert version_of(text) == json.loads(text)["version_info"]
        assert re.fullmatch("[0-9a-f]{16}", version_of(text))


def test_the_answer_to_an_unknown_path_stays_below_envoys_limit_with_any_number_of_models(
    gateway: Gateway,
) -> None:
    models = tuple(
        replace(gateway.models[0], model=f"m{number:03}".ljust(63, "x")) for number in range(60)
    )
    answer = unknown_path(replace(gateway, models=models))
    assert len(answer) <= 4096
    assert answer.endswith(" and 10 more")


def test_a_gateway_without_models_says_that_it_has_none(gateway: Gateway) -> None:
    assert unknown_path(replace(gateway, models=())).endswith("models: none")


def unknown_path(gateway: Gateway) -> str:
    rules = json.loads(render_watched(gateway, FOLDER, KEYS)["rds.json"])
    last = rules["resources"][0]["virtual_hosts"][0]["routes"][-1]
    text: str = last["direct_response"]["body"]["inline_string"]
    return text


def test_envoy_accepts_its_start_up_file(program: str, gateway: Gateway, tmp_path: Path) -> None:
    folder = tmp_path / "a folder: 100% #1 'quoted'"
    folder.mkdir()
    done = validate(program, write(gateway, folder))
    assert done.returncode == 0, done.stderr


def test_envoy_does_refuse_a_start_up_file_with_an_unknown_key(
    program: str, gateway: Gateway, tmp_path: Path
) -> None:
    bootstrap = write(gateway, tmp_path)
    bootstrap.write_text(bootstrap.read_text().replace("merge_slashes", "merge_all_slashes"))
    done = validate(program, bootstrap)
    assert done.returncode != 0
    assert "merge_all_slashes" in done.stderr
