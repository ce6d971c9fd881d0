"""A request for a job becomes events, or a Refusal: partition, access, limits, "could it ever run".

Called by the runtime with the newest state. Nothing is stored unless all of a submission (all het components) is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bireme.core.accounts.membership import settled
from bireme.core.explain.wording import sentence
from bireme.core.jobs.admission import take_place, within_limits
from bireme.core.jobs.gates import Met, dependency_met
from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.placing import all_nodes, search_for
from bireme.core.jobs.ranking import first_priority
from bireme.core.jobs.rights import within_rights
from bireme.core.jobs.sizes import check_job
from bireme.core.limits.partitions import beyond_partition
from bireme.core.model import events as e
from bireme.core.model.cluster import PartitionConfig, PartitionState
from bireme.core.model.jobs import ArraySpec, DependencyKind, Job, JobKind, JobSpec, Owner, Pending
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.placement.caps import cpus_held, within_cap
from bireme.core.placement.demand import resolve
from bireme.core.placement.features import parse_constraint
from bireme.core.reservations.reserving import check_reservation, entered, names_of
from bireme.core.state.state import State

EXPEDITED = "enable_expedited_requeue"
LARGEST_TASK_ID = 4_000_000
MOST_COMPONENTS = 128
"""Of a heterogeneous job, as in Slurm."""
_ANSWERS_KEPT = 4096
"""Whether a request could ever run: pods that mind each other name nodes of their own in each."""


def submit(
    state: State, caller: Caller, specs: Sequence[JobSpec], now: float, idempotency_key: str = ""
) -> list[e.Event]:
    """Events for one job, or for all components of a heterogeneous one. A repeated key gives no events."""
    if idempotency_key and idempotency_key in KEYS.of(state):
        return []
    if len(specs) > MOST_COMPONENTS:
        raise Refusal(Why.NOT_SUPPORTED, f"a heterogeneous job has at most {MOST_COMPONENTS} components")
    if len(specs) > 1 and any(spec.array is not None for spec in specs):
        raise Refusal(
            Why.INVALID_ARRAY, "a heterogeneous job cannot be an array: submit its components' work in a loop"
        )
    _room_for(state, len(specs))
    leader = state.next_job_id
    het = leader if len(specs) > 1 else None
    events: list[e.Event] = []
    ledger = state.ledger.draft()
    for offset, asked in enumerate(specs):
        # Components are requeued together or not at all: the leader's word counts.
        spec = admitted(state, caller, asked.revised(requeue=specs[0].requeue))
        spec = state.share(within_rights(caller, spec))
        _check_times(spec, now)
        take_place(ledger, spec)
        job_id = leader + offset
        probe = Job(job_id, spec, now, Pending(since=now))
        _check_reserved_room(state, probe, now)
        eligible_at = now if _eligible(state, probe, now) else None
        probe.phase = Pending(since=now, eligible_at=eligible_at)
        priority = first_priority(state, probe, offset, now)
        key = idempotency_key if offset == 0 else ""
        waits = _first_reasons(state, probe, now)
        events.append(e.JobSubmitted(job_id, spec, priority, eligible_at, waits, het, key))
    return events


def _room_for(state: State, count: int) -> None:
    limit = state.config.settings.max_job_count
    if len(state.jobs) + count > limit:
        raise Refusal(Why.TOO_MANY_JOBS, f"MaxJobCount={limit} jobs are known already")


def admitted(state: State, caller: Caller, asked: JobSpec) -> JobSpec:
    """The specification with the caller as owner and the cluster's defaults, or a Refusal."""
    check_job(state, asked)
    partitions = _partitions(state, asked)
    spec = asked.revised(
        owner=owner_for(caller, asked),
        partitions=tuple(partition.name for partition in partitions),
        requeue=state.config.settings.job_requeue if asked.requeue is None else asked.requeue,
        requeue_asked=asked.requeue is True,
    )
    if spec.expedite_requeue and EXPEDITED not in state.config.words("SlurmctldParameters"):
        raise Refusal(Why.NOT_SUPPORTED, f"--requeue=expedite needs SlurmctldParameters={EXPEDITED} in slurm.conf")
    spec = settled(state, spec)
    _check_array(state, spec.array)
    _check_dependencies(state, spec)
    _check_names(state, spec)
    check_reservation(state, spec)
    for partition in partitions:
        check_access(caller, spec, partition)
        _check_segments(state, spec, partition)
    _check_limits(state, spec, partitions)
    spec = within_limits(state, spec)
    if not any(can_ever_run(state, spec, partition) for partition in partitions):
        hint, remark = _what_is_too_much(state, spec, partitions), _slurms_remark(state, spec, partitions[0])
        raise Refusal(_why_never(state, spec), hint, remark)
    return spec


