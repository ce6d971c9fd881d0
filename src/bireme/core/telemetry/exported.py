"""What machines measure, as Prometheus reads it: dcgm-exporter's names and labels for GPUs, `bireme_node_` for nodes.

Pure, and written once for the two that serve it: the daemon (`api/exporting`) for all machines, and each gatherer
(`gather/serving`) for its own. Which name a metric has, and in which unit, is said in `metrics`.
Invariant: what was not measured is not there; counters are told as the device counts them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.telemetry.metrics import About, Metric, about
from bireme.core.telemetry.subjects import Subject
from bireme.exposition import Page, labelled


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU, or a MIG instance of one, and its newest figures: of counters what they count."""

    node: str
    uuid: str
    index: int
    values: Mapping[str, float]
    device: str = ""
    """`nvidia0`, as its device file is called."""
    model: str = ""
    pci_bus_id: str = ""
    driver: str = ""
    parent: str = ""
    """Of an instance: the UUID of its GPU."""
    instance: str = ""
    """Of an instance: its number on its GPU."""
    profile: str = ""
    job_ids: tuple[int, ...] = ()
    """Who has it, or parts of it, now; a gatherer does not know."""

    @property
    def labels(self) -> dict[str, object]:
        """As dcgm-exporter has them: an instance goes by the UUID of its GPU and its number on it."""
        return {
            "gpu": self.index,
            "UUID": self.parent or self.uuid,
            "pci_bus_id": self.pci_bus_id,
            "device": self.device,
            "modelName": self.model,
            "GPU_I_PROFILE": self.profile,
            "GPU_I_ID": self.instance,
            "Hostname": self.node,
            "DCGM_FI_DRIVER_VERSION": self.driver,
        }


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """A node, or a machine with several virtual ones."""

    node: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """The newest figures of machines."""

    gpus: Sequence[GpuFigures] = ()
    nodes: Sequence[NodeFigures] = ()
    happened: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By node and kind (`xid`, `gpu lost`, `stray` ...): how often it was told since the daemon started."""


def tell_hardware(page: Page, measured: Measured) -> None:
    """All figures of GPUs and of nodes."""
    _tell(page, "gpu", ((labelled(gpu.labels), gpu.values) for gpu in measured.gpus))
    _tell(page, "node", ((labelled({"node": node.node}), node.values) for node in measured.nodes))
    for (node, kind), count in measured.happened.items():
        what = "Things that gatherers told of once each: Xid errors, GPUs lost and back, stray processes."
        page.family("bireme_happenings_total", "counter", what).add(count, {"node": node, "kind": kind})


def _tell(page: Page, of: About, subjects: Iterable[tuple[str, Mapping[str, float]]]) -> None:
    known = list(subjects)
    for metric in about(of):
        if not metric.prometheus:
            continue
        family = page.family(metric.prometheus, metric.prometheus_kind or metric.kind, _help(metric))
        name, factor = metric.name, metric.prometheus_factor
        for labels, values in known:
            value = values.get(name)
            if value is not None:
                family.add(value if factor == 1.0 else round(value * factor, 9), labels)


def _help(metric: Metric) -> str:
    return metric.meaning[:1].upper() + metric.meaning[1:] + "."


def sums_by_job(
    latest: Iterable[tuple[Subject, float, Mapping[str, float]]], names: Sequence[str]
) -> dict[int, dict[str, float]]:
    """The newest figures of tasks, added up to their job's. What was measured of none of its tasks is not there."""
    sums: dict[int, dict[str, float]] = defaultdict(dict)
    for subject, _, figures in latest:
        job = sums[int(subject.id.partition(".")[0])]
        for name in names:
            if name in figures:
                job[name] = job.get(name, 0.0) + figures[name]
    return sums
