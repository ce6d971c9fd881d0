"""One pass over the queue: order, gates, fit, slots. Decides; changes nothing but its own draft.

In the order of the queue (`queue.py`; a job stands there once for each partition that it may use) every job that no
gate holds either starts, or gets the earliest slot in the calendar; a later job starts only where it delays no slot
before it (backfill). With sched/builtin there are no slots: the first job that does not fit blocks those behind it in
its partition. Gangs start whole or not at all.

Invariant: same state, same policy, same `now`: same plan.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bireme.core.calendar.booking import Booking
from bireme.core.lifecycle.gates import closed_gates, partition_gate, startable_tasks, throttle_room, throttled
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.limits.partitions import beyond_partition
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import ArrayWaiting, Job, Pending
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import BEHIND, Plan, Start, StartGang
from bireme.core.plan.lines import Line
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.preempt import awaits_victims, guards, victims_for
from bireme.core.plan.queue import Entry, best_first, entries_of
from bireme.core.plan.seniority import preempts
from bireme.core.plan.standby import resumptions
from bireme.core.plan.work import Pass, begin_pass, resume_pass

FOR_ROOM = (ReasonKind.RESOURCES, ReasonKind.PRIORITY)
"""The reasons of jobs that start as soon as there is room."""


Enough = Callable[[], bool]
"""Asked before each job that is looked at closely: True ends the pass. What it did not reach comes next time."""


def plan(
    state: State,
    policy: Policy,
    now: float,
    promises: Mapping[int, Sequence[Booking]] | None = None,
    *,
    before: Outlook | None = None,
    enough: Enough | None = None,
) -> Plan:
    """A full pass over the queue. `promises`: slots of the pass before, kept where no earlier ones are found.

    `before`: an outlook that is not void and is used up: what it knows of running jobs need not be found out again.
    """
    work = begin_pass(state, policy, now, promises, before)
    work.enough = enough
    _walk(work, entries_of(state, state.pending.values()))
    _resume(work)
    return Plan(tuple(work.starts), work.verdicts, work.behind, work.outlook)


def plan_again(
    state: State, policy: Policy, now: float, outlook: Outlook, *, enough: Enough | None = None, renew: bool = True
) -> Plan:
    """A pass after small changes: only jobs that these could let start, and new ones; slots that were promised stay.

    Each of them may use what its own slots held back. A new job that comes before one with a slot calls for a full
    pass (unless `renew` is False): it must not wait for those behind it. Then goes on where the pass before ended.
    Verdicts of jobs that were not looked at again still stand.
    """
    if not (outlook.freed or outlook.fresh or outlook.again or outlook.left or outlook.suspended):
        return Plan((), {}, (), outlook)
    if (behind := _only_newcomers_behind(state, outlook)) is not None:
        return Plan((), {}, behind, outlook)
    work = resume_pass(state, policy, now, outlook)
    work.enough = enough
    hope = work.hope
    assert hope is not None
    again = _to_look_at_again(outlook, policy, now)
    freed, outlook.freed = outlook.freed, set()
    hopeful = hope.candidates(outlook.waiting, freed) if freed else set()
    fresh, outlook.fresh = outlook.fresh, set()
    pending = state.pending
    entries = entries_of(state, [pending[job_id] for job_id in (again | hopeful | fresh) & pending.keys()])
    last = outlook.last_booked
    if renew and last is not None and any(entry < last and entry.job_id in fresh for entry in entries):
        return plan(state, policy, now, outlook.bookings, before=outlook, enough=enough)
    if outlook.left:
        entries = _join_the_rest(outlook, entries, fresh)
    work.known = outlook.again.union(hopeful) - fresh
    for job_id in fresh:
        outlook.waiting.remove(job_id)
    left, outlook.left = outlook.left, []
    work.hopeful = hopeful - fresh
    if not (_walk(work, entries) and _walk_where_slots_were(work)):
        outlook.left += left
    elif _walk(work, left):
        _go_on(work)
    _resume(work)
    return Plan(tuple(work.starts), work.verdicts, work.behind, outlook)


def _to_look_at_again(outlook: Outlook, policy: Policy, now: float) -> set[int]:
    """Those that wait for something else than room; not while the queue's end has yet to be reached.

    They may be more than one pass has time for: looked at in every one, they would keep all of them from getting there.
    """
    if outlook.left and abs(now - outlook.again_at) < policy.interval_s:
        outlook.owed = outlook.owed or bool(outlook.again and (outlook.freed or outlook.fresh))
        return set()
    outlook.again_at, outlook.owed = now, False
    return outlook.again - {entry.job_id for entry in outlook.left}


def _only_newcomers_behind(state: State, outlook: Outlook) -> list[int] | None:
    """If all that has changed is that jobs came in behind others that must go first: who they are."""
    if outlook.freed or outlook.again or outlook.left or outlook.suspended or not outlook.blocked:
        return None
    entries = entries_of(state, [state.pending[job_id] for job_id in outlook.fresh if job_id in state.pending])
    last = outlook.last_booked
    if any(not entry.plain or entry.partition not in outlook.blocked for entry in entries):
        return None
    if last is not None and any(entry < last for entry in entries):
        return None
    for job_id in outlook.fresh:
        outlook.waiting.remove(job_id)
    outlook.fresh = set()
    for entry in entries:
        outlook.blocked[entry.partition].add(entry)
    return [entry.job_id for entry in entries]


def _walk_where_slots_were(work: Pass) -> bool:
    """A job that started elsewhere than in its slot gave that up: those before it in the queue may have its place."""
    outlook, hope, going_on = work.outlook, work.hope, True
    assert hope is not None
    while going_on and outlook.freed:
        freed, outlook.freed = outlook.freed, set()
        hopeful = hope.candidates(outlook.waiting, freed) - work.begun
        work.known |= hopeful
        work.hopeful = hopeful
        jobs = [work.state.pending[job_id] for job_id in hopeful if job_id in work.state.pending]
        going_on = _walk(work, entries_of(work.state, jobs))
    return going_on


def _resume(work: Pass) -> None:
    """After the queue: those that outrank a suspended job have taken what they need of its CPUs."""
    if work.standby.kept:
        drafts = [(work.draft, work.standby)]
        if work.after_preemption is not None:
            drafts.append(work.after_preemption)
        work.starts.extend(resumptions(work.state, drafts, work.policy.preemption, work.doomed))


def _join_the_rest(outlook: Outlook, entries: list[Entry], fresh: set[int]) -> list[Entry]:
    """New jobs that stand behind some that were not reached yet wait with them."""
    reached, first = [], outlook.left[0]
    for entry in entries:
        if entry.job_id in fresh and entry > first:
            insort(outlook.left, entry)
        else:
            reached.append(entry)
    return reached


def _walk(work: Pass, entries: Sequence[Entry]) -> bool:
    """False: it was ended before its end, and the outlook knows what is left."""
    pending, blocked, looked_at = work.state.pending, work.blocked, work.known | work.begun
    behind, reached_all = work.behind, True
    lost = work.hope.lost if work.hope is not None else frozenset()
    for position, entry in enumerate(entries):
        job_id = entry.job_id
        if job_id in lost:
            continue
        line = blocked.get(entry.partition) if entry.plain else None
        if line is not None and job_id in pending and job_id not in looked_at:
            behind.append(job_id)
            line.add(entry)
            continue
        job = pending.get(job_id)
        if job is None or job.id in work.begun or job.het_job_id not in (None, job.id):
            continue  # gone, started in another of its partitions, or considered with its leader
        if _only_waits_for_others(work, job, entry):
            _pass_over(work, job, entry)
        elif len(work.starts) >= work.policy.starts_max or work.is_over():
            work.outlook.left += entries[position:]
            reached_all = False
            break
        elif work.may_hope(job.id):
            work.looked = True
            name = work.line(job, entry.partition)
            stood_still = name in blocked
            _consider(work, job, entry)
            if not stood_still and name in blocked and job.id not in work.begun:
                blocked[name].add(entry)  # it is the first to be looked at when the line goes on
    return reached_all


def _go_on(work: Pass) -> bool:
    """In a small pass, for lines that stood still: as far as there are slots again, or nobody blocks them any more."""
    for name in list(work.blocked):
        line = work.blocked[name]
        if line.blocker in work.state.pending and line.blocker not in work.begun:
            continue
        while (entry := _next_in(work, line)) is not None:
            line.leave()
            work.blocked.pop(name, None)
            work.outlook.passed_over.discard((entry.job_id, entry.partition))
            reached = _walk(work, (entry,))
            again = work.blocked.setdefault(name, line)
            if again is not line:
                line.blocker = again.blocker
                line.add_all(again.rest())
                work.blocked[name] = line
            if not reached:
                return False
            if again is not line:
                break
        if line.first(work.state.pending, work.begun) is None:
            work.blocked.pop(name, None)
    return True


def _next_in(work: Pass, line: Line) -> Entry | None:
    """Who is to be looked at now; None: nobody is left, or may have a slot."""
    entry = line.first(work.state.pending, work.begun)
    if entry is None or not work.policy.backfill or line.blocker is not None:
        return entry
    return entry if work.may_book(work.state.pending[entry.job_id], entry.partition) else None


def _only_waits_for_others(work: Pass, job: Job, entry: Entry) -> bool:
    """Its line is blocked before it, and no gate (of which its reason should then speak) can be closed."""
    if work.line(job, entry.partition) not in work.blocked:
        return False
    if job.id in work.known and (job.id, entry.partition) not in work.outlook.passed_over:
        return False
    phase = job.phase
    assert isinstance(phase, Pending)
    return phase.free_to_go


def _pass_over(work: Pass, job: Job, entry: Entry) -> None:
    if (job.id, entry.partition) not in work.outlook.passed_over and job.id not in work.known:
        work.blocked[work.line(job, entry.partition)].add(entry)
    if len(job.spec.partitions) > 1 and job.het_job_id is None:
        work.outlook.passed_over.add((job.id, entry.partition))
        work.judge(job, (reason(ReasonKind.PRIORITY, partition=entry.partition),))
    else:
        waiting = (each for each in work.state.het_members.get(job.id, (job.id,)) if each in work.state.pending)
        work.verdicts.update(dict.fromkeys(waiting, BEHIND))


def _consider(work: Pass, job: Job, entry: Entry) -> None:
    outlook = work.outlook
    if job.het_job_id is not None:
        outlook.again.add(job.id)
        _consider_het(work, job)
        return
    gates = closed_gates(work.state, job, work.now)
    if gates:
        work.verdicts[job.id] = Verdict(gates)
        outlook.follow(job)
        if (
            isinstance(job.phase, Pending) and job.phase.eligible_at is not None
        ):  # a throttle or a back-off: no event will say that it has opened
            outlook.again.add(job.id)
        return
    partition = work.state.partitions.get(entry.partition)
    if isinstance(job.array, ArrayWaiting):
        _consider_array(work, job, entry)
    elif _throttle_left(work, job) == 0:
        work.verdicts[job.id] = Verdict((throttled(work.state, job),))
    elif _start_or_book(work, job, entry):
        outlook.again.discard(job.id)
        outlook.waiting.remove(job.id)
        work.begun.add(job.id)
        return
    work.remember(job, partition)


def _throttle_left(work: Pass, job: Job) -> int | None:
    room = throttle_room(work.state, job)
    return None if room is None else max(0, room - work.tasks_started.get(job.array_job_id or 0, 0))


def _consider_array(work: Pass, job: Job, entry: Entry) -> None:
    """As many waiting tasks as fit, in order; some of the others get slots; what stays behind says why."""
    assert isinstance(job.array, ArrayWaiting)
    taken = work.tasks_taken.setdefault(job.id, set())
    ready = [task_id for task_id in startable_tasks(work.state, job) if task_id not in taken]
    room = _throttle_left(work, job)
    booked = 0
    for task_id in ready[:room]:
        if len(work.starts) >= work.policy.starts_max or booked >= work.policy.bookings_per_array:
            return
        if _start_or_book(work, job, entry, task_id, judge=not booked):
            taken.add(task_id)
        else:
            booked += 1
            if not work.policy.backfill or work.verdicts[job.id].expected_start is None:
                return
    if booked:
        return
    if room is not None and room < len(ready):
        work.verdicts[job.id] = Verdict((throttled(work.state, job),))
    elif len(ready) < len(job.array.waiting):
        work.verdicts[job.id] = Verdict((reason(ReasonKind.DEPENDENCY, on="aftercorr"),))


def _consider_het(work: Pass, leader: Job) -> None:
    """All components start, in a draft of their own, or none does; then they get slots that begin together."""
    members = [work.state.jobs[member] for member in work.state.het_members[leader.id]]
    if any(member.id not in work.state.pending for member in members):
        return
    gates = dict.fromkeys(gate for member in members for gate in closed_gates(work.state, member, work.now))
    own = {member.id: work.outlook.forget(member.id) for member in members}
    if gates:
        work.verdicts.update({member.id: Verdict(tuple(gates)) for member in members})
        return
    before = work.branch()
    found: list[tuple[Job, PartitionConfig, Fit]] = []
    for member in members:
        taken = tuple(dict.fromkeys(share.node for _, _, fit in found for share in fit.shares))
        partition, fit, reasons = _find_apart(work, member, taken)
        if partition is None or fit is None:
            work.take_back(*before)
            _wait_together(work, members, reasons, own)
            return
        work.hold(member, partition, fit)
        found.append((member, partition, fit))
    work.starts.append(StartGang(tuple(work.started(member, partition, fit) for member, partition, fit in found)))
    work.outlook.again.discard(leader.id)


def _find_apart(
    work: Pass, member: Job, taken: tuple[str, ...]
) -> tuple[PartitionConfig | None, Fit | None, tuple[Reason, ...]]:
    """On nodes of its own, as Slurm places components; on a small cluster it shares nodes with the others."""
    asked = member.spec.resources
    if taken and not set(taken) & set(asked.nodelist):
        alone = replace(asked, exclude=(*asked.exclude, *taken))
        blocked, waited_for = set(work.blocked), set(work.waited_for)
        found = _find_anywhere(work, replace(member, spec=replace(member.spec, resources=alone)))
        if found[1] is not None:
            return found
        for line in work.blocked.keys() - blocked:  # nobody waits because it does not fit apart
            del work.blocked[line]
        work.waited_for.intersection_update(waited_for)
    return _find_anywhere(work, member)


def _wait_together(
    work: Pass, members: Sequence[Job], reasons: tuple[Reason, ...], own: Mapping[int, Sequence[Booking]]
) -> None:
    waits = _waits_for_room(reasons) and work.policy.backfill
    if waits and all(own.values()):
        for member in members:
            work.outlook.restore(member.id, own[member.id])
    elif waits and all(work.may_reserve(member, member.spec.partitions) for member in members):
        lines = [(member, name) for member in members for name in member.spec.partitions]
        if all(work.may_book(member, name) for member, name in lines):
            work.book_together(members)
        else:
            for member, name in lines:
                work.block(work.line(member, name))
    for member in members:
        work.judge(member, reasons)


def _start_or_book(work: Pass, job: Job, entry: Entry, task_id: int | None = None, *, judge: bool = True) -> bool:
    """Whether it starts in this partition. If not, its verdict says why and, with backfill, when."""
    own = work.outlook.forget(job.id)
    partition, fit, reasons = _find_now(work, job, entry.partition)
    limited = job
    if fit is None and _waits_for_room(reasons):
        limited, partition, fit = _find_shorter(work, job, entry.partition)
    if partition is not None and fit is not None:
        work.outlook.restore(job.id, own[1:])
        work.outlook.give_up(work.state, own[:1])
        work.hold(limited, partition, fit)
        _add_start(work, job, work.started(limited, partition, fit, task_id))
        return True
    if work.policy.stops_at_association_limits and _at_association_limit(reasons):
        work.block(work.line(job, entry.partition), job.id)
    if not _preempt(work, job, reasons):
        _keep_or_book(work, job, entry, reasons, own)
        reasons = _with_guards(work, job, reasons)
    if judge:
        work.judge(job, reasons)
    return False


def _keep_or_book(work: Pass, job: Job, entry: Entry, reasons: tuple[Reason, ...], own: Sequence[Booking]) -> None:
    """The slots that it has stay, unless one in this partition is earlier; without any it gets one."""
    waits = _waits_for_room(reasons)
    if own and (waits or len(job.spec.partitions) > 1):
        work.outlook.restore(job.id, own)
        fixed = isinstance(job.array, ArrayWaiting) or work.policy.one_slot_per_job
        if work.known or not waits or fixed or not work.policy.backfill:
            return  # only a full pass looks for better ones
        _book(work, job, entry, reasons, earlier_than=own[0])
    elif work.policy.backfill:
        _book(work, job, entry, reasons)
    elif waits and job.id in work.promises and awaits_victims(work, job):
        # Some of its victims take longer to go than others: what these left stays promised, also without backfill.
        begin = work.calendar.rounded(work.now + 1.0)
        kept = [replace(slot, begin=max(slot.begin, begin)) for slot in work.promises[job.id]]
        work.outlook.restore(job.id, [slot for slot in kept if slot.begin < slot.end])


def _preempt(work: Pass, job: Job, reasons: tuple[Reason, ...]) -> bool:
    """Whether others are ended for it, in the first partition where that helps. It starts when they are gone."""
    for why in reasons:
        if why.kind in (ReasonKind.RESOURCES, ReasonKind.PRIORITY) and why.fact("partition") in work.state.partitions:
            decision = victims_for(work, job, work.state.partitions[str(why.fact("partition"))])
            if decision is not None:
                work.starts.append(decision)
                return True
    return False


def _with_guards(work: Pass, job: Job, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """It lacks room, and somebody's rule keeps those there who would make way."""
    if not preempts(work.state, job, work.policy.preemption):
        return reasons
    places = [work.state.partitions.get(str(why.fact("partition"))) for why in reasons if why.kind in FOR_ROOM]
    found = (guards(work, job, partition) for partition in places if partition is not None)
    return (*reasons, *dict.fromkeys(why for why in found if why is not None))


