"""priority/multifactor: what each factor of a job's priority is, and what they add up to.

    site + age + association + fair share + job size + partition + QOS + TRES - nice

each weighed by its PriorityWeight*, the sum cut to a whole number of at least 1. A factor whose weight is 0 is 0, as
in Slurm. A `Basis` holds what all jobs of one moment are measured by; `priority/order.py` makes one and weighs the
whole queue with it. Not here: how fair share comes about (`fair_share.py`).
Invariant: everything but age and fair share stays the same for a job until its specification or the basis changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, trunc

import numpy as np
from numpy.typing import NDArray

from bireme.core.accounting.billing import billing
from bireme.core.accounting.book import AccountBook
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, PrioritySettings
from bireme.core.model.jobs import Job, JobSpec, Pending, ResourceRequest
from bireme.core.model.resources import add_gres_tres
from bireme.core.placement.demand import Demand, requested_tres, resolve

LOWEST, HIGHEST = 1, 2**32 - 1
"""0 is a held job's."""
_KNOWN_AT_MOST = 10_000

_Measure = tuple[float, tuple[tuple[str, float], ...]]
"""(size factor, weighed TRES)."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The weighed factors of a job in one partition that time does not change, and whose fair share counts."""

    partition: str
    association: int | None
    assoc: float
    job_size: float
    partition_factor: float
    qos: float
    tres: tuple[tuple[str, float], ...]
    columns: tuple[float, float, float, float, float]
    """Association, size, partition, QOS, all TRES: what is summed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All weighed factors of a job in one partition: a line of `sprio`."""

    job_id: int
    partition: str
    priority: int
    set_by_operator: bool
    """True: the factors do not count, and are 0."""
    site: int = 0
    age: float = 0.0
    assoc: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    partition_factor: float = 0.0
    qos: float = 0.0
    tres: tuple[tuple[str, float], ...] = ()
    nice: int = 0


@dataclass(slots=True)
class _Totals:
    """What a partition has in all, by TRES, and how many CPUs a core of it is."""

    tres: dict[str, float]
    threads: int


