"""An srun inside a job becomes a step: which nodes, how many CPUs and devices, which tasks where.

Slurm's rules since 20.11: a step has its resources to itself unless --overlap; it gets all CPUs of the job on its
nodes unless --exact (which -c and --exclusive imply). Where its resources are in use by other steps it is refused with
NODES_BUSY, and srun tries again. Invariant: steps that do not overlap never share a CPU or device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from bireme.core.jobs.requests import Target, find
from bireme.core.jobs.sizes import check_step
from bireme.core.jobs.submission import MOST_COMPONENTS
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Pending, Running, Starting, Suspended
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.resources import GresRequest, GresShare, NodeShare
from bireme.core.model.steps import INTERACTIVE_STEP, HetStep, StepNode, StepSpec, StepState
from bireme.core.placement.task_layout import LayoutError, layout
from bireme.core.state.state import State
from bireme.core.steps.containers import in_container_of
from bireme.core.steps.gpu_binding import Bound, bind_gpus


@dataclass(slots=True)
class _Left:
    """What no other step uses of the job's share on one node."""

    share: NodeShare
    cpus: list[int]
    devices: dict[tuple[str, str | None], list[int]]
    counts: dict[tuple[str, str | None], int]

    def gres(self, name: str, type_: str | None = None) -> int:
        keys = [key for key in (*self.devices, *self.counts) if key[0] == name and type_ in (None, key[1])]
        return sum(len(self.devices.get(key, ())) + self.counts.get(key, 0) for key in set(keys))


Part = tuple[Target, StepSpec]
"""What is asked of one component of a heterogeneous job, or of a plain job."""


def create_step(state: State, caller: Caller, target: Target, spec: StepSpec) -> list[e.Event]:
    return create_spanning_step(state, caller, [(target, spec)])


def create_spanning_step(state: State, caller: Caller, parts: Sequence[Part]) -> list[e.Event]:
    """One step over several components of a heterogeneous job (or in one job), under one number in each of them."""
    if len(parts) > MOST_COMPONENTS:
        raise Refusal(Why.INVALID_JOB_ID, f"a heterogeneous job has at most {MOST_COMPONENTS} components")
    jobs = [_running_job(state, caller, target) for target, _ in parts]
    for job, (_, spec) in zip(jobs, parts):
        assert job.allocation is not None, "it runs"
        check_step(state, spec, len(job.allocation.shares))
    if len({job.id for job in jobs}) < len(jobs) or len({job.het_job_id or job.id for job in jobs}) > 1:
        raise Refusal(Why.INVALID_JOB_ID, "one step lies in components of one heterogeneous job, once in each")
    specs = [spec if spec.het is None else replace(spec, het=None) for _, spec in parts]
    specs = [in_container_of(job, spec) for job, spec in zip(jobs, specs)]
    nodes = [_laid_out(job, spec) for job, spec in zip(jobs, specs)]
    if jobs[0].het_job_id is not None:
        specs = _spanning(jobs, specs, nodes)
    number = INTERACTIVE_STEP if specs[0].interactive else max(job.next_step for job in jobs)
    return [
        e.StepCreated(job.id, job.generation, number, spec, laid_out) for job, spec, laid_out in zip(jobs, specs, nodes)
    ]


def _spanning(jobs: Sequence[Job], specs: Sequence[StepSpec], nodes: Sequence[tuple[StepNode, ...]]) -> list[StepSpec]:
    """The specifications, each with the whole step and where its own part begins."""
    assert jobs[0].het_job_id is not None
    begins = list(accumulate((len(part) for part in nodes), initial=0))
    counts = [sum(len(node.task_ids) for node in part) for part in nodes]
    node_of_task: list[int] = []
    for part, first in zip(nodes, begins):
        places = {task: first + place for place, node in enumerate(part) for task in node.task_ids}
        node_of_task += [places[task] for task in range(len(places))]
    held = tuple((share.node, share.cpus) for job in jobs if job.allocation for share in job.allocation.shares)
    names = tuple(node.node for part in nodes for node in part)
    return [
        replace(
            spec,
            het=HetStep(
                leader=jobs[0].het_job_id,
                first_task=first_task,
                first_node=first_node,
                nodes=names,
                node_of_task=tuple(node_of_task),
                held=held,
            ),
        )
        for spec, first_task, first_node in zip(specs, accumulate(counts, initial=0), begins)
    ]