def owner_for(caller: Caller, asked: JobSpec) -> Owner:
    """The caller; root may submit for another user (`--uid`), whose name the api has already looked up."""
    if caller.admin and asked.owner.uid >= 0 and asked.owner.uid != caller.uid:
        return asked.owner
    return Owner(uid=caller.uid, gid=caller.gid, user=caller.user, group=caller.group, groups=caller.groups)


def _partitions(state: State, spec: JobSpec) -> list[PartitionConfig]:
    if not spec.partitions:
        default = next((p for p in state.partitions.values() if p.default), None)
        if default is None:
            raise Refusal(Why.DEFAULT_PARTITION_NOT_SET)
        return [default]
    unknown = [name for name in spec.partitions if name not in state.partitions]
    if unknown:
        known = ", ".join(p.name for p in state.partitions.values() if not p.hidden)
        hint = f"no partition {unknown[0]!r} here; there are: {known}"
        raise Refusal(Why.INVALID_PARTITION_NAME, hint, f"invalid partition specified: {unknown[0]}")
    return [state.partitions[name] for name in spec.partitions]


def _check_array(state: State, array: ArraySpec | None) -> None:
    if array is None:
        return
    limit = state.config.settings.max_array_size
    if any(one >= other for one, other in pairwise(array.task_ids)):
        raise Refusal(Why.INVALID_ARRAY, "task ids must ascend")
    if not array.task_ids or limit == 0 or array.task_ids[-1] >= min(limit, LARGEST_TASK_ID):
        raise Refusal(Why.INVALID_ARRAY, f"task ids must be below MaxArraySize={limit}")
    most = state.config.settings.policy.array_tasks_max
    if most is not None and len(array.task_ids) > most:
        raise Refusal(Why.INVALID_ARRAY, f"{len(array.task_ids)} tasks asked, max_array_tasks is {most}")


def _check_dependencies(state: State, spec: JobSpec) -> None:
    for item in spec.dependencies.items:
        if item.kind is DependencyKind.SINGLETON:
            continue
        known = item.job_id in state.jobs or item.job_id in state.arrays
        if not known and item.job_id >= state.next_job_id:
            raise Refusal(Why.DEPENDENCY, f"there is no job {item.job_id}")


def _check_names(state: State, spec: JobSpec) -> None:
    check_node_names(state, spec)
    if spec.resources.nodes_given and spec.resources.nodes_min < 1:
        raise Refusal(Why.INVALID_NODE_COUNT)
    if spec.kind is JobKind.BATCH and not spec.script:
        raise Refusal(Why.JOB_SCRIPT_MISSING)


def check_node_names(state: State, spec: JobSpec) -> None:
    for name in (*spec.resources.nodelist, *spec.resources.exclude):
        if name not in state.nodes:
            raise Refusal(Why.INVALID_NODE_NAME, f"no node {name!r} here")
    both = set(spec.resources.nodelist).intersection(spec.resources.exclude)
    if both:
        raise Refusal(Why.INVALID_NODE_NAME, f"node {min(both)!r} is both asked for and excluded")


def check_access(caller: Caller, spec: JobSpec, partition: PartitionConfig) -> None:
    if partition.state in (PartitionState.DRAIN, PartitionState.INACTIVE):
        raise Refusal(Why.PARTITION_NOT_AVAILABLE, f"partition {partition.name} is {partition.state}")
    if partition.root_only and caller.uid != 0:
        raise Refusal(Why.ACCESS_DENIED, f"partition {partition.name} is RootOnly")
    if partition.req_resv and not spec.reservation:
        raise Refusal(Why.ACCESS_DENIED, f"partition {partition.name} is for jobs in a reservation (--reservation)")
    if partition.disable_root_jobs and caller.uid == 0:
        raise Refusal(Why.ACCESS_DENIED, f"partition {partition.name} takes no jobs of root (DisableRootJobs)")
    groups = partition.allow_groups
    if groups is not None and caller.uid != 0 and not set(caller.group_names) & set(groups):
        raise Refusal(Why.ACCESS_DENIED, f"partition {partition.name} is for groups {','.join(groups)}")
    if partition.allow_accounts is not None and spec.account not in partition.allow_accounts:
        raise Refusal(Why.INVALID_ACCOUNT, f"partition {partition.name} does not allow account {spec.account!r}")
    if spec.account in partition.deny_accounts:
        raise Refusal(Why.INVALID_ACCOUNT, f"partition {partition.name} denies account {spec.account!r}")
    if spec.qos in partition.deny_qos:
        raise Refusal(Why.INVALID_QOS, f"partition {partition.name} denies QOS {spec.qos!r}")
    if partition.allow_qos is not None and spec.qos not in partition.allow_qos:
        raise Refusal(Why.INVALID_QOS, f"partition {partition.name} does not allow QOS {spec.qos!r}")


