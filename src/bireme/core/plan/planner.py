"""One pass over the queue: who is looked at, in which order, and where it ends. `consider` decides what they get.

In the order of the queue (`queue.py`; a job stands there once for each partition that it may use) every job that no
gate holds either starts, or gets the earliest slot in the calendar; a later job starts only where it delays no slot
before it (backfill). With sched/builtin there are no slots: the first job that does not fit blocks those behind it in
its partition.

A pass goes on from what the one before left, its outlook: it looks at those who are fresh, at those who may use what
came free, and at those who wait for something else than room; slots that were promised stay. To a new outlook
(`work.look_anew`) everybody is fresh: that is a full pass.

Invariant: same state, same policy, same time, same outlook: same plan.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from bireme.core.model.jobs import Job, Pending
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.plan.consider import consider
from bireme.core.plan.decisions import BEHIND, Plan
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.queue import Entry, Line, entries_of
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.standby import resumptions
from bireme.core.plan.work import Enough, Pass, begin, look_anew
from bireme.core.state.state import State


def plan(
    snapshot: Snapshot, outlook: Outlook | None = None, *, enough: Enough | None = None, renew: bool = True
) -> Plan:
    """What is to happen now. `outlook`: of the pass before; None: there is none, and everybody is looked at.

    Each job that is looked at may use what its own slots held back. A new job that comes before one with a slot calls
    for a full pass (unless `renew` is False): it must not wait for those behind it. Then goes on where the pass before
    ended. Verdicts of jobs that were not looked at again still stand.
    """
    if outlook is None:
        outlook = look_anew(snapshot)
    if not (outlook.freed or outlook.fresh or outlook.again or outlook.left or outlook.suspended or outlook.unblocked):
        return Plan((), {}, (), outlook)
    if (behind := _only_newcomers_behind(snapshot.state, outlook)) is not None:
        return Plan((), {}, behind, outlook)
    work = begin(snapshot, outlook, enough)
    entries, fresh = _whose_turn_it_is(work)
    last = outlook.last_booked
    if renew and last is not None:
        newcomers = fresh - _held(snapshot.state, fresh)
        if any(entry < last and entry.job_id in newcomers for entry in entries):
            return plan(snapshot, look_anew(snapshot, outlook.bookings, outlook), enough=enough)
    _walk_all(work, entries, fresh)
    _resume(work)
    return Plan(tuple(work.starts), work.verdicts, work.behind, outlook)


def _whose_turn_it_is(work: Pass) -> tuple[list[Entry], set[int]]:
    """Those that this pass looks at, in order, and which of them are fresh."""
    outlook, state = work.outlook, work.state
    again = _to_look_at_again(outlook, work.policy, work.now)
    freed, outlook.freed = outlook.freed, set()
    hopeful = work.hope.candidates(outlook.waiting, freed) if freed else set()
    fresh, outlook.fresh = outlook.fresh, set()
    work.known, work.hopeful = outlook.again.union(hopeful) - fresh, hopeful - fresh
    return entries_of(state, _waiting(state, again | hopeful | fresh)), fresh


def _walk_all(work: Pass, entries: list[Entry], fresh: set[int]) -> None:
    """Those whose turn it is, then what the pass before had left, then the lines that stood still."""
    outlook = work.outlook
    if outlook.left:
        entries = _join_the_rest(outlook, entries, fresh)
    outlook.waiting.remove_all(fresh)
    left, outlook.left = outlook.left, []
    if not (_walk(work, entries) and _walk_where_slots_were(work)):
        outlook.left += left
    elif _walk(work, left):
        _go_on(work)


def _held(state: State, job_ids: set[int]) -> set[int]:
    return {job.id for job in _waiting(state, job_ids) if isinstance(job.phase, Pending) and job.phase.held_by}


def _waiting(state: State, job_ids: set[int]) -> list[Job]:
    pending = state.pending
    return [pending[job_id] for job_id in job_ids & pending.keys()]


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
    if outlook.freed or outlook.again or outlook.left or outlook.suspended or outlook.unblocked or not outlook.blocked:
        return None
    entries = entries_of(state, _waiting(state, outlook.fresh))
    last = outlook.last_booked
    if any(not entry.plain or entry.partition not in outlook.blocked for entry in entries):
        return None
    if last is not None and any(entry < last for entry in entries):
        return None
    outlook.waiting.remove_all(outlook.fresh)
    outlook.fresh = set()
    for entry in entries:
        outlook.blocked[entry.partition].add(entry)
    return [entry.job_id for entry in entries]


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
    lost = work.hope.lost
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
            consider(work, job, entry)
            if not stood_still and name in blocked and job.id not in work.begun:
                blocked[name].add(entry)  # it is the first to be looked at when the line goes on
    return reached_all


def _only_waits_for_others(work: Pass, job: Job, entry: Entry) -> bool:
    """Whether a job's line is blocked before it, and no gate (of which its reason should then speak) can be closed."""
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


def _walk_where_slots_were(work: Pass) -> bool:
    """A job that started elsewhere than in its slot gave that up: those before it in the queue may have its place."""
    outlook, going_on = work.outlook, True
    while going_on and outlook.freed:
        freed, outlook.freed = outlook.freed, set()
        hopeful = work.hope.candidates(outlook.waiting, freed) - work.begun
        work.known |= hopeful
        work.hopeful = hopeful
        going_on = _walk(work, entries_of(work.state, _waiting(work.state, hopeful)))
    return going_on


def _go_on(work: Pass) -> bool:
    """For lines that stood still: as far as there are slots again, or nobody blocks them any more."""
    work.outlook.unblocked = False
    for name in list(work.blocked):
        line = work.blocked[name]
        if _still_blocks(work, line.blocker):
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


def _still_blocks(work: Pass, job_id: int | None) -> bool:
    """Whether a job still waits, and nobody holds it."""
    job = work.state.pending.get(job_id) if job_id is not None and job_id not in work.begun else None
    return job is not None and isinstance(job.phase, Pending) and job.phase.held_by is None


def _next_in(work: Pass, line: Line) -> Entry | None:
    """Who is to be looked at now; None: nobody is left, or may have a slot."""
    entry = line.first(work.state.pending, work.begun)
    if entry is None or not work.policy.backfill or line.blocker is not None:
        return entry
    return entry if work.slots.may_book(work.state.pending[entry.job_id], entry.partition) else None


def _resume(work: Pass) -> None:
    """After the queue: those that outrank a suspended job have taken what they need of its CPUs."""
    if work.fitting.standby.kept:
        drafts = [(work.fitting.draft, work.fitting.standby)]
        if work.after_preemption is not None:
            drafts.append(work.after_preemption)
        work.starts.extend(resumptions(work.state, drafts, work.policy.preemption, work.doomed))
