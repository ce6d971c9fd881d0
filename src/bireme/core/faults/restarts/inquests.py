"""The ends of jobs that are looked into: which are, and what events a verdict makes.

An end that is looked into is an `Ending` that comes back (`requeue`) and awaits its verdict: so no dependant takes it
for over, and it keeps its nodes for the second that reading its output takes. The verdict is a second `JobEnding`: the
engine is asked once more to clear, and its answer ends the start.
Invariant: what would happen without Bireme's healing (Slurm's JobRequeue after a lost node) happens in every mode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import is_policy_set, latest_of, policy_of
from bireme.core.faults.restarts.judging import PASSING, SAID_OF_BROKEN_GPUS, TOLD, Answer, End, answer_for
from bireme.core.faults.restarts.shelves import INQUESTS
from bireme.core.jobs.components import others
from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.submission import can_ever_run
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import FindingLife, Gravity, Place, Quote, Trouble
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.healing.restarts import RestartRule, Try, Verdict, Which
from bireme.core.model.jobs import Ending, Job, JobKind, Outcome, Running, Starting, Suspended
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.placement.demand import resolve
from bireme.core.state.state import State

MOST_AT_ONCE = 64
"""Ends of one user that await their verdicts at one time: what fails beyond that ends as in Slurm. A flood has one
cause, and is not mended by as many restarts."""
_MOST_QUOTES = 8
LOOKED_INTO = frozenset(("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL"))
SLOW_GPU = "slow_gpu"
"""The cause of what ends a start that did not fail: only to go on without a slow GPU."""
DEFAULT = RestartRule()


def rule_for(state: State, job: Job) -> RestartRule | None:
    """The rule by which it is started again here; None: it is not, or it is in another scheduler's queue."""
    return None if job.mirrored else rule_of(state, job)


def rule_of(state: State, job: Job) -> RestartRule | None:
    """The same, whoever's queue it is in."""
    spec = job.spec
    if spec.heal == "off" or spec.kind is not JobKind.BATCH or spec.replica is not None:
        return None
    partition = job.allocation.partition if job.allocation is not None else next(iter(spec.partitions), "")
    rules = (
        rule
        for rule in policy_of(state).restarts
        if (not rule.partitions or partition in rule.partitions) and (not rule.qos or spec.qos in rule.qos)
    )
    rule = next(rules, DEFAULT)
    asked = spec.heal == "restart" or (spec.requeue_asked and spec.requeue is not False)
    wanted = asked or (rule.which is Which.ALL and spec.requeue is not False)
    return rule if rule.which is not Which.NONE and wanted else None


def spares_for(state: State, job: Job) -> str:
    """The reservation whose nodes are kept for jobs such as this one, which is started again; empty: none."""
    if not job.tries or not job.tries[-1].restarted or job.tries[-1].generation != job.generation:
        return ""
    rule = rule_for(state, job)
    return rule.spares if rule is not None else ""


def opened(state: State, events: Sequence[e.Event]) -> list[e.Event]:
    """The events, with the ends among them that are looked into marked, and not over yet."""
    if not any(isinstance(event, e.JobEnding) for event in events):
        return list(events)
    result, kept = list[e.Event](), set[int]()
    for event in events:
        if isinstance(event, e.JobEnding) and _is_looked_into(state, event):
            kept.add(event.job_id)
            result.append(replace(event, requeue=True, inquest=True))
        elif not (isinstance(event, e.JobEnded) and event.job_id in kept):
            result.append(event)
    return result


def _is_looked_into(state: State, event: e.JobEnding) -> bool:
    job = state.jobs.get(event.job_id)
    if not is_policy_set(state):
        return False  # nobody is there who would look
    if job is None or event.hold or event.outcome.state not in LOOKED_INTO:
        return False
    starts = isinstance(job.phase, Starting | Running | Suspended)
    return starts and rule_for(state, job) is not None and not _flooded(state, job.spec.owner.uid)


def _flooded(state: State, uid: int) -> bool:
    return sum(state.jobs[job_id].spec.owner.uid == uid for job_id in INQUESTS.of(state)) >= MOST_AT_ONCE


# -- the verdict -----------------------------------------------------------------------------------------------------


