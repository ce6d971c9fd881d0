"""Which GPUs this machine has, and the variables that show a task the ones it was given.

`discover` is called when a cluster starts without a gres.conf, or with `AutoDetect`, and by `bireme doctor`.
NVIDIA cards are found through NVML (`nvml`), AMD cards through the kernel's topology files (`kfd`). It only
looks: who gets which GPU is decided elsewhere, and `confinement` keeps tasks away from the others.

Invariant: no GPU, no driver and a broken driver are all answers, never exceptions: an inventory that is
empty says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bireme.agent.devices.gpu_types import GpuInfo, MigInstance, Vendor, slurm_type
from bireme.agent.devices.kfd import discover_amd
from bireme.agent.devices.nvml import discover_nvidia

__all__ = [
    "GpuInfo",
    "GpuInventory",
    "MigInstance",
    "discover",
    "slurm_type",
    "vendor_of_type",
    "visible_devices_environment",
]

# What gres.conf's environment flags stand for; "any" is Slurm's default when no flag is given.
EnvironmentKind = Literal["nvidia", "amd", "intel", "opencl", "any", "none"]

_VARIABLES: dict[EnvironmentKind, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES",),
    "intel": ("ZE_AFFINITY_MASK",),
    "opencl": ("GPU_DEVICE_ORDINAL",),
    "any": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"),
    "none": (),
}
_AMD_PREFIXES = ("amd", "mi", "gfx", "radeon", "instinct", "vega", "navi")
_INTEL_PREFIXES = ("intel", "pvc", "ponte", "max_1", "flex", "arc", "xe")


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The machine's GPUs in the order Slurm numbers them; `reason` says why there are none."""

    gpus: tuple[GpuInfo, ...]
    reason: str = ""


def discover() -> GpuInventory:
    """Look for GPUs now. Takes a moment where a driver has to wake cards up."""
    nvidia, no_nvidia = _discover_with_nvml()
    if nvidia:
        return GpuInventory(tuple(nvidia))
    amd = discover_amd()
    if amd:
        return GpuInventory(tuple(amd))
    return GpuInventory((), f"{no_nvidia}; no AMD GPU in the kernel's topology")


def visible_devices_environment(
    kind: EnvironmentKind, devices: Sequence[int | str], *, renumbered: bool = False
) -> dict[str, str]:
    """The variables for a task that was given these devices (numbers, or UUIDs of MIG instances).

    `renumbered`: the task is confined to its devices and therefore sees them counted from 0.
    """
    if not devices:
        return {}
    shown = range(len(devices)) if renumbered and not isinstance(devices[0], str) else devices
    text = ",".join(map(str, shown))
    return dict.fromkeys(_VARIABLES[kind], text)


def vendor_of_type(gres_type: str) -> Vendor:
    """Whose GPU a configured type names (`a100`, `mi250`, `nvidia_h200`): NVIDIA's unless it says otherwise."""
    name = gres_type.lower()
    if name.startswith(_AMD_PREFIXES):
        return "amd"
    return "intel" if name.startswith(_INTEL_PREFIXES) else "nvidia"


def _discover_with_nvml() -> tuple[list[GpuInfo], str]:
    # Late: most machines and most starts have no use for it, and it is not small.
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    try:
        found = discover_nvidia(pynvml)
        return found, "" if found else "NVML: the driver knows no GPU"
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()
