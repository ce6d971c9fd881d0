"""What runs are told of GPUs and nodes: MLflow's names, the job's own figures and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bireme.core.lifecycle.apply import apply
from bireme.core.model.events import ClusterConfigured, Recorded
from bireme.core.model.jobs import Job, JobSpec, Owner, Running
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.state.state import State
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.experiments.figures import MOST_FIGURES, Latest, Readings, system_figures
from bireme.ports import SeenGpu
from bireme.testing.worlds import build_cluster

NOW = 1000.0
BUSY = {"gpu_util": 90.0, "gpu_memory_used": 40_000.0, "gpu_power": 350.0, "gpu_power_limit": 700.0}


def state() -> State:
    made = State()
    apply(made, Recorded(1, NOW, "test", ClusterConfigured(build_cluster("2x4"))))
    return made


def job(*nodes: str) -> Job:
    shares = tuple(NodeShare(node, cpus=1, memory_mib=1) for node in nodes)
    allocation = Allocation(7, 1, "main", shares)
    return Job(7, JobSpec(owner=Owner(uid=1, gid=1, user="a")), 0.0, Running(allocation=allocation, started_at=0.0))


def gpu(uuid: str, node: str = "n1", index: int = 0, job_ids: tuple[int, ...] = (7,)) -> SeenGpu:
    return SeenGpu(node, uuid, index, "H100", 80_000, "", "", job_ids)


def measured(*uuids: str, at: float = NOW) -> list[tuple[Subject, float, dict[str, float]]]:
    return [(Subject("gpu", "n1", uuid), at, BUSY) for uuid in uuids]


def figures(of: Job, gpus: Sequence[SeenGpu], on_gpus: Latest, on_nodes: Latest) -> dict[str, float]:
    return system_figures(state(), of, Readings.of(gpus, on_gpus, on_nodes, NOW))


def test_a_gpu_is_told_under_mlflows_names() -> None:
    found = figures(job("n1"), [gpu("A", index=5)], measured("A"), [])
    assert found == {
        "system/gpu_0_utilization_percentage": 90.0,
        "system/gpu_0_memory_usage_megabytes": pytest.approx(41_943.04),
        "system/gpu_0_memory_usage_percentage": 50.0,
        "system/gpu_0_power_usage_watts": 350.0,
        "system/gpu_0_power_usage_percentage": 50.0,
    }


def test_others_gpus_and_shared_ones_are_not_told() -> None:
    gpus = [gpu("A", job_ids=(8,)), gpu("B", index=1, job_ids=(7, 8)), gpu("C", index=2)]
    found = figures(job("n1"), gpus, measured("A", "B", "C"), [])
    assert {name.split("_")[1] for name in found} == {"1"}, "numbered as the job sees them"


def test_gpus_of_several_nodes_have_their_nodes_names() -> None:
    gpus = [gpu("A"), gpu("B", node="n2")]
    found = figures(job("n1", "n2"), gpus, measured("A", "B"), [])
    assert {"system/n1/gpu_0_utilization_percentage", "system/n2/gpu_0_utilization_percentage"} <= set(found)


def test_what_is_old_or_was_not_measured_is_not_there() -> None:
    assert figures(job("n1"), [gpu("A")], measured("A", at=NOW - 600), []) == {}
    assert figures(job("n1"), [gpu("A")], [], []) == {}


def test_a_batch_has_no_more_than_mlflow_takes() -> None:
    gpus = [gpu(f"G{index}", index=index) for index in range(500)]
    found = figures(job("n1"), gpus, measured(*(each.uuid for each in gpus)), [])
    assert len(found) == MOST_FIGURES


def test_memory_and_cpus_are_the_machines() -> None:
    values = {"node_cpu": 2.0, "node_memory_used": 1000.0, "node_memory_total": 4000.0}
    nodes = [(Subject("node", "n1", "n1"), NOW, values)]
    found = figures(job("n1"), [], [], nodes)
    assert found["system/system_memory_usage_megabytes"] == pytest.approx(1048.576)
    assert found["system/system_memory_usage_percentage"] == 25.0
    assert found["system/cpu_utilization_percentage"] == 50.0
