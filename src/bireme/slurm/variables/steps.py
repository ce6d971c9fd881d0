"""Variables of a step's tasks: what all its tasks share, and what each has of its own.

Called by the engine for `srun`, inside a job (on top of the caller's environment) or as an allocation of its own.
Invariant: task ids, node ids and local ids are those of the step's layout; the node list is in the step's order.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bireme.core.model.distribution import DEFAULT_DISTRIBUTION, Distribution, NodeMethod
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation, gpus_seen
from bireme.core.model.steps import HetStep, Step, StepNode, StepSpec
from bireme.slurm.counts import compress_counts
from bireme.slurm.distribution import format_distribution
from bireme.slurm.hostlist import compress
from bireme.slurm.variables.allocation import (
    Variables,
    allocation_variables,
    cpu_bind_variables,
    cpus_per_node,
    device_variables,
    memory_bind_variables,
    node_variables,
    owner_variables,
    part_variables,
    tres_bind,
    tres_per_task,
)
from bireme.slurm.variables.cluster import GPU_VARIABLES, ClusterFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where srun runs and how it is reached."""

    host: str = "127.0.0.1"
    port: int = 0
    debug_level: int = 3
    own_allocation: bool = False
    """srun made the allocation itself: the allocation's variables are not in its environment yet."""


def step_variables(job: Job, allocation: Allocation, step: Step, facts: ClusterFacts, launch: Launch) -> Variables:
    """Variables of all tasks of the step; in a heterogeneous job, of its parts in all components."""
    spec, whole = step.spec, _Whole.of(step)
    node_list = compress(whole.nodes)
    tasks_per_node = compress_counts(whole.tasks_per_node)
    ntasks, node_count = str(sum(whole.tasks_per_node)), str(len(whole.nodes))
    if launch.own_allocation:
        variables = allocation_variables(job, allocation, facts)
    else:
        variables = _identity(job, allocation, step, facts)
    variables.update(owner_variables(job.spec))
    variables.update(_in_components(spec.het) if spec.het else _in_one_job(job, allocation, facts))
    variables.update(
        SLURM_JOB_GROUP=job.spec.owner.group,
        SLURM_LAUNCH_NODE_IPADDR=launch.host,
        SLURM_NNODES=node_count,
        SLURM_NPROCS=ntasks,
        SLURM_NTASKS=ntasks,
        SLURM_PRIO_PROCESS=str(spec.process_nice),
        SLURM_SRUN_COMM_HOST=launch.host,
        SLURM_SRUN_COMM_PORT=str(launch.port),
        SLURM_STEPID=step.label,
        SLURM_STEP_ID=step.label,
        SLURM_STEP_LAUNCHER_PORT=str(launch.port),
        SLURM_STEP_NODELIST=node_list,
        SLURM_STEP_NUM_NODES=node_count,
        SLURM_STEP_NUM_TASKS=ntasks,
        SLURM_STEP_TASKS_PER_NODE=tasks_per_node,
        SLURM_TASKS_PER_NODE=tasks_per_node,
        SLURM_UMASK=f"{job.spec.umask if spec.umask is None else spec.umask:04o}",
        SRUN_DEBUG=str(launch.debug_level),
        TMPDIR="/tmp",
    )
    variables.update(_distribution(step.spec, whole, launch))
    variables.update(_asked(step))
    if launch.own_allocation:
        for name in _NOT_OF_OWN_ALLOCATION:
            variables.pop(name, None)
    return variables


