"""From options to `JobSpec`: the last step of `sbatch`, `salloc` and an `srun` that needs its own allocation.

Pure. The caller has read the script and the files that options name; the blob ids of script and environment are
filled in by whoever stores them. `JobRequest.warnings` are Slurm's own remarks, to be printed as `sbatch: ...`.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from itertools import pairwise

from bireme.core.model.jobs import ArraySpec, Dependencies, JobKind, JobSpec, WarningSignal
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import refused
from bireme.slurm.options.export import Exported, exported, parse_export_file
from bireme.slurm.options.layers import Options
from bireme.slurm.options.resources import resources_of
from bireme.slurm.options.table import EXPEDITE, Command
from bireme.slurm.script import WRAPPER_NAME

_STEP_DEFAULTS = {
    "acctg-freq": "SLURM_ACCTG_FREQ",
    "cpu-freq": "SLURM_CPU_FREQ_REQ",
    "distribution": "SLURM_DISTRIBUTION",
    "gpu-bind": "SLURM_GPU_BIND",
    "gpu-freq": "SLURM_GPU_FREQ",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "hint": "SLURM_HINT",
    "mem-bind": "SLURM_MEM_BIND",
    "network": "SLURM_NETWORK",
    "profile": "SLURM_PROFILE",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
}
"""Options that srun inside the job reads from the environment, and under which name."""

# fmt: off
_OF_ALL_COMPONENTS = (
    "account", "begin", "chdir", "comment", "deadline", "dependency", "error", "exclude", "export", "hold",
    "input", "job-name", "mem", "nice", "open-mode", "output", "priority", "qos", "requeue", "reservation",
    "signal", "time", "time-min", "wckey",
)
# fmt: on
"""Options that a component of a heterogeneous job takes over from the one before it, unless it has its own."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as it is sent to the cluster, less the script's text."""

    spec: JobSpec
    environment: dict[str, str]
    warnings: tuple[str, ...] = ()


def build_job_spec(options: Options, context: SubmitContext, *, het_component: int | None = None) -> JobRequest:
    """The job that these options ask for. `options.words` is the script (sbatch) or the program, with arguments."""
    if "wrap" in options and options.words:
        raise refused("Script arguments not permitted with --wrap option")
    resources = resources_of(options, context.node_file)
    environment = _environment(options, context)
    work_dir = context.absolute(options.text("chdir"))
    spec = JobSpec(
        kind=JobKind.BATCH if options.command is Command.SBATCH else JobKind.INTERACTIVE,
        name=_name(options),
        owner=context.owner,
        account=options.text("account"),
        qos=options.text("qos", ""),
        wckey=options.text("wckey"),
        partitions=tuple(name for name in options.text("partition").split(",") if name),
        resources=resources.request,
        time_limit_s=options.number("time"),
        time_limit_given="time" in options,
        time_min_s=options.number("time-min"),
        begin_at=options.typed("begin", float),
        deadline_at=options.typed("deadline", float),
        dependencies=options.typed("dependency", Dependencies) or Dependencies(),
        kill_on_invalid_dependency=options.typed("kill-on-invalid-dep", bool),
        array=options.typed("array", ArraySpec),
        het_component=het_component,
        hold=options.flag("hold") or options.number("priority") == 0,
        nice=options.number("nice") or 0,
        priority=options.number("priority") or None,
        reservation=options.text("reservation"),
        requeue=options.typed("requeue", bool),
        expedite_requeue=options.written("requeue") == EXPEDITE,
        kill_on_node_fail=not options.flag("no-kill"),
        warning=options.typed("signal", WarningSignal),
        work_dir=work_dir,
        submit_dir=context.cwd,
        umask=_umask(context),
        process_nice=context.process_nice,
        std_in=_file(options, "input", work_dir) or "/dev/null",
        std_out=_file(options, "output", work_dir),
        std_err=_file(options, "error", work_dir),
        open_append=options.typed("open-mode", bool),
        command=_command(options, context),
        argv=options.words[1:],
        submit_line=context.submit_line,
        submit_host=context.submit_host,
        comment=options.text("comment"),
        mail_type=tuple(options.typed("mail-type", tuple) or ()),
        mail_user=options.text("mail-user", context.owner.user if "mail-type" in options else ""),
        container_image=options.text("container-image"),
        container_bundle=options.text("container"),
        container_mounts=options.text("container-mounts"),
        container_workdir=options.text("container-workdir"),
        export=options.text("export", "ALL"),
        get_user_env=environment.load_login_environment,
        step_defaults=_step_defaults(options),
        ignored=options.ignored(),
    )
    return JobRequest(spec, environment.environment, tuple(resources.warnings))


def build_het_specs(components: tuple[Options, ...], context: SubmitContext) -> tuple[JobRequest, ...]:
    """One request for each component; an ordinary job is one request with no component number.

    The script, its arguments and the names of the output files are the first component's.
    """
    if len(components) == 1:
        return (build_job_spec(components[0], context),)
    # Of a script's components only the one that the command line also speaks of carries the script's name.
    words = next((options.words for options in reversed(components) if options.words), components[-1].words)
    for options in components:
        options.words = words if options.command is Command.SBATCH else options.words
    for before, options in pairwise(components):
        for name in _OF_ALL_COMPONENTS:
            if name in before and name not in options:
                options.settings[name] = before.settings[name]
    return tuple(build_job_spec(options, context, het_component=index) for index, options in enumerate(components))


def _name(options: Options) -> str:
    if options.text("job-name"):
        return options.text("job-name")
    if "wrap" in options:
        return WRAPPER_NAME
    if options.words:
        return posixpath.basename(options.words[0]) or options.words[0]
    return "sbatch" if options.command is Command.SBATCH else "interactive"


def _command(options: Options, context: SubmitContext) -> str:
    if not options.words:
        return ""
    if options.command is Command.SBATCH:
        return context.absolute(options.words[0])
    return options.words[0]


def _file(options: Options, name: str, work_dir: str) -> str:
    """A file pattern as an absolute path; empty where the option was not given (or belongs to srun's step)."""
    pattern = options.text(name)
    if not pattern or options.command is not Command.SBATCH:
        return ""
    if pattern.lower() == "none":
        return "/dev/null"
    return posixpath.join(work_dir, pattern)


def _umask(context: SubmitContext) -> int:
    """SLURM_UMASK, where set, over the caller's own."""
    text = context.environment.get("SLURM_UMASK", "")
    if 0 < len(text) <= 5 and all(digit in "01234567" for digit in text):
        return int(text, 8) & 0o777
    return context.umask


def _environment(options: Options, context: SubmitContext) -> Exported:
    if context.export_file is not None:
        return Exported(parse_export_file(context.export_file), False)
    text = options.text("export") if "export" in options and options.command is Command.SBATCH else None
    return exported(context.environment, text, get_user_env="get-user-env" in options)


def _step_defaults(options: Options) -> tuple[tuple[str, str], ...]:
    defaults = [(variable, options.written(name) or "") for name, variable in _STEP_DEFAULTS.items() if name in options]
    if "oom-kill-step" in options:
        defaults.append(("SLURM_OOM_KILL_STEP", "1" if options.flag("oom-kill-step") else "0"))
    if options.command is not Command.SRUN:
        if "export" in options:
            defaults.append(("SLURM_EXPORT_ENV", options.text("export")))
        if "open-mode" in options:
            defaults.append(("SLURM_OPEN_MODE", "a" if options.flag("open-mode") else "t"))
    return tuple(defaults)
