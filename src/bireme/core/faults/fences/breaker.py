"""The circuit breaker: how much of the pool may be out of service at once without a person.

A detector that is wrong, or a switch that takes its nodes' links with it, finds half of a cluster broken within a
second. Beyond a share of the pool, counted in GPUs and in nodes over what is in service, nothing is fenced until
somebody approves it; the last node (or the last GPU) that a partition has is never fenced by Bireme alone.

Pure: a `Tally` is made of the state once, and follows what is raised since. What people had fenced does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.core.faults.fences.places import count_of
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.healings.shelves import policy_of
from bireme.core.model.healing.fences import Fence
from bireme.core.model.nodes import Node
from bireme.core.state.state import State


@dataclass(slots=True)
class Tally:
    """How much is in service or would be, were nothing fenced, and how much Bireme has fenced of it."""

    percent: float
    nodes: int = 0
    gpus: int = 0
    largest: int = 0
    """GPUs of the node that has the most: one node's are always allowed."""
    nodes_out: int = 0
    gpus_out: int = 0
    _open: dict[str, int] = field(default_factory=dict)
    """Partition -> nodes that take jobs."""
    _open_gpus: dict[str, int] = field(default_factory=dict)
    """Partition -> GPUs of these."""

    @classmethod
    def of(cls, state: State) -> Tally:
        tally = cls(percent=policy_of(state).breaker_percent)
        fences = FENCES.of(state)
        members: dict[str, list[str]] = {}
        for partition in state.partitions.values():
            for name in partition.nodes:
                members.setdefault(name, []).append(partition.name)
        for node in state.nodes.values():
            takes_jobs, gpus = node.schedulable, count_of(node.config)
            if takes_jobs or ((fence := fences.get(node.config.name)) is not None and fence.drained):
                tally.nodes, tally.gpus = tally.nodes + 1, tally.gpus + gpus
                tally.largest = max(tally.largest, gpus)
            if takes_jobs:
                for name in members.get(node.config.name, ()):
                    tally._open[name] = tally._open.get(name, 0) + 1
                    tally._open_gpus[name] = tally._open_gpus.get(name, 0) + gpus - len(node.shut)
        for fence in fences.values():
            if not fence.by and (node_of := state.nodes.get(fence.place.node)) is not None:
                tally._count(node_of, fence)
        return tally

    def _count(self, node: Node, fence: Fence) -> None:
        self.nodes_out += not fence.of_gpu
        self.gpus_out += 1 if fence.of_gpu else _open_gpus(node)

    def raised(self, state: State, node: Node, fence_gpus: int, *, whole: bool) -> None:
        """Something more was approved: `fence_gpus` GPUs of the node, or all of it."""
        self.nodes_out += whole
        self.gpus_out += fence_gpus
        if node.schedulable:
            for name in _partitions_of(state, node.name):
                self._open[name] = self._open.get(name, 0) - whole
                self._open_gpus[name] = self._open_gpus.get(name, 0) - fence_gpus

    def objects(self, state: State, node: Node, gpus: int, *, whole: bool) -> str:
        """Why Bireme may not fence this by itself: a sentence; empty: it may."""
        allowed_gpus = max(self.largest, int(self.gpus * self.percent / 100))
        allowed_nodes = max(1, int(self.nodes * self.percent / 100))
        if whole and self.nodes_out + 1 > allowed_nodes:
            return _full(self.nodes_out, self.nodes, "nodes", self.percent)
        if gpus and self.gpus_out + gpus > allowed_gpus:
            return _full(self.gpus_out, self.gpus, "GPUs", self.percent)
        if node.schedulable:
            for name in _partitions_of(state, node.name):
                if whole and self._open.get(name, 0) <= 1:
                    return f"{node.name} is the last node of partition {name} that takes jobs: a person has to say so"
                if gpus and not whole and self._open_gpus.get(name, 0) <= gpus:
                    return f"these are the last GPUs of partition {name} that are in service: a person has to say so"
        return ""


def last_of(state: State, node: Node) -> str:
    """The partition of which this is the last node that takes jobs; empty: of none."""
    if not node.schedulable:
        return ""
    for name in _partitions_of(state, node.name):
        others = (state.nodes.get(each) for each in state.partitions[name].nodes if each != node.name)
        if not any(other is not None and other.schedulable for other in others):
            return name
    return ""


def last_gpus_of(state: State, node: Node, gpus: int) -> str:
    """The partition of which so many GPUs of this node are the last that are in service; empty: of none."""
    if not node.schedulable:
        return ""
    for name in _partitions_of(state, node.name):
        nodes = (state.nodes.get(each) for each in state.partitions[name].nodes)
        if sum(_open_gpus(each) for each in nodes if each is not None and each.schedulable) <= gpus:
            return name
    return ""


def _partitions_of(state: State, node: str) -> list[str]:
    return [name for name, partition in state.partitions.items() if node in partition.nodes]


def _open_gpus(node: Node) -> int:
    return count_of(node.config) - len(node.shut)


def _full(out: int, of: int, what: str, percent: float) -> str:
    return (
        f"the circuit breaker: {out} of {of} {what} are fenced already, and more than {percent:g}% "
        "(healing.breaker) of what is in service is not fenced without a person"
    )
