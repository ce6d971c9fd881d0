"""What time alone makes happen to jobs: limits reached, warnings due, begin times, deadlines, forgetting.

Asked through the job's kind (`kind.py`): `decide` and `conclude` return events, `times` says when to ask again at
the latest. None reads a clock, and none looks at every job: `core/state/timetable.py` knows whose time has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from bireme.core.jobs.accruing import accruals
from bireme.core.jobs.components import reunited
from bireme.core.jobs.gates import Met, began_at, dependency_met
from bireme.core.limits.asks import run_limit_s
from bireme.core.limits.budgets import eases, runs_out_at, spends
from bireme.core.limits.rules import Rule
from bireme.core.model import events as e
from bireme.core.model.jobs import Dependency, DependencyKind, Ending, Finished, Job, Outcome, Pending, Running
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.reservations.reserving import ended_with_reservation
from bireme.core.state.state import State


def decide(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """Running jobs that reached a limit, waiting ones that may go on, or never will."""
    look_up(state, now)
    for job in running_overdue(state):
        assert isinstance(job.phase, Running)
        yield from _running_due(state, job, job.phase, now)
    waiting = state.timetable.overdue | state.timetable.dependent
    for job_id in sorted(job_id for job_id in waiting if job_id in state.pending):
        yield from _pending_due(state, state.pending[job_id], now)


def conclude(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """Components that come back with the others, jobs that nobody needs to remember, ages that count or do not."""
    cancelled = {event.job_id for event in decided if isinstance(event, e.JobCancelled)}
    reunions = list(_reunions(state, cancelled))
    yield from reunions
    back = {event.job_id for event in reunions if isinstance(event, e.JobRequeued)}
    yield from (forgotten for forgotten in _forgotten(state, now) if forgotten.job_id not in back)
    yield from (change for change in accruals(state) if change.job_id not in cancelled)


def times(state: State, now: float) -> Iterator[float | None]:
    """When time may next do something to a job, or to jobs that wait for what others leave."""
    look_up(state, now)
    yield _limits_ease(state, now)
    yield state.timetable.next_at()
    if spends(state.ledger.rules):
        yield from _budget_times(state)
    for job_id in state.timetable.dependent:
        if job_id in state.pending:
            yield from _delays(state, state.pending[job_id])


def idle_times(state: State, now: float) -> Iterator[float | None]:
    """When the next job is forgotten that ended: nobody need be woken for it."""
    yield _next_forgotten(state, now)


def look_up(state: State, now: float) -> None:
    """Brings the timetable up to date: jobs that changed, and those whose times are over."""
    table = state.timetable
    if table.all_changed:
        table.clear()
        table.changed.update(state.pending, state.holding)
    for job_id in table.changed:
        table.forget(job_id)
        times = list(_times_of(state, job_id))
        if times and min(times) <= now:
            table.overdue.add(job_id)
        _expect(state, job_id, times, now)
        job = state.pending.get(job_id)
        if job is not None and job.spec.dependencies.items and not job.mirrored:
            table.dependent.add(job_id)
        if job is not None and isinstance(job.phase, Pending) and not job.phase.accrues:
            table.held_back.add(job_id)
    table.changed.clear()
    for job_id in list(table.passed(now)):
        _expect(state, job_id, _times_of(state, job_id), now)


def _expect(state: State, job_id: int, times: Iterable[float], now: float) -> None:
    to_come = [at for at in times if at > now]
    if to_come:
        state.timetable.expect(job_id, min(to_come))


def _times_of(state: State, job_id: int) -> Iterator[float]:
    """The moments at which time alone may do something to a job; budgets and dependencies come on top."""
    job = state.holding.get(job_id) or state.pending.get(job_id)
    if job is None or job.mirrored:
        return
    if isinstance(job.phase, Running):
        times: Iterable[float | None] = _running_times(state, job, job.phase)
    elif isinstance(job.phase, Pending):
        settled = job.phase.eligible_at is not None or job.phase.held_by is not None
        begins = None if settled else job.spec.begin_at or 0.0
        times = (begins, _given_up_at(state, job), job.phase.not_before)
    else:
        return
    yield from (at for at in times if at is not None)


def running_overdue(state: State) -> list[Job]:
    """Where budgets can run out, others' use counts too: then all of them."""
    ids: Iterable[int] = state.holding if spends(state.ledger.rules) else sorted(state.timetable.overdue)
    found = (state.holding.get(job_id) for job_id in ids)
    return [job for job in found if job is not None and isinstance(job.phase, Running) and not job.mirrored]


