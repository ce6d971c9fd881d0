"""One pass over the queue: order, gates, fit. A job that does not fit blocks those behind it in its partition.

This is the plain planner: partition tier, priority, submit time; gang or nothing; first fit. Calendar, topology, fair
share and preemption come in behind the same function. Invariant: same state, same `now`, same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bireme.core.lifecycle.gates import closed_gates, partition_gate, startable_tasks, throttle_room, throttled
from bireme.core.lifecycle.placing import schedulable_nodes, search_for
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.lifecycle.submission import over_node_limit, over_time_limit
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import ArrayWaiting, Job, Pending, ResourceRequest
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation
from bireme.core.placement.demand import Demand, resolve
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit, Search
from bireme.core.placement.table import BoolArray
from bireme.core.plan.decisions import Plan, Start, StartGang


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator may tune about a pass."""

    starts_max: int = 1_000
    """At most so many starts in one pass; the rest is taken up by the next."""


BEHIND = Verdict((reason(ReasonKind.PRIORITY),))
"""Shared by all jobs that only wait for those before them."""


@dataclass(slots=True)
class _Pass:
    """What one pass has decided so far."""

    state: State
    now: float
    draft: Occupancy
    allowed: dict[str, BoolArray]
    """Schedulable nodes of each partition."""
    starts: list[Start | StartGang] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    """Partitions whose first waiting job does not fit."""
    demands: dict[tuple[ResourceRequest, str], Demand] = field(default_factory=dict)
    searches: dict[tuple[ResourceRequest, str], Search] = field(default_factory=dict)
    misfits: dict[tuple[ResourceRequest, str], Fit] = field(default_factory=dict)
    """Shapes that did not fit: nothing is freed within a pass, so they still do not."""
    tasks_started: dict[int, int] = field(default_factory=dict)
    """array id -> tasks of it that this pass starts: they count against its throttle."""


def plan(state: State, policy: Policy, now: float) -> Plan:
    pass_ = _Pass(
        state, now, state.occupancy.draft(), {p.name: schedulable_nodes(state, p) for p in state.partitions.values()}
    )
    for job in _in_order(state):
        if len(pass_.starts) >= policy.starts_max:
            break
        if job.het_job_id not in (None, job.id):
            continue  # considered with its leader
        if all(name in pass_.blocked for name in job.spec.partitions) and not _may_be_gated(job):
            pass_.verdicts.update(dict.fromkeys(state.het_members.get(job.id, (job.id,)), BEHIND))
            continue
        _consider(pass_, job, policy)
    return Plan(tuple(pass_.starts), pass_.verdicts)


def _may_be_gated(job: Job) -> bool:
    """A quick look: whether something other than the queue might keep it, which its reason should then say."""
    phase = job.phase
    assert isinstance(phase, Pending)
    return phase.eligible_at is None or phase.held_by is not None or phase.not_before is not None


def _in_order(state: State) -> list[Job]:
    """Partition tier, priority, submit time, id: Slurm's order of the queue."""
    tier = {partition.name: partition.priority_tier for partition in state.partitions.values()}

    def key(job: Job) -> tuple[int, int, float, int]:
        best = max((tier.get(name, 0) for name in job.spec.partitions), default=0)
        return (-best, -job.priority, job.submitted_at, job.id)

    return sorted(state.pending.values(), key=key)


def _consider(pass_: _Pass, job: Job, policy: Policy) -> None:
    if job.het_job_id is not None:
        _consider_het(pass_, job)
        return
    gates = closed_gates(pass_.state, job, pass_.now)
    if gates:
        pass_.verdicts[job.id] = Verdict(gates)
        return
    if isinstance(job.array, ArrayWaiting):
        _consider_array(pass_, job, policy)
        return
    if _throttle_left(pass_, job) == 0:
        pass_.verdicts[job.id] = Verdict((throttled(pass_.state, job),))
        return
    start, reasons = _try(pass_, job)
    if start is None:
        pass_.verdicts[job.id] = Verdict(reasons)
    else:
        _start(pass_, job, start)


def _throttle_left(pass_: _Pass, job: Job) -> int | None:
    room = throttle_room(pass_.state, job)
    return None if room is None else max(0, room - pass_.tasks_started.get(job.array_job_id or 0, 0))


def _start(pass_: _Pass, job: Job, start: Start) -> None:
    pass_.starts.append(start)
    if job.array_job_id is not None:
        pass_.tasks_started[job.array_job_id] = pass_.tasks_started.get(job.array_job_id, 0) + 1