def _cpus_on_node(node: StepNode, facts: ClusterFacts, held: int) -> int:
    """A step's CPUs on a node as Slurm counts them: whole cores, as far as they are its job's."""
    threads = facts.threads.get(node.node, 1)
    return max(node.cpus, min(-(-node.cpus // threads) * threads, held))


def task_variables(
    step: Step, node_index: int, local_id: int, facts: ClusterFacts, *, held: int = 0, confined: bool = False
) -> Variables:
    """What one task has of its own, but SLURM_TASK_PID, which only the agent knows. `held`: the job's CPUs there."""
    node = step.nodes[node_index]
    ranks = [step.first_task + task for task in node.task_ids]
    variables = {
        "SLURM_CPUS_ON_NODE": str(_cpus_on_node(node, facts, held)),
        "SLURM_GTIDS": ",".join(map(str, ranks)),
        "SLURM_LOCALID": str(local_id),
        "SLURM_NODEID": str(step.first_node + node_index),
        "SLURM_PROCID": str(ranks[local_id]),
    }
    variables.update(node_variables(node.node, facts))
    variables.update(_gpus(node, local_id, facts, confined))
    return variables


def fallback_variables(step: Step) -> Variables:
    """What srun's own environment says better, where it has it: a job's script has; a client that strips Slurm's
    variables from it (snakemake) has not."""
    return {
        "SLURM_JOB_NAME": step.spec.name,
        "SLURM_JOB_NODELIST": compress(node.node for node in step.nodes),
        "SLURM_OOM_KILL_STEP": "0",
    }


def merged_step_environment(
    inherited: Mapping[str, str], variables: Mapping[str, str], fallback: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A task's environment: what srun sends, then the step's. GPUs that the step does not have are not inherited."""
    merged = dict(fallback or {})
    merged.update((name, value) for name, value in inherited.items() if name not in _NOT_INHERITED)
    merged.update(variables)
    if "TMPDIR" in inherited:
        merged["TMPDIR"] = inherited["TMPDIR"]
    return merged


_NOT_OF_OWN_ALLOCATION = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_GPU_FREQ",
    "SLURM_HINT",
    "SLURM_NODE_ALIASES",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_PROFILE",
)
"""What sbatch and salloc tell an srun inside; an srun that allocates for itself knows it already."""
_NOT_INHERITED = frozenset({*GPU_VARIABLES, "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS"})


def _identity(job: Job, allocation: Allocation, step: Step, facts: ClusterFacts) -> Variables:
    variables = {
        "SLURM_CLUSTER_NAME": facts.name,
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_PARTITION": allocation.partition,
        "SLURM_NODELIST": compress(share.node for share in allocation.shares),
    }
    spec = step.spec
    if spec.name and spec.argv and spec.name != posixpath.basename(spec.argv[0]):  # srun -J
        variables["SLURM_JOB_NAME"] = spec.name
    return variables


@dataclass(frozen=True, slots=True)
class _Whole:
    """The nodes of the whole step, over all components that it lies in, and how many tasks each has."""

    nodes: Sequence[str]
    tasks_per_node: Sequence[int]

    @classmethod
    def of(cls, step: Step) -> _Whole:
        if step.spec.het:
            return cls(step.spec.het.nodes, step.spec.het.tasks_per_node)
        return cls([node.node for node in step.nodes], [len(node.task_ids) for node in step.nodes])


def _in_one_job(job: Job, allocation: Allocation, facts: ClusterFacts) -> Variables:
    return {"SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": cpus_per_node(job, allocation, facts)}


def _in_components(het: HetStep) -> Variables:
    """The tasks are in the leader's job; its nodes are those of the components that the step lies in."""
    nodes = compress(node for node, _ in het.held)
    return {
        "SLURM_JOBID": str(het.leader),
        "SLURM_JOB_CPUS_PER_NODE": compress_counts([cpus for _, cpus in het.held]),
        "SLURM_JOB_ID": str(het.leader),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(het.held)),
        "SLURM_NODELIST": nodes,
    }


def _distribution(spec: StepSpec, whole: _Whole, launch: Launch) -> Variables:
    """As asked. Unasked inside a job, srun settles it: cyclic with at most a task a node, else block."""
    asked: Distribution = spec.distribution
    if asked.nodes is NodeMethod.PLANE:
        return {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": str(asked.plane_size)}
    if asked != DEFAULT_DISTRIBUTION:
        return {"SLURM_DISTRIBUTION": format_distribution(asked).lower()}
    if launch.own_allocation and spec.memory_per_node_mib is None and spec.memory_per_cpu_mib is None:
        return {}
    return {"SLURM_DISTRIBUTION": "cyclic" if sum(whole.tasks_per_node) <= len(whole.nodes) else "block"}


def _asked(step: Step) -> Variables:
    """Variables that are there only because of an option of this srun."""
    spec = step.spec
    variables: Variables = {}
    if spec.cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(spec.cpus_per_task)
    if spec.label:
        variables["SLURM_LABELIO"] = "1"
    if spec.overcommit:
        variables["SLURM_OVERCOMMIT"] = "1"
    if spec.ntasks_per_gpu:
        variables["SLURM_NTASKS_PER_TRES"] = str(spec.ntasks_per_gpu)
    if asked := tres_per_task(spec.cpus_per_task, spec.gres_per_task):
        variables["SLURM_TRES_PER_TASK"] = asked
    if binding := tres_bind(spec.gpu_bind, spec.gres_per_task) or _shared_gpus(spec):
        variables["SLURM_TRES_BIND"] = binding
        variables["SLURMD_TRES_BIND"] = binding.removeprefix("gres/")
    if spec.cpu_bind:
        variables.update(cpu_bind_variables(spec.cpu_bind))
    if spec.mem_bind:
        variables.update(_memory_bind(spec.mem_bind))
    if spec.mpi != "none":
        variables["SLURM_MPI_TYPE"] = spec.mpi
    if spec.container_image or spec.container_bundle:
        variables["SLURM_CONTAINER"] = spec.container_image or spec.container_bundle
    return variables


def _shared_gpus(spec: StepSpec) -> str:
    """The binding that follows from --ntasks-per-gpu."""
    return f"gres/gpu:single:{spec.ntasks_per_gpu}" if spec.ntasks_per_gpu else ""


def _memory_bind(value: str) -> Variables:
    """A task sees all parts, the empty ones too; a batch script only those that were asked for."""
    variables = {"SLURM_MEM_BIND_TYPE": "", "SLURM_MEM_BIND_LIST": "", **memory_bind_variables(value)}
    binding = variables["SLURM_MEM_BIND"]
    if binding in ("quiet", "verbose"):
        binding = ""
    elif ":" not in binding:
        variables["SLURM_MEM_BIND_TYPE"] = binding
    parts = (variables["SLURM_MEM_BIND_VERBOSE"], variables.get("SLURM_MEM_BIND_PREFER", ""), binding)
    variables["SLURM_MEM_BIND"] = ",".join(part for part in parts if part)
    return variables


def _gpus(node: StepNode, local_id: int, facts: ClusterFacts, confined: bool) -> Variables:
    """All of the step's GPUs on the node, or those bound to this task."""
    count = sum(share.count for share in node.gres if share.name == "gpu")
    on_node = gpus_seen(node.gres)
    if not count and not on_node:
        return {}
    bound = node.task_gres[local_id] if local_id < len(node.task_gres) else on_node
    variables = part_variables(node.gres, node.node, facts)
    if count:
        variables["SLURM_GPUS_ON_NODE"] = str(count)
    variables.update(device_variables(bound, node.node, facts, "SLURM_STEP_GPUS"))
    named = any(name.startswith("MIG-") for name in facts.gpu_names.get(node.node, {}).values())
    if confined and bound and not named:
        # The node shows all of the step's devices to each of its tasks, numbered from 0.
        local = {index: position for position, index in enumerate(on_node)}
        visible = ",".join(str(local.get(index, index)) for index in bound)
        variables.update(dict.fromkeys(facts.gpu_variables.get(node.node, GPU_VARIABLES), visible))
    return variables