def _check_segments(state: State, spec: JobSpec, partition: PartitionConfig) -> None:
    """Where nodes come in blocks, a segment fits into a base block and the job is made of whole ones."""
    size, largest = spec.resources.segment, state.fabric.segment_max
    if size is None or largest is None:
        return
    nodes = resolve(spec, partition, state.config.settings).nodes_wanted
    if size > largest:
        hint = f"--segment={size} is more than a base block has: {largest} nodes"
        raise Refusal(Why.REQUESTED_TOPO_CONFIG_UNAVAILABLE, hint)
    if nodes % size:
        hint = f"{nodes} node(s) cannot be cut into segments of {size}: ask for a multiple (--nodes)"
        raise Refusal(Why.REQUESTED_TOPO_CONFIG_UNAVAILABLE, hint)


def _check_times(spec: JobSpec, now: float) -> None:
    if spec.deadline_at is not None and spec.deadline_at <= now:
        raise Refusal(Why.INVALID_TIME_LIMIT, "the deadline is over")
    if spec.time_min_s is not None and spec.time_limit_s is not None and spec.time_min_s > spec.time_limit_s:
        raise Refusal(Why.INVALID_TIME_MIN_LIMIT)


def _check_limits(state: State, spec: JobSpec, partitions: Sequence[PartitionConfig]) -> None:
    """Only with EnforcePartLimits (ALL partitions, or ANY); without it a job over the limits waits, as in Slurm."""
    settings = state.config.settings
    if settings.enforce_part_limits in ("NO", ""):
        return
    beyond = [tuple(beyond_partition(spec, partition, settings)) for partition in partitions]
    if all(beyond) or (any(beyond) and settings.enforce_part_limits == "ALL"):
        first = next(found[0] for found in beyond if found)
        raise Refusal(_BEYOND[first.kind], sentence(first))


_BEYOND = {
    ReasonKind.PARTITION_TIME_LIMIT: Why.INVALID_TIME_LIMIT,
    ReasonKind.PARTITION_NODE_LIMIT: Why.INVALID_NODE_COUNT,
    ReasonKind.MAX_MEM_PER_LIMIT: Why.INVALID_TASK_MEMORY,
}


def can_ever_run(state: State, spec: JobSpec, partition: PartitionConfig) -> bool:
    """Whether the partition's nodes, all of them empty and up, would hold the job."""
    key = (spec.resources, partition.name)
    answer = state.ever_fits.get(key)
    if answer is None:
        demand = resolve(spec, partition, state.config.settings)
        search = search_for(state, demand, partition, all_nodes(state, partition))
        free = None
        if partition.max_cpus_per_node is not None:
            table = state.empty.table
            free = within_cap(state.empty.free, table, cpus_held(table, ()), partition.max_cpus_per_node)
        if len(state.ever_fits) >= _ANSWERS_KEPT:
            state.ever_fits.clear()
        answer = state.ever_fits[key] = search.find(state.empty, free).found
    return answer


def _check_reserved_room(state: State, job: Job, now: float) -> None:
    """A reservation that has begun must have room for it; one that has not may still get more nodes."""
    reservation = entered(state, job, now)
    if reservation is None or not reservation.confines or names_of(job.spec) != (reservation.name,):
        return
    reserved = state.occupancy.table.mask(reservation.nodes)
    for partition in (state.partitions[name] for name in job.spec.partitions):
        demand = resolve(job.spec, partition, state.config.settings)
        search = search_for(state, demand, partition, all_nodes(state, partition) & reserved)
        if search.find(state.empty).found:
            return
    hint = f"the {len(reservation.nodes)} node(s) of reservation {reservation.name} cannot hold it"
    raise Refusal(Why.NODE_CONFIG_UNAVAILABLE, hint)


