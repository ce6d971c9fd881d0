"""One pass over the queue: order, gates, fit, slots. Decides; changes nothing but its own draft.

In order of partition tier, priority, submit time and id, every job that no gate holds either starts, or gets the
earliest slot in the calendar; a later job starts only where it delays no slot before it (backfill). With sched/builtin
there are no slots: the first job that does not fit blocks those behind it in its partition. Gangs start whole or not
at all.

Invariant: same state, same policy, same `now`: same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bireme.core.calendar.calendar import Booking
from bireme.core.lifecycle.gates import closed_gates, partition_gate, startable_tasks, throttle_room, throttled
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.limits.partitions import beyond_partition
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import ArrayWaiting, Job, Pending
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import Plan, Start, StartGang
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.preempt import victims_for
from bireme.core.plan.standby import resumptions
from bireme.core.plan.work import Pass, begin_pass, resume_pass

BEHIND = Verdict((reason(ReasonKind.PRIORITY),))
"""Shared by all jobs that only wait for those before them."""
FOR_ROOM = (ReasonKind.RESOURCES, ReasonKind.PRIORITY)
"""The reasons of jobs that start as soon as there is room."""


def plan(state: State, policy: Policy, now: float, promises: Mapping[int, Sequence[Booking]] | None = None) -> Plan:
    """A full pass over the queue. `promises`: slots of the pass before, kept where no earlier ones are found."""
    work = begin_pass(state, policy, now, promises)
    _walk(work, in_order(state, state.pending.values()))
    _resume(work)
    return Plan(tuple(work.starts), work.verdicts, work.outlook)


def plan_again(state: State, policy: Policy, now: float, outlook: Outlook) -> Plan:
    """A pass after small changes: only jobs that were tested, and new ones; slots that were promised stay.

    Each of them may use what its own slots held back. A new job that comes before one with a slot calls for a full
    pass: it must not wait for those behind it. Verdicts of jobs that were not looked at again still stand.
    """
    known = (state.pending.get(job_id) for job_id in (*outlook.tested, *outlook.fresh))
    again = in_order(state, {job.id: job for job in known if job is not None}.values())
    if _comes_before_a_slot(again, outlook):
        return plan(state, policy, now, outlook.bookings)
    work = resume_pass(state, policy, now, outlook)
    outlook.tested, outlook.fresh = [], set()
    _walk(work, again)
    _resume(work)
    return Plan(tuple(work.starts), {**state.verdicts, **work.verdicts}, outlook)


def _resume(work: Pass) -> None:
    """After the queue: those that outrank a suspended job have taken what they need of its CPUs."""
    if work.standby.kept:
        drafts = [(work.draft, work.standby)]
        if work.after_preemption is not None:
            drafts.append(work.after_preemption)
        work.starts.extend(resumptions(work.state, drafts, work.policy.preemption, work.doomed))


def _comes_before_a_slot(jobs: Sequence[Job], outlook: Outlook) -> bool:
    new_one_seen = False
    for job in jobs:
        if job.id in outlook.bookings:
            if new_one_seen:
                return True
        elif job.id in outlook.fresh:
            new_one_seen = True
    return False


def _walk(work: Pass, jobs: Sequence[Job]) -> None:
    state = work.state
    for position, job in enumerate(jobs):
        if len(work.starts) >= work.policy.starts_max:
            work.outlook.fresh.update(left.id for left in jobs[position:])
            return
        if job.het_job_id not in (None, job.id):
            continue  # considered with its leader
        if _only_waits_for_others(work, job):
            work.verdicts.update(dict.fromkeys(state.het_members.get(job.id, (job.id,)), BEHIND))
            continue
        _consider(work, job)


def in_order(state: State, jobs: Iterable[Job]) -> list[Job]:
    """Partition tier, priority, submit time, id: Slurm's order of the queue."""
    tier = {partition.name: partition.priority_tier for partition in state.partitions.values()}

    def key(job: Job) -> tuple[int, int, float, int]:
        best = max((tier.get(name, 0) for name in job.spec.partitions), default=0)
        return (-best, -job.priority, job.submitted_at, job.id)

    return sorted(jobs, key=key)


