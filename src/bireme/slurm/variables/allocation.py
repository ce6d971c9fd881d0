"""Variables of an allocation: a batch script's whole set, salloc's, and what both share.

Who calls it: the engine when it launches a job, the API for salloc. Not the tasks of steps (`steps`).
Invariant: a variable is set exactly when Slurm sets it; counts of several nodes are compressed (`2(x3),1`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bireme.core.model.jobs import ArrayTask, Job, JobSpec, ResourceRequest
from bireme.core.model.resources import Allocation, GresRequest, GresShare, NodeShare
from bireme.core.model.serving.probes import ReplicaOf
from bireme.slurm.counts import compress_counts
from bireme.slurm.dependencies import format_dependencies
from bireme.slurm.hostlist import compress
from bireme.slurm.variables.cluster import GPU_VARIABLES, ClusterFacts

Variables = dict[str, str]
CHECKPOINT = "BIREME_CHECKPOINT"
"""Where a start is to go on from: the newest whole checkpoint of the starts before it."""
Component = tuple[Job, Allocation]
"""A component of a heterogeneous job with what it holds."""


def batch_variables(
    job: Job,
    allocation: Allocation,
    facts: ClusterFacts,
    *,
    started_at: float | None = None,
    components: Sequence[Component] = (),
    confined: bool = False,
) -> Variables:
    """All of a batch script's variables but SLURM_TASK_PID, which only the agent knows.

    `components`: all of a heterogeneous job, the leader first. `confined`: the node shows a job only its own devices,
    which are then numbered from 0.
    """
    share = allocation.shares[0]
    variables = allocation_variables(job, allocation, facts)
    variables.update(memory_variables(job.spec.resources, facts.default_memory.get(allocation.partition)))
    variables.update(owner_variables(job.spec))
    variables.update(
        ENVIRONMENT="BATCH",
        HOSTNAME=share.node,
        SLURM_CPUS_ON_NODE=str(usable_cpus(job.spec.resources, share, facts)),
        SLURM_GTIDS="0",
        SLURM_JOB_EXCLUSIVE="NODE" if job.spec.resources.exclusive else "NO",
        SLURM_JOB_OVERSUBSCRIBE="YES" if job.spec.resources.oversubscribe else "NO",
        SLURM_LOCALID="0",
        SLURM_NODEID="0",
        SLURM_PRIO_PROCESS=str(job.spec.process_nice),
        SLURM_PROCID="0",
        TMPDIR="/tmp",
    )
    variables.setdefault("SLURM_OOM_KILL_STEP", "0")
    variables.update(node_variables(share.node, facts))
    variables.update(gpu_variables(share, facts, "SLURM_JOB_GPUS", confined=confined))
    if job.restarts:
        variables["SLURM_RESTART_COUNT"] = str(job.restarts)
    if job.checkpoint is not None:
        variables[CHECKPOINT] = job.checkpoint.path
    if started_at is not None:
        variables.update(time_variables(job.spec, started_at))
    if components:
        variables.update(het_variables(components, facts))
    return variables


def salloc_variables(
    job: Job, allocation: Allocation, facts: ClusterFacts, *, components: Sequence[Component] = ()
) -> Variables:
    """For the command salloc runs on the caller's machine: no node's own variables, no defaults it did not ask for."""
    variables = allocation_variables(job, allocation, facts)
    variables.update(memory_variables(job.spec.resources, None))
    if components:
        variables.update(het_variables(components, facts))
    return variables


def allocation_variables(job: Job, allocation: Allocation, facts: ClusterFacts) -> Variables:
    """What is true of the allocation wherever one stands in it."""
    spec = job.spec
    shares = allocation.shares
    node_list = shares[0].node if len(shares) == 1 else compress(share.node for share in shares)
    node_count = str(len(shares))
    job_id = str(job.id)
    cpus = [usable_cpus(spec.resources, share, facts) for share in shares]
    variables = {
        "SLURM_CLUSTER_NAME": facts.name,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_CPUS_PER_NODE": compress_counts(cpus),
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_NODELIST": node_list,
        "SLURM_JOB_NUM_NODES": node_count,
        "SLURM_JOB_PARTITION": allocation.partition,
        "SLURM_NNODES": node_count,
        "SLURM_NODELIST": node_list,
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_SUBMIT_DIR": spec.submit_dir or spec.work_dir,
        "SLURM_SUBMIT_HOST": spec.submit_host,
        "SLURM_TASKS_PER_NODE": compress_counts(_tasks_per_node(spec.resources, shares, cpus)),
    }
    variables.update(request_variables(spec, shares))
    if isinstance(job.array, ArrayTask):
        variables.update(array_variables(job.array))
    if spec.replica is not None:
        variables.update(replica_variables(spec.replica))
    return variables


def replica_variables(replica: ReplicaOf) -> Variables:
    """What a replica of a service knows of itself: no Slurm has these."""
    return {
        "PORT": str(replica.port),
        "BIREME_SERVICE": replica.service,
        "BIREME_REVISION": str(replica.revision),
        "BIREME_REPLICA": str(replica.number),
    }


def cpus_per_node(job: Job, allocation: Allocation, facts: ClusterFacts) -> str:
    """The job's CPUs on each node: `4(x2),2`."""
    return compress_counts([usable_cpus(job.spec.resources, share, facts) for share in allocation.shares])