def _why_never(state: State, spec: JobSpec) -> Why:
    """Something that no node of the cluster has ever heard of has its own message, as with Slurm."""
    asked, nodes = spec.resources, [node.config for node in state.nodes.values()]
    gres = (*asked.gres_per_node, *asked.gres_per_job, *asked.gres_per_task, *asked.gres_per_socket)
    named = {pool.name for node in nodes for pool in node.gres} | set(state.config.settings.gres_types)
    if any(one.name not in named for one in gres):
        return Why.INVALID_GRES
    if asked.constraint:
        features = {feature for node in nodes for feature in node.features}
        if not parse_constraint(asked.constraint).feature_names() <= features:
            return Why.INVALID_FEATURE
    return Why.NODE_CONFIG_UNAVAILABLE


def _slurms_remark(state: State, spec: JobSpec, partition: PartitionConfig) -> str:
    """What Slurm says first, where no node has enough of one thing that it compares node by node."""
    nodes = [state.nodes[name].config for name in partition.nodes if name in state.nodes]
    demand = resolve(spec, partition, state.config.settings)
    cpus = max(demand.cpus_per_node_min, demand.cpus_per_task * (demand.tasks_per_node or 1))
    memory = max(demand.memory_per_node_mib or 0, (demand.memory_per_cpu_mib or 0) * cpus)
    if all(node.cpus < cpus for node in nodes):
        return "CPU count per node can not be satisfied"
    if all(node.memory_mib < memory for node in nodes):
        return "Memory specification can not be satisfied"
    if all(node.tmp_disk_mib < demand.tmp_disk_mib for node in nodes):
        return "Temporary disk specification can not be satisfied"
    shape = (demand.sockets_min, demand.cores_per_socket_min, demand.threads_per_core or 1)
    shapes = [(node.sockets, node.cores_per_socket, node.threads_per_core) for node in nodes]
    if all(any(has < wanted for has, wanted in zip(found, shape)) for found in shapes):
        return "Socket, core and/or thread specification can not be satisfied"
    return ""


def _what_is_too_much(state: State, spec: JobSpec, partitions: Sequence[PartitionConfig]) -> str:
    """One clause on which part of the request no node can give."""
    partition = partitions[0]
    nodes = [state.nodes[name].config for name in partition.nodes if name in state.nodes]
    demand = resolve(spec, partition, state.config.settings)
    if not nodes:
        return f"partition {partition.name} has no nodes"
    if demand.nodes_wanted > len(nodes):
        return f"{demand.nodes_wanted} nodes asked, partition {partition.name} has {len(nodes)}"
    if demand.node_rules is not None:
        nodes = [node for node in nodes if demand.node_rules.admit(node.name, dict(node.labels), node.taints)]
        if not nodes:
            return f"no node of partition {partition.name} has the labels and taints: {demand.node_rules}"
    for gres in (*demand.gres_per_node, *demand.gres_per_task):
        most = max(node.gres_count(gres.name, gres.type) for node in nodes)
        if most < gres.count:
            return (
                f"{gres.count} {gres.kind} asked on a node, no node of partition {partition.name} has more than {most}"
            )
    for gres in demand.gres_per_job:
        in_all = sum(node.gres_count(gres.name, gres.type) for node in nodes)
        if in_all < gres.count:
            return f"{gres.count} {gres.kind} asked, the nodes of partition {partition.name} have {in_all} together"
    if demand.memory_per_node_mib and demand.memory_per_node_mib > max(node.memory_mib for node in nodes):
        most = max(node.memory_mib for node in nodes)
        return f"{demand.memory_per_node_mib} MiB asked on a node, the largest node has {most} MiB"
    if demand.cpus_per_task > max(node.cpus for node in nodes):
        return f"{demand.cpus_per_task} CPUs asked for a task, the largest node has {max(n.cpus for n in nodes)}"
    if spec.resources.constraint and not any(demand.features.matches(set(node.features)) for node in nodes):
        return f"no node of partition {partition.name} has the features {spec.resources.constraint!r}"
    return f"no {demand.nodes_wanted} node(s) of partition {partition.name} together hold the request"


def _eligible(state: State, job: Job, now: float) -> bool:
    if job.spec.hold or (job.spec.begin_at is not None and job.spec.begin_at > now):
        return False
    return dependency_met(state, job, now) is Met.YES


def _first_reasons(state: State, job: Job, now: float) -> tuple[Reason, ...]:
    """Until the first pass looks at it, as Slurm: None, or what plainly holds it."""
    if job.spec.hold:
        return (reason(ReasonKind.JOB_HELD_USER),)
    if job.spec.begin_at is not None and job.spec.begin_at > now:
        return (reason(ReasonKind.BEGIN_TIME, at=job.spec.begin_at),)
    if dependency_met(state, job, now) is not Met.YES:
        return (reason(ReasonKind.DEPENDENCY),)
    return (reason(ReasonKind.NONE),)
