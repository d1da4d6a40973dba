"""A real S3 server for the tests of this folder: SeaweedFS, on loopback, with its own keys."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import StoreError
from serving.registry.store import Store, StoreConfig

ROOT = Path(__file__).parents[3]
ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"
START_SECONDS = 60
_numbers = itertools.count(1)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on; held together while they are looked for, so all differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreConfig]:
    weed = ROOT / ".engines" / "bin" / "weed"
    program = str(weed) if weed.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed; `make install` does it")
    folder = tmp_path_factory.mktemp("seaweedfs")
    actions = ["Admin", "Read", "Write", "List"]
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identities = {"identities": [{"name": "test", "credentials": keys, "actions": actions}]}
    (folder / "identities.json").write_text(json.dumps(identities))
    names = [
        f"{part}.port{kind}"
        for part in ("master", "volume", "filer", "s3")
        for kind in ("", ".grpc")
    ]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    # The gRPC ports are named because the default, port + 10000, may be taken or above 65535.
    command = [
        *(program, "server", "-s3", "-filer", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-{name}={port}" for name, port in ports.items()),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false"),
        *("-volume.max=0", "-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false"),
        *(f"-dir={folder}", f"-s3.config={folder / 'identities.json'}"),
    ]
    config = StoreConfig(
        bucket="registry",
        endpoint_url=f"http://127.0.0.1:{ports['s3.port']}",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(config, process, folder / "log")
            yield config
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _wait(config: StoreConfig, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until a write goes through: the S3 port opens before there is a volume to write to."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with Store(config) as store:
                store.ensure_bucket()
                store.create(f"started/{next(_numbers)}", b"yes")
                return
        except StoreError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                pytest.fail(f"SeaweedFS did not start: {error}\n{tail}")
            time.sleep(0.2)


@pytest.fixture(scope="session")
def store(s3_server: StoreConfig) -> Iterator[Store]:
    with Store(s3_server) as store:
        yield store


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return f"model-{next(_numbers)}"