def usable_cpus(request: ResourceRequest, share: NodeShare, facts: ClusterFacts) -> int:
    """The job's CPUs on a node, without the threads that `--threads-per-core` leaves idle."""
    threads = facts.threads.get(share.node, 1)
    used = request.threads_per_core or threads
    return share.cpus // threads * used if used < threads else share.cpus


def _tasks_per_node(request: ResourceRequest, shares: Sequence[NodeShare], cpus: Sequence[int]) -> list[int]:
    """Where no number of tasks was asked for: as many as the CPUs would hold."""
    if task_count(request, shares) is not None:
        return [share.tasks for share in shares]
    return [max(1, count // (request.cpus_per_task or 1)) for count in cpus]


def owner_variables(spec: JobSpec) -> Variables:
    return {
        "SLURM_JOB_GID": str(spec.owner.gid),
        "SLURM_JOB_UID": str(spec.owner.uid),
        "SLURM_JOB_USER": spec.owner.user,
    }


def node_variables(node: str, facts: ClusterFacts) -> Variables:
    address, pattern = facts.topology.get(node, (node, "node"))
    return {
        "SLURMD_NODENAME": node,
        "SLURM_TOPOLOGY_ADDR": address,
        "SLURM_TOPOLOGY_ADDR_PATTERN": pattern,
    }


def array_variables(array: ArrayTask) -> Variables:
    return {
        "SLURM_ARRAY_JOB_ID": str(array.array_job_id),
        "SLURM_ARRAY_TASK_COUNT": str(array.task_count),
        "SLURM_ARRAY_TASK_ID": str(array.task_id),
        "SLURM_ARRAY_TASK_MAX": str(array.task_max),
        "SLURM_ARRAY_TASK_MIN": str(array.task_min),
        "SLURM_ARRAY_TASK_STEP": str(array.task_step),
    }


def time_variables(spec: JobSpec, started_at: float) -> Variables:
    """SLURM_JOB_END_TIME is when the time limit is reached; a job without a limit has none."""
    variables = {"SLURM_JOB_START_TIME": str(int(started_at))}
    if spec.time_limit_s is not None:
        variables["SLURM_JOB_END_TIME"] = str(int(started_at) + spec.time_limit_s)
    return variables


def memory_variables(request: ResourceRequest, default: tuple[int | None, int | None] | None) -> Variables:
    """One of SLURM_MEM_PER_GPU, _CPU, _NODE: as asked, else the default. All of a node (`--mem=0`) has none."""
    if request.memory_per_gpu_mib is not None:
        return {"SLURM_MEM_PER_GPU": str(request.memory_per_gpu_mib)}
    per_cpu, per_node = request.memory_per_cpu_mib, request.memory_per_node_mib
    if per_cpu is None and per_node is None and default is not None:
        per_cpu, per_node = default
    if per_cpu:
        return {"SLURM_MEM_PER_CPU": str(per_cpu)}
    return {"SLURM_MEM_PER_NODE": str(per_node)} if per_node else {}


def request_variables(spec: JobSpec, shares: Sequence[NodeShare]) -> Variables:
    """What was asked for, as srun inside the job reads it. Unasked: not set."""
    request = spec.resources
    asked: dict[str, int | str | None] = {
        "SLURM_CPUS_PER_GPU": request.cpus_per_gpu,
        "SLURM_CPUS_PER_TASK": request.cpus_per_task,
        "SLURM_NTASKS_PER_CORE": request.ntasks_per_core,
        "SLURM_NTASKS_PER_GPU": request.ntasks_per_gpu,
        "SLURM_NTASKS_PER_NODE": request.ntasks_per_node,
        "SLURM_NTASKS_PER_SOCKET": request.ntasks_per_socket,
        "SLURM_THREADS_PER_CORE": request.threads_per_core,
        "SLURM_JOB_ACCOUNT": spec.account or None,
        "SLURM_JOB_QOS": spec.qos or None,
        "SLURM_JOB_RESERVATION": spec.reservation or None,
        "SLURM_CONTAINER": spec.container_image or spec.container_bundle or None,
        "SLURM_GPUS": _gpus(request.gres_per_job),
        "SLURM_GPUS_PER_TASK": _gpus(request.gres_per_task),
        "SLURM_GPUS_PER_SOCKET": _gpus(request.gres_per_socket),
        "SLURM_TRES_PER_TASK": tres_per_task(request.cpus_per_task, request.gres_per_task),
        "SLURM_TRES_BIND": tres_bind(dict(spec.step_defaults).get("SLURM_GPU_BIND", ""), request.gres_per_task),
        "SLURM_NTASKS": task_count(request, shares),
    }
    variables = {name: str(value) for name, value in asked.items() if value is not None}
    if "SLURM_NTASKS" in variables:
        variables["SLURM_NPROCS"] = variables["SLURM_NTASKS"]
    if spec.dependencies.items:
        variables["SLURM_JOB_DEPENDENCY"] = format_dependencies(spec.dependencies).replace("(unfulfilled)", "")
    if request.overcommit:
        variables["SLURM_OVERCOMMIT"] = "1"
    if request.hint == "nomultithread":
        variables.setdefault("SLURM_THREADS_PER_CORE", "1")
    if spec.step_defaults:
        variables.update(_step_defaults(spec))
    return variables


def task_count(request: ResourceRequest, shares: Iterable[NodeShare]) -> int | None:
    """SLURM_NTASKS: only when tasks were asked for, by number, per node or per GPU."""
    if request.ntasks is not None:
        return request.ntasks
    if request.ntasks_per_node is not None or request.ntasks_per_gpu is not None:
        return sum(share.tasks for share in shares)
    return None


def gpu_variables(share: NodeShare, facts: ClusterFacts, ids_variable: str, *, confined: bool = False) -> Variables:
    """The job's GPUs on a node: how many, which (`ids_variable`, numbers of the node), and what programs look at."""
    count = share.gres_count("gpu")
    variables = part_variables(share.gres, share.node, facts)
    if count:
        variables["SLURM_GPUS_ON_NODE"] = str(count)
    variables.update(device_variables(share.gpus_seen(), share.node, facts, ids_variable, confined=confined))
    return variables


def part_variables(gres: Sequence[GresShare], node: str, facts: ClusterFacts) -> Variables:
    """Of parts of GPUs: how many shards, and how much of a GPU's threads MPS lets the job use, in percent."""
    variables: Variables = {}
    shards = sum(share.count for share in gres if share.name == "shard")
    if shards:
        variables["SLURM_SHARDS_ON_NODE"] = str(shards)
    mps = [part for share in gres if share.name == "mps" for part in share.parts]
    if mps:
        whole = facts.mps_parts.get(node, {})
        percentage = min(count * 100 // whole.get(gpu, 100) for gpu, count in mps)
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, percentage))
    return variables


def device_variables(
    indices: Sequence[int], node: str, facts: ClusterFacts, ids_variable: str, *, confined: bool = False
) -> Variables:
    if not indices:
        return {}
    ids = ",".join(map(str, indices))
    names = facts.gpu_names.get(node, {})
    shown = ",".join(dict.fromkeys(names.get(index, str(index)) for index in indices))
    visible = ",".join(map(str, range(len(indices)))) if confined and "MIG-" not in shown else shown
    variables = dict.fromkeys(facts.gpu_variables.get(node, GPU_VARIABLES), visible)
    variables[ids_variable] = ids
    return variables


HET_VARIABLES = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_QOS",
    "SLURM_JOB_RESERVATION",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_TASKS_PER_NODE",
    "SLURM_THREADS_PER_CORE",
    "SLURM_TRES_PER_TASK",
)
"""The variables that a heterogeneous job has once for each component, under Slurm's name for one and its older one."""
_GROUP_NAMES = ("HET_GROUP", "PACK_GROUP")


