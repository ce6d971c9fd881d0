"""What apply does to the account book and to usage: the book's own events, and jobs that start and stop to cost.

Called by `apply` only. Deciding what may be done to the book is `core/accounts/bookkeeping.py`.
Invariant: a job is charged exactly while it is Starting or Running.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.accounting.billing import billing
from bireme.core.accounting.usage import BILLING, WALL, Charge
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Job
from bireme.core.state.state import State

MAX_TRES = "MAX_TRES"
STARTS = (e.JobAllocated, e.JobResumed)
STOPS = (e.JobSuspended, e.JobEnding, e.JobLaunchFailed)
CHARGED = frozenset({*STARTS, *STOPS, e.ClusterConfigured})
"""Events that change what is charged; `apply` calls `follow` after them."""


def follow(state: State, event: e.Event, at: float) -> None:
    """After the event's own handler: usage goes on as the event says."""
    if isinstance(event, STARTS):
        job = state.jobs[event.job_id]
        state.usage.start(job.id, charge_of(state, job), at)
    elif isinstance(event, STOPS):
        state.usage.stop(event.job_id, at)
    elif isinstance(event, e.ClusterConfigured):
        _configured(state, event.config.settings, at)


def _configured(state: State, settings: Settings, at: float) -> None:
    state.usage.set_half_life(settings.priority_decay_half_life_s, at)
    if state.usage.reset_at is None:
        state.usage.reset_at = at
    if settings.priority_usage_reset_period == "NOW":
        usage_reset(state, e.UsageReset(everything=True), at)


def charge_of(state: State, job: Job) -> Charge:
    """What the job adds every second: to its association and those above, to its QOS and its partition's."""
    allocation = job.allocation
    assert allocation is not None, f"job {job.label} holds nothing"
    book = state.accounts
    partition = state.partitions.get(allocation.partition)
    association = book.for_job(job.spec.account, job.spec.owner.user, allocation.partition)
    qos = book.qos.get(job.spec.qos)
    factor = qos.usage_factor if qos else 1.0
    weights = partition.tres_billing_weights if partition else ()
    tres = allocation.tres()
    cost = billing(tres, weights, MAX_TRES in state.config.settings.priority_flags)
    rates = ((WALL, 1.0), (BILLING, cost * factor), *((name, count * factor) for name, count in tres.items()))
    named = (job.spec.qos, partition.qos if partition else "")
    return Charge(
        associations=tuple(each.id for each in book.chain(association.id)) if association else (),
        qos=tuple(dict.fromkeys(name for name in named if name in book.qos)),
        rates=rates,
    )


def accounts_changed(state: State, event: e.AccountsChanged, at: float) -> Sequence[c.Command]:
    before = state.accounts
    state.accounts = before.changed(event)
    state.usage.follow(before, state.accounts, at)
    return ()


def usage_reset(state: State, event: e.UsageReset, at: float) -> Sequence[c.Command]:
    book, usage = state.accounts, state.usage
    if event.everything:
        usage.reset_at = at
        lasting = {name for name, meter in usage.qos.items() if not meter.decays}
        usage.reset(tuple(usage.associations), usage.qos.keys() - lasting, at)
        return ()
    for number in event.associations:
        if number in book.associations:
            usage.take_off(number, [above.id for above in book.chain(number)[1:]], at)
            usage.reset(_with_all_below(state, number), (), at)
    usage.reset((), event.qos, at)
    return ()


def _with_all_below(state: State, association_id: int) -> list[int]:
    found, waiting = [], [association_id]
    while waiting:
        number = waiting.pop()
        found.append(number)
        waiting.extend(child.id for child in state.accounts.children(number))
    return found
