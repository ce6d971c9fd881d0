"""What people ask of jobs that exist: cancel, signal, hold, release, requeue, suspend, resume, update, complete.

Each function checks the caller's right and the job's phase and returns events, or raises Refusal. Ids as people write
them (`42`, `42_7`, `42_[0-9]`) are resolved here too, since `42` may mean a whole array. What is asked of many jobs at
once is asked of them one after the other, in one turn (`runtime`); only the waiting tasks of one array are ended by one
event, however many they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from bireme.core.accounts.membership import settled
from bireme.core.jobs import rights
from bireme.core.jobs.admission import check_denials, check_licences
from bireme.core.jobs.components import with_companions
from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.sizes import check_job
from bireme.core.jobs.states import job_reasons
from bireme.core.jobs.submission import can_ever_run, check_node_names
from bireme.core.jobs.suspending import cpus_are_free
from bireme.core.model import events as e
from bireme.core.model.field_rules import Until
from bireme.core.model.jobs import (
    RULES,
    ArraySpec,
    ArrayWaiting,
    Ending,
    Finished,
    Job,
    JobKind,
    JobSpec,
    Outcome,
    Pending,
    ResourceRequest,
    Running,
    Starting,
    Suspended,
)
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.resources import ExitStatus
from bireme.core.model.steps import Step, StepState
from bireme.core.placement.demand import count_of
from bireme.core.reservations.reserving import check_reservation
from bireme.core.state.state import State

KILL, TERM, CONT = 9, 15, 18
WHOLE_HET_JOB = ("whole_hetjob", "whole_pack")
"""Of SchedulerParameters, now and before: what is asked of one component is asked of all."""


TaskRanges = tuple[tuple[int, int, int], ...]
"""Ids of tasks as they were written, not spelled out: (first, last, step)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A job as people name it: an id, and a task when one task of an array is meant."""

    job_id: int
    task_id: int | None = None
    step_id: int | None = None
    het_offset: int | None = None
    tasks: TaskRanges = ()
    """Several tasks of an array, as written; empty: the others say what is meant."""


def find(state: State, target: Target) -> list[Job]:
    """Every record the name means: one job, one task's own record, or all records of an array or het job."""
    if target.tasks:
        named, _ = named_tasks(state, target)
        records = dict.fromkeys(_record_of(state, target.job_id, task) for task in named)
        if not records:
            raise Refusal(Why.INVALID_JOB_ID)
        return [state.jobs[job_id] for job_id in records]
    if target.task_id is not None:
        job = state.array_task(target.job_id, target.task_id)
        if job is not None:
            return [job]
        waiting = state.jobs.get(target.job_id)
        if waiting and isinstance(waiting.array, ArrayWaiting) and target.task_id in waiting.array.waiting:
            return [waiting]
        raise Refusal(Why.INVALID_JOB_ID)
    if target.het_offset is not None:
        members = state.het_members.get(target.job_id, [])
        if target.het_offset >= len(members):
            raise Refusal(Why.INVALID_JOB_ID)
        return [state.jobs[members[target.het_offset]]]
    if target.job_id in state.array_members:
        return list(state.array_records(target.job_id))
    if target.job_id in state.het_members:
        return [state.jobs[member] for member in state.het_members[target.job_id]]
    job = state.jobs.get(target.job_id)
    if job is None:
        raise Refusal(Why.INVALID_JOB_ID)
    return [job]


def _record_of(state: State, array_id: int, task_id: int) -> int:
    return state.array_tasks.get(array_id, {}).get(task_id, array_id)


def named_tasks(state: State, target: Target) -> tuple[list[int], bool]:
    """(tasks of the array that the ranges name and that are known, whether others are named too).

    However wide the ranges are, the work is bounded by the array's own size.
    """
    known: set[int] = set(state.array_tasks.get(target.job_id, ()))
    array = state.jobs.get(target.job_id)
    if array is not None and isinstance(array.array, ArrayWaiting):
        known.update(array.array.waiting)
    top = max(known, default=-1)
    named, beyond = np.zeros(top + 1, dtype=bool), False
    for first, last, step in target.tasks:
        named[first : last + 1 : step] = True
        beyond = beyond or last - (last - first) % step > top
    wanted: list[int] = np.flatnonzero(named).tolist()
    chosen = [task for task in wanted if task in known]
    return chosen, beyond or len(chosen) < len(wanted)


