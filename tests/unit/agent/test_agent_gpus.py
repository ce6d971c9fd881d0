"""Finding GPUs: a stand-in for NVML, a made-up sysfs for AMD, and the real thing where there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bireme.agent.devices import gpus
from bireme.agent.devices.gpu_types import parse_cpu_list
from bireme.agent.devices.kfd import discover_amd
from bireme.agent.devices.nvml import discover_nvidia

GIB = 1 << 30


class FakeNvml:
    """Two linked H100s (listed against their bus order), the second cut into MIG instances."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS = 4
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50
    bus = ("00000000:8A:00.0", "00000000:17:00.0")
    remotes: tuple[str, ...] = ("00000000:17:00.0", "00000000:8A:00.0")

    def nvmlDeviceGetCount(self):  # noqa: N802  (the library's names)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=self.bus[handle])

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return "NVIDIA H100 80GB HBM3 MIG 1g.10gb" if handle == "part" else b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return "MIG-1" if handle == "part" else f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=10 * GIB if handle == "part" else 80 * GIB)

    def nvmlDeviceGetMinorNumber(self, handle):  # noqa: N802
        return 1 - handle

    def nvmlDeviceGetCpuAffinity(self, handle, words):  # noqa: N802
        return [0b1111 if handle == 1 else 0, 0b1 if handle == 0 else 0]

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle == 1:
            raise self.NVMLError
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):  # noqa: N802
        if index:
            raise self.NVMLError
        return "part"

    def nvmlDeviceGetGpuInstanceId(self, handle):  # noqa: N802
        return 9

    def nvmlDeviceGetComputeInstanceId(self, handle):  # noqa: N802
        return 0

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        if link > 2:
            raise self.NVMLError
        return int(link < 2)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):  # noqa: N802
        return SimpleNamespace(busId=self.remotes[handle])

    def nvmlDeviceGetP2PStatus(self, one, other, kind):  # noqa: N802
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):  # noqa: N802
        return self.NVML_TOPOLOGY_NODE


def test_nvidia_cards_are_described_in_bus_order(tmp_path):
    pci = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    pci.mkdir(parents=True)
    (pci / "numa_node").write_text("0\n")
    minors = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text("config 1\ngpu1/gi9/access 84\ngpu1/gi9/ci0/access 85\n")
    first, second = discover_nvidia(FakeNvml(), tmp_path)
    assert (first.index, first.uuid, first.pci_bus_id) == (0, "GPU-1", "0000:17:00.0")
    assert (first.slurm_type, first.memory_mib) == ("nvidia_h100_80gb_hbm3", 80 * 1024)
    assert (first.minor, first.device_file, first.numa_node) == (0, "/dev/nvidia0", 0)
    assert first.cpu_affinity == (0, 1, 2, 3)
    assert (first.links, second.links) == ((-1, 2), (2, -1))
    assert first.topology == ("self", "node")
    assert (first.mig_enabled, first.mig_instances) == (False, ())
    assert (second.numa_node, second.cpu_affinity) == (None, (64,))
    (part,) = second.mig_instances
    assert (part.uuid, part.profile, part.memory_mib) == ("MIG-1", "1g.10gb", 10 * 1024)
    assert part.device_files == ("/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap85")


def test_links_through_a_switch_reach_every_gpu(tmp_path):
    nvml = FakeNvml()
    nvml.remotes = ("00000000:C1:00.0", "00000000:C1:00.0")
    assert [gpu.links for gpu in discover_nvidia(nvml, tmp_path)] == [(-1, 2), (2, -1)]
    nvml.nvmlDeviceGetP2PStatus = lambda one, other, kind: 5
    assert [gpu.links for gpu in discover_nvidia(nvml, tmp_path)] == [(-1, 0), (0, -1)]


def test_a_card_that_answers_nothing_is_still_listed(tmp_path):
    class Mute(FakeNvml):
        def __getattribute__(self, name):
            known = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
            if name.startswith("nvml") and name not in known:

                def refuse(*arguments):
                    raise FakeNvml.NVMLError

                return refuse
            return super().__getattribute__(name)

    first, second = discover_nvidia(Mute(), tmp_path)
    assert (first.slurm_type, first.memory_mib, first.device_file) == ("nvidia_gpu", 0, None)
    assert second.links == (0, -1)