def het_variables(components: Sequence[Component], facts: ClusterFacts) -> Variables:
    variables = {"SLURM_HET_SIZE": str(len(components)), "SLURM_PACK_SIZE": str(len(components))}
    for group, (job, allocation) in enumerate(components):
        own = allocation_variables(job, allocation, facts)
        own.update(memory_variables(job.spec.resources, facts.default_memory.get(allocation.partition)))
        for word in _GROUP_NAMES:
            variables.update({f"{name}_{word}_{group}": own[name] for name in HET_VARIABLES if name in own})
    return variables


def _gpus(requests: Sequence[GresRequest]) -> str | None:
    """`5` or `a100:5`, as --gpus takes it; None when no GPU was asked for this way."""
    gpus = [request for request in requests if request.name == "gpu"]
    return ",".join(f"{gpu.type}:{gpu.count}" if gpu.type else str(gpu.count) for gpu in gpus) or None


def tres_per_task(cpus: int | None, gres: Sequence[GresRequest]) -> str | None:
    """`cpu=2,gres/gpu:a100=1`, which newer releases set beside SLURM_CPUS_PER_TASK and SLURM_GPUS_PER_TASK."""
    each = [f"gres/{one.name}{f':{one.type}' if one.type else ''}={one.count}" for one in gres]
    return ",".join([*([f"cpu={cpus}"] if cpus else []), *each]) or None