def _laid_out(job: Job, spec: StepSpec) -> tuple[StepNode, ...]:
    assert isinstance(job.phase, Running)
    spec = _asked_of_whole_nodes(job, spec)
    shares = _eligible_shares(job, spec)
    ntasks, nodes = _size(job, spec, shares)
    _check_memory(spec, shares)
    left = {share.node: _left_on(job, share, spec.overlap) for share in shares}
    chosen = _in_job_order(job, _choose(spec, shares, left, ntasks, nodes))
    return _lay_out(spec, chosen, left, ntasks, _uses_exact(spec))


def _asked_of_whole_nodes(job: Job, spec: StepSpec) -> StepSpec:
    """A step that names no GRES has what its job asked for, which of a job with whole nodes is less than it holds.

    What was asked for by sockets alone is all that these nodes have, as in Slurm.
    """
    assert job.allocation is not None
    if not job.allocation.whole_nodes or spec.gres_per_node is not None or spec.gres_per_task or spec.gres_per_step:
        return spec
    asked = job.spec.resources
    if not _names(asked.gres_per_socket) <= _names(asked.gres_per_node):
        return spec
    by_node = asked.gres_per_node
    if asked.gres_per_job and not _names(asked.gres_per_job) & _names(by_node):
        held = sum(share.gres_count(asked.gres_per_job[0].name) for share in job.allocation.shares)
        wanted = tuple(replace(gres, count=min(gres.count, held)) for gres in asked.gres_per_job)
        return replace(spec, gres_per_node=by_node, gres_per_step=wanted)
    return replace(spec, gres_per_node=by_node)


def _names(requests: Sequence[GresRequest]) -> set[str]:
    return {request.name for request in requests}


def _running_job(state: State, caller: Caller, target: Target) -> Job:
    job = find(state, target)[0]
    if not caller.may_change(job.spec.owner.uid):
        raise Refusal(Why.ACCESS_DENIED)
    if isinstance(job.phase, Suspended):
        raise Refusal(Why.JOB_SUSPENDED)
    if isinstance(job.phase, Pending | Starting):
        raise Refusal(Why.JOB_PENDING)
    if not isinstance(job.phase, Running):
        raise Refusal(Why.ALREADY_DONE)
    return job


def _uses_exact(spec: StepSpec) -> bool:
    return spec.exact or spec.exclusive or spec.cpus_per_task is not None or bool(spec.cpus_per_gpu)


def _eligible_shares(job: Job, spec: StepSpec) -> list[NodeShare]:
    assert job.allocation is not None
    shares = [share for share in job.allocation.shares if share.node not in spec.exclude]
    if spec.relative is not None:
        shares = list(job.allocation.shares[spec.relative :])
    if spec.nodelist:
        held = {share.node for share in job.allocation.shares}
        strange = [name for name in spec.nodelist if name not in held]
        if strange:
            raise Refusal(Why.NODE_CONFIG_UNAVAILABLE, f"job {job.label} does not hold node {strange[0]}")
        wanted = [job.allocation.share_on(name) for name in dict.fromkeys(spec.nodelist)]
        more = [share for share in shares if share.node not in spec.nodelist]
        shares = wanted + more
    if not shares:
        raise Refusal(Why.INVALID_NODE_COUNT)
    return shares


