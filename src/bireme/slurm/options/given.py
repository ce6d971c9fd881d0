"""What options give a job's fields: the value of the field's option, or what the function of its own says.

`fields_of_job` and `fields_of_resources` walk the table of job fields; `job` and `resources` make a JobSpec of the
answers. Not here: what follows from several amounts together (`resources`, `gpus`).
Invariant: a field that was not asked for is left out, so that the specification's own default holds.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bireme.core.model.distribution import Distribution
from bireme.core.model.jobs import JobKind
from bireme.core.model.resources import GresRequest
from bireme.slurm.distribution import format_distribution
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.job_fields.row import Place
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.catalogue.table import EXPEDITE, Command
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import fatal, refused
from bireme.slurm.options.export import Exported, exported, parse_export_file
from bireme.slurm.options.layers import Options
from bireme.slurm.options.values import NodeCount, Switches, TresPerTask
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


@dataclass(frozen=True)
class Asked:
    """One component of a submission: its options, and who asks from where."""

    options: Options
    context: SubmitContext
    het_component: int | None = None

    @cached_property
    def work_dir(self) -> str:
        return self.context.absolute(self.options.text("chdir"))

    @cached_property
    def environment(self) -> Exported:
        options, context = self.options, self.context
        if context.export_file is not None:
            return Exported(parse_export_file(context.export_file), False)
        text = options.text("export") if "export" in options and options.command is Command.SBATCH else None
        return exported(context.environment, text, get_user_env="get-user-env" in options)


# -- amounts ---------------------------------------------------------------------------------------------------------


def gres_of(options: Options, name: str) -> tuple[GresRequest, ...]:
    found = options.typed(name, tuple)
    return tuple(found) if found else ()


def gres_per_node_of(options: Options) -> tuple[GresRequest, ...]:
    """--gres and --gpus-per-node: two words for the GPUs of a node, which count once and must not contradict."""
    gres, gpus = gres_of(options, "gres"), gres_of(options, "gpus-per-node")
    also = tuple(one for one in gres if one.name == "gpu")
    if not gpus or not also:
        return (*gres, *gpus)
    if {one.type is None for one in (*gpus, *also)} == {True, False}:
        return (*gres, *gpus)  # which is refused for that
    if sorted(gpus, key=str) != sorted(also, key=str):
        raise fatal("--gpus-per-node and --gres=gpu are mutually exclusive.")
    return gres


def per_task_gres(options: Options) -> tuple[GresRequest, ...]:
    """--gpus-per-task, and the generic resources of --tres-per-task; what both name, as a job's variables do, once."""
    tres = options.typed("tres-per-task", TresPerTask)
    first, second = gres_of(options, "gpus-per-task"), parse_gres(tres.gres) if tres else ()
    if _asked_as_tres(options, "gpus-per-task"):
        first, second = second, first
    named = {request.name for request in first}
    return (*first, *(request for request in second if request.name not in named))


def cpus_per_task_of(options: Options) -> int | None:
    tres = options.typed("tres-per-task", TresPerTask)
    by_tres, by_number = tres.cpus if tres else None, options.number("cpus-per-task")
    return by_tres or by_number if _asked_as_tres(options, "cpus-per-task") else by_number or by_tres


def _asked_as_tres(options: Options, name: str) -> bool:
    """By hand with --tres-per-task, where the job's variables have the other option."""
    return options.asked("tres-per-task") and not options.asked(name)


def hosts_of(options: Options, node_file: str) -> tuple[str, ...]:
    """--nodelist, or the nodes of the file that the caller read: --nodefile's, or a nodelist's with a `/` in it."""
    listed = options.typed("nodelist", tuple) or ()
    if node_file and (not listed or any("/" in host for host in listed)):
        try:
            return tuple(expand(",".join(node_file.split())))
        except SlurmSyntaxError as error:
            raise refused("Invalid node name specified in the node file", str(error)) from error
    return tuple(listed)


def _distribution(asked: Asked) -> str:
    distribution = asked.options.typed("distribution", Distribution)
    return format_distribution(distribution) if distribution else ""


def _nodes(asked: Asked) -> NodeCount | None:
    return asked.options.typed("nodes", NodeCount)


def _nodes_min(asked: Asked) -> int:
    nodes = _nodes(asked)
    return nodes.minimum if nodes else 1


def _nodes_max(asked: Asked) -> int | None:
    nodes = _nodes(asked)
    return nodes.maximum if nodes else None


def _switches(asked: Asked) -> int | None:
    switches = asked.options.typed("switches", Switches)
    return switches.count if switches else None


def _switches_wait_s(asked: Asked) -> int | None:
    switches = asked.options.typed("switches", Switches)
    return switches.wait_s if switches else None


# -- the rest --------------------------------------------------------------------------------------------------------


def _kind(asked: Asked) -> JobKind:
    return JobKind.BATCH if asked.options.command is Command.SBATCH else JobKind.INTERACTIVE


def _name(asked: Asked) -> str:
    options = asked.options
    if "job-name" in options and (options.text("job-name") or options.command is Command.SBATCH):
        return options.text("job-name")  # sbatch -J "": a job without a name, as in Slurm
    if "wrap" in options:
        return WRAPPER_NAME
    if options.words:
        return posixpath.basename(options.words[0]) or options.words[0]
    return "sbatch" if options.command is Command.SBATCH else "interactive"


