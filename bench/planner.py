"""The planner alone, on one core and in memory: full passes, small passes, placement rate, a large gang, growth.

No daemon and no disk: a State is built by applying events, as a replay does, and `plan` is timed on it. Times are of
this process's CPU: a pass computes and waits for nothing, so that what else runs on the machine need not count.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import replace

from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings, Switch, Topology
from bireme.core.model.jobs import JobSpec, Outcome, Owner, ResourceRequest
from bireme.core.model.policy import Policy
from bireme.core.model.resources import Device, GresPool, GresRequest
from bireme.core.plan.decisions import Plan, accept
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.state.state import State
from bireme.runtime.uncollected import without_collecting

OWNER = Owner(uid=1000, gid=1000, user="bench")
DEVICES = tuple(Device(index, "h100") for index in range(8))
HOUR_S = 3600
LEAF_NODES = 16
NOW = 1_000_000.0


class World:
    """A cluster and its queue, with a clock that stands still unless told."""

    def __init__(self, nodes: int) -> None:
        self.state = State()
        self.seq = 0
        policy = Policy(starts_max=10**9)
        config = ClusterConfig(
            nodes=tuple(_node(number) for number in range(nodes)),
            partitions=(PartitionConfig(name="all", nodes=tuple(f"n{n}" for n in range(nodes)), default=True),),
            topology=_tree(nodes),
            settings=Settings(max_job_count=10**7, policy=policy),
        )
        self.record(e.ClusterConfigured(config))
        for number in range(nodes):
            self.record(e.NodeRegistered(f"n{number}", NOW))

    @property
    def policy(self) -> Policy:
        return self.state.config.settings.policy

    def record(self, event: e.Event) -> None:
        self.seq += 1
        apply(self.state, e.Recorded(self.seq, NOW, "bench", event))

    def submit(self, specs: list[JobSpec]) -> None:
        for number, spec in enumerate(specs, start=self.state.next_job_id):
            self.record(e.JobSubmitted(number, spec, 4_294_901_760 - number, NOW, ()))

    def carry_out(self, passed: Plan) -> None:
        for decision in passed.starts:
            for event in accept(self.state, decision):
                self.record(event)
                assert passed.outlook.note(self.state, event, NOW)


def _node(number: int) -> NodeConfig:
    return NodeConfig(
        name=f"n{number}",
        cpus=128,
        sockets=2,
        cores_per_socket=64,
        memory_mib=2_000_000,
        gres=(GresPool("gpu", "h100", 8, DEVICES),),
    )


def _tree(nodes: int) -> Topology:
    """Leaves of sixteen nodes, spines of sixteen leaves, one root."""
    leaves = [
        Switch(f"leaf{first}", nodes=tuple(f"n{n}" for n in range(first, min(nodes, first + LEAF_NODES))))
        for first in range(0, nodes, LEAF_NODES)
    ]
    spines = [
        Switch(f"spine{first}", switches=tuple(leaf.name for leaf in leaves[first : first + LEAF_NODES]))
        for first in range(0, len(leaves), LEAF_NODES)
    ]
    root = Switch("root", switches=tuple(spine.name for spine in spines))
    return Topology("topology/tree", (*leaves, *spines, root))


def one_node(gpus: int, cpus: int, hours: int) -> JobSpec:
    asked = ResourceRequest(
        cpus_per_task=cpus * gpus,
        gres_per_node=(GresRequest("gpu", None, gpus),),
        memory_per_node_mib=20_000 * gpus,
    )
    return _spec(asked, hours)


def gang(nodes: int, hours: int) -> JobSpec:
    asked = ResourceRequest(
        nodes_min=nodes,
        nodes_max=nodes,
        nodes_given=True,
        cpus_per_task=64,
        gres_per_node=(GresRequest("gpu", None, 8),),
        memory_per_node_mib=200_000,
    )
    return _spec(asked, hours)


def _spec(asked: ResourceRequest, hours: int) -> JobSpec:
    return JobSpec(
        owner=OWNER,
        partitions=("all",),
        script="bench",
        resources=asked,
        time_limit_s=hours * HOUR_S,
        time_limit_given=True,
    )


def mixed_queue(count: int, largest_gang: int) -> list[JobSpec]:
    """One GPU to `largest_gang` nodes, many small ones and few large ones, shuffled by a fixed seed."""
    shapes: list[tuple[JobSpec, float]] = []
    for gpus, weight in ((1, 4.0), (2, 1.0), (4, 1.0), (8, 1.0)):
        shapes += [(one_node(gpus, cpus, hours), weight) for cpus in (2, 4, 8) for hours in (1, 4, 24)]
    size = 2
    while size <= largest_gang:
        shapes += [(gang(size, hours), 1.0 / size) for hours in (4, 24)]
        size *= 2
    specs, weights = [shape for shape, _ in shapes], [weight for _, weight in shapes]
    return random.Random(7).choices(specs, weights=weights, k=count)


def measure(sizes: Sizes) -> Iterator[Row]:
    yield from _large_passes(sizes)
    yield _placement_rate(sizes)
    yield _large_gang(sizes)
    yield from _growth(sizes)


def _large_passes(sizes: Sizes) -> Iterator[Row]:
    world = World(sizes.plan_nodes)
    world.submit(mixed_queue(sizes.plan_jobs, min(512, sizes.plan_nodes)))
    seconds, passed = _timed_plan(world)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{sizes.plan_nodes:,} nodes, {sizes.plan_jobs:,} waiting jobs"
    details = {"starts": len(passed.starts), "waiting": len(passed.verdicts)}
    yield Row("planner", f"full pass, empty cluster: {what}", seconds, "s", target=Target("<", 3.0), details=details)
    yield Row("planner", "memory of that process, at its peak", peak_mib, "MiB", target=Target("<", 1024.0))
    world.carry_out(passed)
    times_ms = [_one_ends(world, passed) for _ in range(sizes.repeats)]
    slowest = sorted(times_ms)[-1]
    yield Row(
        "planner", "the same cluster full: one job ends, one pass", slowest, "ms", target=Target("<", 50.0),
        details={"all": times_ms},
    )  # fmt: skip


def _timed_plan(world: World) -> tuple[float, Plan]:
    gc.collect()
    gc.freeze()  # as the daemon does with what it has read: objects that stay need no looking at
    with without_collecting():  # as the kernel does around every pass
        began = time.process_time()
        passed = plan(Snapshot(world.state, world.policy, NOW))
        return time.process_time() - began, passed


def _one_ends(world: World, passed: Plan) -> float:
    job_id = next(iter(world.state.holding))
    generation = world.state.jobs[job_id].generation
    for event in (
        e.JobStarted(job_id, generation, NOW),
        e.JobEnding(job_id, generation, Outcome("COMPLETED")),
        e.JobEnded(job_id, generation, NOW),
    ):
        world.record(event)
        assert passed.outlook.note(world.state, event, NOW)
    began = time.process_time()
    again = plan(Snapshot(world.state, world.policy, NOW), passed.outlook)
    took_ms = (time.process_time() - began) * 1000
    world.carry_out(again)
    return took_ms


def _placement_rate(sizes: Sizes) -> Row:
    nodes = max(10, sizes.plan_nodes // 2)
    world = World(nodes)
    world.submit([one_node(1, 4, 4)] * (nodes * 4))
    seconds, passed = _timed_plan(world)
    rate = len(passed.starts) / seconds
    name = f"placement rate of one-node jobs on {nodes:,} nodes"
    return Row("planner", name, rate, "jobs/s", target=Target(">=", 5_000))


def _large_gang(sizes: Sizes) -> Row:
    world = World(sizes.plan_nodes)
    size = min(512, sizes.plan_nodes)
    world.submit([replace(gang(size, 4), name=f"gang{number}") for number in range(3)])
    took_ms = [_timed_plan(world)[0] * 1000 / max(1, min(3, sizes.plan_nodes // size)) for _ in range(3)]
    name = f"a {size}-node gang with topology on {sizes.plan_nodes:,} nodes"
    return Row("planner", name, sorted(took_ms)[1], "ms", target=Target("<", 20.0))


def _growth(sizes: Sizes) -> Iterator[Row]:
    """Ten times the nodes, ten times the jobs: what a full pass costs."""
    for nodes, jobs in (
        (sizes.plan_nodes // 10, sizes.plan_jobs // 100),
        (sizes.plan_nodes // 10, sizes.plan_jobs // 10),
        (sizes.plan_nodes, sizes.plan_jobs // 10),
        (sizes.plan_nodes, sizes.plan_jobs),
    ):
        world = World(max(2, nodes))
        world.submit(mixed_queue(max(2, jobs), min(512, max(2, nodes))))
        seconds, _ = _timed_plan(world)
        yield Row("planner", f"growth: {nodes:,} nodes, {jobs:,} jobs", seconds, "s")