def with_pod(state: State, namespace: str, pod: str) -> list[Job]:
    """Every job that this pod is, or was, a part of; the latest last."""
    return [
        job
        for job in state.jobs.values()
        if (made := job.spec.workload) is not None and made.namespace == namespace and pod in made.pods
    ]


def _mine(state: State, caller: Caller, target: Target) -> list[Job]:
    jobs = find(state, target)
    for job in jobs:
        if not caller.may_change(job.spec.owner.uid):
            raise Refusal(Why.ACCESS_DENIED)
    return jobs


def _or_whole(state: State, target: Target) -> Target:
    """The component that is named, or with `whole_hetjob` all of its heterogeneous job."""
    if target.het_offset is None or not set(WHOLE_HET_JOB).intersection(state.config.words("SchedulerParameters")):
        return target
    return replace(target, het_offset=None)


def _split_part(state: State, job: Job, tasks: Sequence[int]) -> tuple[list[e.Event], int]:
    """Waiting tasks of an array leave its record together: (events, the id of what they are from now on)."""
    assert isinstance(job.array, ArrayWaiting)
    if len(tasks) == len(job.array.waiting):
        return [], job.id
    if len(tasks) == 1:
        return split_events(state, job, tasks[0])
    part = e.ArrayPartSplit(job.id, state.next_job_id, ranges_of(tasks))
    return [part], part.job_id


def ranges_of(tasks: Sequence[int]) -> TaskRanges:
    """Task ids, which ascend, written as ranges."""
    ids = np.asarray(tasks)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts, lasts = [0, *(breaks + 1)], [*breaks, len(tasks) - 1]
    return tuple((int(ids[first]), int(ids[last]), 1) for first, last in zip(firsts, lasts))


def split_events(state: State, job: Job, task_id: int, taken: int = 0) -> tuple[list[e.Event], int]:
    """One waiting task leaves its array's record: (events, its id). `taken`: ids used up in this batch."""
    assert isinstance(job.array, ArrayWaiting)
    assert job.array.array_job_id is None, "what left its array together ends together"
    last = len(job.array.waiting) - taken == 1
    new_id = job.id if last else state.next_job_id + taken
    return [e.ArrayTaskSplit(job.id, task_id, new_id)], new_id


# -- cancel and signal -----------------------------------------------------------------------------------------------


def cancel(state: State, caller: Caller, target: Target) -> list[e.Event]:
    """`scancel` without a signal: pending jobs end at once, running ones get SIGTERM, KillWait, SIGKILL."""
    target = _or_whole(state, target)
    jobs = _mine(state, caller, target)
    if target.tasks:
        return _cancel_tasks(state, caller, target, jobs)
    if target.het_offset is not None and isinstance(jobs[0].phase, Pending):
        raise Refusal(Why.NOT_WHOLE_HET_JOB)  # the others would wait for it forever
    active = [job for job in jobs if not isinstance(job.phase, Finished)]
    if not active:
        raise Refusal(Why.ALREADY_DONE)
    events: list[e.Event] = []
    for job in active:
        events.extend(_cancel_one(state, caller, job, target.task_id))
    return with_companions(state, events)


def _cancel_tasks(state: State, caller: Caller, target: Target, records: Sequence[Job]) -> list[e.Event]:
    """The end of named tasks of an array: those that wait all together, the others one by one."""
    events: list[e.Event] = []
    active = [job for job in records if not isinstance(job.phase, Finished)]
    if not active:
        raise Refusal(Why.ALREADY_DONE)
    for job in active:
        if isinstance(job.array, ArrayWaiting):
            waiting = _waiting_among(job.array.waiting, named_tasks(state, target)[0])
            split, job_id = _split_part(state, job, waiting)
            outcome = Outcome("CANCELLED", by_uid=caller.uid, reason=_waited_for(state, job))
            events.extend([*split, e.JobCancelled(job_id, outcome)])
        else:
            events.extend(_cancel_one(state, caller, job, None))
    return events


def _waiting_among(waiting: Collection[int], named: Sequence[int]) -> list[int]:
    there = set(waiting)
    return [task for task in named if task in there]


