"""What becomes of a job whose turn it is: it starts, others make way for it, it gets a slot, or waits and says why.

`planner` calls `consider` for every job that it looks at. Gangs start whole or not at all: of a heterogeneous job all
components together; of an array as many tasks as fit. Invariant: whoever does not start leaves with a verdict that
names all that blocks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bireme.core.calendar.booking import Booking
from bireme.core.jobs.gates import closed_gates, startable_tasks, throttle_room, throttled
from bireme.core.jobs.placing import fenced_in, unasked_nodes
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import ArrayWaiting, Job, Pending
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import Start, StartGang
from bireme.core.plan.preempt import awaits_victims, guards, victims_for
from bireme.core.plan.queue import Entry, best_first
from bireme.core.plan.seniority import preempts
from bireme.core.plan.work import FOR_ROOM, Pass
from bireme.core.state.state import Verdict

Found = tuple[PartitionConfig | None, Fit | None, tuple[Reason, ...]]
"""Where a job fits now: partition and shares, or what keeps it from there."""


def consider(work: Pass, job: Job, entry: Entry) -> None:
    """Decides what the job gets in the partition of its entry; a heterogeneous job in all of them."""
    outlook = work.outlook
    if job.het_job_id is not None:
        outlook.again.add(job.id)
        _consider_het(work, job)
        return
    gates = closed_gates(work.state, job, work.now)
    if gates:
        work.verdicts[job.id] = Verdict(gates)
        outlook.give_up(work.state, outlook.forget(job.id))
        outlook.waiting.remove(job.id)
        outlook.follow(job)
        if isinstance(job.phase, Pending) and job.phase.eligible_at is not None:
            outlook.again.add(job.id)  # a throttle or a back-off: no event will say that it has opened
            outlook.kept_out.add(job.id)
        return
    if job.id in outlook.kept_out:
        outlook.kept_out.discard(job.id)
        outlook.changes += 1  # it stands before some that were given slots without it
    partition = work.state.partitions.get(entry.partition)
    if isinstance(job.array, ArrayWaiting):
        _consider_array(work, job, entry)
    elif job.array is not None and _throttle_left(work, job) == 0:
        work.verdicts[job.id] = Verdict((throttled(work.state, job),))
    elif _start_or_book(work, job, entry):
        outlook.again.discard(job.id)
        outlook.waiting.remove(job.id)
        work.begun.add(job.id)
        return
    work.remember(job, partition)


def _consider_array(work: Pass, job: Job, entry: Entry) -> None:
    """As many waiting tasks as fit, in order; the next one gets a slot, and says why for all that stay behind."""
    assert isinstance(job.array, ArrayWaiting)
    taken = work.tasks_taken.setdefault(job.id, set())
    ready = [task_id for task_id in startable_tasks(work.state, job) if task_id not in taken]
    room = _throttle_left(work, job)
    for task_id in ready[:room]:
        if len(work.starts) >= work.policy.starts_max or not _start_or_book(work, job, entry, task_id):
            return
        taken.add(task_id)
    if room is not None and room < len(ready):
        work.verdicts[job.id] = Verdict((throttled(work.state, job),))
    elif len(ready) < len(job.array.waiting):
        work.verdicts[job.id] = Verdict((reason(ReasonKind.DEPENDENCY, on="aftercorr"),))


def _throttle_left(work: Pass, job: Job) -> int | None:
    room = throttle_room(work.state, job)
    return None if room is None else max(0, room - work.tasks_started.get(job.array_job_id or 0, 0))


def _consider_het(work: Pass, leader: Job) -> None:
    """All components start, in a draft of their own, or none does; then they get slots that begin together."""
    members = [work.state.jobs[member] for member in work.state.het_members[leader.id]]
    if any(member.id not in work.state.pending for member in members):
        return
    gates = dict.fromkeys(gate for member in members for gate in closed_gates(work.state, member, work.now))
    own = {member.id: work.outlook.forget(member.id) for member in members}
    if gates:
        work.verdicts.update({member.id: Verdict(tuple(gates)) for member in members})
        for slots in own.values():
            work.outlook.give_up(work.state, slots)
        return
    take_back = work.branch()
    found: list[tuple[Job, Allocation]] = []
    for member in members:
        taken = tuple(dict.fromkeys(share.node for _, held in found for share in held.shares))
        partition, fit, reasons = _find_apart(work, member, taken)
        if partition is None or fit is None:
            take_back()
            _wait_together(work, members, reasons, own)
            return
        found.append((member, work.hold(member, partition, fit)))
    work.starts.append(StartGang(tuple(work.started(member, held) for member, held in found)))
    work.outlook.again.discard(leader.id)


def _find_apart(work: Pass, member: Job, taken: tuple[str, ...]) -> Found:
    """On nodes of its own, as Slurm places components; on a small cluster it shares nodes with the others."""
    asked = member.spec.resources
    if taken and not set(taken) & set(asked.nodelist):
        alone = replace(asked, exclude=(*asked.exclude, *taken))
        blocked, waited_for, heads = set(work.blocked), set(work.waited_for), dict(work.outlook.heads)
        found = _find_anywhere(work, replace(member, spec=replace(member.spec, resources=alone)))
        if found[1] is not None:
            return found
        for line in work.blocked.keys() - blocked:  # nobody waits because it does not fit apart
            del work.blocked[line]
        work.waited_for.intersection_update(waited_for)
        work.outlook.heads = heads
    return _find_anywhere(work, member)


def _wait_together(
    work: Pass, members: Sequence[Job], reasons: tuple[Reason, ...], own: Mapping[int, Sequence[Booking]]
) -> None:
    waits = _waits_for_room(reasons) and work.policy.backfill
    if waits and all(own.values()):
        for member in members:
            work.outlook.restore(member.id, own[member.id])
    elif waits and all(work.slots.may_reserve(member, member.spec.partitions) for member in members):
        lines = [(member, name) for member in members for name in member.spec.partitions]
        if all(work.slots.may_book(member, name) for member, name in lines):
            work.slots.book_together(members)
        else:
            for member, name in lines:
                work.block(work.line(member, name))
    for member in members:
        work.judge(member, reasons)


def _start_or_book(work: Pass, job: Job, entry: Entry, task_id: int | None = None) -> bool:
    """Whether it starts in this partition. If not, its verdict says why and, with backfill, when."""
    own = work.outlook.forget(job.id)
    partition, fit, reasons = _find_now(work, job, entry.partition)
    limited = job
    if fit is None and _waits_for_room(reasons):
        limited, partition, fit = _find_shorter(work, job, entry.partition)
    if partition is not None and fit is not None:
        if own:
            work.outlook.restore(job.id, own[1:])
            work.outlook.give_up(work.state, own[:1])
        held = work.hold(limited, partition, fit)
        _add_start(work, job, work.started(limited, held, task_id))
        return True
    if work.policy.stops_at_association_limits and _at_association_limit(reasons):
        work.block(work.line(job, entry.partition), job.id)
    if not _preempt(work, job, entry, reasons):
        _keep_or_book(work, job, entry, reasons, own)
        reasons = _with_guards(work, job, reasons)
    work.judge(job, reasons)
    return False


def _add_start(work: Pass, job: Job, start: Start) -> None:
    work.starts.append(start)
    if job.array_job_id is not None:
        work.tasks_started[job.array_job_id] = work.tasks_started.get(job.array_job_id, 0) + 1


def _keep_or_book(work: Pass, job: Job, entry: Entry, reasons: tuple[Reason, ...], own: Sequence[Booking]) -> None:
    """The slots that it has stay, unless one in this partition is earlier; without any it gets one."""
    waits = _waits_for_room(reasons)
    if own and (waits or len(job.spec.partitions) > 1):
        work.outlook.restore(job.id, own)
        fixed = isinstance(job.array, ArrayWaiting) or work.policy.one_slot_per_job
        if work.known or not waits or fixed or not work.policy.backfill:
            return  # only a pass to which all are fresh looks for better ones
        _book(work, job, entry, reasons, earlier_than=own[0])
    elif work.policy.backfill:
        _book(work, job, entry, reasons)
    elif waits and job.id in work.slots.promises and awaits_victims(work, job):
        # Some of its victims take longer to go than others: what these left stays promised, also without backfill.
        begin = work.calendar.rounded(work.now + 1.0)
        kept = [replace(slot, begin=max(slot.begin, begin)) for slot in work.slots.promises[job.id]]
        work.outlook.restore(job.id, [slot for slot in kept if slot.begin < slot.end])


def _book(work: Pass, job: Job, entry: Entry, reasons: tuple[Reason, ...], earlier_than: Booking | None = None) -> None:
    """A slot, if it only lacks free resources. A job that may have none blocks those behind it."""
    partition = work.state.partitions.get(entry.partition)
    if partition is None or not _waits_for_room(reasons):
        return
    if not work.slots.may_reserve(job, () if earlier_than else (entry.partition,)):
        return
    if earlier_than is None and not work.slots.may_book(job, entry.partition):
        work.block(work.line(job, entry.partition))
    elif work.slots.book(job, partition, earlier_than):
        work.outlook.last_booked = max(entry, work.outlook.last_booked or entry)


def _preempt(work: Pass, job: Job, entry: Entry, reasons: tuple[Reason, ...]) -> bool:
    """Whether others are ended for it, in the first partition where that helps. It starts when they are gone."""
    for why in reasons:
        if why.kind in (ReasonKind.RESOURCES, ReasonKind.PRIORITY) and why.fact("partition") in work.state.partitions:
            decision = victims_for(work, job, work.state.partitions[str(why.fact("partition"))], entry)
            if decision is not None:
                work.starts.append(decision)
                return True
    return False


def _with_guards(work: Pass, job: Job, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The reasons of a job that lacks room, with the rules that keep those there who would make way."""
    if not preempts(work.state, job, work.policy.preemption):
        return reasons
    places = [work.state.partitions.get(str(why.fact("partition"))) for why in reasons if why.kind in FOR_ROOM]
    found = (guards(work, job, partition) for partition in places if partition is not None)
    return (*reasons, *dict.fromkeys(why for why in found if why is not None))


