"""What Bireme understood of a submission, in words: the answer to `bireme explain train.sh`.

Pure: a `JobSpec` in, an `Understood` out, which `cli/` prints and `as_json` turns into plain data for tools. It says
what was asked, what follows from it, and what is accepted but not applied, with the reason. It asks no cluster.
Invariant (tested): a field of a job is told in words of its own (`TOLD`), or after them under the name of its option,
or it is named with the reason why not (`UNTOLD`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from bireme.core.model.jobs import JobKind, JobSpec, ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.slurm.arrays import format_array
from bireme.slurm.dependencies import format_dependencies
from bireme.slurm.filenames import default_output
from bireme.slurm.gres import format_gres
from bireme.slurm.hostlist import compress
from bireme.slurm.job_fields.row import Form
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.signals import format_warning_signal
from bireme.slurm.sizes import format_memory
from bireme.slurm.times import format_elapsed

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """An option that was accepted and changes nothing yet."""

    option: str
    reason: str


@dataclass(frozen=True, slots=True)
class Understood:
    """One component of a submission, explained."""

    name: str
    sections: tuple[Section, ...]
    ignored: tuple[Ignored, ...]
    warnings: tuple[str, ...]
    spec: JobSpec


def describe(spec: JobSpec, warnings: Sequence[str] = (), command: Command = Command.SBATCH) -> Understood:
    """The explanation of one job (or one component of a heterogeneous one)."""
    sections = (
        Section("Resources", tuple(_resource_rows(spec.resources))),
        Section("Where", tuple(_place_rows(spec))),
        Section("When", tuple(_time_rows(spec))),
        Section("Files", tuple(_file_rows(spec))),
        Section("Ends", tuple(_end_rows(spec))),
        Section("Further", tuple(_further_rows(spec))),
    )
    table = TABLES[command]
    ignored = tuple(
        Ignored(f"--{name}", table[name].ignored) for name in spec.ignored if name in table and table[name].ignored
    )
    return Understood(spec.name, tuple(section for section in sections if section.rows), ignored, tuple(warnings), spec)


def as_json(understood: Understood) -> dict[str, Any]:
    """What was understood of a job, as plain data. Keys are stable; null means not asked."""
    spec, asked = understood.spec, understood.spec.resources
    return {
        "name": spec.name,
        "kind": str(spec.kind),
        "account": spec.account or None,
        "qos": spec.qos,
        "partitions": list(spec.partitions),
        "nodes": {"min": asked.nodes_min, "max": asked.nodes_max, "given": asked.nodes_given},
        "tasks": {
            "total": _total_tasks(asked),
            "per_node": asked.ntasks_per_node,
            "cpus_each": asked.cpus_per_task or 1,
        },
        "memory_mib": {
            "per_node": asked.memory_per_node_mib,
            "per_cpu": asked.memory_per_cpu_mib,
            "per_gpu": asked.memory_per_gpu_mib,
        },
        "gres": {
            "per_node": format_gres(asked.gres_per_node) or None,
            "per_job": format_gres(asked.gres_per_job) or None,
            "per_task": format_gres(asked.gres_per_task) or None,
            "per_socket": format_gres(asked.gres_per_socket) or None,
        },
        "gpus_total": total_gpus(asked),
        "exclusive": asked.exclusive,
        "constraint": asked.constraint or None,
        "nodelist": list(asked.nodelist),
        "exclude": list(asked.exclude),
        "time_limit_s": spec.time_limit_s,
        "time_limit": _time_limit(spec),
        "begin_at": spec.begin_at,
        "deadline_at": spec.deadline_at,
        "dependency": format_dependencies(spec.dependencies, state_of=lambda _: "").replace("()", "") or None,
        "array": format_array(spec.array.task_ids, spec.array.throttle, 0) if spec.array else None,
        "array_tasks": len(spec.array.task_ids) if spec.array else None,
        "het_component": spec.het_component,
        "work_dir": spec.work_dir,
        "std_in": spec.std_in,
        "std_out": _output(spec),
        "std_err": spec.std_err or _output(spec),
        "requeue": spec.requeue,
        "signal": format_warning_signal(spec.warning) if spec.warning else None,
        "container_image": spec.container_image or spec.container_bundle or None,
        "further": dict(_further_rows(spec)),
        "ignored": [{"option": each.option, "reason": each.reason} for each in understood.ignored],
        "warnings": list(understood.warnings),
    }


def total_gpus(asked: ResourceRequest) -> int | None:
    """How many GPUs the job holds at least, as far as the request alone tells; None when that depends on nodes."""
    if _gpus(asked.gres_per_job):
        return _gpus(asked.gres_per_job)
    if _gpus(asked.gres_per_node):
        return _gpus(asked.gres_per_node) * asked.nodes_min
    if _gpus(asked.gres_per_task):
        return _gpus(asked.gres_per_task) * _total_tasks(asked)
    return None if asked.gres_per_socket else 0


def _gpus(requests: Iterable[GresRequest]) -> int:
    return sum(request.count for request in requests if request.name == "gpu")


def _total_tasks(asked: ResourceRequest) -> int:
    if asked.ntasks is not None:
        return asked.ntasks
    return asked.nodes_min * (asked.ntasks_per_node or 1)


def _resource_rows(asked: ResourceRequest) -> Iterable[Row]:
    yield "nodes", _nodes(asked)
    per_node = f", {asked.ntasks_per_node} on each node" if asked.ntasks_per_node else ""
    yield "tasks", f"{_total_tasks(asked)}{per_node}"
    yield "CPUs", _cpus(asked)
    yield "memory", _memory(asked)
    for label, requests in (
        ("on each node", asked.gres_per_node),
        ("for the job", asked.gres_per_job),
        ("for each task", asked.gres_per_task),
        ("on each socket", asked.gres_per_socket),
    ):
        if requests:
            yield "devices", f"{format_gres(requests)} {label}"
    gpus = total_gpus(asked)
    if gpus:
        yield "GPUs in all", str(gpus)
    if asked.exclusive:
        yield "sharing", "whole nodes, shared with no other job"


def _nodes(asked: ResourceRequest) -> str:
    if not asked.nodes_given:
        return f"{asked.nodes_min} or more, as the tasks need"
    if asked.nodes_max in (None, asked.nodes_min):
        return str(asked.nodes_min)
    return f"{asked.nodes_min} to {asked.nodes_max}"


def _cpus(asked: ResourceRequest) -> str:
    if asked.cpus_per_gpu:
        return f"{asked.cpus_per_gpu} for each GPU"
    each = asked.cpus_per_task or 1
    return f"{each} for each task, {each * _total_tasks(asked)} in all"


def _memory(asked: ResourceRequest) -> str:
    for amount, label in (
        (asked.memory_per_node_mib, "on each node"),
        (asked.memory_per_cpu_mib, "for each CPU"),
        (asked.memory_per_gpu_mib, "for each GPU"),
    ):
        if amount == 0:
            return "all of each node's"
        if amount is not None:
            return f"{format_memory(amount)} {label}"
    return "the partition's default"


def _place_rows(spec: JobSpec) -> Iterable[Row]:
    asked = spec.resources
    yield "partition", ",".join(spec.partitions) or "the cluster's default"
    for label, text in (
        ("features", asked.constraint),
        ("these nodes", compress(asked.nodelist)),
        ("not these nodes", compress(asked.exclude)),
        ("distribution", asked.distribution),
        ("hint", asked.hint),
        ("reservation", spec.reservation),
        ("container", spec.container_image or spec.container_bundle),
        ("account", spec.account),
        ("QOS", spec.qos),
    ):
        if text:
            yield label, text


def _time_limit(spec: JobSpec) -> str | None:
    if spec.time_limit_s is not None:
        return format_elapsed(spec.time_limit_s)
    return "UNLIMITED" if spec.time_limit_given else None


def _time_rows(spec: JobSpec) -> Iterable[Row]:
    yield "time limit", _time_limit(spec) or "the partition's default"
    if spec.array:
        throttle = f", {spec.array.throttle} at a time" if spec.array.throttle else ""
        yield "array", f"{len(spec.array.task_ids)} tasks ({format_array(spec.array.task_ids)}){throttle}"
    if spec.dependencies.items:
        yield "after", format_dependencies(spec.dependencies, state_of=lambda _: "").replace("()", "")
    if spec.hold:
        yield "held", "until released"
    if spec.nice:
        yield "nice", str(spec.nice)


def _output(spec: JobSpec) -> str | None:
    if spec.kind is not JobKind.BATCH:
        return None
    return spec.std_out or f"{spec.work_dir.rstrip('/')}/{default_output(spec.array is not None)}"


def _file_rows(spec: JobSpec) -> Iterable[Row]:
    yield "working directory", spec.work_dir
    output = _output(spec)
    if output is not None:
        yield "standard output", output
        yield "standard error", spec.std_err or "the same file"
    if spec.std_in not in ("", "/dev/null"):
        yield "standard input", spec.std_in
    if spec.export != "ALL":
        yield "environment", f"--export={spec.export}"


_HEALS = {"restart": "it is started again after a failure that is not its own fault", "off": "never by Bireme"}


def _end_rows(spec: JobSpec) -> Iterable[Row]:
    if spec.warning:
        whom = "the script" if spec.warning.batch_only else "the steps"
        yield "warning", f"{format_warning_signal(spec.warning)} to {whom} before the time limit"
    if spec.requeue is not None:
        yield "requeue", "yes" if spec.requeue else "no"
    if spec.heal:
        yield "heal", _HEALS.get(spec.heal, spec.heal)
    if spec.checkpoint_path:
        yield "checkpoints", spec.checkpoint_path


# -- what has no words of its own ------------------------------------------------------------------------------------

_IN_SECTIONS = """
    resources name kind account qos partitions nodes_min nodes_max nodes_given ntasks ntasks_per_node cpus_per_task
    cpus_per_gpu memory_per_node_mib memory_per_cpu_mib memory_per_gpu_mib gres_per_node gres_per_job gres_per_task
    gres_per_socket exclusive constraint nodelist exclude distribution hint reservation container_image
    container_bundle time_limit_s time_limit_given dependencies array het_component hold nice work_dir std_in std_out
    std_err export warning requeue heal checkpoint_path ignored