def _size(job: Job, spec: StepSpec, shares: Sequence[NodeShare]) -> tuple[int, int]:
    """(tasks, nodes) of the step, from what was asked and what the job has."""
    most = len(shares)
    if spec.nodes_min is not None and spec.nodes_min > most:
        raise Refusal(Why.INVALID_NODE_COUNT, f"{spec.nodes_min} nodes asked, job {job.label} has {most}")
    nodes = spec.nodes_min if spec.nodes_min is not None else _nodes_by_default(spec, shares)
    ntasks = spec.ntasks
    if ntasks is None and spec.ntasks_per_node:
        ntasks = nodes * spec.ntasks_per_node
    if ntasks is None and spec.ntasks_per_gpu:
        ntasks = spec.ntasks_per_gpu * sum(share.gres_count("gpu") for share in shares[:nodes])
    if ntasks is None:
        ntasks = nodes
    if ntasks < 1:
        raise Refusal(Why.BAD_TASK_COUNT)
    return ntasks, min(nodes, ntasks)


def _check_memory(spec: StepSpec, shares: Sequence[NodeShare]) -> None:
    """Steps share the job's memory; none may ask for more than all of it."""
    most = max(share.memory_mib for share in shares)
    asked = spec.memory_per_node_mib or (spec.memory_per_cpu_mib or 0) * (spec.cpus_per_task or 1)
    if most and asked > most:
        raise Refusal(Why.INVALID_TASK_MEMORY, f"{asked} MiB asked on a node, the job has {most} MiB there")