def _cancel_one(state: State, caller: Caller, job: Job, task_id: int | None) -> list[e.Event]:
    if isinstance(job.phase, Pending):
        outcome = Outcome("CANCELLED", by_uid=caller.uid, reason=_waited_for(state, job))
        if task_id is not None and isinstance(job.array, ArrayWaiting):
            events, new_id = split_events(state, job, task_id)
            return [*events, e.JobCancelled(new_id, outcome)]
        return [e.JobCancelled(job.id, outcome)]
    outcome = Outcome("CANCELLED", by_uid=caller.uid)
    if isinstance(job.phase, Ending):
        if job.phase.requeue:  # it was to come back: now it does not
            return [e.JobEnding(job.id, job.generation, outcome)]
        return []
    return [e.JobEnding(job.id, job.generation, outcome)]


def cancel_all(state: State, uid: int) -> list[e.Event]:
    """`bireme down --end-jobs`: all that run, but not what another scheduler or controller started."""
    ours = (job for job in state.holding.values() if not job.mirrored and job.spec.workload is None)
    outcome = Outcome("CANCELLED", by_uid=uid)
    return [e.JobEnding(job.id, job.generation, outcome) for job in ours if not isinstance(job.phase, Ending)]


def _waited_for(state: State, job: Job) -> Reason | None:
    """A job that is cancelled while it waits goes on saying what it had waited for."""
    first = job_reasons(state, job)[0]
    return None if first.kind is ReasonKind.NONE else first


def signal(state: State, caller: Caller, target: Target, number: int, scope: str) -> list[e.Event]:
    """`scancel -s SIG`: running jobs only; SIGKILL of everything is a cancel."""
    events: list[e.Event] = []
    refused: Refusal | None = None
    for job in _mine(state, caller, target):
        if isinstance(job.phase, Running | Suspended):
            if number == KILL and scope == "all":
                events.append(
                    e.JobEnding(job.id, job.generation, Outcome("CANCELLED", by_uid=caller.uid), kill_now=True)
                )
            else:
                events.append(e.JobSignalled(job.id, job.generation, number, scope))
        elif isinstance(job.phase, Finished):
            refused = Refusal(Why.ALREADY_DONE)
        elif isinstance(job.phase, Pending | Starting):
            refused = Refusal(Why.JOB_PENDING)
    if refused and not events:
        raise refused
    return with_companions(state, events)


def end_step(state: State, caller: Caller, target: Target, number: int | None) -> list[e.Event]:
    """`scancel 42.0`, with a signal or without; also how srun ends its own step. Unlike a job, a step is not warned."""
    (job, step) = _step(state, caller, target)
    if number is not None and number != KILL:
        return [e.JobSignalled(job.id, job.generation, number, "steps", step_id=step.id)]
    return [e.StepEnding(job.id, job.generation, step.id, "CANCELLED", signal=KILL, by_uid=caller.uid)]


def _step(state: State, caller: Caller, target: Target) -> tuple[Job, Step]:
    job = _mine(state, caller, target)[0]
    step = job.steps.get(target.step_id if target.step_id is not None else -1)
    if step is None or not isinstance(job.phase, Running | Suspended):
        raise Refusal(Why.INVALID_JOB_ID)
    if step.state is StepState.ENDED:
        raise Refusal(Why.ALREADY_DONE)
    return job, step


def fail_step(state: State, caller: Caller, target: Target) -> list[e.Event]:
    """srun ends a step because one of its tasks failed (--kill-on-bad-exit)."""
    (job, step) = _step(state, caller, target)
    return [e.StepEnding(job.id, job.generation, step.id, "CANCELLED", signal=TERM)]


# -- hold, release, requeue, suspend, resume -------------------------------------------------------------------------


def hold(state: State, caller: Caller, target: Target, as_user: bool = False) -> list[e.Event]:
    """An operator's hold can only be released by an operator, unless it is one `as_user` (`scontrol uhold`).

    What has resources goes on, and is held when it is queued again.
    """
    target, events = _or_whole(state, target), list[e.Event]()
    for job in _mine(state, caller, target):
        if _is_over(job):
            continue
        split, job_id = _own_record(state, job, target)
        events.extend([*split, e.JobHeld(job_id, "user" if as_user else _holder(caller))])
    if not events:
        raise Refusal(Why.JOB_FINISHED)
    return events