def _add_start(work: Pass, job: Job, start: Start) -> None:
    work.starts.append(start)
    if job.array_job_id is not None:
        work.tasks_started[job.array_job_id] = work.tasks_started.get(job.array_job_id, 0) + 1


def _book(work: Pass, job: Job, entry: Entry, reasons: tuple[Reason, ...], earlier_than: Booking | None = None) -> None:
    """A slot, if it only lacks free resources. A job that may have none blocks those behind it."""
    partition = work.state.partitions.get(entry.partition)
    if partition is None or not _waits_for_room(reasons):
        return
    if not work.may_reserve(job, () if earlier_than else (entry.partition,)):
        return
    if earlier_than is None and not work.may_book(job, entry.partition):
        work.block(work.line(job, entry.partition))
    elif work.book(job, partition, earlier_than):
        work.outlook.last_booked = max(entry, work.outlook.last_booked or entry)


def _at_association_limit(reasons: tuple[Reason, ...]) -> bool:
    return any(why.fact("measure") is not None and why.kind.value.startswith("Assoc") for why in reasons)


def _waits_for_room(reasons: tuple[Reason, ...]) -> bool:
    """And not for a limit: a job that a limit blocks holds no slot against others."""
    return any(_for_room(why) for why in reasons)


def _for_room(why: Reason) -> bool:
    """Busy nodes become free, and reserved ones are free again when the reservation is over."""
    return why.kind in FOR_ROOM or why.fact("reserved") is not None


