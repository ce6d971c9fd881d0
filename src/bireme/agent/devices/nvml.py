"""NVIDIA GPUs through NVML: what each is, where it sits, how it is linked, how it is cut up.

Called by `gpus`, which loads the library and passes it in; tests pass one of their own. A card that does not
answer one question (older card, virtual machine, missing right) is described without that answer.

Invariant: GPUs are numbered in PCI bus order, as Slurm and nvidia-smi do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bireme.agent.devices.gpu_types import GpuInfo, MigInstance, pci_locality, slurm_type

_MIB = 1 << 20
_MIG_MINORS = "proc/driver/nvidia-caps/mig-minors"
_LEVELS = (
    ("internal", "NVML_TOPOLOGY_INTERNAL"),
    ("single", "NVML_TOPOLOGY_SINGLE"),
    ("multiple", "NVML_TOPOLOGY_MULTIPLE"),
    ("hostbridge", "NVML_TOPOLOGY_HOSTBRIDGE"),
    ("node", "NVML_TOPOLOGY_NODE"),
    ("system", "NVML_TOPOLOGY_SYSTEM"),
)
Answer = TypeVar("Answer")


def discover_nvidia(nvml: Any, root: Path = Path("/")) -> list[GpuInfo]:
    """Every GPU the initialised library knows. NVMLError only when it cannot even count them."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    bus_ids = [_bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
    order = sorted(range(len(handles)), key=lambda i: bus_ids[i].lower())
    machine = _Machine(nvml, root, [handles[i] for i in order], [bus_ids[i] for i in order])
    return [machine.describe(index) for index in range(len(handles))]


class _Machine:
    """All GPUs at once: links and topology are between two of them."""

    def __init__(self, nvml: Any, root: Path, handles: list[Any], bus_ids: list[str]) -> None:
        self.nvml = nvml
        self.root = root
        self.handles = handles
        self.bus_ids = bus_ids

    def describe(self, index: int) -> GpuInfo:
        nvml, handle = self.nvml, self.handles[index]
        model = _text(self._ask(lambda: nvml.nvmlDeviceGetName(handle), "NVIDIA GPU"))
        minor = self._ask(lambda: int(nvml.nvmlDeviceGetMinorNumber(handle)), None)
        numa_node, cpus = pci_locality(self.bus_ids[index], self.root / "sys")
        mig_enabled = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == 1, False)
        return GpuInfo(
            index=index,
            vendor="nvidia",
            uuid=_text(self._ask(lambda: nvml.nvmlDeviceGetUUID(handle), "")),
            model=model,
            slurm_type=slurm_type(model),
            memory_mib=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB, 0),
            pci_bus_id=self.bus_ids[index],
            minor=minor,
            device_file=f"/dev/nvidia{minor}" if minor is not None else None,
            numa_node=numa_node,
            cpu_affinity=self._cpus(handle) or cpus,
            links=self._links(index),
            topology=tuple(self._level(index, other) for other in range(len(self.handles))),
            mig_enabled=mig_enabled,
            mig_instances=self._mig_instances(handle, minor) if mig_enabled else (),
        )

    def _cpus(self, handle: Any) -> tuple[int, ...]:
        words: list[int] = self._ask(lambda: list(self.nvml.nvmlDeviceGetCpuAffinity(handle, 64)), [])
        return tuple(64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1)

    def _links(self, index: int) -> tuple[int, ...]:
        """NVLinks to each GPU. Links into a switch count towards every GPU that the switch reaches."""
        direct = [0] * len(self.handles)
        switched = 0
        for remote in self._remote_bus_ids(self.handles[index]):
            if remote in self.bus_ids:
                direct[self.bus_ids.index(remote)] += 1
            else:
                switched += 1
        return tuple(
            -1 if other == index else direct[other] or (switched if self._reached_by_switch(index, other) else 0)
            for other in range(len(self.handles))
        )

    def _remote_bus_ids(self, handle: Any) -> list[str]:
        nvml = self.nvml
        remotes = []
        for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            if self._ask(lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link), 0):  # type: ignore[misc]
                remote = self._ask(
                    lambda link=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId,  # type: ignore[misc]
                    "",
                )
                remotes.append(_bus_id(remote))
        return remotes

    def _reached_by_switch(self, one: int, other: int) -> bool:
        nvml = self.nvml
        capability = getattr(nvml, "NVML_P2P_CAPS_INDEX_NVLINK", 2)
        status = self._ask(
            lambda: nvml.nvmlDeviceGetP2PStatus(self.handles[one], self.handles[other], capability), None
        )
        return bool(status == getattr(nvml, "NVML_P2P_STATUS_OK", 0))

    def _level(self, one: int, other: int) -> str:
        if one == other:
            return "self"
        nvml = self.nvml
        level = self._ask(
            lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(self.handles[one], self.handles[other]), None
        )
        return next((name for name, constant in _LEVELS if getattr(nvml, constant, None) == level), "system")

    def _mig_instances(self, handle: Any, minor: int | None) -> tuple[MigInstance, ...]:
        count = self._ask(lambda: int(self.nvml.nvmlDeviceGetMaxMigDeviceCount(handle)), 0)
        found = []
        for index in range(count):
            instance = self._ask(lambda i=index: self._mig_instance(handle, i, minor), None)  # type: ignore[misc]
            if instance is not None:  # a slot nobody made an instance in
                found.append(instance)
        return tuple(found)

    def _mig_instance(self, handle: Any, index: int, minor: int | None) -> MigInstance:
        nvml = self.nvml
        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        gpu_instance = int(nvml.nvmlDeviceGetGpuInstanceId(part))
        compute_instance = int(nvml.nvmlDeviceGetComputeInstanceId(part))
        profile = re.search(r"MIG (\S+)", _text(nvml.nvmlDeviceGetName(part)))
        return MigInstance(
            uuid=_text(nvml.nvmlDeviceGetUUID(part)),
            profile=profile[1] if profile else "",
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(part).total) // _MIB,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            device_files=self._capability_files(minor, gpu_instance, compute_instance),
        )

    def _capability_files(self, minor: int | None, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
        """The files that open a MIG instance, from the driver's table of them."""
        try:
            rows = [line.split() for line in (self.root / _MIG_MINORS).read_text().splitlines()]
        except OSError:
            return ()
        wanted = (
            f"gpu{minor}/gi{gpu_instance}/access",
            f"gpu{minor}/gi{gpu_instance}/ci{compute_instance}/access",
        )
        table = {row[0]: row[1] for row in rows if len(row) == 2}
        return tuple(f"/dev/nvidia-caps/nvidia-cap{table[name]}" for name in wanted if name in table)

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return question()
        except self.nvml.NVMLError:
            return otherwise


def _bus_id(raw: str | bytes) -> str:
    """NVML pads the PCI domain to eight digits; the kernel, and everybody else, writes four."""
    text = _text(raw).lower()
    domain, colon, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" if colon and len(domain) == 8 else text


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
