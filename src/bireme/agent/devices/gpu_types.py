"""What is known of one GPU. Pure values, made by `nvml` and `kfd`, handed out by `gpus`.

Invariant: `links` has one entry per GPU of the machine, -1 at the GPU's own place, as gres.conf's Links.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel"]


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that programs use like a GPU of their own."""

    uuid: str
    profile: str  # such as 1g.10gb
    memory_mib: int
    gpu_instance: int
    compute_instance: int
    device_files: tuple[str, ...]  # besides the GPU's own


@dataclass(frozen=True, slots=True)
class GpuInfo:
    index: int
    vendor: Vendor
    uuid: str
    model: str
    slurm_type: str
    memory_mib: int
    pci_bus_id: str
    minor: int | None
    device_file: str | None
    numa_node: int | None
    cpu_affinity: tuple[int, ...]
    links: tuple[int, ...]  # direct or switched links to each GPU
    topology: tuple[str, ...]  # how close each GPU is: self, internal, single, multiple, hostbridge, node, system
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()


def slurm_type(model: str) -> str:
    """The GRES type that Slurm's AutoDetect makes of a model name: `NVIDIA H200` is `nvidia_h200`."""
    return "_".join(model.lower().split())


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,8` as the kernel writes it."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def pci_locality(bus_id: str, sys_root: Path = Path("/sys")) -> tuple[int | None, tuple[int, ...]]:
    """The NUMA node and the CPUs next to a PCI device, as far as the kernel knows them."""
    folder = sys_root / "bus/pci/devices" / bus_id.lower()
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    try:
        cpus = parse_cpu_list((folder / "local_cpulist").read_text())
    except (OSError, ValueError):
        cpus = ()
    return (node if node >= 0 else None), cpus