def tres_bind(asked: str, per_task: Sequence[GresRequest]) -> str | None:
    """How GPUs are tied to tasks, in the newer releases' words: as asked, else so many to each task."""
    gpus = sum(request.count for request in per_task if request.name == "gpu")
    how = asked or (f"per_task:{gpus}" if gpus else "")
    return f"gres/gpu:{how}" if how else None


def _step_defaults(spec: JobSpec) -> Variables:
    """Options for srun inside the job, in the form each variable has."""
    variables: Variables = {}
    for name, value in spec.step_defaults:
        if name == "SLURM_DISTRIBUTION" and value.lower().startswith("plane="):
            variables["SLURM_DISTRIBUTION"] = "plane"
            variables["SLURM_DIST_PLANESIZE"] = value.partition("=")[2]
        elif name == "SLURM_MEM_BIND":
            variables.update(memory_bind_variables(value))
        elif name == "SLURM_PROFILE":
            variables[name] = _profile(value)
        else:
            variables[name] = value
    return variables


def _profile(value: str) -> str:
    words = {word.strip().capitalize() for word in value.split(",")}
    known = ("Energy", "Lustre", "Network", "Task")
    return ",".join(known if "All" in words else sorted(words))


def cpu_bind_variables(value: str) -> Variables:
    """SLURM_CPU_BIND with its parts: `verbose,map_cpu:0,1` is verbosity, type and list."""
    verbosity, binding = _verbosity(value)
    kind, colon, listed = binding.partition(":")
    return {
        "SLURM_CPU_BIND": f"{verbosity},{binding}",
        "SLURM_CPU_BIND_VERBOSE": verbosity,
        "SLURM_CPU_BIND_TYPE": f"{kind}{colon}",
        "SLURM_CPU_BIND_LIST": listed,
    }


def memory_bind_variables(value: str) -> Variables:
    """SLURM_MEM_BIND is the binding alone; the rest is there when it was asked for."""
    verbosity, binding = _verbosity(value)
    words = binding.split(",")
    prefer = [word for word in words if word.lower() in ("p", "prefer")]
    binding = ",".join(word for word in words if word not in prefer)
    variables = {"SLURM_MEM_BIND": binding, "SLURM_MEM_BIND_VERBOSE": verbosity}
    if prefer:
        variables["SLURM_MEM_BIND_PREFER"] = "prefer"
    kind, colon, listed = binding.partition(":")
    if colon:
        variables.update(SLURM_MEM_BIND_TYPE=f"{kind}:", SLURM_MEM_BIND_LIST=listed)
    return variables


def _verbosity(value: str) -> tuple[str, str]:
    """(quiet or verbose, the rest): `v,cores` is verbose."""
    first, _, rest = value.partition(",")
    word = {"v": "verbose", "verbose": "verbose", "q": "quiet", "quiet": "quiet"}.get(first.lower())
    return (word, rest) if word else ("quiet", value)


def merged_environment(user: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment a batch script runs with: the user's, then Slurm's. TMPDIR is only a default.

    An environment that was captured inside another job carries that job's variables. Those that this job would set
    itself but does not are not true of it and are left out; so are GPUs it does not have.
    """
    merged = dict(user)
    if "SLURM_JOB_ID" in merged:
        for name in [name for name in merged if _belongs_to_a_job(name)]:
            del merged[name]
    for name in GPU_VARIABLES:
        merged.pop(name, None)
    merged.update(variables)
    if "TMPDIR" in user:
        merged["TMPDIR"] = user["TMPDIR"]
    return merged


_OF_A_JOB = frozenset(HET_VARIABLES) | {
    CHECKPOINT,
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GTIDS",
    "SLURM_HET_SIZE",
    "SLURM_JOBID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NODELIST",
    "SLURM_OVERCOMMIT",
    "SLURM_PACK_SIZE",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_SHARDS_ON_NODE",
    "SLURM_TASK_PID",
    "SRUN_DEBUG",
}
_PREFIXES_OF_A_JOB = ("SLURM_ARRAY_", "SLURM_STEP", "SLURM_JOB_", "SLURM_SRUN_COMM_")


def _belongs_to_a_job(name: str) -> bool:
    in_a_group = any(f"_{word}_" in name for word in _GROUP_NAMES)
    return name in _OF_A_JOB or name.startswith(_PREFIXES_OF_A_JOB) or in_a_group
