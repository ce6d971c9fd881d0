"""An engine that is made of two: what it can do is what its host can, and the queue is the guest's."""

from __future__ import annotations

import asyncio
from typing import Any

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.observations import ClusterSeen, Observation
from bireme.engines.routing import RoutingEngine
from bireme.ports import Capabilities


class Part:
    """An engine that can do what it is told to say, and notes how it is configured."""

    problem, about = "", ""

    def __init__(self, name: str, **capabilities: Any) -> None:
        self.name = name
        self.capabilities = Capabilities(**capabilities)
        self.configured: list[ClusterConfig] = []
        self.report: Any = None

    async def start(self, report: Any) -> None:
        self.report = report

    def reconfigure(self, config: ClusterConfig) -> None:
        self.configured.append(config)


def config(name: str, node: str, partition: str) -> ClusterConfig:
    return ClusterConfig(
        name=name,
        nodes=(NodeConfig(name=node, cpus=1),),
        partitions=(PartitionConfig(name=partition, nodes=(node,), default=True),),
    )


def test_it_hides_nothing_that_its_host_can_do() -> None:
    everything = {name: object() for name in Capabilities.__dataclass_fields__}
    guest = Part("slurm", queue=object(), beside=object())
    both = RoutingEngine(Part("kubernetes", **everything), None, guest)  # type: ignore[arg-type]
    of_the_queue = {"queue": both, "beside": guest.capabilities.beside}
    for name, answers in everything.items():
        assert getattr(both.capabilities, name) is of_the_queue.get(name, answers)
    bare = RoutingEngine(Part("embedded"), None, guest)  # type: ignore[arg-type]
    assert bare.capabilities == Capabilities(queue=bare, beside=guest.capabilities.beside)


def test_a_host_that_reports_its_cluster_is_not_told_the_guest_s_as_its_own() -> None:
    host, guest = Part("kubernetes"), Part("slurm", queue=object())
    both = RoutingEngine(host, None, guest)  # type: ignore[arg-type]
    seen: list[Observation] = []
    asyncio.run(both.start(seen.extend))
    own = config("own", "node1", "main")
    guest.report([ClusterSeen(config("theirs", "c1", "cpu"), 0.0)])
    host.report([ClusterSeen(own, 0.0)])
    told = seen[-1]
    assert isinstance(told, ClusterSeen)
    assert [node.name for node in told.config.nodes] == ["node1", "c1"]
    both.reconfigure(told.config)  # `scontrol reconfigure`: the state has both in one
    assert host.configured == [own]
    assert seen[-1] == told