def _is_over(job: Job) -> bool:
    """Whether it has ended, or ends and is not to come back."""
    return isinstance(job.phase, Finished) or (isinstance(job.phase, Ending) and not job.phase.requeue)


def _held_by(job: Job) -> str | None:
    return job.phase.held_by if isinstance(job.phase, Pending) else job.held_on_return


def release(state: State, caller: Caller, target: Target) -> list[e.Event]:
    target, events = _or_whole(state, target), list[e.Event]()
    for job in _mine(state, caller, target):
        if _is_over(job):
            continue
        if _held_by(job) == "admin" and not caller.admin:
            raise Refusal(Why.ACCESS_DENIED, "an operator holds it")
        split, job_id = _own_record(state, job, target)
        events.extend([*split, *_computed_again(state, job, job_id), e.JobReleased(job_id)])
    if not events:
        raise Refusal(Why.JOB_FINISHED)
    return events


def _computed_again(state: State, job: Job, job_id: int) -> list[e.Event]:
    """A released job's priority is computed, whatever an operator had set."""
    if job.spec.priority is None or not state.config.settings.priority.multifactor:
        return []
    return [e.JobUpdated(job_id, replace(job.spec, priority=None), job.priority)]


def requeue(state: State, caller: Caller, target: Target, held: bool = False) -> list[e.Event]:
    """Running jobs are ended and queued again under the same id; finished ones are queued again.

    Of an array, the tasks that can be are; it is refused where none can.
    """
    events: list[e.Event] = []
    refused: Refusal | None = None
    for job in _mine(state, caller, target):
        answer = _requeue_one(state, caller, target, job, held)
        if isinstance(answer, Refusal):
            refused = refused or answer
        else:
            events.extend(answer)
    if refused is not None and not events:
        raise refused
    return with_companions(state, events)


def _requeue_one(state: State, caller: Caller, target: Target, job: Job, held: bool) -> list[e.Event] | Refusal:
    phase = job.phase
    if job.spec.kind is not JobKind.BATCH:
        return Refusal(Why.BATCH_ONLY)
    if isinstance(phase, Pending):
        if not held:
            return Refusal(Why.JOB_PENDING)
        split, job_id = _own_record(state, job, target)
        return [*split, e.JobHeld(job_id, _holder(caller))]
    if isinstance(phase, Finished):
        return Refusal(Why.ALREADY_DONE) if job.is_waiting_array else [e.JobRequeued(job.id, held)]
    if isinstance(phase, Ending):
        return Refusal(Why.TRANSITION_STATE_NO_UPDATE)
    if job.spec.requeue is False:
        return Refusal(Why.DISABLED, "it was submitted with --no-requeue")
    return [e.JobEnding(job.id, job.generation, Outcome("REQUEUED"), requeue=True, hold=held)]


def checkpointed(state: State, caller: Caller, target: Target) -> list[e.Event]:
    """The job says that its work is saved; of a heterogeneous job every component that runs."""
    running = [job for job in _mine(state, caller, target) if isinstance(job.phase, Running)]
    if not running:
        raise Refusal(_why_not_running(state, target, Why.JOB_NOT_RUNNING))
    if any(job.mirrored for job in running):
        raise Refusal(Why.NOT_SUPPORTED, "who makes way for whom is decided by the cluster that runs it")
    return [e.JobCheckpointed(job.id, job.generation) for job in running]


def suspend(state: State, caller: Caller, target: Target) -> list[e.Event]:
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    found = find(state, target)
    running = [job for job in found if isinstance(job.phase, Running)]
    if not running and not any(isinstance(job.phase, Suspended) for job in found):  # twice is as good as once
        raise Refusal(_why_not_running(state, target, Why.JOB_NOT_RUNNING))
    return [e.JobSuspended(job.id, job.generation) for job in running]


def resume(state: State, caller: Caller, target: Target) -> list[e.Event]:
    """At once where its CPUs are still free; else it goes on when they are."""
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    stopped = [job for job in find(state, target) if isinstance(job.phase, Suspended)]
    if not stopped:
        raise Refusal(_why_not_running(state, target, Why.JOB_NOT_SUSPENDED))
    events: list[e.Event] = []
    draft = state.occupancy.draft()
    for job in stopped:  # tasks of an array may have been suspended on the same CPUs, one after the other
        if cpus_are_free(draft, job):
            assert job.allocation is not None
            draft.release(job.held)
            draft.hold(job.allocation)
            events.append(e.JobResumed(job.id, job.generation))
        else:
            events.append(e.JobToBeResumed(job.id, job.generation))
    return events


