"""The terms on which a pass looks at a specification in a partition: what is the same for all jobs that share it.

Thousands of waiting jobs may share one specification (a sweep, a trace, what a loop submits), and most of what is asked
before a job is placed is asked of that alone: is the partition open, is it beyond the partition's own limits, does any
other limit concern it, which shape does it have. `Pass.terms` keeps the answers for as long as the pass lasts.
Invariant: a pass changes nothing that terms are made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.jobs.gates import partition_gate
from bireme.core.limits.partitions import beyond_partition
from bireme.core.limits.rules import Rulebook
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, JobSpec
from bireme.core.model.reasons import Reason
from bireme.core.plan.fitting import Fitting, Shape
from bireme.core.plan.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Terms:
    spec: JobSpec
    """Kept with them: they are found by its identity, which no other may have meanwhile."""
    line: str
    """Where such jobs queue up."""
    partition: PartitionConfig
    closed: Reason | None
    """Why the partition starts nothing now."""
    beyond: tuple[Reason, ...]
    """The partition's own limits that it exceeds."""
    limited: bool
    """Some limit of accounts, QOS or licences is to be asked about each such job."""
    shape: Shape
    duration_s: float
    lasting: bool
    """False: they hold for this one job, now (it waits for --switches)."""


def line_of(spec: JobSpec, partition: str) -> str:
    """Where it queues up: those in a reservation and those outside do not wait for each other."""
    return f"{partition}/{spec.reservation}" if spec.reservation else partition


def terms_of(snapshot: Snapshot, fitting: Fitting, rulebook: Rulebook, job: Job, partition: PartitionConfig) -> Terms:
    """Worked out anew."""
    state, spec, name = snapshot.state, job.spec, partition.name
    rules = rulebook.for_job(spec, name)
    qos = state.accounts.qos.get(spec.qos)
    return Terms(
        spec=spec,
        line=line_of(spec, name),
        partition=partition,
        closed=partition_gate(state, name),
        beyond=tuple(beyond_partition(spec, partition, state.config.settings, qos)),
        limited=bool(rules.to_start) or rules.share_min is not None,
        shape=fitting.shape(job, partition),
        duration_s=snapshot.duration_s(job),
        lasting=spec.resources.switches is None,
    )