def _reunions(state: State, cancelled: set[int]) -> Iterator[e.Event]:
    for leader in state.het_members:
        waiting = (member for member in state.het_members[leader] if member in state.pending)
        first = next(waiting, None)
        if first is not None and first not in cancelled and not state.jobs[first].mirrored:
            yield from reunited(state, state.jobs[first])


def time_limit_s(state: State, job: Job) -> int | None:
    """The limit that counts: the job's own, else the partition's default, else the partition's maximum."""
    if job.spec.time_limit_given:
        return job.spec.time_limit_s
    allocation = job.allocation
    name = allocation.partition if allocation else next(iter(job.spec.partitions), "")
    return run_limit_s(job.spec, state.partitions.get(name))


def limit_reached_at(state: State, job: Job, phase: Running) -> float | None:
    limit = time_limit_s(state, job)
    return None if limit is None else phase.started_at + limit + phase.suspended_s


def gone_by(state: State, job: Job, started_at: float) -> float:
    """When a job that starts then has ended at the latest: at its limit, or with its reservation."""
    limit = time_limit_s(state, job)
    end = inf if limit is None else started_at + limit
    return min(end, ended_with_reservation(state, job)) if job.spec.reservation else end


def _killed_at(state: State, job: Job, phase: Running) -> float | None:
    """OverTimeLimit lets jobs run on for a while after their limit."""
    end = limit_reached_at(state, job, phase)
    partition = state.partitions.get(phase.allocation.partition)
    over = partition.over_time_limit_s if partition and partition.over_time_limit_s is not None else None
    if over is None:
        over = state.config.settings.over_time_limit_s
    return None if end is None or over is None else end + over


def _running_due(state: State, job: Job, phase: Running, now: float) -> Iterator[e.Event]:
    end = limit_reached_at(state, job, phase)
    killed = _killed_at(state, job, phase)
    warning = job.spec.warning
    if warning and end is not None and not phase.warned and now >= end - warning.before_end_s:
        scope = "batch" if warning.batch_only else "steps"
        yield e.JobSignalled(job.id, job.generation, warning.number, scope, warning=True)
    if killed is not None and now >= killed:
        yield e.JobEnding(job.id, job.generation, Outcome("TIMEOUT", reason=reason(ReasonKind.TIME_LIMIT)))
        return
    spent = _budget_ends(state, job, phase)
    if spent is not None and now >= spent[0]:
        why = reason(spent[1].kind, where=spent[1].where, limit=spent[1].limit, tres=spent[1].tres)
        yield e.JobEnding(job.id, job.generation, Outcome("TIMEOUT", reason=why))
        return
    if job.spec.deadline_at is not None and now >= job.spec.deadline_at:
        yield e.JobEnding(job.id, job.generation, Outcome("DEADLINE", reason=reason(ReasonKind.DEADLINE)))


def _budget_ends(state: State, job: Job, phase: Running) -> tuple[float, Rule] | None:
    rules = state.ledger.rules
    return runs_out_at(rules, state.usage, job, phase) if spends(rules) else None


def departures(state: State) -> list[e.Event]:
    """Jobs on nodes that a new configuration does not have any more: they end as if the node had failed."""
    events: list[e.Event] = []
    for job in state.holding.values():
        if job.mirrored or isinstance(job.phase, Ending) or job.allocation is None:
            continue
        gone = [name for name in job.allocation.node_names if name not in state.nodes]
        if gone:
            events.append(node_failure(job, gone[0], state.config.settings.job_requeue))
    return events


def node_failure(job: Job, node: str, requeue_by_default: bool, why: str = "") -> e.JobEnding:
    """`why`: what the engine says of it, when it knows more than that the node has not the job any more."""
    lost = reason(ReasonKind.NODE_DOWN, node=node, why=why) if why else reason(ReasonKind.NODE_DOWN, node=node)
    wants = requeue_by_default if job.spec.requeue is None else job.spec.requeue
    return e.JobEnding(
        job.id,
        job.generation,
        Outcome("NODE_FAIL", reason=lost),
        requeue=wants and job.spec.kind == "batch",
        kill_now=True,
    )


