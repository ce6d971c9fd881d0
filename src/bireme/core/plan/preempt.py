"""Whom to end or suspend so that a job can start: the cheapest set of running jobs that suffices, none needlessly.

Tried in drafts that are thrown away. Who may preempt whom is `seniority.py`'s. A job that already waits for victims to
go is not given more of them, and what it will hold then counts for the limits from now on: nobody else is ended for a
start that a limit would forbid.

Slots of those that stand behind it in the queue are no obstacle: who has one in its way gives it up.

Invariant: with all victims gone the job fits; with any one of them still there it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bireme.core.calendar.booking import Booking
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Ending, Job, Running
from bireme.core.model.nodes import Health
from bireme.core.model.policy import Preemption
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import Preempt, Victim
from bireme.core.plan.queue import Entry, entries_of
from bireme.core.plan.seniority import SUSPEND, as_victim, exempt_s, mode, outranks, preempts, would_outrank
from bireme.core.plan.standby import Standby
from bireme.core.plan.work import Pass

Found = tuple[Sequence[Job], Fit]
"""Whom to end or suspend, and where the job fits then."""
GPU_WORTH = 16
"""How many CPUs a GPU counts for when lost work is compared."""


def victims_for(work: Pass, job: Job, partition: PartitionConfig, entry: Entry) -> Preempt | None:
    """The decision that makes room for the job in this partition, or None: nobody may be, or need be, ended for it.

    `entry`: where it stands in the queue.
    """
    if not preempts(work.state, job, work.policy.preemption):
        return None
    before, standby = _stage(work)
    lenders = work.fitting.lenders(job, partition)
    with work.fitting.resuming_later(lenders):
        stage = standby.opened(before, lenders.__contains__)
        enough = _fits(work, job, partition, stage, ())
        if enough is not None:  # those that are ending already leave enough
            if awaits_victims(work, job):
                work.limiting.count_as_held(job, work.snapshot.allocation(job, partition, enough))
            return None
        found = _cheapest(work, job, partition, stage, entry)
        if found is None or work.limiting.blocking(job, partition, found[1]):
            return None
        return _decision(work, job, partition, entry, (before, standby), found)


def _decision(
    work: Pass, job: Job, partition: PartitionConfig, entry: Entry, draft: tuple[Occupancy, Standby], found: Found
) -> Preempt:
    """Ends or suspends them, in the pass's drafts too."""
    (before, standby), (chosen, fit) = draft, found
    decision = Preempt(job.id, tuple(_as_victim(work, victim, work.policy.preemption) for victim in chosen))
    for victim in chosen:
        work.doomed.add(victim.id)
        before.release(_freed(work, victim))
        if _is_suspended(work, victim):
            standby.keep(before, victim)
    standby.lend(before, fit.shares)
    allocation = work.snapshot.allocation(job, partition, fit)
    before.hold(allocation)
    work.after_preemption = before, standby
    work.limiting.count_as_held(job, allocation)
    promised = _promise(work, job, decision, fit, partition)
    _displace(work, entry, promised)
    return decision


def guards(work: Pass, job: Job, partition: PartitionConfig) -> Reason | None:
    """The rules outside that keep those from being ended whom it would outrank."""
    kept = [
        other.guarded_by
        for other in work.state.holding.values()
        if other.guarded_by and would_outrank(work.state, job, partition, other, work.policy.preemption)
    ]
    return reason(ReasonKind.GUARDED, jobs=len(kept), by=", ".join(dict.fromkeys(kept))) if kept else None


def awaits_victims(work: Pass, job: Job) -> bool:
    """Whether others are being ended for this very job."""
    outcomes = (other.phase.outcome for other in work.state.holding.values() if isinstance(other.phase, Ending))
    reasons = (outcome.reason for outcome in outcomes if outcome.reason is not None)
    return any(why.kind is ReasonKind.PREEMPTED and why.fact("by") == job.id for why in reasons)


