"""What a benchmark ran on, and when."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from serving.local.engines import Engines


def machine(now: datetime | None = None) -> dict[str, str | int]:
    """Processor, cores, memory, kernel, Python and date."""
    return {
        "cpu": _cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": f"{os.getloadavg()[0]:.1f}",
        "date": (now or datetime.now(UTC)).strftime("%Y-%m-%d"),
    }


def _cpu_model(text: str) -> str:
    r"""Its name in /proc/cpuinfo.

    >>> _cpu_model("processor : 0\nmodel name : Some CPU @ 2 GHz\n")
    'Some CPU @ 2 GHz'
    """
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else "unknown"


def engine_versions(engines: Engines) -> dict[str, str]:
    """Versions of the servers that the local stack is made of."""
    return {
        "envoy": _said(engines.envoy, r"/(\d+\.\d+\.\d+)/"),
        "valkey": _said(engines.valkey, r"v=(\S+)"),
    }


def _said(program: Path, pattern: str) -> str:
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False, timeout=10
    )
    found = re.search(pattern, done.stdout)
    return found[1] if found else "unknown"
