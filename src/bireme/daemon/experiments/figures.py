"""What a job's GPUs and nodes do, under the names that MLflow gives system metrics: its pages plot them by these.

Called by the keeper of runs now and then with what was measured last. Values in, figures out.
Invariant: a GPU that others share a part of tells nothing here, since its figures are not the job's alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from bireme.core.model.jobs import Job
from bireme.core.state.state import State
from bireme.core.telemetry.subjects import Subject
from bireme.ports import SeenGpu

MOST_FIGURES = 1000
"""Of one job at one time: as many as MLflow takes at once."""
OWN_SAMPLING = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
"""A program with this variable measures by itself, under the same names."""
_MIB = 1.048576
"""Megabytes."""
_OLD_S = 120.0

Latest = Iterable[tuple[Subject, float, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured last, by what is asked for: put in order once for all jobs."""

    gpus: Mapping[int, list[SeenGpu]]
    """By the job."""
    by_gpu: Mapping[str, Mapping[str, float]]
    by_node: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, gpus: Iterable[SeenGpu], latest_gpus: Latest, latest_nodes: Latest, now: float) -> Self:
        """Without what was not measured in the last two minutes."""
        by_job: defaultdict[int, list[SeenGpu]] = defaultdict(list)
        for gpu in gpus:
            for job_id in gpu.job_ids:
                by_job[job_id].append(gpu)
        return cls(
            dict(by_job),
            {subject.id: values for subject, at, values in latest_gpus if now - at < _OLD_S},
            {subject.node: values for subject, at, values in latest_nodes if now - at < _OLD_S},
        )


def system_figures(state: State, job: Job, readings: Readings) -> dict[str, float]:
    """Of a job that runs."""
    allocation = job.allocation
    if allocation is None:
        return {}
    several = len(allocation.shares) > 1
    found: dict[str, float] = {}
    numbers: Counter[str] = Counter()
    for gpu in readings.gpus.get(job.id, ()):
        number = numbers[gpu.node]
        numbers[gpu.node] += 1
        if gpu.job_ids == (job.id,):
            prefix = f"{_prefix(gpu.node, several)}gpu_{number}_"
            found |= {prefix + name: value for name, value in _of_gpu(gpu, readings.by_gpu.get(gpu.uuid, {})).items()}
    for share in allocation.shares:
        cpus = state.nodes[share.node].config.cpus if share.node in state.nodes else 0
        of_node = _of_node(readings.by_node.get(share.node, {}), cpus)
        found |= {_prefix(share.node, several) + name: value for name, value in of_node.items()}
    return dict(list(found.items())[:MOST_FIGURES])


def _prefix(node: str, several: bool) -> str:
    """As MLflow's client has it with MLFLOW_SYSTEM_METRICS_NODE_ID, where there is more than one node."""
    return f"system/{node}/" if several else "system/"


def _of_gpu(gpu: SeenGpu, values: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    if "gpu_util" in values:
        found["utilization_percentage"] = values["gpu_util"]
    if "gpu_memory_used" in values:
        found["memory_usage_megabytes"] = values["gpu_memory_used"] * _MIB
        if gpu.memory_mib:
            found["memory_usage_percentage"] = 100.0 * values["gpu_memory_used"] / gpu.memory_mib
    if "gpu_power" in values:
        found["power_usage_watts"] = values["gpu_power"]
        if values.get("gpu_power_limit"):
            found["power_usage_percentage"] = 100.0 * values["gpu_power"] / values["gpu_power_limit"]
    return found


def _of_node(values: Mapping[str, float], cpus: int) -> dict[str, float]:
    """Of the whole machine, as MLflow means it."""
    found: dict[str, float] = {}
    if "node_cpu" in values and cpus:
        found["cpu_utilization_percentage"] = min(100.0, 100.0 * values["node_cpu"] / cpus)
    if "node_memory_used" in values:
        found["system_memory_usage_megabytes"] = values["node_memory_used"] * _MIB
        if values.get("node_memory_total"):
            share = 100.0 * values["node_memory_used"] / values["node_memory_total"]
            found["system_memory_usage_percentage"] = share
    return found
