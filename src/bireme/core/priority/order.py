"""The priorities of the whole queue, weighed in one pass over columns.

`reprioritise` is called by the runtime's kernel every PriorityCalcPeriod and after anything that changes how jobs are
measured; `priority_of` for a job that comes in or is changed. What they set (`Job.priority`, and for a job with several
partitions the queue's `partition_priorities`) is derived: it is not journaled and is made again after a restart.
With priority/basic nothing is done here: a job keeps the number that it came in with.
Invariant: a priority that an operator has set is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.usage import Usages
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.jobs import Job, Pending
from bireme.core.priority.columns import Columns
from bireme.core.priority.fair_share import fair_share
from bireme.core.priority.multifactor import Basis, Fixed, Parts, sum_of


class Queue(Protocol):
    """What of the state a priority depends on; `state.state.State` is one."""

    @property
    def config(self) -> ClusterConfig: ...

    @property
    def partitions(self) -> Mapping[str, PartitionConfig]: ...

    @property
    def accounts(self) -> AccountBook: ...

    @property
    def usage(self) -> Usages: ...

    @property
    def pending(self) -> Mapping[int, Job]: ...

    @property
    def holding(self) -> Mapping[int, Job]: ...

    partition_priorities: dict[int, dict[str, int]]
    priority_basis: Basis | None
    priority_columns: Columns | None


def reprioritise(queue: Queue, now: float) -> None:
    """Every waiting job (with CALCULATE_RUNNING: every running one too) gets its priority as of now."""
    queue.partition_priorities = {}
    if not queue.config.settings.priority.multifactor:
        queue.priority_basis = None
        return
    basis = queue.priority_basis = _fresh_basis(queue, now)
    jobs: Iterable[Job] = queue.pending.values()
    if basis.has_flag("CALCULATE_RUNNING"):
        jobs = chain(jobs, queue.holding.values())
    weighed: list[Job] = []
    for job in jobs:
        if job.mirrored:
            continue
        if job.spec.priority is None:
            weighed.append(job)
        elif job.id in queue.pending:
            job.priority = max(1, job.spec.priority)
    _set_all(queue, basis, weighed, now)


def _set_all(queue: Queue, basis: Basis, jobs: Sequence[Job], now: float) -> None:
    """One row for each partition of each job, weighed together."""
    if queue.priority_columns is None or queue.priority_columns.basis is not basis:
        queue.priority_columns = Columns(basis)
    owners, partitions, values = queue.priority_columns.weigh(jobs, now)
    if basis.has_flag("INCR_ONLY"):
        values = np.maximum(values, np.fromiter((job.priority for job in owners), np.int64, len(owners)))
    for job, value in zip(owners, values.tolist()):
        job.priority = value
    if queue.priority_columns.uneven:
        _set_apart(queue, owners, partitions, values.tolist())


def _set_apart(queue: Queue, owners: Sequence[Job], partitions: Sequence[str], values: Sequence[int]) -> None:
    """Jobs with several partitions have a priority in each; their own is the highest."""
    by_partition = queue.partition_priorities
    for job, partition, value in zip(owners, partitions, values):
        if len(job.spec.partitions) > 1 and job.id in queue.pending:
            by_partition.setdefault(job.id, {})[partition] = value
    for job_id, own in by_partition.items():
        queue.pending[job_id].priority = max(own.values())


def _fresh_basis(queue: Queue, now: float) -> Basis:
    """What priorities are reckoned from now; what was found out about specifications is kept while the cluster and the
    book are the same."""
    settings = queue.config.settings
    shares = fair_share(queue.accounts, queue.usage, now, settings) if settings.priority.weight_fair_share else {}
    partitions = tuple(queue.partitions.values())
    before = queue.priority_basis
    if before is not None and before.same_cluster(queue.config, queue.accounts, partitions):
        before.fair_share, before.at = shares, now
        return before
    return Basis(queue.config, queue.accounts, partitions, shares, now)


def basis_of(queue: Queue, now: float) -> Basis:
    """The latest one; fair share is as old as the latest pass, as it is in Slurm."""
    before = queue.priority_basis
    if before is None or not before.same_cluster(queue.config, queue.accounts, tuple(queue.partitions.values())):
        before = queue.priority_basis = _fresh_basis(queue, now)
    return before


def priority_of(queue: Queue, job: Job, now: float) -> int:
    """Of one job, by the latest basis: the highest over its partitions. Only for priority/multifactor."""
    if job.mirrored or job.spec.priority is not None:
        return max((each.priority for each in parts_of(queue, job, now)), default=1)
    basis = basis_of(queue, now)
    return max((_weigh_one(basis, job, row) for row in basis.fixed_of(job)), default=1)


def _weigh_one(basis: Basis, job: Job, row: Fixed) -> int:
    spec, fair_share = job.spec, basis.fair_share_of(row.association)
    age = basis.age(basis.since_of(job), basis.at)
    return sum_of(spec.site_factor, age, fair_share, row.columns, spec.nice)


def rank(queue: Queue, job: Job, now: float) -> None:
    """Weighs one waiting job that was changed, as of the latest pass."""
    if job.mirrored or not queue.config.settings.priority.multifactor:
        return
    parts = parts_of(queue, job, now)
    queue.partition_priorities.pop(job.id, None)
    if len(parts) > 1 and job.spec.priority is None:
        queue.partition_priorities[job.id] = {each.partition: each.priority for each in parts}
    job.priority = max((each.priority for each in parts), default=job.priority)


def parts_of(queue: Queue, job: Job, now: float) -> list[Parts]:
    """What the job's priority is made of, in each of its partitions; what an operator has set has no parts.

    Ages are those of the latest pass, so that one job's numbers can be compared with another's.
    """
    if job.mirrored:  # another scheduler weighed it, and shows the sum only
        return [Parts(job.id, name, job.priority, job.spec.priority is not None) for name in job.spec.partitions]
    basis = basis_of(queue, now)
    if job.spec.priority is not None:
        return [Parts(job.id, name, max(1, job.spec.priority), True) for name in job.spec.partitions]
    age = basis.age(basis.since_of(job), basis.at)
    return [
        Parts(
            job.id,
            row.partition,
            _weigh_one(basis, job, row),
            False,
            job.spec.site_factor,
            age,
            row.assoc,
            basis.fair_share_of(row.association),
            row.job_size,
            row.partition_factor,
            row.qos,
            row.tres,
            job.spec.nice,
        )
        for row in basis.fixed_of(job)
    ]


def is_ranked(queue: Queue, job: Job) -> bool:
    """Whether `sprio` lists it: it waits, is not held, and its age counts."""
    if not isinstance(job.phase, Pending):
        return "CALCULATE_RUNNING" in queue.config.settings.priority_flags and job.allocation is not None
    if job.phase.held_by is not None:
        return False
    return job.phase.eligible_at is not None or "ACCRUE_ALWAYS" in queue.config.settings.priority_flags