def _pending_due(state: State, job: Job, now: float) -> Iterator[e.Event]:
    phase = job.phase
    assert isinstance(phase, Pending)
    given_up = _given_up_at(state, job)
    if given_up is not None and now >= given_up:
        yield e.JobCancelled(job.id, Outcome("DEADLINE", reason=reason(ReasonKind.DEADLINE)))
        return
    if phase.eligible_at is not None or phase.held_by is not None:
        return
    if job.spec.begin_at is not None and job.spec.begin_at > now:
        return
    met = dependency_met(state, job, now)
    if met is Met.YES:
        yield e.JobBecameEligible(job.id)
    elif met is Met.NEVER and _kill_invalid(state, job):
        outcome = Outcome("CANCELLED", reason=reason(ReasonKind.DEPENDENCY_NEVER_SATISFIED))
        yield e.JobCancelled(job.id, outcome)


def _given_up_at(state: State, job: Job) -> float | None:
    """From when on a waiting job cannot end before its deadline any more, by the time it needs at least."""
    if job.spec.deadline_at is None:
        return None
    needed = job.spec.time_min_s or job.spec.time_limit_s
    if needed is None and not job.spec.time_limit_given:
        partition = state.partitions.get(job.spec.partitions[0])
        needed = (partition.default_time_s or partition.max_time_s) if partition is not None else None
    return job.spec.deadline_at - needed + 1 if needed else job.spec.deadline_at


def _kill_invalid(state: State, job: Job) -> bool:
    if job.spec.kill_on_invalid_dependency is not None:
        return job.spec.kill_on_invalid_dependency
    return "kill_invalid_depend" in state.config.raw.get("DependencyParameters", "")


def _forgotten(state: State, now: float) -> Iterator[e.JobForgotten]:
    age = state.config.settings.min_job_age_s
    if not age:
        return
    needed: set[int] | None = None
    for job in state.finished.values():
        assert isinstance(job.phase, Finished)
        if now - job.phase.ended_at < age:
            return  # finished is ordered by end
        if needed is None:
            needed = _depended_on(state)
        if job.id not in needed and (job.array_job_id is None or job.array_job_id not in needed):
            yield e.JobForgotten(job.id)


def _depended_on(state: State) -> set[int]:
    waiting = (state.pending[job_id] for job_id in state.timetable.dependent if job_id in state.pending)
    items: Iterator[Dependency] = (item for job in waiting for item in job.spec.dependencies.items)
    return {item.job_id for item in items if item.kind is not DependencyKind.SINGLETON}


def _limits_ease(state: State, now: float) -> float | None:
    """Budgets refill and running jobs near their ends: when to plan again for jobs that wait for that."""
    if state.ledger.rules.idle:
        return None
    waiting = any(eases(why) for verdict in state.verdicts.values() for why in verdict.reasons)
    return now + state.config.settings.policy.interval_s if waiting else None


def _running_times(state: State, job: Job, phase: Running) -> Iterator[float | None]:
    end = limit_reached_at(state, job, phase)
    yield _killed_at(state, job, phase)
    yield job.spec.deadline_at
    if job.spec.warning and end is not None and not phase.warned:
        yield end - job.spec.warning.before_end_s
    for step in job.steps.values():
        if step.spec.time_limit_s is not None and step.started_at is not None and not step.outcome:
            yield step.started_at + step.spec.time_limit_s


def _budget_times(state: State) -> Iterator[float]:
    for job in state.holding.values():
        spent = _budget_ends(state, job, job.phase) if isinstance(job.phase, Running) else None
        if spent is not None:
            yield spent[0]


def _delays(state: State, job: Job) -> Iterator[float]:
    """`after:42+10`: ten minutes after 42 began."""
    for item in job.spec.dependencies.items:
        tally = state.arrays.get(item.job_id) if item.delay_s and item.task_id is None else None
        if tally is not None:
            yield max(tally.begun.values(), default=0.0) + item.delay_s
            continue
        target = state.jobs.get(item.job_id) if item.delay_s else None
        if target is not None and not isinstance(target.phase, Pending):
            began = began_at(target.phase)
            if began is not None:
                yield began + item.delay_s


def _next_forgotten(state: State, now: float) -> float | None:
    """When the next finished job may be forgotten, of those whose time is not over: one that others
    wait for outstays MinJobAge and is no event."""
    age = state.config.settings.min_job_age_s
    for job in state.finished.values():
        assert isinstance(job.phase, Finished)
        if age and job.phase.ended_at + age > now:
            return job.phase.ended_at + age
    return None
