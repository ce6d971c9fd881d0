"""What a job asks to hold: a `ResourceRequest` of what options give, with the numbers that follow from other numbers.

Used by `job` for sbatch, salloc and srun's own allocation; what each option gives is `given`. Slurm's rules for
combinations are here, each with Slurm's message; whether a cluster can satisfy the request is not asked.
"""

from __future__ import annotations

from math import prod

from bireme.core.model.jobs import ResourceRequest
from bireme.slurm.options.arbitrary import is_arbitrary, most_tasks_of_a_host
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.errors import fatal, refused
from bireme.slurm.options.given import Asked, fields_of_resources, gres_of
from bireme.slurm.options.gpus import INVALID_GRES, Derived, settle_gpus
from bireme.slurm.options.layers import Options
from bireme.slurm.options.values import NodeShape

_HINT_CLASH = (
    "Following options are mutually exclusive with --hint: --ntasks-per-core, --threads-per-core, -B and --cpu-bind "
    "(other then --cpu-bind=verbose). Ignoring --hint."
)


def resources_of(asked: Asked) -> Derived:
    """The request that these options make."""
    options = asked.options
    _refuse_contradictions(options)
    derived = Derived(ResourceRequest(**fields_of_resources(asked)))
    if said_twice(options):
        derived.warnings.append(SAID_TWICE)
    shared_with = options.text("exclusive", "exclusive")
    if shared_with != "exclusive":
        derived.warnings.append(f"--exclusive={shared_with}: the nodes are held for this job alone")
    _apply_shape(derived, options)
    _apply_arbitrary(derived, options)
    _apply_hint(derived, options)
    settle_gpus(derived)
    _fit_nodes_to_tasks(derived, options)
    return derived


SAID_TWICE = (
    "--gpus-per-node and --gres=gpu ask for the same GPUs, which are counted once; newer Slurm refuses the two together"
)


def said_twice(options: Options) -> bool:
    """Whether --gpus-per-node and --gres=gpu stand beside each other."""
    gres, gpus = gres_of(options, "gres"), gres_of(options, "gpus-per-node")
    return bool(gpus) and any(one.name == "gpu" for one in gres)


def _refuse_contradictions(options: Options) -> None:
    if "ntasks-per-gpu" in options:
        for other in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node"):
            if options.asked(other):
                raise fatal(f"--{other} is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU")
    if options.asked("cpus-per-gpu") and options.asked("cpus-per-task"):
        raise refused("--cpus-per-gpu is mutually exclusive with --cpus-per-task", INVALID_GRES)
    if "core-spec" in options and "thread-spec" in options:
        raise fatal("-S/--core-spec and --thred-spec options are mutually exclusive")


def _apply_shape(derived: Derived, options: Options) -> None:
    """The shape of nodes, which also says how many tasks when nothing else does: one for each part that was named."""
    shape = options.typed("extra-node-info", NodeShape)
    request = derived.request
    if shape is None:
        named = (request.sockets_per_node, request.cores_per_socket, request.threads_per_core)
        one_size = request.nodes_given and request.nodes_max in (None, request.nodes_min)
        if one_size and request.ntasks is None and request.ntasks_per_node is None and any(named):
            derived.change(ntasks=request.nodes_min * prod(part or 1 for part in named))
        return
    derived.change(
        sockets_per_node=shape.sockets or request.sockets_per_node,
        cores_per_socket=shape.cores or request.cores_per_socket,
        threads_per_core=shape.threads or request.threads_per_core,
    )
    if request.ntasks is None and shape.sockets:
        each = shape.sockets * (shape.cores or 1) * (shape.threads or 1)
        derived.change(ntasks=request.nodes_min * each)


def _apply_arbitrary(derived: Derived, options: Options) -> None:
    """Every node has CPUs for the most tasks that one of the named hosts gets; srun's own job has all of the tasks."""
    request = derived.request
    if not is_arbitrary(options) or not request.nodelist:
        return
    hosts = request.nodelist if request.ntasks is None else request.nodelist[: request.ntasks]
    most = most_tasks_of_a_host(hosts) * (request.cpus_per_task or 1)
    if most > 1:
        derived.change(min_cpus_per_node=max(most, request.min_cpus_per_node or 0))
    if request.ntasks is None and options.command is Command.SRUN:
        derived.change(ntasks=len(hosts))


def _apply_hint(derived: Derived, options: Options) -> None:
    """A hint is a shape in other words; an explicit shape wins over it."""
    hint = derived.request.hint
    if not hint:
        return
    if any(name in options for name in ("ntasks-per-core", "threads-per-core", "extra-node-info")):
        derived.warnings.append(_HINT_CLASH)
        derived.change(hint="")
        return
    if hint in ("nomultithread", "compute_bound", "memory_bound"):
        derived.change(threads_per_core=1)
    if hint == "memory_bound":
        derived.change(cores_per_socket=1)


def _drop_tasks_per_node(derived: Derived, options: Options) -> None:
    """srun lets go of --ntasks-per-node where -n and -N say another number; sbatch and salloc hold on to it."""
    request = derived.request
    if options.command is not Command.SRUN or not request.ntasks_per_node or not request.nodes_given:
        return
    if request.ntasks is not None and request.ntasks > request.nodes_min * request.ntasks_per_node:
        derived.warnings.append(
            f"Warning: can't honor --ntasks-per-node set to {request.ntasks_per_node} which doesn't match the "
            f"requested tasks {request.ntasks} with the number of requested nodes {request.nodes_min}. "
            "Ignoring --ntasks-per-node."
        )
        derived.change(ntasks_per_node=None)


def _fit_nodes_to_tasks(derived: Derived, options: Options) -> None:
    """No more nodes than tasks, and at least as many as were named."""
    request = derived.request
    named = len(dict.fromkeys(request.nodelist))
    at_least = max(request.nodes_min, named)
    _drop_tasks_per_node(derived, options)
    if request.ntasks is not None and request.ntasks < at_least:
        count = request.ntasks
        derived.warnings.append(f"Warning: can't run {count} processes on {at_least} nodes, setting nnodes to {count}")
        derived.change(nodes_min=count, nodes_max=count, nodes_given=True, nodelist=request.nodelist[:count])
    elif named > request.nodes_min:
        if request.nodes_max is not None and named > request.nodes_max:
            raise refused(f"invalid number of nodes (-N {named}-{request.nodes_max})")
        derived.change(nodes_min=named)