def make_kfd_node(root: Path, number: int, facts: str, links: dict[int, int]) -> None:
    node = root / f"class/kfd/kfd/topology/nodes/{number}"
    (node / "mem_banks/0").mkdir(parents=True)
    (node / "properties").write_text(facts)
    (node / "name").write_text("ip discovery\n")
    (node / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {192 * GIB}\n")
    for index, (to, kind) in enumerate(links.items()):
        (node / f"io_links/{index}").mkdir(parents=True)
        (node / f"io_links/{index}/properties").write_text(f"type {kind}\nnode_to {to}\n")


def test_amd_cards_come_from_the_kernels_topology(tmp_path):
    card = (
        "simd_count 1216\nvendor_id 4098\ndomain 0\nlocation_id {}\ndrm_render_minor {}\n"
        "unique_id 255\ngfx_target_version 90402\n"
    )
    make_kfd_node(tmp_path, 0, "cpu_cores_count 96\nsimd_count 0\n", {})
    make_kfd_node(tmp_path, 1, card.format(0x0500, 128), {0: 2, 2: 11})
    make_kfd_node(tmp_path, 2, card.format(0x2608, 136), {0: 2, 1: 11})
    pci = tmp_path / "bus/pci/devices/0000:05:00.0"
    pci.mkdir(parents=True)
    (pci / "product_name").write_text("AMD Instinct MI300X\n")
    (pci / "numa_node").write_text("0\n")
    (pci / "local_cpulist").write_text("0-2,8\n")
    first, second = discover_amd(tmp_path)
    assert (first.model, first.slurm_type) == ("AMD Instinct MI300X", "amd_instinct_mi300x")
    assert (first.memory_mib, first.device_file, first.pci_bus_id) == (
        192 * 1024,
        "/dev/dri/renderD128",
        "0000:05:00.0",
    )
    assert (first.numa_node, first.cpu_affinity, first.links) == (0, (0, 1, 2, 8), (-1, 1))
    assert (second.model, second.pci_bus_id, second.links) == ("AMD gfx942", "0000:26:01.0", (1, -1))
    assert discover_amd(tmp_path / "nothing") == []


def test_no_gpu_is_an_answer_with_a_reason(monkeypatch):
    monkeypatch.setattr(gpus, "discover_amd", list)
    inventory = gpus.discover()
    assert bool(inventory.gpus) != bool(inventory.reason)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("NVIDIA H200", "nvidia_h200"),
        ("NVIDIA A100-SXM4-40GB", "nvidia_a100-sxm4-40gb"),
        ("Tesla V100-SXM2-32GB", "tesla_v100-sxm2-32gb"),
    ],
)
def test_slurm_type(model, expected):
    assert gpus.slurm_type(model) == expected


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("nvidia", {"CUDA_VISIBLE_DEVICES"}),
        ("amd", {"ROCR_VISIBLE_DEVICES"}),
        ("intel", {"ZE_AFFINITY_MASK"}),
        ("any", {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"}),
        ("none", set()),
    ],
)
def test_visible_devices(kind, variables):
    assert gpus.visible_devices_environment(kind, [2, 3]) == dict.fromkeys(variables, "2,3")


def test_visible_devices_of_a_confined_task_count_from_zero_but_uuids_stay():
    assert gpus.visible_devices_environment("nvidia", [5, 7], renumbered=True) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert gpus.visible_devices_environment("nvidia", ["MIG-1"], renumbered=True) == {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    assert gpus.visible_devices_environment("any", []) == {}


def test_vendor_of_type():
    types = ("a100", "h200", "mi250x", "amd_instinct_mi300x", "intel_max", "")
    assert [gpus.vendor_of_type(t) for t in types] == ["nvidia", "nvidia", "amd", "amd", "intel", "nvidia"]


def test_cpu_lists():
    assert parse_cpu_list("0-2,8,10-11\n") == (0, 1, 2, 8, 10, 11)
    assert parse_cpu_list("\n") == ()


@pytest.mark.gpu
def test_real_cards_have_all_their_facts():
    inventory = gpus.discover()
    if not inventory.gpus:
        pytest.skip(inventory.reason)
    for gpu in inventory.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_mib > 1024
        assert gpu.slurm_type == gpu.slurm_type.lower()
        assert gpu.device_file is not None
        assert Path(gpu.device_file).exists()
        assert gpu.links[gpu.index] == -1
