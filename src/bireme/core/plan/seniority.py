"""Who may preempt whom, and what becomes of the one that makes way: PreemptType, PreemptMode, exempt and grace times.

Asked by the planner when it looks for victims (`preempt.py`) and when it keeps CPUs for suspended jobs
(`standby.py`). Invariant: `outranks` is a strict order (partition tiers, or QOS lists without loops, or priority within
a QOS), so that a victim never evicts its evictor.
"""

from __future__ import annotations

from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, JobKind
from bireme.core.model.policy import Preemption
from bireme.core.plan.decisions import Victim
from bireme.core.state.state import State

SUSPEND = "SUSPEND"


def outranks(state: State, job: Job, partition: PartitionConfig, other: Job, rules: Preemption) -> bool:
    """Whether the job, in this partition, may take from the other, which holds an allocation."""
    return not other.guarded_by and would_outrank(state, job, partition, other, rules)


def would_outrank(state: State, job: Job, partition: PartitionConfig, other: Job, rules: Preemption) -> bool:
    """Whether the job would outrank the other if nobody's rule guarded that one."""
    how = mode(state, other, rules)
    if how == "OFF" or (how != SUSPEND and other.spec.kind is JobKind.INTERACTIVE):
        return False
    if how == SUSPEND and other.het_job_id is not None:
        return False  # its components would no longer run together
    if rules.by == "partition":
        held = _partition(state, other)
        return held is not None and held.priority_tier < partition.priority_tier
    if rules.by == "services" and (job.spec.qos != state.config.settings.service_qos or other.spec.requeue is False):
        return False  # by default nobody loses what cannot come back
    qos = state.accounts.qos.get(job.spec.qos)
    if qos is not None and other.spec.qos in qos.preempt:
        return True
    return rules.within and other.spec.qos == job.spec.qos and other.priority < job.priority


def preempts(state: State, job: Job, rules: Preemption) -> bool:
    """Whether there may be anybody whom it outranks."""
    if rules.by == "services" and job.spec.qos != state.config.settings.service_qos:
        return False
    if rules.by not in ("qos", "services"):
        return rules.by != "none"
    qos = state.accounts.qos.get(job.spec.qos)
    return rules.within or (qos is not None and bool(qos.preempt))


def mode(state: State, other: Job, rules: Preemption) -> str:
    """The victim's own: of its QOS, else of its partition, else the cluster's. Pods cannot be stopped, only evicted."""
    how = _mode_of_place(state, other, rules)
    return "CANCEL" if how == SUSPEND and other.spec.kind is JobKind.PODS else how


def _mode_of_place(state: State, other: Job, rules: Preemption) -> str:
    if rules.by == "none":
        return "OFF"
    qos = state.accounts.qos.get(other.spec.qos)
    if rules.by in ("qos", "services") and qos is not None and qos.preempt_mode:
        return _way(qos.preempt_mode)
    partition = _partition(state, other)
    if partition is not None and partition.preempt_mode:
        return _way(partition.preempt_mode)
    return "REQUEUE" if rules.by == "services" else rules.mode


def _way(words: str) -> str:
    """GANG and WITHIN say nothing of what becomes of a victim."""
    ways = [word for word in words.upper().split(",") if word not in ("GANG", "WITHIN")]
    return ways[0] if ways else "OFF"


def exempt_s(state: State, running: Job, rules: Preemption) -> int:
    """How long it is let be. Who is only suspended loses nothing, and is not."""
    if mode(state, running, rules) == SUSPEND:
        return 0
    qos = state.accounts.qos.get(running.spec.qos)
    return rules.exempt_s if qos is None or qos.preempt_exempt_s is None else qos.preempt_exempt_s


def as_victim(state: State, running: Job, rules: Preemption) -> Victim:
    how = mode(state, running, rules)
    if how == SUSPEND:
        return Victim(running.id, suspend=True)
    qos, partition = state.accounts.qos.get(running.spec.qos), _partition(state, running)
    grace_s = qos.grace_s if qos is not None and qos.grace_s else partition.grace_time_s if partition else 0
    return Victim(running.id, how == "REQUEUE" and running.spec.requeue is not False, grace_s)


def tier(state: State, other: Job) -> int:
    """The tier of the partition in which a job holds its allocation."""
    partition = _partition(state, other)
    return partition.priority_tier if partition is not None else 0


def _partition(state: State, other: Job) -> PartitionConfig | None:
    assert other.allocation is not None
    return state.partitions.get(other.allocation.partition)
