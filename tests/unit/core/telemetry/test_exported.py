"""GPUs and nodes as Prometheus reads them: dcgm-exporter's names, labels, types and units; absence."""

from __future__ import annotations

import re

import pytest

from bireme.core.telemetry.exported import GpuFigures, Measured, NodeFigures, sums_by_job, tell_hardware
from bireme.core.telemetry.metrics import METRICS
from bireme.core.telemetry.subjects import Subject
from bireme.exposition import Page

GPU = GpuFigures(
    "n1",
    "GPU-a",
    3,
    {"gpu_util": 97.0},
    device="nvidia3",
    model="NVIDIA H200",
    pci_bus_id="0000:17:00.0",
    driver="580.1",
)


def page_of(*gpus: GpuFigures, nodes: tuple[NodeFigures, ...] = ()) -> list[str]:
    page = Page()
    tell_hardware(page, Measured(gpus, nodes))
    return page.text().splitlines()


def test_a_gpu_has_dcgm_exporters_name_and_labels() -> None:
    assert page_of(GPU)[-1] == (
        'DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-a",pci_bus_id="0000:17:00.0",device="nvidia3",modelName="NVIDIA H200",'
        'Hostname="n1",DCGM_FI_DRIVER_VERSION="580.1"} 97'
    )


def test_what_was_not_measured_is_not_there() -> None:
    assert len(page_of(GPU)) == 3, "help, type, and the one figure"
    assert page_of(GpuFigures("n1", "GPU-a", 0, {})) == []


def test_an_instance_goes_by_its_gpu_and_its_number_on_it() -> None:
    instance = GpuFigures("n1", "MIG-1", 0, {"gpu_memory_used": 10.0}, parent="GPU-a", instance="7", profile="1g.10gb")
    assert page_of(instance)[-1] == (
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",Hostname="n1"} 10'
    )


@pytest.mark.parametrize(
    ("metric", "value", "line"),
    [
        ("gpu_energy", 123_456_789.0, r"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{.*} 123456789"),  # mJ, as DCGM has it
        ("gpu_memory_used", 81559.0, r"DCGM_FI_DEV_FB_USED{.*} 81559"),  # MiB
        ("gpu_sm_active", 41.3, r"DCGM_FI_PROF_SM_ACTIVE{.*} 0\.413"),  # a ratio there, % here
        ("gpu_pcie_sent", 2.0, r"DCGM_FI_PROF_PCIE_TX_BYTES{.*} 2048"),  # bytes a second there, KiB here
    ],
)
def test_units_are_dcgms(metric: str, value: float, line: str) -> None:
    assert re.fullmatch(line, page_of(GpuFigures("n1", "GPU-a", 0, {metric: value}))[-1])


@pytest.mark.parametrize(
    ("metric", "type_"),
    [
        ("gpu_energy", "counter"), ("gpu_pcie_replays", "counter"), ("gpu_ecc_uncorrected", "counter"),
        ("gpu_rows_remapped_corrected", "counter"), ("gpu_xid", "gauge"), ("gpu_pcie_sent", "gauge"),
    ],
)  # fmt: skip
def test_types_are_dcgms(metric: str, type_: str) -> None:
    assert page_of(GpuFigures("n1", "GPU-a", 0, {metric: 1.0}))[1].endswith(f" {type_}")


def test_every_metric_with_a_name_there_is_told() -> None:
    everything = {metric.name: 1.0 for metric in METRICS}
    lines = page_of(GpuFigures("n1", "GPU-a", 0, everything), nodes=(NodeFigures("n1", everything),))
    told = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    assert told == {metric.prometheus for metric in METRICS if metric.prometheus}


def test_names_are_unlike_each_other() -> None:
    names = [metric.prometheus for metric in METRICS if metric.prometheus]
    assert len(names) == len(set(names))


def test_what_happened_is_counted_by_node_and_kind() -> None:
    page = Page()
    tell_hardware(page, Measured(happened={("n1", "xid"): 2}))
    assert page.text().endswith('bireme_happenings_total{node="n1",kind="xid"} 2\n')


def test_figures_of_tasks_are_added_up_to_their_jobs() -> None:
    latest = [
        (Subject("task", "n1", "7.1.0.0"), 1.0, {"memory": 5.0, "cpu_user": 1.0}),
        (Subject("task", "n2", "7.1.0.1"), 1.0, {"memory": 6.0}),
        (Subject("task", "n1", "8.1.0.0"), 1.0, {"threads": 3.0}),
    ]
    assert sums_by_job(latest, ("memory", "cpu_user")) == {7: {"memory": 11.0, "cpu_user": 1.0}, 8: {}}
