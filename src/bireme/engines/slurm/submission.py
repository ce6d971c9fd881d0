"""A job's specification as sbatch's arguments, and the orders that people give about jobs as scontrol's and scancel's.

Pure: builds lists of words, runs nothing. Options and keys are the rows of `slurm/job_fields`; here is how a form is
written, and the fields that need more than their form. The script itself goes through stdin, with its #SBATCH lines:
an option on the command line wins over them, and what Bireme has no word for Slurm reads there itself.
Invariant: every value is one word of a list; no text is ever handed to a shell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from bireme.core.model.jobs import Dependencies, JobSpec, ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.ports import Order
from bireme.slurm.arrays import format_array
from bireme.slurm.dependencies import format_dependencies
from bireme.slurm.gres import format_gres
from bireme.slurm.hostlist import compress
from bireme.slurm.job_fields.row import RESOURCES_PREFIX, Form, Place
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.signals import format_warning_signal
from bireme.slurm.times import format_time_limit

SCRIPT = "/dev/stdin"
"""Read from there it can have arguments of its own; without a file name sbatch takes none."""
_DEFAULTS = {
    **{each.name: each.default for each in fields(JobSpec)},
    **{RESOURCES_PREFIX + each.name: each.default for each in fields(ResourceRequest)},
}
"""By the paths of fields."""
_OF_PYXIS = [name for name in _DEFAULTS if name.startswith("container_") and name != "container_bundle"]


def batch_words(specs: Sequence[JobSpec], key: str) -> list[str]:
    """sbatch and its arguments, for one job or the components of a heterogeneous one."""
    argv = ["sbatch", "--parsable"]
    for place, spec in enumerate(specs):
        argv += [":"] if place else []
        # A tag behind the comment: by it a submission is recognised in the queue.
        argv += _options(replace(spec, comment=f"{spec.comment} [bireme:{key}]".lstrip()) if key else spec)
    return [*argv, SCRIPT, *specs[0].argv]


def asks_pyxis(spec: JobSpec) -> bool:
    """Whether it has options that an sbatch without Pyxis does not know."""
    return any(getattr(spec, name) != _DEFAULTS[name] for name in _OF_PYXIS)


def _options(spec: JobSpec) -> Iterator[str]:
    """What was asked for: the fields that differ from what they are when nobody says anything."""
    for field in FIELDS:
        if field.option is None or not field.passed:
            continue
        if Place.PASSED in field.own:
            yield from PASSED[field.path](spec)
            continue
        value = getattr(spec.resources if field.of_resources else spec, field.name)
        if value != _DEFAULTS[field.path]:
            written = AS_OPTION[field.form](value)
            if written:
                yield f"--{field.option.name}" if written is True else f"--{field.option.name}={written}"
    if spec.replica is not None:  # its port is in the environment that is handed over, whatever its script says of it
        yield "--export=ALL"


# -- how a form is written -------------------------------------------------------------------------------------------


def _limit(seconds: int | None) -> str:
    return "UNLIMITED" if seconds is None else format_time_limit(seconds)


def _moment(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def _gpus(requests: Sequence[GresRequest]) -> str:
    """`a100:2`: --gpus and its kin name no GRES."""
    return format_gres(each for each in requests if each.name == "gpu").replace("gpu:", "")


_IN_BOTH: dict[Form, Callable[[Any], str]] = {
    Form.TEXT: str,
    Form.FEATURES: str,
    Form.WORDS: ",".join,
    Form.HOSTS: compress,
    Form.NUMBER: str,
    Form.COUNT: str,
    Form.LIMIT: _limit,
    Form.MOMENT: _moment,
    Form.GRES: format_gres,
}

AS_OPTION: dict[Form, Callable[[Any], str | bool]] = {
    **_IN_BOTH,
    Form.MEMORY: lambda mib: f"{mib}M",
    Form.FLAG: bool,
    Form.CHOICE: lambda choice: "yes" if choice else "no",
    Form.GPUS: _gpus,
}
"""True is an option without a value; empty is none at all."""

AS_KEY: dict[Form, Callable[[Any], str]] = {
    **_IN_BOTH,
    Form.MEMORY: str,
    Form.FLAG: lambda flag: "yes" if flag else "no",
    Form.CHOICE: lambda choice: "1" if choice else "0",
    Form.GPUS: format_gres,
}


# -- fields with functions of their own ------------------------------------------------------------------------------


def _dependencies(dependencies: Dependencies) -> str:
    return format_dependencies(dependencies, state_of=lambda _: "").replace("()", "")


def _array(spec: JobSpec) -> str:
    if spec.array is None:
        return ""
    return spec.array.text or format_array(spec.array.task_ids, spec.array.throttle, max_length=1_000_000)


def _range(least: int, most: int | None) -> str:
    return f"{least}" if most in (None, least) else f"{least}-{most}"


def _switches(count: int, wait_s: int | None) -> str:
    return str(count) + (f"@{format_time_limit(wait_s)}" if wait_s else "")


def _given(option: str, written: str | None) -> tuple[str, ...]:
    return (f"--{option}={written}",) if written else ()


def _requeue(spec: JobSpec) -> tuple[str, ...]:
    if spec.expedite_requeue:
        return ("--requeue=expedite",)
    return () if spec.requeue is None else ("--requeue",) if spec.requeue else ("--no-requeue",)


def _time(spec: JobSpec) -> tuple[str, ...]:
    asked = spec.time_limit_given or spec.time_limit_s is not None
    return _given("time", _limit(spec.time_limit_s) if asked else "")


def _nodes(spec: JobSpec) -> tuple[str, ...]:
    asked = spec.resources
    return _given("nodes", _range(asked.nodes_min, asked.nodes_max) if asked.nodes_given else "")


def _asked_switches(spec: JobSpec) -> tuple[str, ...]:
    asked = spec.resources
    return _given("switches", "" if asked.switches is None else _switches(asked.switches, asked.switches_wait_s))


def _open_mode(spec: JobSpec) -> tuple[str, ...]:
    return _given("open-mode", {None: "", True: "append", False: "truncate"}[spec.open_append])


def _choice(name: str, yes: str, no: str) -> Callable[[JobSpec], tuple[str, ...]]:
    """One of two options, or neither where nothing was said."""

    def written(spec: JobSpec) -> tuple[str, ...]:
        said = getattr(spec, name)
        return () if said is None else (yes if said else no,)

    return written


PASSED: dict[str, Callable[[JobSpec], tuple[str, ...]]] = {
    "array": lambda spec: _given("array", _array(spec)),
    "container_entrypoint": _choice("container_entrypoint", "--container-entrypoint", "--no-container-entrypoint"),
    "container_mount_home": _choice("container_mount_home", "--container-mount-home", "--no-container-mount-home"),
    "container_remap_root": _choice("container_remap_root", "--container-remap-root", "--no-container-remap-root"),
    "container_writable": _choice("container_writable", "--container-writable", "--container-readonly"),
    "dependencies": lambda spec: _given("dependency", _dependencies(spec.dependencies)),
    "kill_on_node_fail": lambda spec: () if spec.kill_on_node_fail else ("--no-kill",),
    "name": lambda spec: _given("job-name", spec.name),
    "open_append": _open_mode,
    "requeue": _requeue,
    "resources.nodes_min": _nodes,
    "resources.switches": _asked_switches,
    "time_limit_s": _time,
    "warning": lambda spec: _given("signal", format_warning_signal(spec.warning) if spec.warning else ""),
    "work_dir": lambda spec: _given("chdir", spec.work_dir),
}
"""The words for fields that are more than the value of one option, by their paths."""


# -- orders ----------------------------------------------------------------------------------------------------------


def _new_memory(name: str, other: str) -> Callable[[Mapping[str, Any]], str | None]:
    """Of a node or of a CPU: Slurm lets go of the one when it is told the other, and never of both."""

    def written(changes: Mapping[str, Any]) -> str | None:
        if changes[name] is None and changes.get(other) is None:
            raise ValueError(name)
        return None if changes[name] is None else str(changes[name])

    return written


def _new_switches(changes: Mapping[str, Any]) -> str:
    if changes.get("switches") is None:
        raise ValueError("switches_wait_s")
    return _switches(changes["switches"], changes.get("switches_wait_s"))


def _new_nodes(changes: Mapping[str, Any]) -> str:
    if changes.get("nodes_min") is None:
        raise ValueError("nodes_max")
    return _range(changes["nodes_min"], changes.get("nodes_max"))


ORDERED: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "ArrayTaskThrottle": lambda changes: str(changes["array_throttle"] or 0),
    "CheckpointPath": lambda changes: None,
    "Heal": lambda changes: None,
    "Dependency": lambda changes: _dependencies(changes["dependencies"]),
    "MinMemoryCPU": _new_memory("memory_per_cpu_mib", "memory_per_node_mib"),
    "MinMemoryNode": _new_memory("memory_per_node_mib", "memory_per_cpu_mib"),
    "NumNodes": _new_nodes,
    "StartTime": lambda changes: _moment(changes["begin_at"]) or "now",
    "Switches": _new_switches,
}
"""Keys of `scontrol update` whose value is more than one field's, or has a word of its own; None: it is not told."""
_BY_CHANGE = {field.change: field for field in FIELDS if field.update}
_NODE_KEYS = {"state": "State", "reason": "Reason", "weight": "Weight", "features": "AvailableFeatures"}
_SIMPLE = ("hold", "release", "suspend", "resume")


