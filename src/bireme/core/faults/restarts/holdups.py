"""Jobs that one slow GPU holds up, and that are started again without it where that is worth it (`worth`).

It is reckoned when such a GPU is found and whenever the job has saved its work, not in between: nothing makes it better
worth in between. Called by `kind`. Invariant: only a job that is started again after failures too is started again for
this, and only where it would start at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.faults.findings.concerning import concerns
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.restarts.inquests import SLOW_GPU, proposal_to_restart, rule_for
from bireme.core.faults.restarts.judging import is_spent
from bireme.core.faults.restarts.shelves import HELD_UP, LOOKED_AT
from bireme.core.faults.restarts.worth import Reckoning, has_place_without, reckoned
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Finding, FindingLife, Trouble
from bireme.core.model.jobs import Job, Running
from bireme.core.state.state import State


def found(state: State, trouble: Trouble, at: float) -> None:
    """A GPU that holds up its gang: whose work it is, is looked at in this turn."""
    if trouble.cause != SLOW_GPU or not trouble.slower:
        return
    HELD_UP.put(state, trouble.key, trouble.key)
    for job_id in state.occupancy.room(trouble.place.node).jobs if trouble.place.node in state.nodes else ():
        if job_id in state.holding:
            LOOKED_AT.put(state, job_id, at)


def over(state: State, key: str) -> None:
    if key in HELD_UP.of(state):
        HELD_UP.drop(state, key)


def saved(state: State, event: e.JobCheckpointed, at: float) -> None:
    """There is no better moment than this."""
    if not event.gone and HELD_UP.of(state) and event.job_id in state.holding:
        LOOKED_AT.put(state, event.job_id, at)


def decided(state: State, now: float) -> Iterator[e.Event]:
    for job_id, at in tuple(LOOKED_AT.of(state).items()) if HELD_UP.of(state) else ():
        job = state.jobs.get(job_id)
        if at == now and job is not None:
            yield from _of_job(state, job, now)


def _of_job(state: State, job: Job, now: float) -> Iterator[e.Event]:
    phase, finding = job.phase, slow_gpu_of(state, job)
    rule = rule_for(state, job)
    if finding is None or not isinstance(phase, Running) or rule is None:
        return
    if is_spent(rule, len(phase.allocation.node_names), job.tries, now):
        return
    reckoning = reckoned(state, job, phase, finding.trouble.slower, now)
    node = finding.trouble.place.node
    if not reckoning.is_worth_it or not has_place_without(state, job, (node,)):
        return
    why = f"{finding.trouble.title}: {reckoning}."
    yield from proposed(state, proposal_to_restart(job, why, (finding.id,), finding.trouble.quotes, without=node))


def slow_gpu_of(state: State, job: Job) -> Finding | None:
    """What holds it up most."""
    findings = (FINDINGS.of(state).get(key) for key in HELD_UP.of(state))
    mine = [each for each in findings if each is not None and each.phase is FindingLife.OPEN and concerns(each, job)]
    return max(mine, key=lambda each: each.trouble.slower, default=None)


def reckoning_of(state: State, job: Job, now: float) -> tuple[Finding, Reckoning] | None:
    """For whoever asks why such a job is not started again."""
    finding = slow_gpu_of(state, job)
    if finding is None or not isinstance(job.phase, Running):
        return None
    return finding, reckoned(state, job, job.phase, finding.trouble.slower, now)
