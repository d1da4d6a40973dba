"""The AWS instances: which accelerators each holds, its size, and its price with its date."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from serving.hardware.gpus import Gpu, gpu_named

FILE = Path(__file__).with_name("instances.psv")
REGION = "us-east-1"

Accelerator = Literal["gpu", "neuron", "none"]
_NEURON = ("inf2.", "trn1.", "trn2.")


@dataclass(frozen=True, slots=True)
class Instance:
    """One type of machine."""

    type: str
    accelerator: Accelerator
    gpu: Gpu | None
    gpus: int
    """Whole GPUs; 0 where it holds a part of one."""
    gpu_ratio: float
    """Share of one GPU that each of them is: 1, or less on fractional instances."""
    vcpus: int
    memory_mib: int
    network_mbps: int | None
    local_nvme_gb: int
    usd_per_hour: float | None
    """On demand in us-east-1; None where no price is public."""

    @property
    def family(self) -> str:
        """Name before the dot, as `g6`."""
        return self.type.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every instance, with the day and the source of the prices."""

    date: str
    source: str
    instances: tuple[Instance, ...]

    def named(self, kind: str) -> Instance:
        """The instance of that type.

        Raises:
            KeyError: there is none.
        """
        for instance in self.instances:
            if instance.type == kind:
                return instance
        raise KeyError(kind)


@cache
def read_instances() -> Catalogue:
    """The shipped table.

    >>> table = read_instances()
    >>> table.named("g6.12xlarge").gpus, table.named("g6.12xlarge").usd_per_hour
    (4, 4.6016)
    """
    comments: list[str] = []
    rows: list[str] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        (comments if line.startswith("#") else rows).append(line)
    columns = rows[0].split("|")
    return Catalogue(
        date=_said(comments, "date"),
        source=_said(comments, "source"),
        instances=tuple(
            _instance(dict(zip(columns, row.split("|"), strict=True))) for row in rows[1:]
        ),
    )


def _said(comments: list[str], key: str) -> str:
    """What the comments say after `key:`, with the lines that go on, indented."""
    text = "\n".join(line.removeprefix("# ") for line in comments).replace("\n  ", " ")
    return next(
        line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{key}: ")
    )


def _instance(cells: dict[str, str]) -> Instance:
    name, gpus = cells["gpu"], int(cells["gpus"] or 0)
    gpu, ratio = None, 1.0
    if name and gpus:
        gpu = gpu_named(name, int(cells["gpu_memory_mib"]))
    elif name:
        gpu = gpu_named(name)
        ratio = int(cells["gpu_memory_mib"]) / gpu.memory_mib
    neuron = cells["type"].startswith(_NEURON)
    return Instance(
        type=cells["type"],
        accelerator="gpu" if gpu else "neuron" if neuron else "none",
        gpu=gpu,
        gpus=gpus,
        gpu_ratio=round(ratio, 3),
        vcpus=int(cells["vcpus"]),
        memory_mib=int(cells["memory_mib"]),
        network_mbps=int(cells["network_mbps"]) if cells["network_mbps"] else None,
        local_nvme_gb=int(cells["local_nvme_gb"] or 0),
        usd_per_hour=float(cells["usd_per_hour"]) if cells["usd_per_hour"] else None,
    )
