"""How many tasks, nodes and GPUs follow from each other when a job names only some of them, and what contradicts.

The rules and words of Slurm's own check of a job with --gpus, --gpus-per-node, --gpus-per-task, --gpus-per-socket and
--ntasks-per-gpu. Called by `resources`; knows numbers, not options. Invariant: of a settled request every one of these
says the same number of GPUs, so that whoever places it may count by any one of them (`core.placement.demand`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bireme.core.model.jobs import ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.slurm.options.errors import EXIT_FAILURE, OptionError, refused

INVALID_GRES = "Invalid generic resource (gres) specification"


@dataclass(slots=True)
class Derived:
    """A request under construction, and what the user should know about it."""

    request: ResourceRequest
    warnings: list[str] = field(default_factory=list)

    def change(self, **changes: object) -> None:
        self.request = replace(self.request, **changes)  # type: ignore[arg-type]

    @property
    def gpus_per_job(self) -> int:
        return count_gpus(self.request.gres_per_job)

    @property
    def gpus_per_node(self) -> int:
        return count_gpus(self.request.gres_per_node)

    @property
    def gpus_per_task(self) -> int:
        return count_gpus(self.request.gres_per_task)

    @property
    def gpus_by_sockets(self) -> int:
        """On each node, as --gpus-per-socket and --sockets-per-node say."""
        return count_gpus(self.request.gres_per_socket) * (self.request.sockets_per_node or 0)


def count_gpus(requests: tuple[GresRequest, ...]) -> int:
    return sum(request.count for request in requests if request.name == "gpu")


def settle_gpus(derived: Derived) -> None:
    """Fills in what follows; raises where the numbers cannot all be true."""
    _refuse_gpus_of_uncounted_tasks(derived)
    _refuse_mixed_types(derived.request)
    _refuse_what_lacks_a_partner(derived)
    if derived.request.ntasks_per_gpu:
        _settle_gpus_by_tasks(derived)
    if derived.gpus_per_task and not derived.gpus_per_node:
        _settle_tasks_by_nodes(derived)
    if derived.gpus_per_job and (derived.gpus_per_node or derived.gpus_by_sockets):
        _settle_nodes(derived)
    if derived.gpus_per_job and derived.gpus_per_job < derived.request.nodes_min:
        raise _contradiction("Failed to validate job spec, --gpus < -N")
    if derived.gpus_per_task:
        _settle_tasks(derived)
    if derived.request.ntasks_per_gpu:
        _settle_tasks_by_gpus(derived)


def _contradiction(message: str) -> OptionError:
    return refused(message, INVALID_GRES)


def _refuse_gpus_of_uncounted_tasks(derived: Derived) -> None:
    """Before types are looked at: a request can be wrong in both ways, and Slurm says this one."""
    request = derived.request
    counted = request.ntasks is not None or request.ntasks_per_node or request.nodes_given
    if derived.gpus_per_task and not derived.gpus_per_job and not counted:
        raise _contradiction(
            "Failed to validate job spec. --gpus-per-task used without either --gpus or -n/--ntasks is not allowed."
        )


def _refuse_mixed_types(request: ResourceRequest) -> None:
    asked = (*request.gres_per_node, *request.gres_per_job, *request.gres_per_task, *request.gres_per_socket)
    gpus = [each for each in asked if each.name == "gpu"]
    if len({each.type is None for each in gpus}) > 1:
        message = "Invalid GRES specification (with and without type identification)"
        raise OptionError(message, exit_code=EXIT_FAILURE, exit_code_settable=True)


def _refuse_what_lacks_a_partner(derived: Derived) -> None:
    request = derived.request
    if request.gres_per_socket and request.sockets_per_node is None:
        raise _contradiction("--gpus-per-socket option requires --sockets-per-node specification")
    has_gpus = derived.gpus_per_job or derived.gpus_per_node or derived.gpus_per_task or request.gres_per_socket
    for words, amount in (("mem", request.memory_per_gpu_mib), ("cpus", request.cpus_per_gpu)):
        if amount is not None and not has_gpus and not request.ntasks_per_gpu:
            raise _contradiction(f"Requested {words}_per_tres=gres:gpu:{amount} but did not request any GPU.")


def _settle_nodes(derived: Derived) -> None:
    """--gpus over --gpus-per-node is the number of nodes."""
    request = derived.request
    count, rest = divmod(derived.gpus_per_job, derived.gpus_per_node or derived.gpus_by_sockets)
    if rest:
        raise _contradiction("Failed to validate job spec, --gpus is not multiple of --gres=gpu/--gpus-per-node")
    most = request.nodes_max or count
    if request.nodes_given and not request.nodes_min <= count <= most:
        raise _contradiction(
            "Failed to validate job spec. Based on --gpu and --gres=gpu/--gpus-per-node required nodes "
            f"({count}) doesn't fall between min_nodes ({request.nodes_min}) and max_nodes ({most}) boundaries."
        )
    derived.change(nodes_min=count, nodes_max=count, nodes_given=True)


def _settle_tasks(derived: Derived) -> None:
    """--gpus over --gpus-per-task is the number of tasks, --gpus-per-node over it the number on each node."""
    request = derived.request
    per_task, in_all = derived.gpus_per_task, derived.gpus_per_job
    if in_all:
        count, rest = divmod(in_all, per_task)
        if rest:
            raise _contradiction("Failed to validate job spec, --gpus not multiple of --gpus-per-task")
        if request.ntasks is not None and request.ntasks != count:
            raise _contradiction(
                "Failed to validate job spec. Based on --gpus and --gpus-per-task number of requested tasks differ "
                "from -n/--ntasks."
            )
        derived.change(ntasks=count)
    if derived.gpus_per_node:
        _settle_tasks_of_a_node(derived)


def _settle_tasks_by_nodes(derived: Derived) -> None:
    """-N alone, with GPUs for each task, is a task for each node."""
    request = derived.request
    if request.nodes_given and request.ntasks is None and not request.ntasks_per_node:
        derived.change(ntasks=request.nodes_min)


def _settle_tasks_of_a_node(derived: Derived) -> None:
    """--gpus-per-node over --gpus-per-task is the number of tasks on each node."""
    request = derived.request
    on_node, rest = divmod(derived.gpus_per_node, derived.gpus_per_task)
    if not on_node:
        raise _contradiction("Failed to ensure --gpus >= --gpus-per-task")
    if rest:
        raise _contradiction("Failed to validate job spec, --gres=gpu/--gpus-per-node not multiple of --gpus-per-task.")
    if request.ntasks is not None and request.ntasks < on_node:
        raise refused(
            "Job submit/allocate failed: Requested node configuration is not available",
            f"{request.ntasks} tasks with {derived.gpus_per_task} GPUs each do not use {derived.gpus_per_node} GPUs on "
            "each node; leave out --gpus-per-node or --gpus-per-task",
        )
    if not request.ntasks_per_node:
        derived.change(ntasks_per_node=on_node)


def _settle_tasks_by_gpus(derived: Derived) -> None:
    """--ntasks-per-gpu for each GPU, whatever -n says."""
    request = derived.request
    gpus = derived.gpus_per_job or derived.gpus_per_node * request.nodes_min
    derived.change(ntasks=gpus * (request.ntasks_per_gpu or 1))


def _settle_gpus_by_tasks(derived: Derived) -> None:
    """Where no GPUs are asked for: as many as --ntasks-per-gpu makes of the tasks, or one on each node."""
    request = derived.request
    per_gpu = request.ntasks_per_gpu or 1
    if derived.gpus_per_job or derived.gpus_per_node:
        return
    if request.ntasks is None and not request.nodes_given:
        raise _contradiction(
            "gres_job_state_validate: --ntasks-per-tres needs either a GRES GPU specification or a node/ntask "
            "specification"
        )
    gpus = -(-request.ntasks // per_gpu) if request.ntasks is not None else request.nodes_min
    derived.change(gres_per_job=(GresRequest("gpu", None, gpus),))
