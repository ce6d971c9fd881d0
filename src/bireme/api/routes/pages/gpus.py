"""Every GPU in one answer of a few bytes each: what a map of ten thousand of them is drawn from.

Columns instead of records: the order is that of `nodes`, each with so many GPUs. Who may not know of a job is told that
its GPUs are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import answer
from bireme.api.routing import Context, Routes
from bireme.api.serving.slices import slices_of
from bireme.core.faults.fences.judging import concerns_the_pool
from bireme.core.faults.fences.places import gpus_of, numbers_at
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.jobs.states import node_base_state, node_flags
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.finding.findings import FindingLife
from bireme.core.model.jobs import Job
from bireme.core.model.nodes import Node
from bireme.core.model.refusals import Caller
from bireme.core.state.state import State

routes = Routes("pages")

FREE, HIDDEN, OTHERS = -1, -2, -3
_WELL, _DEGRADED, _OUT, _NO_NODE = ".", "d", "x", "o"

Figures = Mapping[tuple[str, str], Mapping[str, float]]


@routes.get("/v1/gpus")
async def all_gpus(api: Context, request: Request) -> Response:
    """Every GPU as it stands, in columns: for maps of thousands of them.

    `nodes`: [name, state, GPUs, leaf, partitions, note] each; `leaves` and `partitions`: the names that their numbers
    stand for; `jobs`: [id, label, name, user, account, partition] of those that have GPUs. One entry for each GPU, in
    the order of the nodes: `job` (its number in `jobs`; -1: free, -2: taken by a job that you may not know of, -3: by
    what is no job), `use` (percent, null where nothing was measured; missing where nothing is), `health` (a letter
    each: `.` well, `d` a finding stands, `x` out of service, `o` its node is). `shared`: by place, all jobs of a GPU
    that several have. `hidden`: nodes are private, so that none is told of.
    """
    caller, state = api.caller(request), api.cluster.state
    viewer = api.viewer(caller)
    hidden = viewer.hidden("nodes")
    figures = {} if hidden else await _figures(api, request)
    nodes = [] if hidden else list(state.nodes.values())
    partitions = {} if viewer.hidden("partitions") else state.partitions
    columns = _Columns(state, partitions, figures)
    async for part in slices_of(api.turns, request, _seen(api, caller)):
        for job, is_known in part:
            columns.hold(job, is_known)
    columns.look()
    async for some in slices_of(api.turns, request, nodes):
        for node in some:
            columns.add(node)
    return api.alike(request, answer({**columns.told(), "hidden": hidden, "now": api.now()}))


async def _figures(api: Context, request: Request) -> Figures:
    """By node and card, under each name that the card may have: its UUID and its number."""
    telemetry = api.service.telemetry()
    series = telemetry.series if telemetry is not None else None
    if telemetry is None or series is None:
        return {}
    latest = await api.in_thread(request, series.latest, "gpu")
    values = {(subject.node, subject.id): figures for subject, _, figures in latest}
    found: dict[tuple[str, str], Mapping[str, float]] = {}
    for gpu in await telemetry.gpus():
        figures = values.get((gpu.node, gpu.uuid))
        if figures is not None:
            found[gpu.node, gpu.uuid] = figures
            if not gpu.parent:
                found[gpu.node, str(gpu.index)] = figures
    return found


def _seen(api: Context, caller: Caller) -> list[tuple[Job, bool]]:
    """Jobs that hold something, and whether the caller may know of them."""
    holding = [job for job in api.cluster.state.holding.values() if job.allocation is not None]
    known = {job.id for job in api.seen(caller, holding)}
    return [(job, job.id in known) for job in holding]


@dataclass(slots=True)
class _Columns:
    """One answer in the making: jobs first, then `look`, then nodes."""

    state: State
    partitions: Mapping[str, PartitionConfig]
    figures: Figures
    jobs: list[tuple[Any, ...]] = field(default_factory=list)
    nodes: list[tuple[Any, ...]] = field(default_factory=list)
    job: list[int] = field(default_factory=list)
    use: list[int | None] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    shared: dict[str, list[int]] = field(default_factory=dict)
    held: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """By node and GPU: who has it, by number in `jobs`."""
    leaves: list[str] = field(default_factory=list)
    leaf_of: dict[str, int] = field(default_factory=dict)
    members: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of partitions, by node."""
    troubled: set[tuple[str, int]] = field(default_factory=set)

    def hold(self, job: Job, is_known: bool) -> None:
        if job.allocation is None:
            return  # it has ended meanwhile
        held = [(share.node, gpu) for share in job.allocation.shares for gpu in share.gpus_seen()]
        number = HIDDEN
        if held and is_known:
            number, spec = len(self.jobs), job.spec
            self.jobs.append((job.id, job.label, spec.name, spec.owner.user, spec.account, job.allocation.partition))
        for place in held:
            self.held.setdefault(place, []).append(number)

    def look(self) -> None:
        """At what is asked of every node."""
        self.leaves, self.leaf_of = self._leaves()
        self.members, self.troubled = self._members(), self._troubled()

    def add(self, node: Node) -> None:
        gpus, name, note = gpus_of(node.config), node.name, node.out_because
        where = (self.leaf_of.get(name, -1), self.members.get(name, ()))
        self.nodes.append((name, _word(self.state, node), len(gpus), *where, note.text if note else ""))
        shut, others = set(node.shut_gpus), node.others.gpus_seen() if node.others is not None else ()
        for gpu in gpus:
            holders = self.held.get((name, gpu.index), ())
            if len(holders) > 1:
                self.shared[str(len(self.job))] = list(holders)
            self.job.append(holders[0] if holders else OTHERS if gpu.index in others else FREE)
            self.use.append(self._use(name, gpu.uuid, gpu.index))
            self.health.append(_health(node, gpu.index in shut, (name, gpu.index) in self.troubled))

    def told(self) -> dict[str, Any]:
        told = {
            "nodes": self.nodes, "leaves": self.leaves, "partitions": list(self.partitions), "jobs": self.jobs,
            "job": self.job, "health": "".join(self.health), "shared": self.shared,
        }  # fmt: skip
        return {**told, "use": self.use} if any(each is not None for each in self.use) else told

    def _leaves(self) -> tuple[list[str], dict[str, int]]:
        """Switches and blocks that have nodes, as they are wired."""
        topology = self.state.config.topology
        below = [(each.name, each.nodes) for each in topology.switches if each.nodes]
        below += [(each.name, each.nodes) for each in topology.blocks]
        return [name for name, _ in below], {node: at for at, (_, nodes) in enumerate(below) for node in nodes}

    def _members(self) -> dict[str, list[int]]:
        members: dict[str, list[int]] = {}
        for number, partition in enumerate(self.partitions.values()):
            for name in partition.nodes:
                members.setdefault(name, []).append(number)
        return members

    def _troubled(self) -> set[tuple[str, int]]:
        """GPUs of which something is found broken; of a node all of them."""
        found: set[tuple[str, int]] = set()
        for each in FINDINGS.of(self.state).values():
            node = self.state.nodes.get(each.trouble.place.node)
            if node is None or each.phase is not FindingLife.OPEN or not concerns_the_pool(each.trouble):
                continue
            place = each.trouble.place
            of_gpu = place.gpu is not None or place.uuid
            numbers = numbers_at(node.config, place) if of_gpu else [gpu.index for gpu in gpus_of(node.config)]
            found |= {(node.name, number) for number in numbers}
        return found

    def _use(self, node: str, uuid: str | None, index: int) -> int | None:
        figures = (self.figures.get((node, uuid)) if uuid else None) or self.figures.get((node, str(index)))
        value = (figures or {}).get("gpu_sm_active", (figures or {}).get("gpu_util"))
        return None if value is None else round(value)


def _word(state: State, node: Node) -> str:
    """Its state, as sinfo has it: `mixed`, `idle`, `drained`, `down`."""
    base, flags = node_base_state(state, node).lower(), node_flags(state, node)
    if "DRAIN" in flags and base != "down":
        return "draining" if base in ("allocated", "mixed") else "drained"
    return base


def _health(node: Node, is_shut: bool, is_troubled: bool) -> str:
    if is_shut:
        return _OUT
    if not node.schedulable:
        return _NO_NODE
    return _DEGRADED if is_troubled else _WELL
