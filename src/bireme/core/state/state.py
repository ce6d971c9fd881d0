"""Everything Bireme knows, in memory: the fold of the journal.

Changed only by `apply`. The fields under "derived" are indexes over the rest, rebuilt by `reindex` after a snapshot is
read and kept up to date by `apply`; `validate` (used by tests and the simulator) checks that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.usage import Usages
from bireme.core.limits.following import make_ledger
from bireme.core.limits.ledger import Ledger, tallies_agree
from bireme.core.model.cluster import ClusterConfig, PartitionConfig, Topology
from bireme.core.model.jobs import HOLDING, ArrayWaiting, Finished, Job, JobSpec, Pending, ResourceRequest, Suspended
from bireme.core.model.nodes import Node, ShutGpu
from bireme.core.model.reasons import Reason
from bireme.core.model.reservations import Reservation
from bireme.core.model.resources import NodeShare
from bireme.core.model.serving.services import Service
from bireme.core.placement.fabric import Fabric, build_fabric
from bireme.core.placement.fitting import fitted_share
from bireme.core.placement.occupancy import Occupancy, outside
from bireme.core.priority.columns import Columns
from bireme.core.priority.multifactor import Basis
from bireme.core.state.serving import Serving, make_serving
from bireme.core.state.timetable import Timetable

SHARED_SPECS = 1_000


@dataclass(slots=True)
class ArrayTally:
    """How the tasks of one array fared; outlives their records, for dependencies on the array."""

    total: int
    begun: dict[int, float] = field(default_factory=dict)
    """When each task was first given something."""
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    @property
    def all_begun(self) -> bool:
        """Whether every task has begun, or was cancelled before it could."""
        return len(self.begun.keys() | self.succeeded | self.failed) >= self.total

    @property
    def all_ended(self) -> bool:
        return len(self.succeeded) + len(self.failed) >= self.total


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the latest plan said of a waiting job. Not journaled: the next pass says it again."""

    reasons: tuple[Reason, ...]
    expected_start: float | None = None
    slot: tuple[NodeShare, ...] = ()
    """What it is to get then."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Events were lost, and the nodes are not all asked yet (`core/cluster/loss.py`)."""

    at: float
    starts: int
    """At most so many starts of one job are among them."""
    whole_since: float | None = None
    """What nodes know of earlier starts says nothing of jobs that were submitted from then on."""


