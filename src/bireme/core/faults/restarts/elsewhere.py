"""Jobs of another scheduler's queue that failed: whether that one is asked to start them again, by the same rules.

There a job is over when it is over: nothing waits for a verdict, and what is decided is a proposal alone, by the mode
of its partition (`observe`, unless somebody has said otherwise). Who carries it out is the daemon
(`daemon/faults/restarts/elsewhere`), with that scheduler's own words. Called by `kind`. Pure.
Invariant: who has not asked to be started again is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.faults.restarts.inquests import LOOKED_INTO, proposal_of, rule_of, with_findings
from bireme.core.faults.restarts.judging import Answer, End, answer_for
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.healing.restarts import Try
from bireme.core.model.jobs import Finished, Job
from bireme.core.state.state import State


def is_looked_into(state: State, job: Job) -> bool:
    """Its latest start failed, on nodes, and it is one that is to be started again."""
    phase = job.phase
    failed = isinstance(phase, Finished) and phase.outcome.state in LOOKED_INTO
    return job.mirrored and failed and job.allocation is not None and rule_of(state, job) is not None


def judged(state: State, seen: o.InquestHeld, now: float) -> Iterator[e.Event]:
    job = state.jobs.get(seen.job_id)
    if job is None or job.generation != seen.generation or not is_looked_into(state, job):
        return
    rule, end = rule_of(state, job), _end_of(state, job)
    assert rule is not None, "that was asked"
    seen = with_findings(state, seen, end, ())
    answer = answer_for(end, seen, rule, now)
    yield from proposed(state, _restart(job, answer, seen) if answer.restart else proposal_of(job, answer, seen))


def _restart(job: Job, answer: Answer, seen: o.InquestHeld) -> Proposal:
    """The node that is left out goes with its place: there is one at most."""
    without = next(iter(answer.suspects), "")
    return Proposal(
        act=HealingAct.RESTART_JOB,
        place=Place(node=without, job_id=job.id, generation=job.generation),
        title=f"have Slurm queue job {job.label} again" + (f", without {without}" if without else ""),
        reason=answer.text,
        quotes=seen.quotes,
        undo="scancel: Slurm has it in its queue again",
    )


def _end_of(state: State, job: Job) -> End:
    phase = job.phase
    assert isinstance(phase, Finished)
    shares = phase.allocation.shares if phase.allocation is not None else ()
    return End(
        state=phase.outcome.state,
        nodes=tuple(share.node for share in shares),
        gpus=frozenset((share.node, gpu) for share in shares for gpu in share.gpus_seen()),
        began_at=phase.started_at or phase.ended_at,
        ended_at=phase.ended_at,
        tries=tuple(_tries(state, job)),
        memory_mib=0,
        time_limit_s=job.spec.time_limit_s,
    )


def _tries(state: State, job: Job) -> Iterator[Try]:
    """Restarts of it that were done, as the healings tell."""
    for healing in HEALINGS.of(state).values():
        place = healing.proposal.place
        is_its = place.job_id == job.id and healing.proposal.act is HealingAct.RESTART_JOB
        if is_its and healing.phase is HealingLife.DONE:
            yield Try(generation=place.generation, cause="", nodes=(), at=healing.latest.at, restarted=True)