def order_words(order: Order) -> list[str]:
    """The command that carries out an order. Raises ValueError for a change that Slurm has no key for."""
    target = order.target
    if order.verb == "cancel":
        return ["scancel", target]
    if order.verb == "signal":
        scope = {"batch": ["--batch"], "all": ["--full"]}.get(order.scope, [])
        return ["scancel", f"--signal={order.signal}", *scope, target]
    if order.verb == "requeue":
        return ["scontrol", "requeuehold" if order.held else "requeue", target]
    if order.verb == "hold" and order.as_user:
        return ["scontrol", "uhold", target]
    if order.verb in _SIMPLE:
        return ["scontrol", order.verb, target]
    if order.verb == "update":
        return ["scontrol", "update", f"JobId={target}", *_changes(order.changes)]
    assert order.verb == "update_nodes", f"unknown order {order.verb}"
    pairs = [f"{_NODE_KEYS[name]}={_plain(value)}" for name, value in order.changes.items() if value is not None]
    return ["scontrol", "update", f"NodeName={target}", *pairs]


def _plain(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _changes(changes: Mapping[str, Any]) -> Iterator[str]:
    told: dict[str, str | None] = {}
    for name, value in changes.items():
        if name == "hold":
            continue
        if name not in _BY_CHANGE:
            raise ValueError(name)
        field = _BY_CHANGE[name]
        key = field.update[0]
        told[key] = ORDERED[key](changes) if Place.ORDERED in field.own else AS_KEY[field.form](value)
    yield from (f"{key}={value}" for key, value in told.items() if value is not None)
