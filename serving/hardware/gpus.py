"""Every GPU that a spec may name: memory, speed, number types and how it divides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from serving.hardware.mig import Geometry, Layout, Profile, full_layouts, profiles_of
from serving.slo import Positive
from serving.strict import Strict
from serving.yaml_file import read_mapping

FILE = Path(__file__).with_name("gpus.yaml")

MIB = 1024**2
GIB = 1024**3

NumberType = Literal["bf16", "fp16", "fp8", "fp4", "int8"]

GEMM_RATIO = 0.75
"""Of the peak, where nobody measured: measured GPUs reach 0.71 to 0.87 (`achieved_tflops`)."""
BANDWIDTH_RATIO = 0.85
"""Of the memory's bandwidth that a decode step gets; an estimate, without a source."""


class Gpu(Strict):
    """One kind of GPU with one size of memory."""

    name: str = Field(description="name as specs and node labels spell it")
    memory_mib: int = Field(gt=0, description="memory that EC2 reports, in MiB")
    compute_capability: str = Field(description="NVIDIA's number for what it can do")
    bandwidth_gb_per_second: Positive | None = Field(
        default=None, description="memory bandwidth in 10^9 bytes a second"
    )
    tflops: Mapping[NumberType, float] = Field(description="dense peak by number type, 10^12/s")
    achieved_tflops: Mapping[NumberType, float] = Field(
        default={}, description="measured on matrix products, 10^12/s"
    )
    link: Literal["pcie", "nvlink"] = Field(description="what joins the GPUs of an instance")
    link_gb_per_second: Positive = Field(description="bandwidth of the link in 10^9 bytes a second")
    mig: Geometry | None = Field(default=None, description="how it divides, if it does")
    mig_names: tuple[str, ...] = Field(default=(), description="its MIG profiles, smallest first")
    source: str = Field(description="where the numbers are from: a key of sources")
    note: str | None = Field(default=None, description="what to know before relying on them")

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib * MIB

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability as numbers that compare rightly: 10.0 is above 9.0."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Its MIG profiles, smallest first; none where it does not divide."""
        return profiles_of(self.mig, self.mig_names, self.memory_mib) if self.mig else ()

    @property
    def full_layouts(self) -> tuple[Layout, ...]:
        """The legal sets of MIG instances to which nothing can be added."""
        return full_layouts(self.mig, self.mig_names) if self.mig else ()

    def speed_tflops(self, number: NumberType) -> float | None:
        """What matrix products reach, in TFLOPS; None where the GPU cannot or nobody says."""
        if number in self.achieved_tflops:
            return self.achieved_tflops[number]
        peak = self.tflops.get(number)
        return None if peak is None else peak * GEMM_RATIO


class Gpus(Strict):
    """The file `gpus.yaml`."""

    date: str = Field(description="day on which the sources were read")
    sources: Mapping[str, str] = Field(description="where numbers are from, by key")
    gpus: tuple[Gpu, ...] = Field(description="every GPU")


@cache
def read_gpus() -> Gpus:
    """The shipped file.

    Raises:
        ValidationError: the file is not one of GPUs.
    """
    return Gpus.model_validate(read_mapping(FILE))


def gpu_named(name: str, memory_mib: int | None = None) -> Gpu:
    """The GPU of that name; of several sizes the smallest, or the one with so much memory.

    >>> gpu_named("a100").memory_mib, gpu_named("a100", 81920).bandwidth_gb_per_second
    (40960, 2039.0)

    Raises:
        KeyError: there is none.
    """
    found = [
        gpu for gpu in read_gpus().gpus if gpu.name == name and memory_mib in (None, gpu.memory_mib)
    ]
    if not found:
        raise KeyError(name)
    return min(found, key=lambda gpu: gpu.memory_mib)
