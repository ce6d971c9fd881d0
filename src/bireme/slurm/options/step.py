"""From srun's options to `StepSpec`: what one `srun` asks for inside a job, its own or one it is already in.

Inside a job srun finds the job's numbers in SLURM_ variables; they count as asked for, but yield to what the user
wrote: `srun -n1` in a job of four nodes runs on one. Resources the job holds (memory, GRES per node) are asked for
only by hand: left out, the step gets what the job has.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from bireme.core.model.distribution import DEFAULT_DISTRIBUTION, Distribution
from bireme.core.model.resources import GresRequest
from bireme.core.model.steps import StepSpec
from bireme.slurm.job_fields.containers import CONTAINER_ROWS
from bireme.slurm.job_fields.row import JobField
from bireme.slurm.options.arbitrary import is_arbitrary
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import fatal
from bireme.slurm.options.export import exported
from bireme.slurm.options.given import cpus_per_task_of, gres_of, gres_per_node_of, hosts_of, per_task_gres
from bireme.slurm.options.layers import Options
from bireme.slurm.options.values import NodeCount

ROWS_VARIABLE, COLUMNS_VARIABLE = "SLURM_PTY_WIN_ROW", "SLURM_PTY_WIN_COL"
"""With --pty: how large srun's own terminal is."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step as it is sent to the cluster. `job_id` None: srun is outside a job and needs an allocation first."""

    spec: StepSpec
    job_id: int | None
    het_group: tuple[int, ...]
    environment: dict[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Size:
    """Nodes and tasks of a step while they are fitted to each other."""

    nodes_min: int | None
    nodes_max: int | None
    ntasks: int | None
    ntasks_per_node: int | None


def build_step_spec(options: Options, context: SubmitContext) -> StepRequest:
    """The step that these options ask for. `options.words` is the program and its arguments."""
    if not options.words:
        raise fatal("No command given to execute.")
    job_id = options.number("jobid")
    if "relative" in options and job_id is None:
        raise fatal("--relative option invalid for job allocation request")
    size, warnings = _size(options)
    hosts = hosts_of(options, context.node_file)
    if is_arbitrary(options) and hosts:
        hosts = _one_host_per_task(options, size, hosts)
    text = options.text("export") if "export" in options else None
    spec = StepSpec(
        name=_name(options),
        argv=options.words,
        nodes_min=size.nodes_min,
        nodes_max=size.nodes_max,
        ntasks=size.ntasks,
        ntasks_per_node=size.ntasks_per_node,
        cpus_per_task=_cpus_per_task(options, inside=job_id is not None),
        memory_per_node_mib=_by_hand(options, "mem"),
        memory_per_cpu_mib=_by_hand(options, "mem-per-cpu"),
        memory_per_gpu_mib=_by_hand(options, "mem-per-gpu"),
        gres_per_node=_gres_per_node(options),
        gres_per_task=_gres_per_task(options),
        gres_per_step=_gres_per_step(options),
        gres_per_socket=gres_of(options, "gpus-per-socket") if options.asked("gpus-per-socket") else (),
        ntasks_per_gpu=options.number("ntasks-per-gpu"),
        cpus_per_gpu=_by_hand(options, "cpus-per-gpu"),
        nodelist=hosts,
        exclude=tuple(options.typed("exclude", tuple) or ()),
        relative=options.number("relative"),
        distribution=options.typed("distribution", Distribution) or DEFAULT_DISTRIBUTION,
        arbitrary_hosts=hosts if is_arbitrary(options) else (),
        exact=_is_exact(options),
        exclusive="exclusive" in options,
        overlap="overlap" in options,
        overcommit=options.flag("overcommit"),
        immediate_s=options.number("immediate"),
        time_limit_s=options.number("time"),
        kill_on_bad_exit=bool(options.number("kill-on-bad-exit")),
        wait_s=options.number("wait"),
        std_in=_stream(options, "input"),
        std_out=_stream(options, "output"),
        std_err=_stream(options, "error"),
        open_append=options.flag("open-mode"),
        label=options.flag("label"),
        unbuffered=options.flag("unbuffered") or "pty" in options,
        pty="pty" in options,
        mpi=options.text("mpi", "none"),
        cpu_bind=options.text("cpu-bind"),
        gpu_bind=options.text("gpu-bind"),
        mem_bind=options.text("mem-bind"),
        multi_prog=context.multi_prog if options.flag("multi-prog") else "",
        work_dir=context.absolute(options.text("chdir")),
        umask=context.umask,
        process_nice=context.process_nice,
        task_prolog=options.text("task-prolog"),
        task_epilog=options.text("task-epilog"),
        **_container(options),
        interactive=options.flag("interactive"),
        submit_line=context.submit_line,
    )
    het_group = tuple(options.typed("het-group", tuple) or ())
    environment = exported(context.environment, text).environment
    return StepRequest(spec, job_id, het_group, environment, warnings)


def _container(options: Options) -> dict[str, Any]:
    """The fields of containers, which steps and jobs have under the same names."""
    names = {row.option.name: row.name for row in CONTAINER_ROWS if isinstance(row, JobField) and row.option}
    settings = options.settings.items()
    return {names[option]: setting.value for option, setting in settings if option in names}


def _size(options: Options) -> tuple[_Size, tuple[str, ...]]:
    """Nodes and tasks, where what the user wrote wins over what the job's variables say."""
    nodes = options.typed("nodes", NodeCount)
    if _is_packed(options) and options.from_environment("nodes"):
        nodes = None  # packed tasks take no more of the job's nodes than they need
    size = _Size(
        nodes.minimum if nodes else None,
        nodes.maximum if nodes else None,
        options.number("ntasks"),
        options.number("ntasks-per-node"),
    )
    if options.from_environment("ntasks") and options.asked("ntasks-per-node"):
        size.ntasks = None
    if size.ntasks is None or size.nodes_min is None:
        return size, ()
    warnings: list[str] = []
    if size.ntasks < size.nodes_min:
        warnings.append(
            f"Warning: can't run {size.ntasks} processes on {size.nodes_min} nodes, setting nnodes to {size.ntasks}"
        )
        size.nodes_min = size.nodes_max = size.ntasks
        if options.from_environment("ntasks-per-node"):
            size.ntasks_per_node = None
    elif size.ntasks_per_node and size.ntasks_per_node != -(-size.ntasks // size.nodes_min):
        size.ntasks_per_node = None  # it cannot be honoured, and Slurm's srun says nothing of that inside a job
    return size, tuple(warnings)


def _one_host_per_task(options: Options, size: _Size, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """An arbitrary step has one task for each host of its list (the first --ntasks of them), and no other node."""
    if options.asked("ntasks") and size.ntasks is not None:
        hosts = hosts[: size.ntasks]
    size.ntasks, size.ntasks_per_node = len(hosts), None
    size.nodes_min = size.nodes_max = len(set(hosts))
    return hosts


def _by_hand(options: Options, name: str) -> int | None:
    return options.number(name) if options.asked(name) else None


def _refuses_gres(options: Options) -> bool:
    return options.asked("gres") and not gres_of(options, "gres")


def _gres_per_node(options: Options) -> tuple[GresRequest, ...] | None:
    """None: all that the job has. Empty: none of it."""
    if _refuses_gres(options):
        return ()
    asked = [name for name in ("gres", "gpus-per-node") if options.asked(name)]
    if not asked:
        return None
    found = gres_per_node_of(options) if len(asked) > 1 else gres_of(options, asked[0])
    for_tasks = {one.name for one in per_task_gres(options)} if _asks_per_task(options) else set()
    return tuple(one for one in found if one.name not in for_tasks)


def _gres_per_step(options: Options) -> tuple[GresRequest, ...]:
    """--gpus, unless the same command says how many for each task or on each node: those decide, and count once."""
    by_node = options.asked("gpus-per-node") or any(one.name == "gpu" for one in gres_of(options, "gres"))
    if not options.asked("gpus") or _gres_per_task(options) or (by_node and _asks_per_node(options)):
        return ()
    return gres_of(options, "gpus")


def _asks_per_task(options: Options) -> bool:
    return options.asked("gpus-per-task") or options.asked("tres-per-task")


def _asks_per_node(options: Options) -> bool:
    return options.asked("gres") or options.asked("gpus-per-node")


def _cpus_per_task(options: Options, *, inside: bool) -> int | None:
    """What the job asked for each of its tasks (SLURM_TRES_PER_TASK) is not asked again by an srun inside it."""
    if inside and options.from_environment("tres-per-task"):
        return options.number("cpus-per-task")
    return cpus_per_task_of(options)


def _gres_per_task(options: Options) -> tuple[GresRequest, ...]:
    """By hand, or as the job has it, unless the step names its devices in another way."""
    by_hand = _asks_per_task(options)
    otherwise = any(options.asked(name) for name in ("gres", "gpus-per-node", "gpus-per-socket"))
    if options.asked("gpus") and not by_hand:  # as many as the tasks have anyway: each keeps its own
        mine = tuple(one.count * (options.number("ntasks") or 0) for one in per_task_gres(options))
        otherwise = otherwise or mine != tuple(one.count for one in gres_of(options, "gpus"))
    return () if otherwise and not by_hand else per_task_gres(options)


def _is_packed(options: Options) -> bool:
    distribution = options.typed("distribution", Distribution)
    return distribution is not None and bool(distribution.pack)


def _is_exact(options: Options) -> bool:
    """-c by hand means exactly so many CPUs, and so does --exclusive of a step."""
    if options.flag("whole"):
        return False
    return options.flag("exact") or "exclusive" in options or options.asked("cpus-per-task")


def _stream(options: Options, name: str) -> str:
    """Empty: forwarded. `none`: discarded. A number: that task only. Else a file pattern."""
    text = options.text(name)
    return "" if text.lower() == "all" else "none" if text.lower() == "none" else text


def _name(options: Options) -> str:
    given = options.text("job-name") if options.asked("job-name") else ""
    return given or posixpath.basename(options.words[0]) or options.words[0]
