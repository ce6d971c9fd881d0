"""Which jobs, nodes and steps a caller asked for, and their records.

Filters look at the job itself before any record is made; records are made with only the fields that were asked for.
Not here: what a record contains (`slurm/records.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bireme.api.targets import NamedJobs
from bireme.core.lifecycle.state import State
from bireme.core.lifecycle.states import base_state, job_state
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation
from bireme.slurm.records.jobs import job_record
from bireme.slurm.records.steps import batch_step_record, step_record
from bireme.slurm.variables.allocation import salloc_variables
from bireme.slurm.variables.cluster import cluster_facts

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions that must all hold; an empty one always does."""

    users: Collection[str] = ()
    accounts: Collection[str] = ()
    partitions: Collection[str] = ()
    states: Collection[str] = ()
    names: Collection[str] = ()
    nodes: Collection[str] = ()
    jobs: NamedJobs | None = None
    qos: Collection[str] = ()
    reservations: Collection[str] = ()
    wckeys: Collection[str] = ()
    clusters: Collection[str] = ()

    def __post_init__(self) -> None:
        """Sets: each is asked of every job, and may be as long as a request."""
        for each in fields(self):
            words = getattr(self, each.name)
            if isinstance(words, tuple):
                object.__setattr__(self, each.name, frozenset(words))

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Filter:
        """From a request's JSON: each condition is a text or a list of texts."""
        texts: dict[str, Any] = {name: _texts(body.get(word)) for word, name in _IN_BODY.items()}
        return cls(**texts)


_IN_BODY = {
    "user": "users", "account": "accounts", "partition": "partitions", "state": "states", "name": "names",
    "nodes": "nodes", "qos": "qos", "reservation": "reservations", "wckey": "wckeys", "cluster": "clusters",
}  # fmt: skip


def _texts(value: Any) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    return tuple(str(item) for item in value) if isinstance(value, list) else tuple(str(value).split(","))


def matching(state: State, wanted: Filter, jobs: Iterable[Job] | None = None, now: float = 0.0) -> list[Job]:
    candidates = state.jobs.values() if jobs is None else jobs
    found = [job for job in candidates if _matches(job, wanted)] if wanted else list(candidates)
    if wanted.clusters:
        found = [job for job in found if job_record(state, job, now, ("cluster",))["cluster"] in wanted.clusters]
    return found


def _matches(job: Job, wanted: Filter) -> bool:
    spec = job.spec
    return (
        (not wanted.users or spec.owner.user in wanted.users or str(spec.owner.uid) in wanted.users)
        and (not wanted.accounts or spec.account in wanted.accounts)
        and (not wanted.partitions or _in_partitions(job, wanted.partitions))
        and (not wanted.states or job_state(job) in wanted.states or base_state(job.phase) in wanted.states)
        and (not wanted.names or spec.name in wanted.names)
        and (not wanted.nodes or _on_nodes(job, wanted.nodes))
        and (not wanted.qos or spec.qos in wanted.qos)
        and (not wanted.reservations or spec.reservation in wanted.reservations)
        and (not wanted.wckeys or spec.wckey in wanted.wckeys)
        and (wanted.jobs is None or wanted.jobs.mean(job))
    )


def _in_partitions(job: Job, partitions: Collection[str]) -> bool:
    chosen = (job.allocation.partition,) if job.allocation else job.spec.partitions
    return not set(chosen).isdisjoint(partitions)


def _on_nodes(job: Job, nodes: Collection[str]) -> bool:
    return job.allocation is not None and not set(job.allocation.node_names).isdisjoint(nodes)


def records_of(state: State, jobs: Iterable[Job], now: float, names: Sequence[str]) -> list[Record]:
    return [job_record(state, job, now, names or None) for job in jobs]


def step_records(state: State, job: Job, now: float) -> list[Record]:
    """The batch script and every step of the current run, ended or not."""
    batch = batch_step_record(state, job, now)
    steps = [step_record(state, job, step, now) for step in job.steps.values()]
    return [batch, *steps] if batch is not None else steps


def allocation_variables(state: State, job: Job, allocation: Allocation) -> dict[str, str]:
    """What salloc gives to its command."""
    members = [state.jobs[member] for member in state.het_members.get(job.het_job_id or 0, ())]
    components = [(member, member.allocation) for member in members if member.allocation is not None]
    return salloc_variables(job, allocation, cluster_facts(state.config), components=components)