@dataclass(slots=True)
class State:
    config: ClusterConfig = field(default_factory=ClusterConfig)
    nodes: dict[str, Node] = field(default_factory=dict)
    partitions: dict[str, PartitionConfig] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    arrays: dict[int, ArrayTally] = field(default_factory=dict)
    next_job_id: int = 1
    submissions: int = 0
    """How many jobs were ever accepted: the basic priority counts down with it."""
    accounts: AccountBook = field(default_factory=AccountBook)
    usage: Usages = field(default_factory=Usages)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    next_port: int = 0
    """Where the search for a replica's port goes on: one is not used again at once."""
    seq: int = 0
    loss: Loss | None = None
    shelves: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Things of kinds that have no field here, by the name of their shelf (`shelf.py`)."""

    # derived
    occupancy: Occupancy = field(default_factory=lambda: Occupancy(()))
    pending: dict[int, Job] = field(default_factory=dict)
    holding: dict[int, Job] = field(default_factory=dict)
    finished: dict[int, Job] = field(default_factory=dict)
    """In the order in which they ended."""
    array_members: dict[int, set[int]] = field(default_factory=dict)
    """array id -> ids of its records in memory."""
    array_tasks: dict[int, dict[int, int]] = field(default_factory=dict)
    """array id -> task -> its record in memory, of the tasks that left the array's own."""
    het_members: dict[int, list[int]] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    awake_since: float = 0.0
    """When the daemon that holds this state made its first turn: before that it heard nobody."""
    planned_at: float | None = None
    """When the latest pass looked at the queue."""
    partition_priorities: dict[int, dict[str, int]] = field(default_factory=dict)
    """By partition, of the jobs that may use several; their `Job.priority` is the highest."""
    priority_basis: Basis | None = None
    """What the latest pass over the priorities measured by."""
    priority_columns: Columns | None = None
    """The waiting jobs as it weighed them."""
    empty: Occupancy = field(default_factory=lambda: Occupancy(()))
    """The same nodes with nothing held: answers whether a request could ever fit."""
    serviceable: Occupancy = field(default_factory=lambda: Occupancy(()))
    """As `empty`, less the GPUs that are out of service: answers whether a request fits when nobody else is there."""
    fabric: Fabric = field(default_factory=lambda: build_fabric(Topology(), ()))
    ledger: Ledger = field(default_factory=Ledger)
    """What everybody holds whom some limit counts."""
    timetable: Timetable = field(default_factory=Timetable)
    """Whom time will move, and when."""
    serving: Serving = field(default_factory=Serving)
    """Which services changed, and whose replica a job is."""
    leftovers: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """(job, generation) of starts that are over -> nodes where something of them is left."""
    specs: dict[JobSpec, JobSpec] = field(default_factory=dict)
    """Specifications of late, by their content: a script that is submitted ten thousand times is one object."""
    ever_fits: dict[tuple[ResourceRequest, str], bool] = field(default_factory=dict)
    """Answers already given by `empty`, by request and partition."""

    def reindex(self) -> None:
        """Rebuilds everything derived from jobs and nodes."""
        configs = [node.config for node in self.nodes.values()]
        shut = self._shut_gpus()
        self.occupancy, self.empty = Occupancy(configs, shut), Occupancy(configs)
        self.serviceable = Occupancy(configs, shut) if shut else self.empty
        self.fabric = build_fabric(self.config.topology, self.occupancy.nodes)
        self.ever_fits = {}
        self.pending, self.holding = {}, {}
        self.array_members, self.array_tasks, self.het_members = {}, {}, {}
        ended: list[tuple[float, Job]] = []
        for job in self.jobs.values():
            self.index_members(job)
            if isinstance(job.phase, Pending):
                self.pending[job.id] = job
            elif isinstance(job.phase, Finished):
                ended.append((job.phase.ended_at, job))
            else:
                self.holding[job.id] = job
                self.occupancy.hold(job.held)
        self.leftovers = {}
        for node in self.nodes.values():
            if node.others is not None:
                self._fit_in(node, node.others)
            for start in node.leftovers:
                self.leftovers.setdefault(start, set()).add(node.name)
        self.ledger = make_ledger(self)
        self.timetable = Timetable()
        self.serving = make_serving(self.services.values())
        self.finished = {job.id: job for _, job in sorted(ended, key=lambda pair: (pair[0], pair[1].id))}

    def holds(self, job_id: int, generation: int) -> bool:
        """Whether this start of the job is the newest, and holds resources."""
        job = self.holding.get(job_id)
        return job is not None and job.generation == generation

    def shut(self, name: str, gpus: tuple[ShutGpu, ...]) -> None:
        """From now on these GPUs of the node, and no others, are out of service."""
        node = self.nodes[name]
        node.shut = gpus
        running = self.occupancy.room(name).jobs
        jobs = (job for job in self.holding.values() if job.id in running or isinstance(job.phase, Suspended))
        if self.serviceable is self.empty:
            self.serviceable = Occupancy([each.config for each in self.nodes.values()])
        self.serviceable.shut(name, node.shut_gpus, ())
        self.occupancy.shut(name, node.shut_gpus, [job.held for job in jobs])
        if node.others is not None:
            self._fit_in(node, node.others)

    def _shut_gpus(self) -> dict[str, tuple[int, ...]]:
        return {node.name: node.shut_gpus for node in self.nodes.values() if node.shut}

    def take_others(self, node: Node, share: NodeShare) -> None:
        """What others hold on the node is this, and no longer what it was."""
        if node.others is not None:
            self.occupancy.release(outside(node.others))
        self._fit_in(node, share)

    def _fit_in(self, node: Node, share: NodeShare) -> None:
        node.others = fitted_share(share, self.occupancy.room(node.name))
        self.occupancy.hold(outside(node.others))

    def index_members(self, job: Job) -> None:
        array_id = job.array_job_id
        if array_id is not None:
            self.array_members.setdefault(array_id, set()).add(job.id)
            if job.id != array_id or job.task_id is not None:
                self.array_tasks.setdefault(array_id, {}).update(dict.fromkeys(job.task_ids, job.id))
        if job.het_job_id is not None:
            members = self.het_members.setdefault(job.het_job_id, [])
            if job.id not in members:
                members.append(job.id)

    def forget_member(self, job: Job, array_id: int) -> None:
        """One record less of an array; the array is forgotten with its last."""
        members, tasks = self.array_members[array_id], self.array_tasks.get(array_id, {})
        members.discard(job.id)
        for task in job.task_ids:
            if tasks.get(task) == job.id:
                del tasks[task]
        if not tasks:
            self.array_tasks.pop(array_id, None)
        if not members:
            del self.array_members[array_id]
            self.arrays.pop(array_id, None)

    def share(self, spec: JobSpec) -> JobSpec:
        """A specification like this one, as an object that other jobs may have too."""
        known = self.specs.get(spec)
        if known is None:
            if len(self.specs) >= SHARED_SPECS:
                self.specs.clear()
            known = self.specs[spec] = spec
        return known

    def array_records(self, array_id: int) -> Iterable[Job]:
        return (self.jobs[job_id] for job_id in sorted(self.array_members.get(array_id, ())))

    def running_tasks(self, array_id: int) -> int:
        """Tasks of the array that hold resources: what its throttle counts."""
        members = self.array_members.get(array_id, set())
        if len(self.holding) < len(members):
            return sum(1 for job in self.holding.values() if job.array_job_id == array_id)
        return sum(1 for job_id in members if job_id in self.holding)

    def blobs(self) -> set[str]:
        """The names of all scripts and environments that its jobs, steps and services may still need."""
        named = {name for job in self.jobs.values() for name in (job.spec.script, job.spec.environment)}
        named |= {step.spec.environment for job in self.jobs.values() for step in job.steps.values()}
        revisions = (revision for service in self.services.values() for revision in service.revisions.values())
        named |= {name for each in revisions for name in (each.spec.job.script, each.spec.job.environment)}
        return named - {""}

    def array_task(self, array_id: int, task_id: int) -> Job | None:
        """The record of one task: its own, or None while it still waits in the array's record (or is forgotten)."""
        job_id = self.array_tasks.get(array_id, {}).get(task_id)
        return None if job_id is None else self.jobs[job_id]

    def validate(self) -> None:
        """Raises AssertionError where an index disagrees with the jobs, or something is held twice."""
        for job in self.jobs.values():
            phase = job.phase
            assert (job.id in self.pending) == isinstance(phase, Pending), f"job {job.id}: pending index"
            assert (job.id in self.holding) == isinstance(phase, HOLDING), f"job {job.id}: holding index"
            assert (job.id in self.finished) == isinstance(phase, Finished), f"job {job.id}: finished index"
            if isinstance(job.array, ArrayWaiting):
                assert job.array.waiting, f"array {job.id}: an empty waiting record"
            if job.task_id is not None:
                assert self.array_task(job.array_job_id or 0, job.task_id) is job, f"job {job.id}: index of tasks"
        serving = make_serving(self.services.values())
        assert self.serving.jobs == serving.jobs, "whose replica a job is"
        assert self.serving.ports == serving.ports, "ports of replicas"
        fresh = Occupancy([node.config for node in self.nodes.values()], self._shut_gpus())
        for job in self.holding.values():
            fresh.hold(job.held)
        for node in self.nodes.values():
            if node.others is not None:
                fresh.hold(outside(node.others))
        assert tallies_agree(self.ledger, make_ledger(self)), "the ledger"
        for mine, theirs in zip(self.occupancy.rooms, fresh.rooms):
            assert mine.cpus == theirs.cpus, "CPUs free"
            assert mine.memory_mib == theirs.memory_mib, "memory free"
            assert mine.devices == theirs.devices, "devices free"
            assert mine.parts_held == theirs.parts_held, "parts of GPUs in use"
            assert mine.jobs == theirs.jobs, "jobs on a node"
        for key, column in self.occupancy.free.gres.items():
            assert (column == fresh.free.gres[key]).all(), f"column of free {key}"