def _promise(work: Pass, job: Job, decision: Preempt, fit: Fit, partition: PartitionConfig) -> Booking:
    """What the victims leave is the job's from the moment they are gone: nobody behind it may take it meanwhile."""
    outlook, settings = work.outlook, work.state.config.settings
    ended = [victim.grace_s + settings.kill_wait_s for victim in decision.victims if not victim.suspend]
    gone = work.now + 1.0 + max(ended, default=0)
    for victim in decision.victims:
        outlook.expect(victim.job_id, gone, _freed(work, work.state.jobs[victim.job_id]))
    begin = outlook.calendar.rounded(gone)
    booking = work.slots.booking(job, partition, begin, begin + work.snapshot.duration_s(job), fit.shares)
    outlook.restore(job.id, (*outlook.forget(job.id), booking))
    return booking


def _slots_behind(work: Pass, entry: Entry, until: float) -> list[Booking]:
    """Slots before that moment of those that stand behind it. A full pass has given them none when it comes to it; in
    a small one, which finds a victim that was not there then, they would keep it from what is its turn."""
    pending, bookings = work.state.pending, work.outlook.bookings
    others = [pending[job_id] for job_id in bookings if job_id in pending and job_id != entry.job_id]
    first: dict[int, Entry] = {}
    for other in entries_of(work.state, others):
        first.setdefault(other.job_id, other)
    return [slot for other in first.values() if other > entry for slot in bookings[other.job_id] if slot.begin < until]


def _displace(work: Pass, entry: Entry, promised: Booking) -> None:
    """Those behind give up the slots that are in the way of what was promised, and are looked at again."""
    nodes = {share.node for share in promised.shares}
    for slot in _slots_behind(work, entry, promised.end):
        if slot.end > promised.begin and any(share.node in nodes for share in slot.shares):
            work.outlook.give_up(work.state, work.outlook.forget(slot.job_id))
            work.outlook.fresh.add(slot.job_id)


def _stage(work: Pass) -> tuple[Occupancy, Standby]:
    """The draft as it will be when everything that is ending has gone."""
    if work.after_preemption is not None:
        stage, standby = work.after_preemption
        return stage.draft(), standby.copy()
    stage = work.fitting.draft.draft()
    for job in work.state.holding.values():
        if _is_going(work, job):
            stage.release(job.held)
    return stage, work.fitting.standby.copy()


def _is_going(work: Pass, job: Job) -> bool:
    """Whether a job is ending and will be gone: a node that does not answer keeps all of a job until it is back."""
    if not isinstance(job.phase, Ending):
        return False
    nodes = (work.state.nodes.get(name) for name in job.held.node_names)
    return all(node is None or node.health is Health.UP for node in nodes)


def _fits(work: Pass, job: Job, partition: PartitionConfig, stage: Occupancy, victims: Sequence[Job]) -> Fit | None:
    """Where it would fit with the victims gone, delaying no slot before it: what they free is free from now on."""
    freed = stage.draft()
    for victim in victims:
        freed.release(_freed(work, victim))
    free = None
    if work.calendar.has_bookings:
        ending = [other.id for other in work.state.holding.values() if _is_going(work, other)]
        ends = [work.outlook.ends[gone] for gone in (*ending, *(v.id for v in victims)) if gone in work.outlook.ends]
        for end, allocation in ends:
            work.calendar.withdraw(end, allocation)
        free = work.calendar.guaranteed(freed.free, work.now, work.now + work.snapshot.duration_s(job))
        for end, allocation in ends:
            work.calendar.started(end, allocation)
    fit = work.fitting.new_search(job, partition).find(freed, free)
    return fit if fit.found else None