def _at_association_limit(reasons: tuple[Reason, ...]) -> bool:
    return any(why.fact("measure") is not None and why.kind.value.startswith("Assoc") for why in reasons)


def _waits_for_room(reasons: tuple[Reason, ...]) -> bool:
    """Whether a job waits for room and not for a limit: one that a limit blocks holds no slot against others."""
    return any(_for_room(why) for why in reasons)


def _for_room(why: Reason) -> bool:
    """Busy nodes become free, and reserved ones are free again when the reservation is over."""
    return why.kind in FOR_ROOM or why.fact("reserved") is not None


def _find_anywhere(work: Pass, job: Job) -> Found:
    """The best of the job's partitions that holds it now, or what blocks it in each."""
    blocked: list[Reason] = []
    for name in best_first(work.state, job):
        partition, fit, reasons = _find_now(work, job, name)
        if fit is not None:
            return partition, fit, ()
        blocked.extend(reasons)
    return None, None, tuple(blocked) or (reason(ReasonKind.PRIORITY),)


def _find_now(work: Pass, job: Job, name: str) -> Found:
    """Where the partition holds it now, or all that blocks it there."""
    terms = work.terms(job, name)
    if terms is None:
        return None, None, (reason(ReasonKind.PARTITION_DOWN, partition=name),)
    if terms.closed is not None:
        return None, None, (terms.closed,)
    partition = terms.partition
    over = (*terms.beyond, *work.limiting.blocking(job, partition)) if terms.limited else terms.beyond
    if over:
        return None, None, over
    if terms.line in work.blocked and job.id not in work.known:
        return None, None, (reason(ReasonKind.PRIORITY, partition=name),)
    fit = work.fitting.now(job, partition, terms.shape, terms.duration_s)
    if not fit.found and work.fitting.standby.kept:
        fit = work.fitting.on_lent(job, partition) or fit
    over = work.limiting.blocking(job, partition, fit) if fit.found and terms.limited else ()
    if fit.found and not over:
        return partition, fit, ()
    return None, None, over or (_why_not(work, job, partition, fit),)