def _nodes_by_default(spec: StepSpec, shares: Sequence[NodeShare]) -> int:
    if spec.nodelist:
        return len(dict.fromkeys(spec.nodelist))
    if spec.ntasks is not None and spec.ntasks_per_node:
        return min(len(shares), -(-spec.ntasks // spec.ntasks_per_node))
    if spec.ntasks is not None:
        return _nodes_that_hold(spec, shares)
    return len(shares)


def _nodes_that_hold(spec: StepSpec, shares: Sequence[NodeShare]) -> int:
    """`srun -n4` without -N takes as many of the job's nodes as the tasks need CPUs of."""
    assert spec.ntasks is not None
    left = spec.ntasks
    for used, share in enumerate(shares, start=1):
        left -= max(1, share.cpus // (spec.cpus_per_task or 1))
        if left <= 0:
            return used
    return len(shares)


def _left_on(job: Job, share: NodeShare, overlap: bool) -> _Left:
    cpus = set(share.cpu_ids)
    devices = {(gres.name, gres.type): set(gres.indices) for gres in share.gres if gres.indices}
    counts = {(gres.name, gres.type): gres.count for gres in share.gres if not gres.indices}
    for step in job.steps.values() if not overlap else ():
        if step.state is StepState.ENDED or step.spec.overlap:
            continue
        for part in step.nodes:
            if part.node == share.node:
                cpus -= set(part.cpu_ids)
                for gres in part.gres:
                    key = (gres.name, gres.type)
                    if gres.indices:
                        devices[key] = devices.get(key, set()) - set(gres.indices)
                    elif key in counts:
                        counts[key] -= gres.count
    return _Left(share, sorted(cpus), {key: sorted(free) for key, free in devices.items()}, counts)


def _choose(
    spec: StepSpec, shares: Sequence[NodeShare], left: dict[str, _Left], ntasks: int, nodes: int
) -> list[NodeShare]:
    """The step's nodes: those with enough left for their part, required ones always."""
    per_task = spec.cpus_per_task or 1
    per_node = spec.ntasks_per_node or -(-ntasks // nodes)
    able = [share for share in shares if _enough(spec, left[share.node], 1, per_task)]
    if spec.nodelist and any(share.node in spec.nodelist and share not in able for share in shares):
        raise _busy_or_impossible(spec, shares, per_task, ntasks, nodes)
    roomy = [share for share in able if _enough(spec, left[share.node], per_node, per_task)]
    chosen = roomy[:nodes] if len(roomy) >= nodes else able[:nodes]
    room = sum(_tasks_left(spec, left[share.node], per_task) for share in chosen)
    if len(chosen) < nodes or (room < ntasks and not (spec.overcommit or spec.overlap)):
        raise _busy_or_impossible(spec, shares, per_task, ntasks, nodes)
    return chosen


def _in_job_order(job: Job, chosen: list[NodeShare]) -> list[NodeShare]:
    assert job.allocation is not None
    order = {share.node: position for position, share in enumerate(job.allocation.shares)}
    return sorted(chosen, key=lambda share: order[share.node])


def _busy_or_impossible(spec: StepSpec, shares: Sequence[NodeShare], per_task: int, ntasks: int, nodes: int) -> Refusal:
    """Busy if it would fit into the job with no other step running; impossible if even that does not help."""
    whole = [_Left(s, list(s.cpu_ids), _devices_of(s), _counts_of(s)) for s in shares]
    able = [left for left in whole if _enough(spec, left, 1, per_task)]
    if len(able) >= nodes and sum(_tasks_left(spec, left, per_task) for left in able) >= ntasks:
        return Refusal(Why.NODES_BUSY)
    gres = (*(spec.gres_per_node or ()), *spec.gres_per_task, *spec.gres_per_step)
    if any(not share.gres_count(one.name) for one in gres for share in shares):
        return Refusal(Why.INVALID_GRES, remark="Step requested GRES but job doesn't have GRES")
    if sum(share.cpus for share in shares) < ntasks * per_task:
        return Refusal(Why.TOO_MANY_REQUESTED_CPUS)
    return Refusal(Why.NODE_CONFIG_UNAVAILABLE)


def _devices_of(share: NodeShare) -> dict[tuple[str, str | None], list[int]]:
    return {(gres.name, gres.type): list(gres.indices) for gres in share.gres if gres.indices}


def _counts_of(share: NodeShare) -> dict[tuple[str, str | None], int]:
    return {(gres.name, gres.type): gres.count for gres in share.gres if not gres.indices}


def _enough(spec: StepSpec, left: _Left, tasks: int, per_task: int) -> bool:
    if not _uses_exact(spec) and not spec.overlap and len(left.cpus) < len(left.share.cpu_ids):
        return False  # a step without --exact wants the job's whole share of the node
    if not spec.overcommit and not spec.overlap and len(left.cpus) < tasks * per_task:
        return False
    if not left.cpus and not spec.overlap:
        return False
    return all(left.gres(g.name, g.type) >= g.count for g in spec.gres_per_node or ()) and all(
        left.gres(g.name, g.type) >= g.count * tasks for g in spec.gres_per_task
    )


def _tasks_by_gres(spec: StepSpec, left: _Left, most: int) -> int:
    """How many tasks have their own GRES on a node; `most` where they ask for none."""
    return min((left.gres(g.name, g.type) // g.count for g in spec.gres_per_task if g.count), default=most)


def _tasks_left(spec: StepSpec, left: _Left, per_task: int) -> int:
    rooms = [len(left.cpus) // per_task]
    rooms += [left.gres(g.name, g.type) // g.count for g in spec.gres_per_task if g.count]
    if spec.ntasks_per_node:
        rooms.append(spec.ntasks_per_node)
    return min(rooms)


def _lay_out(
    spec: StepSpec, chosen: Sequence[NodeShare], left: dict[str, _Left], ntasks: int, exact: bool
) -> tuple[StepNode, ...]:
    per_task = spec.cpus_per_task or 1
    names = [share.node for share in chosen]
    cpus = [
        max(per_task, min(len(left[name].cpus), _tasks_by_gres(spec, left[name], ntasks) * per_task)) for name in names
    ]
    try:
        tasks = layout(
            ntasks, cpus, per_task, spec.distribution, spec.ntasks_per_node, nodes=names, hosts=spec.arbitrary_hosts
        )
    except LayoutError as error:
        raise Refusal(Why.BAD_DISTRIBUTION, str(error)) from None
    step_gres = _split_step_gres(spec, chosen, left)
    return tuple(
        _step_node(spec, left[name], tuple(ids), per_task, exact, gres)
        for name, ids, gres in zip(names, tasks, step_gres)
    )


def _split_step_gres(
    spec: StepSpec, chosen: Sequence[NodeShare], left: dict[str, _Left]
) -> list[tuple[GresRequest, ...]]:
    """`srun --gpus=N` counts over the step: taken node by node, with one left for each of the others."""
    result: list[list[GresRequest]] = [[] for _ in chosen]
    for gres in spec.gres_per_step:
        wanted = gres.count
        for position, share in enumerate(chosen):
            others = len(chosen) - position - 1
            take = min(max(wanted - others, min(wanted, 1)), left[share.node].gres(gres.name, gres.type))
            if take:
                result[position].append(GresRequest(gres.name, gres.type, take))
            wanted -= take
        if wanted:
            held = sum(share.gres_count(gres.name) for share in chosen)
            raise Refusal(Why.NODES_BUSY if held >= gres.count else Why.INVALID_GRES)
    return [tuple(requests) for requests in result]


def _step_node(
    spec: StepSpec,
    left: _Left,
    task_ids: tuple[int, ...],
    per_task: int,
    exact: bool,
    from_step: tuple[GresRequest, ...],
) -> StepNode:
    gpus = sum(request.count for request in from_step if request.name == "gpu")
    need = max(1, len(task_ids) * per_task, gpus * (spec.cpus_per_gpu or 0))
    cpu_ids = tuple(left.cpus[:need] if exact else left.cpus) or left.share.cpu_ids
    per_task_gres = tuple(GresRequest(g.name, g.type, g.count * len(task_ids)) for g in spec.gres_per_task)
    wanted = (*(spec.gres_per_node or ()), *from_step, *per_task_gres)
    everything = spec.gres_per_node is None and not spec.gres_per_step and not wanted
    gres = _everything_left(left) if everything else _take(left, wanted)
    memory = spec.memory_per_node_mib
    if memory is None and spec.memory_per_cpu_mib is not None:
        memory = spec.memory_per_cpu_mib * len(cpu_ids)
    return StepNode(
        node=left.share.node,
        task_ids=task_ids,
        cpus=len(cpu_ids),
        memory_mib=left.share.memory_mib if not memory else min(memory, left.share.memory_mib or memory),
        cpu_ids=cpu_ids,
        gres=gres,
        task_gres=_bind(spec, gres, len(task_ids)),
    )


def _everything_left(left: _Left) -> tuple[GresShare, ...]:
    shares = [GresShare(*key, len(free), tuple(free)) for key, free in left.devices.items() if free]
    shares += [
        GresShare(*key, count, (), _parts_held(left.share, key, count))
        for key, count in left.counts.items()
        if count > 0
    ]
    return tuple(shares)


def _parts_held(share: NodeShare, key: tuple[str, str | None], count: int) -> tuple[tuple[int, int], ...]:
    """Of which GPUs the step gets parts: the job's first ones. Steps of one job may meet on a GPU of that job."""
    parts: list[tuple[int, int]] = []
    for gpu, held in (part for gres in share.gres if (gres.name, gres.type) == key for part in gres.parts):
        if count > 0:
            parts.append((gpu, min(held, count)))
            count -= held
    return tuple(parts)


def _take(left: _Left, wanted: Sequence[GresRequest]) -> tuple[GresShare, ...]:
    free = {key: list(indices) for key, indices in left.devices.items()}
    counts = dict(left.counts)
    taken: list[GresShare] = []
    for request in sorted(wanted, key=lambda r: r.type is None):
        missing = request.count
        for key in free:
            if missing and key[0] == request.name and request.type in (None, key[1]):
                indices, free[key] = free[key][:missing], free[key][missing:]
                if indices:
                    taken.append(GresShare(*key, len(indices), tuple(indices)))
                missing -= len(indices)
        for key in counts:
            if missing and key[0] == request.name and request.type in (None, key[1]):
                amount = min(missing, counts[key])
                counts[key] -= amount
                taken.append(GresShare(*key, amount, (), _parts_held(left.share, key, amount)))
                missing -= amount
        if missing:
            raise Refusal(Why.NODES_BUSY)
    return tuple(taken)


def _bind(spec: StepSpec, gres: Sequence[GresShare], tasks: int) -> Bound:
    held = sorted(index for share in gres if share.name == "gpu" for index in share.indices)
    per_task = sum(request.count for request in spec.gres_per_task if request.name == "gpu")
    return bind_gpus(spec.gpu_bind, held, tasks, per_task, spec.ntasks_per_gpu or 0)