def _candidates(work: Pass, job: Job, partition: PartitionConfig, rules: Preemption) -> Iterable[Job]:
    nodes = set(partition.nodes)
    for running in work.state.holding.values():
        phase = running.phase
        if running.mirrored or not isinstance(phase, Running):
            continue  # another scheduler's is not ours to end
        if work.now - phase.started_at < exempt_s(work.state, running, rules):
            continue
        if outranks(work.state, job, partition, running, rules) and nodes.intersection(phase.allocation.node_names):
            yield running


def _freed(work: Pass, victim: Job) -> Allocation:
    """What it leaves to others: all, or its CPUs if it is only suspended."""
    assert victim.allocation is not None
    return victim.allocation.only_cpus() if _is_suspended(work, victim) else victim.allocation


def _is_suspended(work: Pass, victim: Job) -> bool:
    return mode(work.state, victim, work.policy.preemption) == SUSPEND


# -- which of them ---------------------------------------------------------------------------------------------------


def _order(work: Pass, victim: Job) -> tuple[float, ...]:
    """Who goes first: the cheapest, unless the policy asks for the lowest or the youngest."""
    rules, phase = work.policy.preemption, victim.phase
    assert isinstance(phase, Running)
    lowest = victim.priority if rules.lowest_first else 0
    youngest = -phase.started_at if rules.youngest_first else 0.0
    return lowest, youngest, _cost(work, victim)


def _cost(work: Pass, victim: Job) -> float:
    """Work lost: what it holds times how long it has run since its last checkpoint, nothing of which is lost to a job
    that is suspended. The youngest and smallest go first.
    """
    assert isinstance(victim.phase, Running)
    shares = victim.phase.allocation.shares
    size = sum(share.cpus + GPU_WORTH * share.gres_count("gpu") for share in shares)
    return size * (1.0 if _is_suspended(work, victim) else max(1.0, _lost_s(work, victim)))


def _lost_s(work: Pass, victim: Job) -> float:
    """How long it has run since its work was last saved, by its own word or by its newest checkpoint."""
    assert isinstance(victim.phase, Running)
    return work.now - max(victim.phase.started_at, victim.checkpointed_at or 0.0)


def _as_victim(work: Pass, victim: Job, rules: Preemption) -> Victim:
    decided = as_victim(work.state, victim, rules)
    return decided if decided.suspend else replace(decided, lost_s=max(0, int(_lost_s(work, victim))))


def _cheapest(work: Pass, job: Job, partition: PartitionConfig, stage: Occupancy, entry: Entry) -> Found | None:
    """Who should go, and where the job fits then."""
    found = (each for each in _candidates(work, job, partition, work.policy.preemption) if each.id not in work.doomed)
    candidates = sorted(found, key=lambda victim: (_order(work, victim), -victim.id))
    chosen = _fewest(work, job, partition, stage, candidates)
    behind: list[Booking] = []
    if not chosen and candidates and _has_room(work, job, partition, stage, candidates):
        behind = _slots_behind(work, entry, work.now + work.snapshot.duration_s(job))
    with work.calendar.without(behind):
        if behind:
            chosen = _fewest(work, job, partition, stage, candidates)
        fit = _fits(work, job, partition, stage, chosen) if chosen else None
    return None if fit is None else (chosen, fit)


def _has_room(work: Pass, job: Job, partition: PartitionConfig, stage: Occupancy, victims: Sequence[Job]) -> bool:
    """Whether it would fit with all of them gone, if there were no slots."""
    freed = stage.draft()
    for victim in victims:
        freed.release(_freed(work, victim))
    return work.fitting.new_search(job, partition).find(freed, None).found


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
    chosen = [victim for victim in candidates[:low] if used.intersection(_freed(work, victim).node_names)]
    if _fits(work, job, partition, stage, chosen) is None:
        chosen = candidates[:low]
    for victim in sorted(chosen, key=lambda victim: _order(work, victim), reverse=True):
        rest = [other for other in chosen if other.id != victim.id]
        if _fits(work, job, partition, stage, rest) is not None:
            chosen = rest
    return chosen