def _consider_array(pass_: _Pass, job: Job, policy: Policy) -> None:
    """As many waiting tasks as fit, in order; what stays behind says why."""
    assert isinstance(job.array, ArrayWaiting)
    ready = startable_tasks(pass_.state, job)
    room = _throttle_left(pass_, job)
    for task_id in ready[:room]:
        if len(pass_.starts) >= policy.starts_max:
            return
        start, reasons = _try(pass_, job, task_id)
        if start is None:
            pass_.verdicts[job.id] = Verdict(reasons)
            return
        _start(pass_, job, start)
    if room is not None and room < len(ready):
        pass_.verdicts[job.id] = Verdict((throttled(pass_.state, job),))
    elif len(ready) < len(job.array.waiting):
        pass_.verdicts[job.id] = Verdict((reason(ReasonKind.DEPENDENCY, on="aftercorr"),))


def _consider_het(pass_: _Pass, leader: Job) -> None:
    """All components in the draft, or none: the draft is taken back if one does not fit."""
    members = [pass_.state.jobs[member] for member in pass_.state.het_members[leader.id]]
    if any(member.id not in pass_.state.pending for member in members):
        return
    gates = dict.fromkeys(gate for member in members for gate in closed_gates(pass_.state, member, pass_.now))
    if gates:
        pass_.verdicts.update({member.id: Verdict(tuple(gates)) for member in members})
        return
    before, found = pass_.draft, list[Start]()
    pass_.draft = before.draft()
    for member in members:
        start, reasons = _try(pass_, member)
        if start is None:
            pass_.draft = before
            pass_.searches.clear()  # they have moved past nodes that are free again
            for other in members:
                pass_.verdicts[other.id] = Verdict(reasons)
            return
        found.append(start)
    pass_.starts.append(StartGang(tuple(found)))


def _try(pass_: _Pass, job: Job, task_id: int | None = None) -> tuple[Start | None, tuple[Reason, ...]]:
    """The first of the job's partitions that holds it now, or what blocks it in each."""
    reasons: list[Reason] = []
    for name in job.spec.partitions:
        partition = pass_.state.partitions.get(name)
        closed = partition_gate(pass_.state, name)
        if closed is not None or partition is None:
            reasons.append(closed or reason(ReasonKind.PARTITION_DOWN, partition=name))
            continue
        reasons.extend(blocks := list(_over_limits(job, partition)))
        if blocks:
            continue
        if name in pass_.blocked:
            reasons.append(reason(ReasonKind.PRIORITY, partition=name))
            continue
        fit, demand = _fit(pass_, job, partition)
        if fit.found:
            start = Start(job.id, name, fit.shares, demand.whole_nodes, task_id)
            pass_.draft.hold(Allocation(job.id, 0, name, fit.shares, demand.whole_nodes))
            return start, ()
        reasons.append(_why_not(pass_, job, partition, demand, fit))
    return None, tuple(reasons) or (reason(ReasonKind.PRIORITY),)


def _over_limits(job: Job, partition: PartitionConfig) -> Iterator[Reason]:
    if over_time_limit(job.spec, partition):
        yield reason(ReasonKind.PARTITION_TIME_LIMIT, partition=partition.name, limit_s=partition.max_time_s or 0)
    if over_node_limit(job.spec, partition):
        yield reason(ReasonKind.PARTITION_NODE_LIMIT, partition=partition.name, limit=partition.max_nodes or 0)


def _fit(pass_: _Pass, job: Job, partition: PartitionConfig) -> tuple[Fit, Demand]:
    key = (job.spec.resources, partition.name)
    settings = pass_.state.config.settings
    demand = pass_.demands.get(key)
    if demand is None:
        demand = pass_.demands[key] = resolve(job.spec, partition, settings)
    fit = pass_.misfits.get(key)
    if fit is None:
        search = pass_.searches.get(key)
        if search is None:
            search = search_for(pass_.state, demand, partition, pass_.allowed[partition.name])
            pass_.searches[key] = search
        fit = search.find(pass_.draft)
        if not fit.found:
            pass_.misfits[key] = fit
    return fit, demand


def _why_not(pass_: _Pass, job: Job, partition: PartitionConfig, demand: Demand, fit: Fit) -> Reason:
    """Busy nodes block the queue behind this job; nodes that are down or drained block only the job itself."""
    up = search_for(pass_.state, demand, partition, pass_.allowed[partition.name]).find(pass_.state.empty)
    facts: dict[str, str | int | float] = {
        "partition": partition.name,
        "nodes_needed": fit.nodes_needed,
        "nodes_able": fit.nodes_able,
    }
    if not up.found:
        away = [name for name in partition.nodes if name in pass_.state.nodes]
        away = [name for name in away if not pass_.state.nodes[name].schedulable]
        return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, unavailable=",".join(away), **facts)
    pass_.blocked.add(partition.name)
    return reason(ReasonKind.RESOURCES, **facts)
