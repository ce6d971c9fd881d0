"""Whom to end so that a job can start: the cheapest set of running jobs that suffices, and none that does not help.

Tried in drafts that are thrown away. Who may preempt whom is a strict order (partition tiers, or QOS lists without
loops), so that a victim never evicts its evictor. A job that already waits for victims to go is not given more of them.

Invariant: with all victims gone the job fits; with any one of them still there it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bireme.core.calendar.calendar import Booking
from bireme.core.lifecycle.state import State
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Ending, Job, JobKind, Running
from bireme.core.model.policy import Preemption
from bireme.core.model.resources import Allocation
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import Preempt, Victim
from bireme.core.plan.work import Pass

GPU_WORTH = 16
"""How many CPUs a GPU counts for when lost work is compared."""


def victims_for(work: Pass, job: Job, partition: PartitionConfig) -> Preempt | None:
    """The decision that makes room for the job in this partition, or None: nobody may be, or need be, ended for it."""
    rules = work.policy.preemption
    if rules.by == "none":
        return None
    stage = _stage(work)
    if _fits(work, job, partition, stage, ()) is not None:
        return None  # those that are ending already leave enough
    candidates = [running for running in _candidates(work, job, partition, rules) if running.id not in work.doomed]
    chosen = _fewest(
        work, job, partition, stage, sorted(candidates, key=lambda victim: (_cost(victim, work.now), -victim.id))
    )
    if not chosen:
        return None
    decision = Preempt(job.id, tuple(_victim(work.state, victim, rules) for victim in chosen))
    fit = _fits(work, job, partition, stage, chosen)
    assert fit is not None
    for victim in chosen:
        work.doomed.add(victim.id)
        stage.release(_allocation(victim))
    whole = work.demand(job, partition).whole_nodes
    stage.hold(Allocation(job.id, 0, partition.name, fit.shares, whole))
    work.after_preemption = stage
    _promise(work, job, decision, fit, whole)
    return decision


def _promise(work: Pass, job: Job, decision: Preempt, fit: Fit, whole: bool) -> None:
    """What the victims leave is the job's from the moment they are gone: nobody behind it may take it meanwhile."""
    calendar, ends = work.outlook.calendar, work.outlook.ends
    settings = work.state.config.settings
    gone = work.now + 1.0 + max(victim.grace_s for victim in decision.victims) + settings.kill_wait_s
    for victim in decision.victims:
        allocation = _allocation(work.state.jobs[victim.job_id])
        if victim.job_id in ends:
            calendar.withdraw(*ends[victim.job_id])
        ends[victim.job_id] = (gone, allocation)
        calendar.started(gone, allocation)
    begin = calendar.rounded(gone)
    booking = Booking(begin, begin + work.duration_s(job), fit.shares, whole)
    calendar.book(booking)
    work.outlook.bookings.setdefault(job.id, []).append(booking)


def _stage(work: Pass) -> Occupancy:
    """The draft as it will be when everything that is ending has gone."""
    if work.after_preemption is not None:
        return work.after_preemption.draft()
    stage = work.draft.draft()
    for job in work.state.holding.values():
        if isinstance(job.phase, Ending):
            stage.release(job.phase.allocation)
    return stage


def _fits(work: Pass, job: Job, partition: PartitionConfig, stage: Occupancy, victims: Sequence[Job]) -> Fit | None:
    """Where it would fit with the victims gone, delaying no slot before it: what they free is free from now on."""
    freed = stage.draft()
    for victim in victims:
        freed.release(_allocation(victim))
    free = None
    if work.calendar.has_bookings:
        ending = [other.id for other in work.state.holding.values() if isinstance(other.phase, Ending)]
        ends = [work.outlook.ends[gone] for gone in (*ending, *(v.id for v in victims)) if gone in work.outlook.ends]
        for end, allocation in ends:
            work.calendar.withdraw(end, allocation)
        free = work.calendar.guaranteed(freed.free, work.now, work.now + work.duration_s(job))
        for end, allocation in ends:
            work.calendar.started(end, allocation)
    fit = work.new_search(job, partition).find(freed, free)
    return fit if fit.found else None


