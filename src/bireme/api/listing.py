"""Which jobs, nodes and steps a caller asked for, and their records.

Filters look at the job itself before any record is made; records are made with only the fields that were asked for.
Not here: what a record contains (`slurm/records/`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.api.targets import NamedJobs
from bireme.core.jobs.states import base_state, job_state
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation
from bireme.core.state.state import State
from bireme.slurm.records.jobs import job_record
from bireme.slurm.records.many import Records
from bireme.slurm.records.steps import batch_step_record, step_record
from bireme.slurm.variables.allocation import salloc_variables
from bireme.slurm.variables.cluster import cluster_facts

Record = dict[str, Any]
Test = Callable[[Job], bool]


def _in_partitions(job: Job, partitions: Collection[str]) -> bool:
    chosen = (job.allocation.partition,) if job.allocation else job.spec.partitions
    return not set(chosen).isdisjoint(partitions)


def _on_nodes(job: Job, nodes: Collection[str]) -> bool:
    return job.allocation is not None and not set(job.allocation.node_names).isdisjoint(nodes)


_TESTS: dict[str, Callable[[Any], Test]] = {
    "users": lambda users: lambda job: job.spec.owner.user in users or str(job.spec.owner.uid) in users,
    "accounts": lambda accounts: lambda job: job.spec.account in accounts,
    "partitions": lambda partitions: lambda job: _in_partitions(job, partitions),
    "states": lambda states: lambda job: job_state(job) in states or base_state(job.phase) in states,
    "names": lambda names: lambda job: job.spec.name in names,
    "nodes": lambda nodes: lambda job: _on_nodes(job, nodes),
    "qos": lambda qos: lambda job: job.spec.qos in qos,
    "reservations": lambda reservations: lambda job: job.spec.reservation in reservations,
    "wckeys": lambda wckeys: lambda job: job.spec.wckey in wckeys,
    "jobs": lambda jobs: jobs.mean,
}
"""By condition: what it asks of a job."""


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

    _tests: tuple[Test, ...] = field(init=False, repr=False, compare=False, default=())
    """Of the conditions that there are."""

    def __post_init__(self) -> None:
        """Sets: each is asked of every job, and may be as long as a request."""
        tests = []
        for name, make in _TESTS.items():
            words = getattr(self, name)
            if words:
                words = frozenset(words) if isinstance(words, tuple) else words
                object.__setattr__(self, name, words)
                tests.append(make(words))
        object.__setattr__(self, "_tests", tuple(tests))

    def __bool__(self) -> bool:
        return bool(self._tests or self.clusters)

    def holds_of(self, job: Job) -> bool:
        """Whether every condition holds but the one about clusters, for which a record is needed."""
        for test in self._tests:  # noqa: SIM110  # asked of every job: a generator would cost as much as the test
            if not test(job):
                return False
        return True

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


def candidates(state: State, wanted: Filter) -> list[Job]:
    """Jobs that may be wanted, each once: all, or those that were named, which are looked up."""
    if wanted.jobs is None:
        return list(state.jobs.values())
    found: dict[int, None] = {}
    for number in wanted.jobs.numbers():
        found |= dict.fromkeys([number, *state.array_members.get(number, ()), *state.het_members.get(number, ())])
    return [state.jobs[job_id] for job_id in sorted(found) if job_id in state.jobs]


def matching(state: State, wanted: Filter, jobs: Iterable[Job] | None = None, now: float = 0.0) -> list[Job]:
    looked_at = candidates(state, wanted) if jobs is None else jobs
    found = [job for job in looked_at if wanted.holds_of(job)] if wanted else list(looked_at)
    if wanted.clusters:
        found = [job for job in found if job_record(state, job, now, ("cluster",))["cluster"] in wanted.clusters]
    return found


def records_of(state: State, jobs: Iterable[Job], now: float, names: Sequence[str]) -> list[Record]:
    return Records(names).of(state, jobs, now)


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