def _find_anywhere(work: Pass, job: Job) -> tuple[PartitionConfig | None, Fit | None, tuple[Reason, ...]]:
    """The best of the job's partitions that holds it now, or what blocks it in each."""
    blocked: list[Reason] = []
    for name in best_first(work.state, job):
        partition, fit, reasons = _find_now(work, job, name)
        if fit is not None:
            return partition, fit, ()
        blocked.extend(reasons)
    return None, None, tuple(blocked) or (reason(ReasonKind.PRIORITY),)


def _find_now(work: Pass, job: Job, name: str) -> tuple[PartitionConfig | None, Fit | None, tuple[Reason, ...]]:
    """Where the partition holds it now, or all that blocks it there."""
    partition = work.state.partitions.get(name)
    closed = partition_gate(work.state, name)
    if closed is not None or partition is None:
        return None, None, (closed or reason(ReasonKind.PARTITION_DOWN, partition=name),)
    qos = work.state.accounts.qos.get(job.spec.qos)
    over = (
        *beyond_partition(job.spec, partition, work.state.config.settings, qos),
        *work.limited(job, partition),
    )
    if over:
        return None, None, over
    if work.line(job, name) in work.blocked and job.id not in work.known:
        return None, None, (reason(ReasonKind.PRIORITY, partition=name),)
    fit = work.fit_now(job, partition)
    if not fit.found and work.standby.kept:
        fit = work.fit_on_lent(job, partition) or fit
    over = work.limited(job, partition, fit) if fit.found else ()
    if fit.found and not over:
        return partition, fit, ()
    return None, None, over or (_why_not(work, job, partition, fit),)


def _find_shorter(work: Pass, job: Job, name: str) -> tuple[Job, PartitionConfig | None, Fit | None]:
    """With --time-min: the job with the longest limit with which it fits now, and where.

    What fits for long fits for a shorter time, so half of the lengths that are left can be passed over at each step.
    """
    best: tuple[Job, PartitionConfig | None, Fit | None] = (job, None, None)
    lengths = work.shorter(job)
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
    door, closed = work.way(job)
    if not work.would_fit_empty(job, partition, (door, closed)):
        if closed and work.would_fit_empty(job, partition, (door, ())):
            return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, reserved=1, **facts)
        away = ",".join(filter(None, (*_nodes_gone(work, job), _nodes_away(work, partition))))
        if door.confined and not away:
            return reason(ReasonKind.BAD_CONSTRAINTS, reservation=job.spec.reservation, **facts)
        return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, unavailable=away, **facts)
    line = work.line(job, partition.name)
    first = line not in work.waited_for
    work.waited_for.add(line)
    if not work.policy.backfill:
        work.block(line, job.id)
    return reason(ReasonKind.RESOURCES if first else ReasonKind.PRIORITY, **facts)


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