# -- who may be ended ------------------------------------------------------------------------------------------------


def _candidates(work: Pass, job: Job, partition: PartitionConfig, rules: Preemption) -> Iterable[Job]:
    nodes = set(partition.nodes)
    for running in work.state.holding.values():
        phase = running.phase
        if not isinstance(phase, Running) or running.spec.kind is not JobKind.BATCH:
            continue
        if work.now - phase.started_at < _exempt_s(work.state, running, rules):
            continue
        if _outranks(work.state, job, partition, running, rules) and nodes.intersection(phase.allocation.node_names):
            yield running


def _outranks(state: State, job: Job, partition: PartitionConfig, running: Job, rules: Preemption) -> bool:
    if _mode(state, running, rules) == "OFF":
        return False
    if rules.by == "partition":
        held = state.partitions.get(_allocation(running).partition)
        return held is not None and held.priority_tier < partition.priority_tier
    qos = state.accounts.qos.get(job.spec.qos)
    if qos is not None and running.spec.qos in qos.preempt:
        return True
    return rules.within and running.spec.qos == job.spec.qos and running.priority < job.priority


def _mode(state: State, running: Job, rules: Preemption) -> str:
    """The victim's own: of its QOS, else of its partition, else the cluster's."""
    qos = state.accounts.qos.get(running.spec.qos)
    if rules.by == "qos" and qos is not None and qos.preempt_mode:
        return qos.preempt_mode.upper()
    partition = state.partitions.get(_allocation(running).partition)
    if partition is not None and partition.preempt_mode:
        return partition.preempt_mode
    return rules.mode


def _exempt_s(state: State, running: Job, rules: Preemption) -> int:
    qos = state.accounts.qos.get(running.spec.qos)
    return rules.exempt_s if qos is None or qos.preempt_exempt_s is None else qos.preempt_exempt_s


def _victim(state: State, running: Job, rules: Preemption) -> Victim:
    qos = state.accounts.qos.get(running.spec.qos)
    partition = state.partitions.get(_allocation(running).partition)
    grace_s = qos.grace_s if qos is not None and qos.grace_s else partition.grace_time_s if partition else 0
    requeue = _mode(state, running, rules) == "REQUEUE" and running.spec.requeue is not False
    return Victim(running.id, requeue, grace_s)


def _allocation(job: Job) -> Allocation:
    assert job.allocation is not None
    return job.allocation


# -- which of them ---------------------------------------------------------------------------------------------------


def _cost(victim: Job, now: float) -> float:
    """Work lost: what it holds times how long it has run. The youngest and smallest go first."""
    assert isinstance(victim.phase, Running)
    shares = victim.phase.allocation.shares
    size = sum(share.cpus + GPU_WORTH * share.gres_count("gpu") for share in shares)
    return size * max(1.0, now - victim.phase.started_at)


def _fewest(work: Pass, job: Job, partition: PartitionConfig, stage: Occupancy, candidates: list[Job]) -> list[Job]:
    """Candidates come cheapest first: the shortest beginning of them that suffices, less those that do not help."""
    low, high = 1, len(candidates) + 1
    while low < high:
        middle = (low + high) // 2
        if _fits(work, job, partition, stage, candidates[:middle]) is not None:
            high = middle
        else:
            low = middle + 1
    if low > len(candidates):
        return []
    fit = _fits(work, job, partition, stage, candidates[:low])
    assert fit is not None
    used = {share.node for share in fit.shares}
    chosen = [victim for victim in candidates[:low] if used.intersection(_allocation(victim).node_names)]
    if _fits(work, job, partition, stage, chosen) is None:
        chosen = candidates[:low]
    for victim in sorted(chosen, key=lambda victim: -_cost(victim, work.now)):
        rest = [other for other in chosen if other.id != victim.id]
        if _fits(work, job, partition, stage, rest) is not None:
            chosen = rest
    return chosen