def _why_not_running(state: State, target: Target, otherwise: Why) -> Why:
    waits = all(isinstance(job.phase, Pending) for job in find(state, target))
    return Why.JOB_PENDING if waits else otherwise


def complete(state: State, caller: Caller, target: Target, status: ExitStatus) -> list[e.Event]:
    """salloc or srun says that its allocation is no longer needed, and how its command ended."""
    job = _mine(state, caller, target)[0]
    if isinstance(job.phase, Finished | Ending):
        return []
    if isinstance(job.phase, Pending):
        return [e.JobCancelled(job.id, Outcome("CANCELLED", by_uid=caller.uid))]
    word = "COMPLETED" if status.ok else "FAILED"
    why = None if status.ok else reason(ReasonKind.NON_ZERO_EXIT, code=status.code)
    return with_companions(state, [e.JobEnding(job.id, job.generation, Outcome(word, status, why))])


# -- update ----------------------------------------------------------------------------------------------------------

_MAY_CHANGE: dict[Until, frozenset[str]] = {
    until: frozenset(name for name, rule in RULES.items() if rule.until >= until)
    | ({"array_throttle"} if RULES["array"].until >= until else set())
    for until in Until
}
"""What may still change when a job has come so far; anything may while it waits."""
SPEC_FIELDS = {field.name for field in fields(JobSpec)}
RESOURCE_FIELDS = {field.name for field in fields(ResourceRequest)}


def update(state: State, caller: Caller, target: Target, changes: Mapping[str, Any], now: float) -> list[e.Event]:
    """`scontrol update`: typed values by the names of JobSpec and ResourceRequest, plus array_throttle.

    Of an array, the tasks that can still be changed are; it is refused where none can.
    """
    deadline = changes.get("deadline_at")
    if deadline is not None and deadline <= now:
        raise Refusal(Why.INVALID_TIME_VALUE, "the deadline is over")
    events: list[e.Event] = []
    too_late: Why | None = None
    for job in _mine(state, caller, target):
        late = _too_late(job, changes)
        if late is None:
            events.extend(_update_one(state, caller, target, job, changes))
        too_late = too_late or late
    if too_late is not None and not events:
        raise Refusal(too_late)
    return events


def _too_late(job: Job, changes: Mapping[str, Any]) -> Why | None:
    if isinstance(job.phase, Finished):
        return None if changes.keys() <= _MAY_CHANGE[Until.FORGOTTEN] else Why.ALREADY_DONE
    if isinstance(job.phase, Pending) or changes.keys() <= _MAY_CHANGE[Until.ENDS]:
        return Why.TRANSITION_STATE_NO_UPDATE if isinstance(job.phase, Ending) else None
    return Why.JOB_NOT_PENDING


def _update_one(state: State, caller: Caller, target: Target, job: Job, changes: Mapping[str, Any]) -> list[e.Event]:
    _check_rights(state, caller, job, changes)
    spec = _agreeing(changed_spec(job.spec, changes), changes)
    check_job(state, spec)
    partitions = [state.partitions.get(name) for name in spec.partitions]
    if None in partitions:
        raise Refusal(Why.INVALID_PARTITION_NAME)
    if changes.keys() & {"nodelist", "exclude"}:
        check_node_names(state, spec)
    if changes.keys() & {"account", "qos", "partitions"}:
        spec = settled(state, spec)
        if not caller.admin and _whose(spec) != _whose(job.spec):
            check_denials(state, spec)
    if "licenses" in changes:
        check_licences(state, spec)
    if "reservation" in changes:
        check_reservation(state, spec)
    if isinstance(job.phase, Pending) and not any(p and can_ever_run(state, spec, p) for p in partitions):
        raise Refusal(Why.NODE_CONFIG_UNAVAILABLE)
    split, job_id = _own_record(state, job, target)
    updated = e.JobUpdated(job_id, spec, _new_priority(job, changes))
    return [*split, updated, *_hold_by_priority(caller, job, job_id, changes)]


def _whose(spec: JobSpec) -> tuple[object, ...]:
    """The fields of a specification that say whose limits count. Slurm looks at them again only when that changes."""
    return spec.account, spec.qos, spec.partitions


