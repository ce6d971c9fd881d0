"""Whether two states are the same: the one in memory and the one that the journal gives.

Left out is what a plan says anew each time (verdicts), what is weighed anew (priorities), what is only kept for speed,
and the order of what finished: a snapshot sorts it by the time of its end. Invariant: everything else that
`State` holds is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bireme.core.model.jobs import Job
from bireme.core.state.state import State

_PLAIN = (
    "config",
    "nodes",
    "partitions",
    "arrays",
    "next_job_id",
    "submissions",
    "seq",
    "loss",
    "reservations",
    "services",
    "next_port",
    "shelves",
)
_INDEXES = ("pending", "holding", "finished", "array_members", "array_tasks", "het_members")


def differences(one: State, other: State) -> list[str]:
    """What differs, each with both values; empty if they are the same."""
    found = [_said(name, getattr(one, name), getattr(other, name)) for name in _PLAIN]
    for job_id in one.jobs.keys() | other.jobs.keys():
        found.append(_said(f"job {job_id}", _job(one, job_id), _job(other, job_id)))
    for name in _INDEXES:
        mine, theirs = getattr(one, name), getattr(other, name)
        found.append(_said(name, set(mine), set(theirs)))
    found.append(_said("what is free", one.occupancy.rooms, other.occupancy.rooms))
    found.append(_said("the account book", one.accounts, other.accounts))
    found.append(_said("usage", one.usage, other.usage))
    return [text for text in found if text]


def _job(state: State, job_id: int) -> Job | None:
    job = state.jobs.get(job_id)
    return replace(job, priority=0) if job is not None else None


def _said(name: str, mine: Any, theirs: Any) -> str:
    return "" if mine == theirs else f"{name}: {mine} in memory, {theirs} in the journal"