def _only_waits_for_others(work: Pass, job: Job) -> bool:
    """Its partitions are blocked, and no gate (of which its reason should then speak) can be closed."""
    phase = job.phase
    assert isinstance(phase, Pending)
    gated = phase.eligible_at is None or phase.held_by is not None or phase.not_before is not None
    return not gated and all(work.line(job, name) in work.blocked for name in job.spec.partitions)


def _consider(work: Pass, job: Job) -> None:
    if job.het_job_id is not None:
        work.outlook.tested.append(job.id)
        _consider_het(work, job)
        return
    gates = closed_gates(work.state, job, work.now)
    if gates:
        work.verdicts[job.id] = Verdict(gates)
        if (
            isinstance(job.phase, Pending) and job.phase.eligible_at is not None
        ):  # a throttle or a back-off: no event will say that it has opened
            work.outlook.tested.append(job.id)
    elif isinstance(job.array, ArrayWaiting):
        _consider_array(work, job)
    elif _throttle_left(work, job) == 0:
        work.verdicts[job.id] = Verdict((throttled(work.state, job),))
    elif not _start_or_book(work, job):
        work.outlook.tested.append(job.id)


def _throttle_left(work: Pass, job: Job) -> int | None:
    room = throttle_room(work.state, job)
    return None if room is None else max(0, room - work.tasks_started.get(job.array_job_id or 0, 0))


def _consider_array(work: Pass, job: Job) -> None:
    """As many waiting tasks as fit, in order; some of the others get slots; what stays behind says why."""
    assert isinstance(job.array, ArrayWaiting)
    work.outlook.tested.append(job.id)
    ready = startable_tasks(work.state, job)
    room = _throttle_left(work, job)
    booked = 0
    for task_id in ready[:room]:
        if len(work.starts) >= work.policy.starts_max or booked >= work.policy.bookings_per_array:
            return
        if not _start_or_book(work, job, task_id):
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
    """All components in a draft of their own, or none."""
    members = [work.state.jobs[member] for member in work.state.het_members[leader.id]]
    if any(member.id not in work.state.pending for member in members):
        return
    gates = dict.fromkeys(gate for member in members for gate in closed_gates(work.state, member, work.now))
    if gates:
        work.verdicts.update({member.id: Verdict(tuple(gates)) for member in members})
        return
    before = work.branch()
    found: list[tuple[Job, PartitionConfig, Fit]] = []
    for member in members:
        partition, fit, reasons = _find_now(work, member)
        if partition is None or fit is None:
            work.take_back(*before)
            work.verdicts.update({other.id: Verdict(reasons) for other in members})
            return
        work.hold(member, partition, fit)
        found.append((member, partition, fit))
    work.starts.append(StartGang(tuple(work.started(member, partition, fit) for member, partition, fit in found)))


def _start_or_book(work: Pass, job: Job, task_id: int | None = None) -> bool:
    """Whether it starts. If not, its verdict says why and, with backfill, when."""
    own = work.outlook.forget(job.id)
    partition, fit, reasons = _find_now(work, job)
    limited = job
    if fit is None and _waits_for_room(reasons):
        limited, partition, fit = _find_shorter(work, job)
    if partition is not None and fit is not None:
        work.outlook.restore(job.id, own[1:])
        work.hold(limited, partition, fit)
        _add_start(work, job, work.started(limited, partition, fit, task_id))
        return True
    expected: float | None
    if _preempt(work, job, reasons):
        expected = work.outlook.bookings[job.id][0].begin
    elif own and _waits_for_room(reasons):
        work.outlook.restore(job.id, own)
        expected = own[0].begin
    else:
        expected = _book(work, job, reasons) if work.policy.backfill else None
    if job.id not in work.verdicts or task_id is None:
        slots = work.outlook.bookings.get(job.id)
        work.verdicts[job.id] = Verdict(reasons, expected, slots[0].shares if slots else ())
    return False


