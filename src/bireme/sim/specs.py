"""A trace's job as the JobSpec that its user would have submitted, and the account book its users stand in.

GPUs are spread evenly over as few nodes as hold them; a part of a GPU becomes shards. Where a trace names no time
limit, `Limits` says what users ask for. Invariant: equal jobs get the same JobSpec object, so that a hundred thousand
of them cost little and share one place in the planner's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Account, Association, User
from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.core.model.events import AccountsChanged
from bireme.core.model.jobs import JobSpec, Owner, ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.sim.workloads.trace import TraceJob

FIRST_UID = 10_001
MINUTE_S = 60
LADDER_S = tuple(hours * 3600 for hours in (0.25, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440, 2880, 8760, 87600))
"""What people ask for when nobody makes them think: a quarter of an hour up to ten years."""
HEADROOM = 1.1

LimitOf = Callable[[TraceJob], int]


def exact_limit(job: TraceJob) -> int:
    """Users know: the next whole minute."""
    return ceil(job.run_s / MINUTE_S) * MINUTE_S


def ladder_limit(job: TraceJob) -> int:
    """Users take the next round number that leaves some headroom."""
    return int(next((step for step in LADDER_S if step >= job.run_s * HEADROOM), job.run_s * 2))


LIMITS: dict[str, LimitOf] = {"ladder": ladder_limit, "exact": exact_limit}


def limit_rule(text: str) -> LimitOf:
    """`ladder`, `exact`, or a factor like `x3`. Raises ValueError."""
    if text in LIMITS:
        return LIMITS[text]
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        factor = 0.0
    if not text.startswith("x") or factor < 1.0:
        raise ValueError(f"{text!r}: limits are {', '.join(LIMITS)} or a factor of the run time like x3")
    return lambda job: ceil(job.run_s * factor / MINUTE_S) * MINUTE_S


def limit_of(job: TraceJob, rule: LimitOf) -> int:
    """The trace's own; else what the rule says."""
    return rule(job) if job.limit_s is None else job.limit_s


@dataclass(slots=True)
class SpecMaker:
    config: ClusterConfig
    rule: LimitOf
    _specs: dict[tuple[object, ...], JobSpec] = field(default_factory=dict)
    _admitted: dict[int, JobSpec] = field(default_factory=dict)
    """What became of a specification when the cluster took it, by its identity: the next job of the kind asks so."""
    _requests: dict[ResourceRequest, ResourceRequest] = field(default_factory=dict)
    _owners: dict[str, Owner] = field(default_factory=dict)
    _partitions: frozenset[str] = field(init=False)
    _gpus_per_node: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._partitions = frozenset(partition.name for partition in self.config.partitions)

    def owner(self, user: str) -> Owner:
        known = self._owners.get(user)
        if known is None:
            uid = FIRST_UID + len(self._owners)
            known = self._owners[user] = Owner(uid=uid, gid=uid, user=user)
        return known

    def make(self, job: TraceJob, priority: int | None = None) -> JobSpec:
        limit = limit_of(job, self.rule)
        partition = job.partition if job.partition in self._partitions else ""
        key = (limit, job.user, job.account, partition, job.nodes, job.cpus, job.gpus, job.gpu_milli, job.gpu_types,
               job.memory_mib, priority)  # fmt: skip
        spec = self._specs.get(key)
        if spec is None:
            resources = self._resources(job, partition)
            spec = self._specs[key] = JobSpec(
                name=job.name,
                owner=self.owner(job.user),
                account=job.account,
                partitions=(partition,) if partition else (),
                resources=self._requests.setdefault(resources, resources),
                time_limit_s=limit,
                time_limit_given=True,
                priority=priority,
                script="simulated",
            )
        return self._admitted.get(id(spec), spec)

    def admitted(self, asked: JobSpec, spec: JobSpec) -> None:
        """The cluster has filled in its defaults."""
        self._admitted[id(asked)] = spec

    def _resources(self, job: TraceJob, partition: str) -> ResourceRequest:
        most = self._most_gpus(partition)
        nodes = job.nodes or max(1, ceil(job.gpus / most) if job.gpus and most else 1)
        gres: tuple[GresRequest, ...] = ()
        kind = job.gpu_types[0] if len(job.gpu_types) == 1 else None
        if job.gpus and job.gpu_milli < 1000:
            gres = (GresRequest("shard", kind, job.gpu_milli),)
        elif job.gpus:
            gres = (GresRequest("gpu", kind, ceil(job.gpus / nodes)),)
        if job.nodes is None and not job.gpus:  # processors, wherever they are
            return ResourceRequest(ntasks=job.cpus or 1, memory_per_cpu_mib=self._memory(job))
        return ResourceRequest(
            nodes_min=nodes,
            nodes_max=nodes,
            nodes_given=True,
            ntasks=nodes,
            cpus_per_task=max(1, ceil(job.cpus / nodes)) if job.cpus else 1,
            gres_per_node=gres,
            memory_per_node_mib=self._memory(job),
        )

    def _memory(self, job: TraceJob) -> int | None:
        """Only where it counts: a cluster without memory has 1 MiB on each node."""
        return job.memory_mib if self.config.settings.memory_is_consumable else None

    def _most_gpus(self, partition: str) -> int:
        known = self._gpus_per_node.get(partition)
        if known is None:
            known = self._gpus_per_node[partition] = max(
                (node.gres_count("gpu") for node in self._nodes(partition)), default=0
            )
        return known

    def _nodes(self, partition: str) -> Iterable[NodeConfig]:
        wanted = {each.name: set(each.nodes) for each in self.config.partitions}.get(partition)
        return (node for node in self.config.nodes if wanted is None or node.name in wanted)


def account_book(jobs: Sequence[TraceJob], book: AccountBook) -> AccountsChanged:
    """Every account under the root and every user under the accounts it uses, with one share each, unless there."""
    named = dict.fromkeys((job.account, job.user) for job in jobs if job.account)
    pairs = [(account, user) for account, user in named if book.find(account, user) is None]
    accounts = dict.fromkeys(account for account, _ in pairs if book.find(account) is None)
    defaults: dict[str, str] = {}
    for account, user in pairs:
        if user not in book.users:
            defaults.setdefault(user, account)
    number = book.next_association_id
    associations = [Association(id=number + at, account=name, parent="root") for at, name in enumerate(accounts)]
    number += len(associations)
    associations += [
        Association(id=number + at, account=account, user=user) for at, (account, user) in enumerate(pairs)
    ]
    return AccountsChanged(
        accounts=tuple(Account(name=name) for name in accounts),
        users=tuple(User(name=user, default_account=account) for user, account in defaults.items()),
        associations=tuple(associations),
    )
