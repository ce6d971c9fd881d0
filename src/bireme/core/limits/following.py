"""Keeps the state's ledger: what a job counts is read off its phase, after every event that may change it.

Called by `apply` (`follow`) and `State.reindex` (`make_ledger`). Invariant: a job counts as running while it holds
resources, and as submitted until it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bireme.core.accounting.book import AccountBook
from bireme.core.limits.asks import run_limit_s, with_extras
from bireme.core.limits.ledger import Holding, Ledger, Place
from bireme.core.limits.rules import Rulebook, rulebook
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.jobs import ArrayWaiting, Ending, Finished, Job, Pending, Running, Starting, Suspended
from bireme.core.model.resources import Allocation

CHANGES_A_JOB = (
    e.JobSubmitted,
    e.ArrayTaskSplit,
    e.ArrayPartSplit,
    e.JobUpdated,
    e.JobAllocated,
    e.JobLaunchFailed,
    e.JobEnded,
    e.JobCancelled,
    e.JobRequeued,
    e.JobResumed,
    e.JobMirrored,
)
CHANGES_RULES = (e.AccountsChanged, e.PartitionUpdated)
COUNTED = frozenset({*CHANGES_A_JOB, *CHANGES_RULES})
"""Events after which `apply` calls `follow`."""


class Counted(Protocol):
    """What of the state the ledger depends on; `state.state.State` is one."""

    @property
    def config(self) -> ClusterConfig: ...

    @property
    def partitions(self) -> Mapping[str, PartitionConfig]: ...

    @property
    def accounts(self) -> AccountBook: ...

    @property
    def jobs(self) -> Mapping[int, Job]: ...

    ledger: Ledger


def follow(state: Counted, event: e.Event) -> None:
    """After the event's own handler."""
    if isinstance(event, CHANGES_RULES):
        state.ledger = make_ledger(state)
    elif isinstance(event, CHANGES_A_JOB) and not state.ledger.rules.idle:
        if isinstance(event, e.ArrayTaskSplit | e.ArrayPartSplit):
            _count(state, state.ledger, state.jobs[event.array_job_id])
        _count(state, state.ledger, state.jobs[event.job_id])


def make_ledger(state: Counted) -> Ledger:
    ledger = Ledger(rulebook(state.accounts, state.partitions, state.config.settings))
    if not ledger.rules.idle:
        for job in state.jobs.values():
            _count(state, ledger, job)
    return ledger


def _count(state: Counted, ledger: Ledger, job: Job) -> None:
    ledger.set(job.id, _holding(state, ledger.rules, job), place_of(ledger.rules, job))


def place_of(rules: Rulebook, job: Job) -> Place | None:
    """A job that may use several partitions is counted for the first, until it runs in one."""
    if isinstance(job.phase, Finished):
        return None
    allocation = job.allocation
    partition = allocation.partition if allocation else next(iter(job.spec.partitions), "")
    count = len(job.array.waiting) if isinstance(job.array, ArrayWaiting) else 1
    return Place(rules.for_job(job.spec, partition).queues, count)


def _holding(state: Counted, rules: Rulebook, job: Job) -> Holding | None:
    phase = job.phase
    if isinstance(phase, Pending | Finished):
        return None
    return holding_of(state, rules, job, phase.allocation, _began(phase))


def holding_of(state: Counted, rules: Rulebook, job: Job, allocation: Allocation, began_at: float) -> Holding:
    """What a job counts with this allocation, from then on until its time limit."""
    mine = rules.for_job(job.spec, allocation.partition)
    if not mine.holders:
        return Holding((), {}, None)
    partition = state.partitions.get(allocation.partition)
    limit = run_limit_s(job.spec, partition)
    return Holding(
        mine.holders,
        with_extras(allocation.tres(), job.spec, partition, state.config.settings),
        None if limit is None else int(began_at + limit),
        mine.usage_factor,
    )


def _began(phase: Starting | Running | Suspended | Ending) -> float:
    """Time that it spent suspended is put on top: its limit comes that much later."""
    if isinstance(phase, Starting):
        return phase.since
    return (phase.started_at or phase.since if isinstance(phase, Ending) else phase.started_at) + phase.suspended_s