def _preempt(work: Pass, job: Job, reasons: tuple[Reason, ...]) -> bool:
    """Whether others are ended for it, in the first partition where that helps. It starts when they are gone."""
    for why in reasons:
        if why.kind in (ReasonKind.RESOURCES, ReasonKind.PRIORITY) and why.fact("partition") in work.state.partitions:
            decision = victims_for(work, job, work.state.partitions[str(why.fact("partition"))])
            if decision is not None:
                work.starts.append(decision)
                return True
    return False


def _add_start(work: Pass, job: Job, start: Start) -> None:
    work.starts.append(start)
    if job.array_job_id is not None:
        work.tasks_started[job.array_job_id] = work.tasks_started.get(job.array_job_id, 0) + 1


def _book(work: Pass, job: Job, reasons: tuple[Reason, ...]) -> float | None:
    """A slot in whichever partition only lacks free resources. A job that may have none blocks those behind it."""
    waiting = [str(why.fact("partition")) for why in reasons if _for_room(why)]
    partitions = [work.state.partitions[name] for name in waiting if name in work.state.partitions]
    if not work.may_reserve(job):
        return None
    if partitions and not work.may_book(job):
        work.blocked.update(work.line(job, partition.name) for partition in partitions)
        return None
    slot = work.book(job, partitions)
    return slot.begin if slot else None


def _waits_for_room(reasons: tuple[Reason, ...]) -> bool:
    """And not for a limit: a job that a limit blocks holds no slot against others."""
    return any(_for_room(why) for why in reasons)


def _for_room(why: Reason) -> bool:
    """Busy nodes become free, and reserved ones are free again when the reservation is over."""
    return why.kind in FOR_ROOM or why.fact("reserved") is not None


def _find_now(work: Pass, job: Job) -> tuple[PartitionConfig | None, Fit | None, tuple[Reason, ...]]:
    """The first of the job's partitions that holds it now, or what blocks it in each."""
    reasons: list[Reason] = []
    for name in job.spec.partitions:
        partition = work.state.partitions.get(name)
        closed = partition_gate(work.state, name)
        if closed is not None or partition is None:
            reasons.append(closed or reason(ReasonKind.PARTITION_DOWN, partition=name))
            continue
        qos = work.state.accounts.qos.get(job.spec.qos)
        over = (
            *beyond_partition(job.spec, partition, work.state.config.settings, qos),
            *work.limited(job, partition),
        )
        if over:
            reasons.extend(over)
        elif work.line(job, name) in work.blocked:
            reasons.append(reason(ReasonKind.PRIORITY, partition=name))
        else:
            fit = work.fit_now(job, partition)
            if not fit.found and work.standby.kept:
                fit = work.fit_on_lent(job, partition) or fit
            over = work.limited(job, partition, fit) if fit.found else ()
            if fit.found and not over:
                return partition, fit, ()
            reasons.extend(over or (_why_not(work, job, partition, fit),))
    return None, None, tuple(reasons) or (reason(ReasonKind.PRIORITY),)


def _find_shorter(work: Pass, job: Job) -> tuple[Job, PartitionConfig | None, Fit | None]:
    """With --time-min: the job with the longest limit with which it fits now, and where.

    What fits for long fits for a shorter time, so half of the lengths that are left can be passed over at each step.
    """
    best: tuple[Job, PartitionConfig | None, Fit | None] = (job, None, None)
    lengths = work.shorter(job)
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high) // 2 if best[2] is not None else 0  # most often not even the least will do
        partition, fit, _ = _find_now(work, lengths[middle])
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
        away = [name for name in partition.nodes if name in work.state.nodes]
        away = [name for name in away if not work.state.nodes[name].schedulable]
        if door.confined and not away:
            return reason(ReasonKind.BAD_CONSTRAINTS, reservation=job.spec.reservation, **facts)
        return reason(ReasonKind.REQUIRED_NODE_NOT_AVAILABLE, unavailable=",".join(away), **facts)
    line = work.line(job, partition.name)
    first = line not in work.waited_for
    work.waited_for.add(line)
    if not work.policy.backfill:
        work.blocked.add(line)
    return reason(ReasonKind.RESOURCES if first else ReasonKind.PRIORITY, **facts)
