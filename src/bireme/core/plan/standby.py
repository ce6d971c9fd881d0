"""Suspended jobs in a pass: their CPUs are kept for them, lent to jobs that outrank them, and given back.

A job that was suspended for another is in no queue, but has a claim: the CPUs that it left. Jobs that may preempt it
see them as free (`opened`); to all others they are taken, so that it goes on as soon as its preemptor has gone and no
newcomer takes its place. What an operator suspended has no claim until it is to be resumed.

Used by `fitting` for its draft and by `preempt.py` for its stages; `resumptions` is asked at the end of a pass,
after all who outrank a suspended job had their turn. Invariant: a CPU that is kept is held in the draft, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from bireme.core.calendar.booking import Booking
from bireme.core.jobs.suspending import cpus_are_free
from bireme.core.model.jobs import Job, Running, Suspended
from bireme.core.model.nodes import Health
from bireme.core.model.policy import Preemption
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.occupancy import Occupancy
from bireme.core.plan.decisions import Decision, Preempt, Resume
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.seniority import SUSPEND, as_victim, mode, outranks, tier
from bireme.core.plan.snapshot import Snapshot
from bireme.core.state.state import State


@dataclass(slots=True)
class Standby:
    """CPUs of suspended jobs that are held in one draft: by job."""

    kept: dict[int, Allocation] = field(default_factory=dict)

    def copy(self) -> Standby:
        return Standby(dict(self.kept))

    def keep(self, draft: Occupancy, job: Job) -> None:
        """Keeps for a suspended job those of its CPUs that nobody uses."""
        assert job.allocation is not None
        shares = tuple(_free_part(draft, share) for share in job.allocation.shares if share.node in draft.index)
        kept = replace(job.allocation, shares=tuple(share for share in shares if share.runs), whole_nodes=False)
        draft.hold(kept)
        self.kept[job.id] = kept

    def keep_all(self, draft: Occupancy, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.keep(draft, job)

    def opened(self, draft: Occupancy, to: Callable[[int], bool]) -> Occupancy:
        """A draft in which the CPUs that are kept for some are free."""
        opened = draft.draft()
        for job_id, kept in self.kept.items():
            if to(job_id):
                opened.release(kept)
        return opened

    def lend(self, draft: Occupancy, shares: Iterable[NodeShare]) -> None:
        """Somebody takes these shares: what of them is kept, is not any more."""
        taken = {share.node: set(share.cpu_ids) for share in shares}
        for job_id, kept in self.kept.items():
            left = tuple(_without(share, taken.get(share.node, set())) for share in kept.shares)
            if left != kept.shares:
                draft.release(kept)
                self.kept[job_id] = replace(kept, shares=tuple(share for share in left if share.runs))
                draft.hold(self.kept[job_id])


def _free_part(draft: Occupancy, share: NodeShare) -> NodeShare:
    free = draft.room(share.node).cpus
    return _only(share, tuple(cpu for cpu in share.cpu_ids if free >> cpu & 1))


def _without(share: NodeShare, taken: set[int]) -> NodeShare:
    return _only(share, tuple(cpu for cpu in share.cpu_ids if cpu not in taken))


def _only(share: NodeShare, cpu_ids: tuple[int, ...]) -> NodeShare:
    return replace(share, cpus=len(cpu_ids), cpu_ids=cpu_ids, memory_mib=0, gres=())


def waiting_for_cpus(state: State) -> list[Job]:
    """Suspended jobs that go on when they can; who outranks others first."""
    waiting = [job for job in state.holding.values() if isinstance(job.phase, Suspended) and job.phase.waits_for_cpus]
    return sorted(waiting, key=lambda job: (-tier(state, job), -job.priority, job.submitted_at, job.id))


def on_its_cpus(state: State, job: Job) -> Iterator[Job]:
    """Jobs that use CPUs of a suspended one."""
    return (other for other in state.holding.values() if other.id != job.id and _meet(job, other.held))


def before_it(state: State, job: Job) -> Iterator[Job]:
    """Jobs that use CPUs of a suspended one, and those that go on before it and use them then."""
    yield from on_its_cpus(state, job)
    for other in waiting_for_cpus(state):
        if other.id == job.id:
            return
        assert other.allocation is not None
        if _meet(job, other.allocation):
            yield other


def _meet(job: Job, allocation: Allocation) -> bool:
    assert job.allocation is not None
    mine = {share.node: set(share.cpu_ids) for share in job.allocation.shares}
    return any(mine.get(share.node, set()) & set(share.cpu_ids) for share in allocation.shares)


def resumptions(
    state: State, drafts: Sequence[tuple[Occupancy, Standby]], rules: Preemption, doomed: set[int]
) -> Iterator[Decision]:
    """Who goes on now; and those that must make way for one that outranks them.

    `drafts`: as things are, and as they will be when victims have gone: in all of them its CPUs must be free, or it
    would go on only to make way again. `doomed`: preempted already.
    """
    for job in waiting_for_cpus(state):
        assert job.allocation is not None
        if any(state.nodes[name].health is not Health.UP for name in job.allocation.node_names if name in state.nodes):
            continue
        if all(cpus_are_free(standby.opened(draft, job.id.__eq__), job) for draft, standby in drafts):
            yield Resume(job.id)
            continue
        in_the_way = [other for other in on_its_cpus(state, job) if other.id not in doomed]
        if in_the_way and all(_makes_way(state, other, job, rules) for other in in_the_way):
            doomed.update(other.id for other in in_the_way)
            yield Preempt(job.id, tuple(as_victim(state, other, rules) for other in in_the_way))


def _makes_way(state: State, other: Job, job: Job, rules: Preemption) -> bool:
    """Whether a running job is suspended so that a suspended one can go on, which an operator had stopped."""
    assert job.allocation is not None
    partition = state.partitions.get(job.allocation.partition)
    if partition is None or not isinstance(other.phase, Running) or mode(state, other, rules) != SUSPEND:
        return False
    return outranks(state, job, partition, other, rules)


def expect_resumptions(snapshot: Snapshot, outlook: Outlook, waiting: Sequence[Job]) -> None:
    """The calendar learns when suspended jobs go on, taking the CPUs that they lent, and when they end then."""
    calendar, ends, standby = outlook.calendar, outlook.ends, Standby()
    if waiting:
        standby.keep_all(snapshot.state.occupancy.draft(), waiting)
    for job in waiting:
        assert isinstance(job.phase, Suspended)
        goes_on = max((ends[other.id][0] for other in before_it(snapshot.state, job)), default=snapshot.now)
        ran_s = job.phase.since - job.phase.suspended_s - job.phase.started_at
        end = max(snapshot.gone_by(job, goes_on - ran_s), goes_on + 1.0)
        if end == inf:
            continue
        kept = standby.kept[job.id]
        ends[job.id] = (end, job.held)
        calendar.started(end, job.held)
        calendar.started(end, kept)
        lent = _less(job.phase.allocation.only_cpus(), kept)
        if lent.shares:
            outlook.resumptions[job.id] = Booking(calendar.rounded(goes_on), end, lent.shares)
            calendar.book(outlook.resumptions[job.id])


def _less(whole: Allocation, part: Allocation) -> Allocation:
    """CPUs of the one that are not among those of the other."""
    taken = {share.node: set(share.cpu_ids) for share in part.shares}
    ids = (tuple(cpu for cpu in share.cpu_ids if cpu not in taken.get(share.node, ())) for share in whole.shares)
    shares = (replace(share, cpu_ids=each, cpus=len(each)) for share, each in zip(whole.shares, ids))
    return replace(whole, shares=tuple(share for share in shares if share.runs))