@dataclass(slots=True)
class Basis:
    """What jobs are measured by at one moment. See the module."""

    config: ClusterConfig
    book: AccountBook
    partitions: tuple[PartitionConfig, ...]
    fair_share: Mapping[int, float]
    at: float
    _known: dict[tuple[ResourceRequest, str, str, str, str, int | None], Fixed] = field(default_factory=dict)
    """Answers kept, by all that they depend on."""
    _by_name: dict[str, PartitionConfig] = field(default_factory=dict)
    _by_time: bool = False
    _totals: dict[str, _Totals] = field(default_factory=dict)
    _largest: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        self._by_name = {partition.name: partition for partition in self.partitions}
        self._by_time = self.has_flag("SMALL_RELATIVE_TO_TIME")
        by_name = {node.name: node for node in self.config.nodes}
        for partition in self.partitions:
            nodes = [by_name[name] for name in partition.nodes if name in by_name]
            self._totals[partition.name] = _Totals(_tres_of(nodes, partition, self), _threads(nodes))
        self._largest = (
            max((float(each.priority or 0) for each in self.book.associations.values()), default=0.0),
            max((float(each.priority_job_factor) for each in self.partitions), default=0.0),
            max((float(each.priority) for each in self.book.qos.values()), default=0.0),
        )

    @property
    def settings(self) -> PrioritySettings:
        return self.config.settings.priority

    def has_flag(self, *names: str) -> bool:
        return any(name in self.config.settings.priority_flags for name in names)

    def same_cluster(self, config: ClusterConfig, book: AccountBook, partitions: Sequence[PartitionConfig]) -> bool:
        """Whether what it says of specifications still holds; fair share may be old."""
        return (
            self.config is config
            and self.book is book
            and len(self.partitions) == len(partitions)
            and all(mine is theirs for mine, theirs in zip(self.partitions, partitions))
        )

    # -- what time does not change -----------------------------------------------------------------------------------

    def fixed_of(self, job: Job) -> tuple[Fixed, ...]:
        """One for each partition that the job may use; for a running one, that of the partition it runs in."""
        names = job.spec.partitions if job.allocation is None else (job.allocation.partition,)
        return tuple([self._fixed(job, name) for name in names if name in self._by_name])

    def _fixed(self, job: Job, name: str) -> Fixed:
        """Jobs that ask the same for the same account share the answer."""
        spec, partition = job.spec, self._by_name[name]
        if job.allocation is not None:
            return self._measured(spec, partition, self._held(job, partition))
        limit_s = self._counted_limit_s(spec, partition) if self._by_time else None
        key = (spec.resources, name, spec.account, spec.owner.user, spec.qos, limit_s)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN_AT_MOST:
                self._known.clear()
            found = self._known[key] = self._measured(spec, partition, self._asked(spec, partition, limit_s))
        return found

    def _measured(self, spec: JobSpec, partition: PartitionConfig, measure: _Measure) -> Fixed:
        settings, (size, tres) = self.settings, measure
        association = self.book.for_job(spec.account, spec.owner.user, partition.name)
        qos = self.book.qos.get(spec.qos)
        of_assoc, of_partition, of_qos = self._largest
        ranked = self.book.priority_of(association.id) if association else 0
        columns = (
            settings.weight_assoc * self._normal(ranked, of_assoc, "NO_NORMAL_ASSOC"),
            settings.weight_job_size * size,
            settings.weight_partition * self._normal(partition.priority_job_factor, of_partition, "NO_NORMAL_PART"),
            settings.weight_qos * self._normal(qos.priority if qos else 0, of_qos, "NO_NORMAL_QOS"),
        )
        together = sum(weighed for _, weighed in tres)
        return Fixed(partition.name, association.id if association else None, *columns, tres, (*columns, together))

    def _normal(self, value: float, largest: float, flag: str) -> float:
        if self.has_flag(flag, "NO_NORMAL_ALL"):
            return float(value)
        return value / largest if largest else 0.0

    def _asked(self, spec: JobSpec, partition: PartitionConfig, limit_s: int | None) -> _Measure:
        """By what a waiting job asks for."""
        demand = resolve(spec, partition, self.config.settings)
        threads = self._totals[partition.name].threads if self.config.settings.select_by_core else 1
        size = self._size(demand.nodes_wanted, _cpus(demand, threads), limit_s)
        return size, self._tres(requested_tres(demand), partition)

    def _held(self, job: Job, partition: PartitionConfig) -> _Measure:
        """By what a running job holds."""
        assert job.allocation is not None
        tres = job.allocation.tres()
        size = self._size(tres["node"], tres["cpu"], self._counted_limit_s(job.spec, partition))
        return size, self._tres(tres, partition)

    def _counted_limit_s(self, spec: JobSpec, partition: PartitionConfig) -> int | None:
        if spec.time_limit_given:
            return spec.time_limit_s
        return partition.default_time_s if partition.default_time_s is not None else partition.max_time_s

    def _size(self, nodes: int, cpus: int, limit_s: int | None) -> float:
        """The part of the cluster's nodes and CPUs that it is; with SMALL_RELATIVE_TO_TIME, for each minute of it."""
        if not self.settings.weight_job_size or not self.config.nodes:
            return 0.0
        of_nodes = nodes / len(self.config.nodes)
        of_cpus = cpus / max(1, sum(node.cpus for node in self.config.nodes))
        if self._by_time:
            size = max(of_nodes, of_cpus) / max(1, limit_s // 60) if limit_s is not None else 0.0
        else:
            size = (of_nodes + of_cpus) / 2
        size = min(1.0, size)
        return 1.0 - size if self.settings.favor_small else size

    def _tres(self, tres: Mapping[str, int], partition: PartitionConfig) -> tuple[tuple[str, float], ...]:
        if not self.settings.weight_tres:
            return ()
        amounts: dict[str, float] = {**tres, "billing": self.billing(tres, partition)}
        totals = self._totals[partition.name].tres
        whole = self.has_flag("NO_NORMAL_TRES", "NO_NORMAL_ALL")
        weighed: list[tuple[str, float]] = []
        for name, weight in self.settings.weight_tres:
            amount = amounts.get(name, 0.0)
            factor = amount if whole else amount / totals[name] if totals.get(name) else 0.0
            if factor and weight:
                weighed.append((name, weight * factor))
        return tuple(weighed)

    def billing(self, tres: Mapping[str, int], partition: PartitionConfig) -> float:
        return billing(tres, partition.tres_billing_weights, self.has_flag("MAX_TRES"))

    # -- what it does ------------------------------------------------------------------------------------------------

    def ages(self, since: Floats, now: float) -> Floats:
        """Weighed age; `since` is infinite for a job that is not eligible."""
        weight, oldest = self.settings.weight_age, self.settings.max_age_s
        if not weight or oldest is None:
            return np.zeros_like(since)
        waited = now - since
        if oldest == 0:
            return np.where(waited >= 0, float(weight), 0.0)
        return weight * np.clip(waited / oldest, 0.0, 1.0)

    def age(self, since: float, now: float) -> float:
        """Weighed age of one job, as `ages` has it of many."""
        weight, oldest = self.settings.weight_age, self.settings.max_age_s
        if not weight or oldest is None:
            return 0.0
        if oldest == 0:
            return float(weight) if now >= since else 0.0
        return weight * min(1.0, max(0.0, (now - since) / oldest))

    def since_of(self, job: Job) -> float:
        """From when on its age counts; infinite: it does not."""
        return job.submitted_at if self.has_flag("ACCRUE_ALWAYS") else _counts_since(job)

    def fair_share_of(self, association: int | None) -> float:
        return self.settings.weight_fair_share * self.fair_share.get(association or 0, 0.0)


def _counts_since(job: Job) -> float:
    phase = job.phase
    at: float | None
    if not isinstance(phase, Pending):
        at = job.eligible_at
    elif not phase.accrues:
        at = None
    else:
        at = phase.eligible_at if phase.accrues_since is None or phase.eligible_at is None else phase.accrues_since
    return inf if at is None else at


def sums(site: Floats, age: Floats, fair_share: Floats, fixed: Floats, nice: Floats) -> Integers:
    """Priorities, a row each; the columns of `fixed` are association, size, partition, QOS, TRES."""
    total = site + age
    total += fixed[:, 0]
    total += fair_share
    for column in range(1, 5):
        total += fixed[:, column]
    total -= nice
    return np.clip(np.trunc(total), LOWEST, HIGHEST).astype(np.int64)


def sum_of(site: float, age: float, fair_share: float, fixed: Sequence[float], nice: float) -> int:
    """The priority of one job, added up in the order of `sums`, so that it comes to the same number."""
    total = site + age
    total += fixed[0]
    total += fair_share
    for column in fixed[1:]:
        total += column
    total -= nice
    return max(LOWEST, min(HIGHEST, trunc(total)))


def _cpus(demand: Demand, threads: int) -> int:
    """CPUs it would hold: whole cores on every node where cores are what is given."""
    nodes, asked = demand.nodes_wanted, requested_tres(demand)["cpu"]
    each = ceil(asked / nodes)
    return max(asked, nodes * ceil(each / threads) * threads if threads > 1 else 0)


def _threads(nodes: Sequence[NodeConfig]) -> int:
    return max((node.threads_per_core for node in nodes), default=1)


def _tres_of(nodes: Sequence[NodeConfig], partition: PartitionConfig, basis: Basis) -> dict[str, float]:
    totals = {
        "cpu": sum(node.cpus for node in nodes),
        "mem": sum(node.memory_mib for node in nodes),
        "node": len(nodes),
    }
    for node in nodes:
        for pool in node.gres:
            add_gres_tres(totals, pool.name, pool.type, pool.count)
    return {**totals, "billing": basis.billing(totals, partition)}