def held(state: State, seen: o.InquestHeld, now: float) -> list[e.Event]:
    """What follows from why it ended: it comes back or not, people are told or asked, and all of it is written down."""
    job = state.holding.get(seen.job_id)
    if job is None or job.generation != seen.generation or not isinstance(job.phase, Ending):
        return []
    phase = job.phase
    rule = rule_for(state, job) or DEFAULT
    if not phase.awaits_verdict:
        return []
    end = end_of(state, job, phase)
    before = latest_of(state, f"{HealingAct.RESTART_JOB} {_start_of(job).key}")
    if before is not None and before.phase is not HealingLife.APPROVED:
        before = None
    seen = with_findings(state, seen, end, before.proposal.findings if before is not None else ())
    answer = answer_for(end, seen, rule, now, lambda without: _still_fits(state, job, without))
    if before is not None and seen.cause == SLOW_GPU and not answer.restart:  # nothing but that ended it
        answer = replace(answer, restart=True, text=before.proposal.reason, suspects=(seen.node,))
    if before is not None:  # decided while it ran: it hung, or was held up
        verdict = _verdict(state, job, end, answer, answer.restart, now)
        became = e.HealingDone(before.id, answer.text) if answer.restart else e.HealingFailed(before.id, answer.text)
        return [*_judged(state, job, phase, verdict), became]
    if not answer.restart and _comes_back_anyway(state, job, phase.outcome):
        why = f"{answer.text} It is queued again all the same, as Slurm has it after a lost node (JobRequeue)."
        answer = replace(answer, restart=True, text=why, suspects=())
    proposals = list(proposed(state, proposal_of(job, answer, seen)))
    approved = [each for each in proposals if each.phase is HealingLife.APPROVED]
    verdict = _verdict(state, job, end, answer, answer.restart and bool(approved), now)
    done = [e.HealingDone(each.id, answer.text) for each in approved]
    return [*_judged(state, job, phase, verdict), *proposals, *done]


def with_findings(state: State, seen: o.InquestHeld, end: End, decided: Collection[int] = ()) -> o.InquestHeld:
    """What is found broken where it ran, since it began, explains an end that nothing else does, or an echo. Where it
    was ended for findings (`decided`, their numbers), these explain it, whatever it wrote when it was told to end."""
    if seen.is_hardware:
        return seen
    standing = [each for each in FINDINGS.of(state).values() if each.phase is FindingLife.OPEN]
    found = [each for each in standing if each.id in decided]
    if not found:
        found = [each for each in standing if _explains(each.trouble, seen, end)]
    if not found:
        return seen
    trouble = found[0].trouble
    return replace(
        seen,
        cause=trouble.cause,
        title=trouble.title,
        confidence="high",
        is_hardware=bool(trouble.place.node),
        node=trouble.place.node,
        quotes=(*trouble.quotes, *seen.quotes)[:_MOST_QUOTES],
    )


def _explains(trouble: Trouble, seen: o.InquestHeld, end: End) -> bool:
    """What a broken GPU of the job's own makes programs say is explained by it; of its nodes, what nothing explains."""
    if not _is_broken_there(trouble, end):
        return False
    if seen.cause in PASSING or seen.confidence in ("none", "low"):
        return True
    return seen.cause in SAID_OF_BROKEN_GPUS and (trouble.place.node, trouble.place.gpu) in end.gpus


def _is_broken_there(trouble: Trouble, end: End) -> bool:
    there = trouble.place.node in end.nodes and not trouble.place.job_id
    return there and trouble.gravity is Gravity.BROKEN and trouble.since >= end.began_at


def ended_for_healing(why: str) -> Outcome:
    """Of a start that Bireme ends to start it again."""
    return Outcome("FAILED", reason=reason(ReasonKind.OTHER, word="Healed", why=why))


def _judged(state: State, job: Job, phase: Ending, verdict: Verdict) -> Iterator[e.JobEnding]:
    """Its own verdict, and that of the other components that wait for it."""
    back = verdict.restart or _comes_back_anyway(state, job, phase.outcome)
    for each in (job, *others(state, job)):
        if isinstance(each.phase, Ending) and each.phase.awaits_verdict:
            outcome, hold = each.phase.outcome, back and each.phase.hold
            yield e.JobEnding(each.id, each.generation, outcome, requeue=back, hold=hold, verdict=verdict)


