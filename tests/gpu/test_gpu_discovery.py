"""Discovery through NVML, held against what nvidia-smi, the kernel and the driver's own files say."""

from __future__ import annotations

import csv
import os
import re
import stat
from pathlib import Path

import pytest
from tests.gpu.asking import Report, answer

from bireme.agent.devices.gpus import GpuInfo

pytestmark = pytest.mark.gpu

FIELDS = ("index", "name", "uuid", "memory.total", "pci.bus_id", "mig.mode.current", "driver_version")
NVIDIA_MAJOR = 195


@pytest.fixture(scope="module")
def smi_rows() -> list[dict[str, str]]:
    """nvidia-smi's rows, by field."""
    text = answer("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    if not text:
        pytest.skip("nvidia-smi is not there or does not answer")
    return [dict(zip(FIELDS, row, strict=True)) for row in csv.reader(text.splitlines(), skipinitialspace=True)]


def test_every_card_is_described(cards: tuple[GpuInfo, ...], report: Report) -> None:
    assert [gpu.index for gpu in cards] == list(range(len(cards)))
    for gpu in cards:
        report(f"GPU {gpu.index}", _in_words(gpu))
        assert gpu.model
        assert re.fullmatch(r"GPU-[0-9a-f-]{36}", gpu.uuid)
        assert gpu.memory_mib > 1024
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", gpu.pci_bus_id)
    assert len({gpu.uuid for gpu in cards}) == len(cards)


def test_the_type_is_the_one_slurm_detects(cards: tuple[GpuInfo, ...]) -> None:
    for gpu in cards:
        assert gpu.slurm_type == re.sub(r"\s+", "_", gpu.model.strip().lower())
        assert gpu.slurm_type.startswith("nvidia_") or "nvidia" not in gpu.model.lower()


def test_nvidia_smi_says_the_same(cards: tuple[GpuInfo, ...], smi_rows: list[dict[str, str]], report: Report) -> None:
    report("nvidia-smi", "\n".join(", ".join(f"{name} {row[name]}" for name in FIELDS) for row in smi_rows))
    assert len(smi_rows) == len(cards)
    for gpu, row in zip(cards, smi_rows, strict=True):
        assert gpu.index == int(row["index"])
        assert gpu.model == row["name"]
        assert gpu.uuid == row["uuid"]
        assert gpu.memory_mib == pytest.approx(int(row["memory.total"]), rel=0.01)  # one may leave out what is reserved
        assert row["pci.bus_id"].lower().endswith(gpu.pci_bus_id)
        assert gpu.mig_enabled == (row["mig.mode.current"] == "Enabled")


def test_mig_instances_are_listed_exactly_when_the_card_is_cut_up(cards: tuple[GpuInfo, ...], report: Report) -> None:
    listed = re.findall(r"MIG-[0-9a-f-]{36}", answer("nvidia-smi", "-L"))
    found = [instance for gpu in cards for instance in gpu.mig_instances]
    report("MIG", ", ".join(f"{instance.profile} {instance.uuid}" for instance in found) or "no instances")
    assert [instance.uuid for instance in found] == listed
    assert all(gpu.mig_enabled for gpu in cards if gpu.mig_instances)


def test_the_device_file_is_the_cards(cards: tuple[GpuInfo, ...]) -> None:
    for gpu in cards:
        assert gpu.minor is not None
        assert gpu.device_file == f"/dev/nvidia{gpu.minor}"
        status = os.stat(gpu.device_file)
        assert stat.S_ISCHR(status.st_mode)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (NVIDIA_MAJOR, gpu.minor)


def test_the_drivers_own_files_say_the_same(cards: tuple[GpuInfo, ...]) -> None:
    for gpu in cards:
        file = Path("/proc/driver/nvidia/gpus") / gpu.pci_bus_id / "information"
        if not file.exists():
            pytest.skip(f"the driver shows no {file}")
        about = dict(re.findall(r"^([^:]+):\s*(.*?)\s*$", file.read_text(), re.MULTILINE))
        assert about["Model"] == gpu.model
        assert about["GPU UUID"] in (gpu.uuid, "GPU-????????-????-????-????-????????????")  # until first use
        assert int(about["Device Minor"]) == gpu.minor


def test_numa_and_neighbouring_cpus_are_the_kernels(cards: tuple[GpuInfo, ...]) -> None:
    for gpu in cards:
        file = Path("/sys/bus/pci/devices") / gpu.pci_bus_id / "numa_node"
        node = int(file.read_text()) if file.exists() else -1
        assert gpu.numa_node == (node if node >= 0 else None)
        assert set(gpu.cpu_affinity) <= set(range(os.cpu_count() or 0))


def test_links_and_distances_reach_every_card(cards: tuple[GpuInfo, ...], report: Report) -> None:
    report("nvidia-smi topo -m", answer("nvidia-smi", "topo", "-m") or "does not answer")
    report("nvidia-smi nvlink --status", answer("nvidia-smi", "nvlink", "--status") or "does not answer")
    for gpu in cards:
        assert len(gpu.links) == len(gpu.topology) == len(cards)
        assert (gpu.links[gpu.index], gpu.topology[gpu.index]) == (-1, "self")
        for other in cards:
            assert gpu.links[other.index] == other.links[gpu.index]
            assert gpu.topology[other.index] == other.topology[gpu.index]


def _in_words(gpu: GpuInfo) -> str:
    return (
        f"{gpu.model} ({gpu.slurm_type}), {gpu.memory_mib} MiB, {gpu.uuid}\n"
        f"at {gpu.pci_bus_id}, {gpu.device_file}, NUMA node {gpu.numa_node}, CPUs {_ranges(gpu.cpu_affinity)}\n"
        f"links {gpu.links}, distances {gpu.topology}, MIG {'on' if gpu.mig_enabled else 'off'}"
    )


def _ranges(cpus: tuple[int, ...]) -> str:
    return f"{cpus[0]}..{cpus[-1]} ({len(cpus)})" if cpus else "not known"