"""
TOLD = frozenset(_IN_SECTIONS.split())
"""The fields that the sections tell of."""
_MADE = "made of the submission, not asked for"
UNTOLD = {
    "cpus_min": "set by scontrol update alone",
    "switches_wait_s": "said with --switches",
    "site_factor": "set by operators alone",
    "admin_comment": "set by operators alone",
    "expedite_requeue": "said with --requeue",
    "requeue_asked": "said with --requeue",
    "owner": "who asks",
    "command": _MADE,
    "argv": _MADE,
    "submit_line": _MADE,
    "submit_host": _MADE,
    "submit_dir": _MADE,
    "umask": _MADE,
    "process_nice": _MADE,
    "script": _MADE,
    "environment": _MADE,
    "step_defaults": "of its steps",
    "held_open": "of srun and salloc",
    "workload": "of pods that somebody else made",
    "node_rules": "of pods that somebody else made",
    "kept": "set when a job is healed",
    "replica": "of a service",
}
"""The fields of which nothing is said, and why."""
_FURTHER = tuple(field for field in FIELDS if field.name not in TOLD and field.name not in UNTOLD)
_DEFAULTS = {each.name: each.default for each in (*fields(JobSpec), *fields(ResourceRequest))}
IN_WORDS: dict[Form, Callable[[Any], str]] = {
    Form.TEXT: str,
    Form.FEATURES: str,
    Form.WORDS: ",".join,
    Form.HOSTS: compress,
    Form.NUMBER: str,
    Form.COUNT: str,
    Form.MEMORY: format_memory,
    Form.FLAG: lambda value: "yes" if value else "no",
    Form.CHOICE: lambda value: "yes" if value else "no",
    Form.LIMIT: format_elapsed,
    Form.MOMENT: lambda at: datetime.fromtimestamp(at, UTC).isoformat(),
    Form.GRES: format_gres,
    Form.GPUS: format_gres,
}


def _further_rows(spec: JobSpec) -> Iterable[Row]:
    """What else was asked for, by the names of the options; what is not applied is told apart."""
    for field in _FURTHER:
        value = getattr(spec.resources if field.of_resources else spec, field.name)
        option = field.option
        if option is not None and option.honoured and value != _DEFAULTS[field.name]:
            yield option.name, IN_WORDS[field.form](value)