def _command(asked: Asked) -> str:
    if not asked.options.words:
        return ""
    if asked.options.command is Command.SBATCH:
        return asked.context.absolute(asked.options.words[0])
    return asked.options.words[0]


def _file(asked: Asked, name: str) -> str:
    """A file pattern as an absolute path; empty where the option was not given (or belongs to srun's step)."""
    pattern = asked.options.text(name)
    if not pattern or asked.options.command is not Command.SBATCH:
        return ""
    if pattern.lower() == "none":
        return "/dev/null"
    return posixpath.join(asked.work_dir, pattern)


def _umask(asked: Asked) -> int:
    """SLURM_UMASK, where set, over the caller's own."""
    text = asked.context.environment.get("SLURM_UMASK", "")
    if 0 < len(text) <= 5 and all(digit in "01234567" for digit in text):
        return int(text, 8) & 0o777
    return asked.context.umask


def _mail_user(asked: Asked) -> str:
    return asked.options.text("mail-user", asked.context.owner.user if "mail-type" in asked.options else "")


def _step_defaults(asked: Asked) -> tuple[tuple[str, str], ...]:
    options = asked.options
    defaults = [(variable, options.written(name) or "") for name, variable in _STEP_DEFAULTS.items() if name in options]
    if "oom-kill-step" in options:
        defaults.append(("SLURM_OOM_KILL_STEP", "1" if options.flag("oom-kill-step") else "0"))
    if options.command is not Command.SRUN:
        if "export" in options:
            defaults.append(("SLURM_EXPORT_ENV", options.text("export")))
        if "open-mode" in options:
            defaults.append(("SLURM_OPEN_MODE", "a" if options.flag("open-mode") else "t"))
    return tuple(defaults)


GIVEN: dict[str, Callable[[Asked], Any]] = {
    "argv": lambda asked: asked.options.words[1:],
    "command": _command,
    "expedite_requeue": lambda asked: asked.options.written("requeue") == EXPEDITE,
    "get_user_env": lambda asked: asked.environment.load_login_environment,
    "het_component": lambda asked: asked.het_component,
    "hold": lambda asked: asked.options.flag("hold") or asked.options.number("priority") == 0,
    "ignored": lambda asked: asked.options.ignored(),
    "kill_on_node_fail": lambda asked: not asked.options.flag("no-kill"),
    "kind": _kind,
    "mail_user": _mail_user,
    "name": _name,
    "owner": lambda asked: asked.context.owner,
    "partitions": lambda asked: tuple(name for name in asked.options.text("partition").split(",") if name),
    "priority": lambda asked: asked.options.number("priority") or None,
    "process_nice": lambda asked: asked.context.process_nice,
    "resources.cpus_per_task": lambda asked: cpus_per_task_of(asked.options),
    "resources.distribution": _distribution,
    "resources.exclusive": lambda asked: "exclusive" in asked.options,
    "resources.gres_per_node": lambda asked: gres_per_node_of(asked.options),
    "resources.gres_per_task": lambda asked: per_task_gres(asked.options),
    "resources.nodelist": lambda asked: hosts_of(asked.options, asked.context.node_file),
    "resources.nodes_given": lambda asked: _nodes(asked) is not None,
    "resources.nodes_max": _nodes_max,
    "resources.nodes_min": _nodes_min,
    "resources.oversubscribe": lambda asked: asked.options.flag("oversubscribe") and "exclusive" not in asked.options,
    "resources.switches": _switches,
    "resources.switches_wait_s": _switches_wait_s,
    "std_err": lambda asked: _file(asked, "error"),
    "std_in": lambda asked: _file(asked, "input") or "/dev/null",
    "std_out": lambda asked: _file(asked, "output"),
    "step_defaults": _step_defaults,
    "submit_dir": lambda asked: asked.context.cwd,
    "submit_host": lambda asked: asked.context.submit_host,
    "submit_line": lambda asked: asked.context.submit_line,
    "time_limit_given": lambda asked: "time" in asked.options,
    "umask": _umask,
    "work_dir": lambda asked: asked.work_dir,
}
"""The fields that are more than the value of one option, by their paths."""


class _Fields:
    """The fields of one class of the model, ready to be filled in."""

    def __init__(self, *, of_resources: bool) -> None:
        fields = [field for field in FIELDS if field.of_resources is of_resources]
        own = [field for field in fields if Place.GIVEN in field.own]
        self._functions = tuple((field.name, GIVEN[field.path]) for field in own)
        self._by_option = {field.option.name: field.name for field in fields if field.option and field not in own}

    def given(self, asked: Asked) -> dict[str, Any]:
        given = {name: function(asked) for name, function in self._functions}
        for option, setting in asked.options.settings.items():
            if option in self._by_option and setting.value is not None:
                given[self._by_option[option]] = setting.value
        return given


_OF_JOB, _OF_RESOURCES = _Fields(of_resources=False), _Fields(of_resources=True)


def fields_of_job(asked: Asked) -> dict[str, Any]:
    """The fields of JobSpec that were given, by their names; not its resources."""
    return _OF_JOB.given(asked)


def fields_of_resources(asked: Asked) -> dict[str, Any]:
    """The fields of ResourceRequest that were given, by their names."""
    return _OF_RESOURCES.given(asked)
