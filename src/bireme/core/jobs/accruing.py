"""Whose age counts: GrpJobsAccrue and MaxJobsAccrue let so many waiting jobs grow older at once.

Of the jobs that could run but for resources, those that have grown older for longest go on; the next begin, at age 0,
when one of them has left the queue. Asked by `due`; the answer is journaled, so that ages outlive a restart. The record
of an array's waiting tasks counts as one. Invariant: no more jobs of a holder grow older than its limit says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bireme.core.limits.rules import Holder
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Pending
from bireme.core.state.state import State


def accruals(state: State) -> Iterator[e.JobAccrualChanged]:
    rules = state.ledger.rules
    if not rules.limits_ages:
        yield from (e.JobAccrualChanged(job_id, accrues=True) for job_id in sorted(state.timetable.held_back))
        return
    counts: Counter[Holder] = Counter()
    for job in sorted(_eligible(state), key=_seniority):
        assert isinstance(job.phase, Pending)
        mine = rules.for_job(job.spec, next(iter(job.spec.partitions), "")).to_accrue
        accrues = all(counts[rule.holder] < rule.limit for rule in mine)
        if accrues:
            counts.update(rule.holder for rule in mine)
        if accrues != job.phase.accrues:
            yield e.JobAccrualChanged(job.id, accrues)


def _eligible(state: State) -> Iterator[Job]:
    for job in state.pending.values():
        phase = job.phase
        if isinstance(phase, Pending) and phase.eligible_at is not None and phase.held_by is None and not job.mirrored:
            yield job


def _seniority(job: Job) -> tuple[bool, float, int]:
    assert isinstance(job.phase, Pending)
    return not job.phase.accrues, job.phase.accrues_since or job.phase.eligible_at or 0.0, job.id
