"""AMD GPUs as the kernel's compute driver lists them under /sys/class/kfd.

Called by `gpus` where NVML finds nothing. Needs no library: the topology files have the model, memory, place
and links. What only AMD's own tools know (partition modes) is not looked for.

Invariant: GPUs are numbered in the order of the kernel's nodes, which is how the ROCm runtime counts them.
"""

from __future__ import annotations

from pathlib import Path

from bireme.agent.devices.gpu_types import GpuInfo, pci_locality, slurm_type

_NODES = "class/kfd/kfd/topology/nodes"
_VRAM_HEAPS = {1, 2}  # visible to the host, and not
_XGMI = 11


def discover_amd(sys_root: Path = Path("/sys")) -> list[GpuInfo]:
    """Every compute GPU of the topology; empty where there is none."""
    folders = sorted((sys_root / _NODES).glob("[0-9]*"), key=lambda folder: int(folder.name))
    gpus = [folder for folder in folders if _properties(folder / "properties").get("simd_count", 0) > 0]
    numbers = [int(folder.name) for folder in gpus]
    return [_describe(folder, index, numbers, sys_root) for index, folder in enumerate(gpus)]


def _describe(folder: Path, index: int, numbers: list[int], sys_root: Path) -> GpuInfo:
    facts = _properties(folder / "properties")
    bus_id = _bus_id(facts)
    minor = facts.get("drm_render_minor")
    model = _model(folder, facts, sys_root / "bus/pci/devices" / bus_id)
    numa_node, cpus = pci_locality(bus_id, sys_root)
    links = _links(folder)
    return GpuInfo(
        index=index,
        vendor="amd",
        uuid=f"GPU-{facts.get('unique_id', 0):016x}",
        model=model,
        slurm_type=slurm_type(model),
        memory_mib=_memory_bytes(folder) >> 20,
        pci_bus_id=bus_id,
        minor=minor,
        device_file=f"/dev/dri/renderD{minor}" if minor else None,
        numa_node=numa_node,
        cpu_affinity=cpus,
        links=tuple(-1 if i == index else links.get(number, 0) for i, number in enumerate(numbers)),
        topology=tuple("self" if i == index else "system" for i in range(len(numbers))),
    )


def _model(folder: Path, facts: dict[str, int], pci_folder: Path) -> str:
    for file in (pci_folder / "product_name", folder / "name"):
        try:
            name = file.read_text().strip()
        except OSError:
            continue
        if name and name != "ip discovery":
            return name
    version = facts.get("gfx_target_version", 0)  # 90402 is gfx942
    return f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _bus_id(facts: dict[str, int]) -> str:
    place = facts.get("location_id", 0)
    return f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _memory_bytes(folder: Path) -> int:
    banks = [_properties(bank / "properties") for bank in folder.glob("mem_banks/[0-9]*")]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _VRAM_HEAPS)


def _links(folder: Path) -> dict[int, int]:
    """XGMI links by the node they lead to."""
    counted: dict[int, int] = {}
    for link in folder.glob("*_links/[0-9]*"):
        facts = _properties(link / "properties")
        if facts.get("type") == _XGMI and "node_to" in facts:
            counted[facts["node_to"]] = counted.get(facts["node_to"], 0) + 1
    return counted


def _properties(file: Path) -> dict[str, int]:
    """Lines of `name number`; anything else is none of ours."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