def _own_record(state: State, job: Job, target: Target) -> tuple[list[e.Event], int]:
    """Where one waiting task of an array is meant, it leaves the array's record first: (events, its id)."""
    if target.task_id is not None and isinstance(job.array, ArrayWaiting):
        return split_events(state, job, target.task_id)
    return [], job.id


def _hold_by_priority(caller: Caller, job: Job, job_id: int, changes: Mapping[str, Any]) -> list[e.Event]:
    """A priority of 0 holds a job, as in Slurm; any other lets one go that waits."""
    priority = changes.get("priority")
    if priority is None:
        return []
    if priority == 0:
        return [e.JobHeld(job_id, _holder(caller))]
    if not isinstance(job.phase, Pending) and job.held_on_return is not None:
        raise Refusal(Why.JOB_HELD)
    return [e.JobReleased(job_id)] if _held_by(job) is not None else []


def _holder(caller: Caller) -> str:
    return "admin" if caller.admin else "user"


def _check_rights(state: State, caller: Caller, job: Job, changes: Mapping[str, Any]) -> None:
    if caller.admin:
        return
    rights.check_changes(caller, job.spec, changes)
    if "time_limit_s" not in changes:
        return
    now, new = time_limit_s(state, job), changes["time_limit_s"]
    if isinstance(job.phase, Running | Suspended):
        if now is not None and (new is None or new > now):
            raise Refusal(Why.ACCESS_DENIED, "only an operator may lengthen a running job")
        return
    known = [
        state.partitions[name] for name in changes.get("partitions", job.spec.partitions) if name in state.partitions
    ]
    longest = [partition.max_time_s for partition in known if partition.max_time_s is not None]
    if len(longest) == len(known) and longest and (new is None or new > max(longest)):
        raise Refusal(Why.ACCESS_DENIED, "only an operator may go beyond the partition's MaxTime")


def changed_spec(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    resources = {name: value for name, value in changes.items() if name in RESOURCE_FIELDS}
    direct = {name: value for name, value in changes.items() if name in SPEC_FIELDS}
    if not direct.get("priority"):
        direct.pop("priority", None)  # 0 is a hold, not a priority
    if "time_limit_s" in direct:
        direct["time_limit_given"] = True
    if resources:
        direct["resources"] = replace(spec.resources, **resources)
    if "array_throttle" in changes and spec.array is not None:
        direct["array"] = ArraySpec(spec.array.task_ids, changes["array_throttle"] or None, spec.array.text)
    return replace(spec, **direct)


def _agreeing(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """The changed specification, where its numbers do not contradict each other any more than at a submission."""
    asked = spec.resources
    needed = (asked.ntasks or asked.nodes_min) * (asked.cpus_per_task or 1)
    if "cpus_min" in changes and asked.cpus_min is not None and asked.cpus_min < needed and not asked.overcommit:
        raise Refusal(Why.BAD_TASK_COUNT, f"its tasks need {needed} CPUs: lower NumTasks or CPUsPerTask first")
    if not changes.keys() & {"gres_per_node", "nodes_min"}:
        return spec
    per_node, in_all = count_of(asked.gres_per_node, "gpu"), count_of(asked.gres_per_job, "gpu")
    in_all = in_all or count_of(asked.gres_per_task, "gpu") * (asked.ntasks or asked.nodes_min)
    if not per_node or not in_all:
        return spec
    nodes, rest = divmod(in_all, per_node)
    if rest or not asked.nodes_min <= nodes <= (asked.nodes_max or asked.nodes_min):
        hint = f"{per_node} GPU(s) on each node are not the {in_all} that the whole job asks for"
        raise Refusal(Why.INVALID_GRES if "gres_per_node" in changes else Why.INVALID_NODE_COUNT, hint)
    return replace(spec, resources=replace(asked, nodes_min=nodes, nodes_max=nodes, nodes_given=True))


def _new_priority(job: Job, changes: Mapping[str, Any]) -> int:
    """The kernel weighs it again with priority/multifactor; with priority/basic this is it."""
    if changes.get("priority"):
        return int(changes["priority"])
    if job.spec.priority is not None:
        return job.priority
    return max(1, job.priority + job.spec.nice - int(changes.get("nice", job.spec.nice)))
