"""The configurations of what the gateway is compared with, on the real programs."""

import subprocess
from pathlib import Path

import pytest

from loadtest.bench.envoys import Certificate, bare_bootstrap
from loadtest.bench.litellm import LOCK
from loadtest.bench.nginx import find_nginx, nginx_conf
from loadtest.bench.our_path import CLIENT, MODEL, PATH, stream_gateway
from serving.gateway.edge import render_edge
from serving.local.tls import write_certificate

PORTS = {"ours": 12_001, "ours-inner": 12_002, "ours-admin": 12_003}


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    write_certificate(tmp_path)
    return Certificate(tmp_path / "server.pem", tmp_path / "server.key")


def test_a_bare_envoy_has_one_route_and_no_filter_but_the_router(certificate: Certificate) -> None:
    static = bare_bootstrap(12_001, (12_002, 12_003), certificate)["static_resources"]
    chain = static["listeners"][0]["filter_chains"][0]
    manager = chain["filters"][0]["typed_config"]
    assert [each["name"] for each in manager["http_filters"]] == ["envoy.filters.http.router"]
    assert len(manager["route_config"]["virtual_hosts"][0]["routes"]) == 1
    assert "transport_socket" in chain
    endpoints = static["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert len(endpoints) == 2


def test_a_bare_envoy_without_a_certificate_speaks_no_tls() -> None:
    static = bare_bootstrap(12_001, (12_002,), None)["static_resources"]
    assert "transport_socket" not in static["listeners"][0]["filter_chains"][0]


def test_the_path_that_is_measured_checks_keys_and_counts_requests() -> None:
    host = render_edge(stream_gateway(PORTS, 12_009), {CLIENT: ["a key"]})["virtual_hosts"][0]
    route = next(each for each in host["routes"] if each["match"].get("path") == PATH)
    assert "envoy.filters.http.rbac" in route["typed_per_filter_config"]
    assert route["route"]["rate_limits"]
    filters = host["typed_per_filter_config"]
    limits = filters["envoy.filters.http.local_ratelimit"]["descriptors"]
    assert {entry["entries"][0]["value"] for entry in limits} == {CLIENT, MODEL}
    keys = filters["envoy.filters.http.api_key_auth"]["credentials"]
    assert keys == [{"key": "a key", "client": CLIENT}]


def test_nginx_takes_its_configuration(tmp_path: Path, certificate: Certificate) -> None:
    program = find_nginx()
    if program is None:
        pytest.skip("nginx is not installed")
    conf = tmp_path / "nginx.conf"
    conf.write_text(nginx_conf(tmp_path, 12_001, 12_002, certificate))
    done = subprocess.run(
        [program, "-t", "-p", tmp_path, "-c", conf],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr


def test_the_lock_of_litellm_pins_hashes_and_names_no_registry() -> None:
    lines = LOCK.read_text().splitlines()
    pins = [number for number, line in enumerate(lines) if "==" in line and line[0] != " "]
    assert any(lines[number].startswith("litellm==") for number in pins)
    assert all("--hash=sha256:" in lines[number + 1] for number in pins)
    assert not any(line.startswith("--") or "://" in line for line in lines)
