"""What was measured of a step in sacct's and sstat's fields, and in `sacct --json`."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.slurm.formats.usage_values import FROM_MEASURED, USAGE_TEXTS
from bireme.slurm.formats.values import Context
from bireme.slurm.json_shapes.accounting import accounting_shapes

CONTEXT = Context(now=0.0, stamp=str)
COUNTED = {
    "user_cpu_s": 100.0, "system_cpu_s": 20.0, "max_rss_kib": 4096, "max_rss_node": "n2", "max_rss_task": 1,
    "total_rss_kib": 6144, "tasks": 2, "min_cpu_s": 50.0, "min_cpu_node": "n1", "min_cpu_task": 0,
    "max_vmsize_kib": 8192,
}  # fmt: skip


def figure(least: float, most: float, task: int = 1) -> dict[str, Any]:
    return {
        "least": least, "least_node": "n1", "least_task": min(task, 0), "most": most, "most_node": "n2",
        "most_task": task, "total": least + most, "tasks": 2, "mean": (least + most) / 2,
    }  # fmt: skip


MEASURED = {
    **COUNTED,
    "measured": {
        "cpu_s": figure(50.0, 70.0), "memory_mib": figure(2.0, 4.0), "pages": figure(3.0, 5.0),
        "read_kib": figure(1.0, 3.0), "written_kib": figure(2.0, 4.0), "gpu_util": figure(40.0, 90.0),
        "gpu_memory_mib": figure(1000.0, 2048.0), "energy_j": figure(500.0, 1500.0, -1),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        (
            "TRESUsageInMax",
            "cpu=00:01:10,energy=1500,fs/disk=3072,gres/gpumem=2G,gres/gpuutil=90,mem=4M,pages=5,vmem=8M",
        ),
        (
            "TRESUsageInMin",
            "cpu=00:00:50,energy=500,fs/disk=1024,gres/gpumem=1000M,gres/gpuutil=40,mem=2M,pages=3,vmem=8M",
        ),
        (
            "TRESUsageInAve",
            "cpu=00:01:00,energy=1000,fs/disk=2048,gres/gpumem=1524M,gres/gpuutil=65,mem=3M,pages=4,vmem=8M",
        ),
        (
            "TRESUsageInTot",
            "cpu=00:02:00,energy=2000,fs/disk=4096,gres/gpumem=3048M,gres/gpuutil=130,mem=6M,pages=8,vmem=8M",
        ),
        ("TRESUsageInMaxNode", "cpu=n2,energy=n2,fs/disk=n2,gres/gpumem=n2,gres/gpuutil=n2,mem=n2,pages=n2,vmem=n2"),
        ("TRESUsageInMaxTask", "cpu=1,energy=-1,fs/disk=1,gres/gpumem=1,gres/gpuutil=1,mem=1,pages=1,vmem=1"),
        ("TRESUsageOutMax", "energy=0,fs/disk=4096"),
        ("TRESUsageOutTot", "energy=0,fs/disk=6144"),
        ("ConsumedEnergyRaw", "2000"),
        ("MaxPages", "5"),
        ("MaxDiskReadNode", "n2"),
    ],
)
def test_a_field_shows_what_was_measured(field: str, shown: str) -> None:
    assert USAGE_TEXTS[field][1](MEASURED, CONTEXT) == shown
    assert field in FROM_MEASURED


def test_without_it_gpus_are_absent_and_the_rest_is_as_slurm_has_it() -> None:
    shown = USAGE_TEXTS["TRESUsageInMax"][1](COUNTED, CONTEXT)
    assert shown == "cpu=00:02:00,energy=0,fs/disk=0,mem=4M,pages=0,vmem=8M"
    assert USAGE_TEXTS["TRESUsageInMaxNode"][1](COUNTED, CONTEXT) == (
        "cpu=n2,energy=n2,fs/disk=n2,mem=n2,pages=n2,vmem=n2"
    )


def test_json_has_the_same_figures() -> None:
    step = {"step_id": 0, "usage": MEASURED}
    (job,) = accounting_shapes([{"job_id": 7, "state": "COMPLETED", "steps": [step]}])
    tres = job["steps"][0]["tres"]
    assert job["steps"][0]["statistics"]["energy"]["consumed"]["number"] == 2000
    peaks = {(each["type"], each["name"]): each for each in tres["requested"]["max"]}
    assert (peaks["gres", "gpuutil"]["count"], peaks["gres", "gpuutil"]["node"]) == (90, "n2")
    assert peaks["gres", "gpumem"]["count"] == 2048 << 20
    assert [each["count"] for each in tres["consumed"]["max"] if each["type"] == "fs"] == [4096]