def _comes_back_anyway(state: State, job: Job, outcome: Outcome) -> bool:
    """As Slurm has it: after a lost node, unless it said --no-requeue. A verdict against it that is Bireme's own counts
    where Bireme acts (`Verdict.text`)."""
    wants = state.config.settings.job_requeue if job.spec.requeue is None else job.spec.requeue
    return outcome.state == "NODE_FAIL" and wants


def _verdict(state: State, job: Job, end: End, answer: Answer, acts: bool, now: float) -> Verdict:
    tried = Try(
        generation=job.generation,
        cause=answer.cause,
        nodes=end.nodes,
        at=now,
        lost_gpu_s=end.lost_gpu_s,
        restarted=acts,
    )
    return Verdict(
        restart=acts,
        text=answer.text,
        tried=tried,
        without=answer.suspects if acts else (),
        not_before=answer.not_before if acts else None,
    )


def _still_fits(state: State, job: Job, without: tuple[str, ...]) -> bool:
    """Whether there is another place for it."""
    asked = job.spec.resources
    spec = job.spec.revised(resources=replace(asked, exclude=tuple(sorted({*asked.exclude, *without}))))
    partitions = (state.partitions.get(name) for name in spec.partitions)
    return any(each is not None and can_ever_run(state, spec, each) for each in partitions)


def proposal_of(job: Job, answer: Answer, seen: o.InquestHeld) -> Proposal:
    if answer.restart:
        return proposal_to_restart(job, answer.text, (), seen.quotes)
    act, title = HealingAct.STOP_JOB, f"leave job {job.label} as it failed"
    if answer.cause in TOLD:
        act, title = HealingAct.TELL, f"tell {job.spec.owner.user} what job {job.label} needs"
    reason = " ".join(filter(None, (answer.text, as_sentence(answer.advice))))
    return Proposal(act=act, place=_start_of(job), title=title, reason=reason, quotes=seen.quotes)


def proposal_to_restart(
    job: Job, why: str, findings: tuple[int, ...], quotes: tuple[Quote, ...], without: str = ""
) -> Proposal:
    """`why`: a sentence. One that runs is ended for it."""
    where = "" if job.checkpoint is None else f" from {job.checkpoint.path}"
    again = (
        f"start job {job.label} again{where}"
        if isinstance(job.phase, Ending)
        else (f"end job {job.label} and start it again{where}")
    )
    return Proposal(
        act=HealingAct.RESTART_JOB,
        place=_start_of(job),
        title=f"{again}, without {without}" if without else again,
        reason=why,
        findings=findings,
        quotes=quotes,
        undo="the restarted job is cancelled, and stays as it failed in the history",
    )


def _start_of(job: Job) -> Place:
    return Place(job_id=job.id, generation=job.generation)


def as_sentence(text: str) -> str:
    """Advice of rules is written to follow a colon: after a full stop it begins with a capital, and ends with one."""
    if not text:
        return ""
    first = text.split(None, 1)[0]
    is_word = first.isalpha() and first.islower()
    return f"{text[0].upper() if is_word else text[0]}{text[1:]}{'' if text[-1] in '.!?' else '.'}"


def end_of(state: State, job: Job, phase: Ending) -> End:
    """What is known of the end of a start."""
    ended_at = phase.ended_at or job.batch_ended_at or phase.since
    began_at = phase.started_at if phase.started_at is not None else phase.since
    saved_at = max(began_at, job.checkpointed_at or 0.0)
    gpus = sum(share.gres_count("gpu") for share in phase.allocation.shares)
    why = phase.outcome.reason
    lost: Any = why.fact("node") if why is not None and why.kind is ReasonKind.NODE_DOWN else ""
    partition = state.partitions.get(phase.allocation.partition)
    demand = resolve(job.spec, partition, state.config.settings) if partition is not None else None
    return End(
        state=phase.outcome.state,
        nodes=phase.allocation.node_names,
        gpus=frozenset((share.node, gpu) for share in phase.allocation.shares for gpu in share.gpus_seen()),
        lost_node=str(lost or ""),
        began_at=began_at,
        ended_at=ended_at,
        saved_at=job.checkpoint.saved_at if job.checkpoint is not None else job.checkpointed_at,
        lost_gpu_s=max(0.0, ended_at - saved_at) * gpus,
        tries=job.tries,
        memory_mib=(demand.memory_per_node_mib or 0) if demand is not None else 0,
        time_limit_s=time_limit_s(state, job),
    )