def _find_shorter(work: Pass, job: Job, name: str) -> tuple[Job, PartitionConfig | None, Fit | None]:
    """With --time-min: the job with the longest limit with which it fits now, and where.

    What fits for long fits for a shorter time, so half of the lengths that are left can be passed over at each step.
    """
    best: tuple[Job, PartitionConfig | None, Fit | None] = (job, None, None)
    lengths = work.fitting.shorter(job)
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high) // 2 if best[2] is not None else 0  # most often not even the least will do
        partition, fit, _ = _find_now(work, lengths[middle], name)
        if fit is None:
            high = middle
        else:
            best, low = (lengths[middle], partition, fit), middle + 1
    return best


def _why_not(work: Pass, job: Job, partition: PartitionConfig, fit: Fit) -> Reason:
    """Busy nodes hold up the queue; nodes that are down or drained hold up only the job itself."""
    facts: dict[str, str | int | float] = {
        "partition": partition.name,
        "nodes_needed": fit.nodes_needed,
        "nodes_able": fit.nodes_able,
    }
    if unasked := [name for name in unasked_nodes(work.state, job) if name in partition.nodes]:
        facts["unasked"] = ",".join(unasked)
    door, closed = work.fitting.way(job)
    if not work.fitting.would_fit_empty(job, partition, (door, closed)):
        if closed and work.fitting.would_fit_empty(job, partition, (door, ())):
            return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, reserved=1, **facts)
        away = ",".join(filter(None, (*_nodes_gone(work, job), _nodes_away(work, partition))))
        if door.confined and not away:
            return reason(ReasonKind.BAD_CONSTRAINTS, reservation=job.spec.reservation, **facts)
        if fenced := _fenced(work, partition):
            facts["fenced"] = fenced
        return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, unavailable=away, **facts)
    line = work.line(job, partition.name)
    first = work.is_first_to_wait(job, line)
    if not work.policy.backfill:
        work.block(line, job.id)
    return reason(ReasonKind.RESOURCES if first else ReasonKind.PRIORITY, **facts)


def _fenced(work: Pass, partition: PartitionConfig) -> str:
    """Which GPUs of its nodes are out of service, and why; of many, the first."""
    answers = work.outlook.answers
    if partition.name not in answers.fenced:
        answers.fenced[partition.name] = fenced_in(work.state, partition)
    return answers.fenced[partition.name]


def _nodes_gone(work: Pass, job: Job) -> list[str]:
    """Nodes that it named (-w) and that are not of the cluster any more."""
    return [name for name in dict.fromkeys(job.spec.resources.nodelist) if name not in work.state.nodes]


def _nodes_away(work: Pass, partition: PartitionConfig) -> str:
    """The names of its nodes that are down or drained: a whole queue may wait for them, and each job says so."""
    answers, nodes = work.outlook.answers, work.state.nodes
    if partition.name not in answers.away:
        known = (nodes[name] for name in partition.nodes if name in nodes)
        answers.away[partition.name] = ",".join(node.name for node in known if not node.schedulable)
    return answers.away[partition.name]
