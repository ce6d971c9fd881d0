"""What a figure of now means for a job: a notice, its withdrawal, or the job's end. The only place that decides it.

Asked through the kind with every `IdlenessSeen` that the daemon's keeper reports. Time alone does nothing here: who is
ended for idleness is ended because somebody just said, with figures of this moment, that it still is idle. So whatever
silences the keeper (lost telemetry, a daemon that is away, a card that does not answer) ends nobody.
Invariant: no job is ended for idleness without a notice of this start of it, whose promise has not changed since, and
that is older than its grace.
"""

from __future__ import annotations

from bireme.core.idle.rules import Consequence, allowed, consequence, exempt, rule_for, spared
from bireme.core.idle.shelves import NOTICES, policy_of
from bireme.core.idle.wording import which
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.policy import IdleAction, IdleFacts, IdleMode, IdleNotice, IdleRule, NoticeLife
from bireme.core.model.jobs import Job, Outcome, Running
from bireme.core.model.nodes import Health
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.state.state import State

_SPEAKS = (IdleMode.NOTIFY, IdleMode.ACT)
_OF_ANOTHER_POLICY = "the policy is another now"


def seen(state: State, seen: o.IdlenessSeen, now: float) -> list[e.Event]:
    """Of a start that runs now; what comes late, or from a clock that is wrong, means nothing."""
    job = state.holding.get(seen.job_id)
    if job is None or job.generation != seen.generation or not isinstance(job.phase, Running) or job.mirrored:
        return []
    if abs(now - seen.at) > seen.fresh_s:
        return []
    notice = NOTICES.of(state).get(job.id)
    rule, why = _rule(state, job, seen)
    if rule is None:
        return _withdrawn(notice, why)
    assert seen.since is not None, "who is not idle has no rule here"
    return _idle(state, job, rule, seen, seen.since, notice, now)


def _rule(state: State, job: Job, seen: o.IdlenessSeen) -> tuple[IdleRule | None, str]:
    """The rule by which the job is idle; else None, and why none is."""
    policy = policy_of(state)
    if policy.mode not in _SPEAKS:
        return None, f"idle.mode is {policy.mode}"
    rule = rule_for(policy, job)
    if rule is None or (rule.below_percent, rule.gpus) != (seen.below_percent, seen.of):
        return None, _OF_ANOTHER_POLICY
    why = spared(job) or exempt(rule, job)
    if why:
        return None, why
    assert job.allocation is not None, "it runs"
    silent = next((node for node in job.allocation.node_names if not _answers(state, node)), None)
    if silent is not None:
        return None, f"node {silent} does not answer"
    return (rule, "") if seen.since is not None else (None, seen.why)


def _answers(state: State, node: str) -> bool:
    return node in state.nodes and state.nodes[node].health is Health.UP


def _idle(
    state: State, job: Job, rule: IdleRule, seen: o.IdlenessSeen, since: float, notice: IdleNotice | None, now: float
) -> list[e.Event]:
    policy = policy_of(state)
    comes = allowed(policy, consequence(state, rule, job))
    if notice is not None and since > notice.given_at:
        return _withdrawn(notice, "its GPUs were used, or nothing was known of them, after the notice")
    if seen.at - since < rule.idle_s:
        return _withdrawn(notice, _OF_ANOTHER_POLICY)
    facts = IdleFacts(
        rule=rule.name,
        source=policy.source,
        since=since,
        gpus_idle=seen.gpus_idle,
        gpus=seen.gpus,
        below_percent=rule.below_percent,
        percent=seen.percent,
        measure=seen.measure,
        memory_mib=seen.memory_mib,
    )
    if notice is None or (notice.action, notice.move_to) != (comes.action, comes.move_to):
        acts = comes.action is not IdleAction.NOTIFY
        act_at = now + rule.grace_s if acts else None
        return [e.IdleNoticeGiven(job.id, job.generation, facts, comes.action, comes.move_to, act_at)]
    if notice.act_at is None or now < notice.act_at or now < notice.given_at + rule.grace_s:
        return []  # who has less grace by a new policy keeps what was promised
    return _acted(job, comes, facts, seen.at)


def _acted(job: Job, comes: Consequence, facts: IdleFacts, at: float) -> list[e.Event]:
    why = ended_for(facts, at, comes.move_to)
    if comes.action is IdleAction.CANCEL:
        return [e.JobEnding(job.id, job.generation, Outcome("CANCELLED", reason=why))]
    assert comes.action in (IdleAction.REQUEUE, IdleAction.MOVE), comes
    ending = e.JobEnding(job.id, job.generation, Outcome("REQUEUED", reason=why), requeue=True)
    return [e.IdleMoveBegun(job.id, job.generation), ending] if comes.move_to else [ending]


def ended_for(facts: IdleFacts, at: float, move_to: str) -> Reason:
    """Why a job was ended, as it stands in the history."""
    moved = {"to": move_to} if move_to else {}
    return reason(
        ReasonKind.IDLE_GPUS,
        which=which(facts),
        below=f"{facts.below_percent:g}",
        idle_s=round(at - facts.since),
        gpus_idle=facts.gpus_idle,
        gpus=facts.gpus,
        measure=facts.measure,
        policy=facts.source,
        rule=facts.rule,
        **moved,
    )


def _withdrawn(notice: IdleNotice | None, why: str) -> list[e.Event]:
    if notice is None or notice.phase is not NoticeLife.GIVEN:
        return []
    return [e.IdleNoticeWithdrawn(notice.job_id, notice.generation, why)]
