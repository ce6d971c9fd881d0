"""Which rule is for a job, who is exempt from all of it, and what would be done: the policy, asked about one job.

Called by `judging` for every figure that comes, by the daemon's keeper for what to look at, and by `bireme idle`.
Reads the state only. Invariant: whoever is exempt is so with a reason that can be shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bireme.core.jobs.admission import check_denials
from bireme.core.jobs.submission import can_ever_run
from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy, IdleRule
from bireme.core.model.jobs import Job, JobKind
from bireme.core.model.refusals import Refusal
from bireme.core.state.state import State

_WORD = re.compile(r"[^\s,;]+")


@dataclass(frozen=True, slots=True)
class Consequence:
    """What would be done about an idle job, and why it is not what the rule says first."""

    action: IdleAction
    move_to: str = ""
    instead: str = ""
    """Why the rule's first action cannot be; empty: it can."""


def rule_for(policy: IdlePolicy, job: Job) -> IdleRule | None:
    """The first rule that is for this job, which holds resources; None: no rule is."""
    assert job.allocation is not None, "only who holds GPUs can be idle"
    partition, interactive = job.allocation.partition, job.spec.kind is JobKind.INTERACTIVE
    for rule in policy.rules:
        named = _names(rule.partitions, partition) and _names(rule.qos, job.spec.qos)
        if named and _names(rule.accounts, job.spec.account) and (rule.jobs == "interactive") is interactive:
            return rule
    return None


def _names(names: tuple[str, ...], name: str) -> bool:
    return not names or name in names


def spared(job: Job) -> str:
    """Why no rule at all is for this job; empty: one may be."""
    if job.mirrored:
        return "it stands in another scheduler's queue, which decides about it"
    if job.spec.workload is not None or job.spec.kind is JobKind.PODS:
        return "its pods are another controller's"
    if job.spec.replica is not None:
        return f"a replica of service {job.spec.replica.service}: how many there are is the autoscaler's business"
    if job.het_job_id is not None:
        return "a component of a heterogeneous job: its end would be the others'"
    return ""


def exempt(rule: IdleRule, job: Job) -> str:
    """Why the rule leaves this job alone; empty: it does not."""
    spec = job.spec
    words = set(_WORD.findall(spec.comment)) if rule.exempt_comments else set()
    if said := words.intersection(rule.exempt_comments):
        return f"its comment says {min(said)}"
    if spec.qos in rule.exempt_qos:
        return f"QOS {spec.qos} is exempt"
    if spec.account in rule.exempt_accounts:
        return f"account {spec.account} is exempt"
    if spec.owner.user in rule.exempt_users:
        return f"user {spec.owner.user} is exempt"
    return ""


def consequence(state: State, rule: IdleRule, job: Job) -> Consequence:
    """What the rule would do to the job if it were let: the mode is not asked."""
    match rule.action:
        case IdleAction.REQUEUE:
            why = _not_requeued(state, job)
        case IdleAction.MOVE:
            why = _not_requeued(state, job) or not_movable(state, job, rule.move_to)
        case _:
            return Consequence(rule.action)
    if why:
        return Consequence(rule.otherwise, "", why)
    return Consequence(rule.action, rule.move_to if rule.action is IdleAction.MOVE else "")


def allowed(policy: IdlePolicy, wanted: Consequence) -> Consequence:
    """What of it the mode lets be done."""
    return wanted if policy.mode is IdleMode.ACT else Consequence(IdleAction.NOTIFY, "", wanted.instead)


def _not_requeued(state: State, job: Job) -> str:
    if job.spec.kind is not JobKind.BATCH:
        return "only batch jobs can be requeued"
    if job.spec.requeue is False:
        return "it was submitted with --no-requeue"
    if job.spec.requeue is None and not state.config.settings.job_requeue:
        return "JobRequeue=0, and it does not ask for --requeue"
    return ""


def not_movable(state: State, job: Job, to: str) -> str:
    """Why a job cannot wait in another partition; empty: it can. Of one that is queued, it is asked again."""
    partition = state.partitions.get(to)
    if partition is None:
        return f"there is no partition {to}"
    if job.allocation is not None and job.allocation.partition == to:
        return f"it is in partition {to} already"
    spec = job.spec.revised(partitions=(to,))
    if not can_ever_run(state, spec, partition):
        return f"partition {to} could never run it"
    try:
        check_denials(state, spec)
    except Refusal as refusal:
        return f"partition {to} does not take it: {refusal}"
    return ""
