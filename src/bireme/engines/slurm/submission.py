"""A job's specification as sbatch's arguments, and the orders that people give about jobs as scontrol's and scancel's.

Pure: builds lists of words, runs nothing. The script itself goes through stdin, with its #SBATCH lines: an option on
the command line wins over them, and what Bireme has no word for Slurm reads there itself.
Invariant: every value is one word of a list; no text is ever handed to a shell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bireme.core.model.jobs import Dependencies, JobSpec
from bireme.core.model.resources import GresRequest
from bireme.ports import Order
from bireme.slurm.arrays import format_array
from bireme.slurm.dependencies import format_dependencies
from bireme.slurm.gres import format_gres
from bireme.slurm.hostlist import compress
from bireme.slurm.signals import format_warning_signal
from bireme.slurm.times import format_time_limit

SCRIPT = "/dev/stdin"
"""Read from there it can have arguments of its own; without a file name sbatch takes none."""

Get = Callable[[JobSpec], object]


def _limit(seconds: int | None, given: bool) -> str:
    if seconds is None:
        return "UNLIMITED" if given else ""
    return format_time_limit(seconds)


def _moment(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def _gres(requests: Sequence[GresRequest]) -> str:
    return format_gres(requests)


def _gpus(requests: Sequence[GresRequest]) -> str:
    """`a100:2`: --gpus and its kin name no GRES."""
    return format_gres(each for each in requests if each.name == "gpu").replace("gpu:", "")


def _dependencies(dependencies: Dependencies) -> str:
    return format_dependencies(dependencies, state_of=lambda _: "").replace("()", "")


def _memory(mib: int | None) -> str:
    return "" if mib is None else f"{mib}M"


def _array(spec: JobSpec) -> str:
    if spec.array is None:
        return ""
    return spec.array.text or format_array(spec.array.task_ids, spec.array.throttle, max_length=1_000_000)


def _nodes(spec: JobSpec) -> str:
    asked = spec.resources
    if not asked.nodes_given:
        return ""
    most = asked.nodes_max if asked.nodes_max != asked.nodes_min else None
    return f"{asked.nodes_min}" if most is None else f"{asked.nodes_min}-{most}"


OPTIONS: tuple[tuple[str, Get], ...] = (
    ("job-name", lambda spec: spec.name),
    ("account", lambda spec: spec.account),
    ("qos", lambda spec: spec.qos),
    ("wckey", lambda spec: spec.wckey),
    ("partition", lambda spec: ",".join(spec.partitions)),
    ("time", lambda spec: _limit(spec.time_limit_s, spec.time_limit_given)),
    ("time-min", lambda spec: _limit(spec.time_min_s, False)),
    ("begin", lambda spec: _moment(spec.begin_at)),
    ("deadline", lambda spec: _moment(spec.deadline_at)),
    ("dependency", lambda spec: _dependencies(spec.dependencies)),
    ("kill-on-invalid-dep", lambda spec: _yes_no(spec.kill_on_invalid_dependency)),
    ("array", _array),
    ("hold", lambda spec: spec.hold),
    ("nice", lambda spec: str(spec.nice) if spec.nice else ""),
    ("priority", lambda spec: str(spec.priority) if spec.priority is not None else ""),
    ("reservation", lambda spec: spec.reservation),
    ("requeue", lambda spec: "expedite" if spec.expedite_requeue else spec.requeue is True),
    ("no-requeue", lambda spec: spec.requeue is False),
    ("no-kill", lambda spec: not spec.kill_on_node_fail),
    ("signal", lambda spec: format_warning_signal(spec.warning) if spec.warning else ""),
    ("chdir", lambda spec: spec.work_dir),
    ("input", lambda spec: "" if spec.std_in == "/dev/null" else spec.std_in),
    ("output", lambda spec: spec.std_out),
    ("error", lambda spec: spec.std_err),
    ("open-mode", lambda spec: {None: "", True: "append", False: "truncate"}[spec.open_append]),
    ("mail-type", lambda spec: ",".join(spec.mail_type)),
    ("mail-user", lambda spec: spec.mail_user),
    ("container", lambda spec: spec.container_bundle),
    ("container-image", lambda spec: spec.container_image),
    ("container-mounts", lambda spec: spec.container_mounts),
    ("container-workdir", lambda spec: spec.container_workdir),
    ("nodes", _nodes),
    ("ntasks", lambda spec: spec.resources.ntasks),
    ("ntasks-per-node", lambda spec: spec.resources.ntasks_per_node),
    ("ntasks-per-socket", lambda spec: spec.resources.ntasks_per_socket),
    ("ntasks-per-core", lambda spec: spec.resources.ntasks_per_core),
    ("ntasks-per-gpu", lambda spec: spec.resources.ntasks_per_gpu),
    ("cpus-per-task", lambda spec: spec.resources.cpus_per_task),
    ("cpus-per-gpu", lambda spec: spec.resources.cpus_per_gpu),
    ("mincpus", lambda spec: spec.resources.min_cpus_per_node),
    ("sockets-per-node", lambda spec: spec.resources.sockets_per_node),
    ("cores-per-socket", lambda spec: spec.resources.cores_per_socket),
    ("threads-per-core", lambda spec: spec.resources.threads_per_core),
    ("mem", lambda spec: _memory(spec.resources.memory_per_node_mib)),
    ("mem-per-cpu", lambda spec: _memory(spec.resources.memory_per_cpu_mib)),
    ("mem-per-gpu", lambda spec: _memory(spec.resources.memory_per_gpu_mib)),
    ("tmp", lambda spec: _memory(spec.resources.tmp_disk_mib or None)),
    ("gres", lambda spec: _gres(spec.resources.gres_per_node)),
    ("gpus", lambda spec: _gpus(spec.resources.gres_per_job)),
    ("gpus-per-task", lambda spec: _gpus(spec.resources.gres_per_task)),
    ("gpus-per-socket", lambda spec: _gpus(spec.resources.gres_per_socket)),
    ("exclusive", lambda spec: spec.resources.exclusive),
    ("oversubscribe", lambda spec: spec.resources.oversubscribe),
    ("overcommit", lambda spec: spec.resources.overcommit),
    ("contiguous", lambda spec: spec.resources.contiguous),
    ("constraint", lambda spec: spec.resources.constraint),
    ("prefer", lambda spec: spec.resources.prefer),
    ("nodelist", lambda spec: compress(spec.resources.nodelist)),
    ("exclude", lambda spec: compress(spec.resources.exclude)),
    ("switches", lambda spec: _switches(spec)),
    ("segment", lambda spec: spec.resources.segment),
    ("licenses", lambda spec: spec.resources.licenses),
    ("hint", lambda spec: spec.resources.hint),
    ("distribution", lambda spec: spec.resources.distribution),
    ("spread-job", lambda spec: spec.resources.spread),
    ("use-min-nodes", lambda spec: spec.resources.use_min_nodes),
    ("gres-flags", lambda spec: ",".join(spec.resources.gres_flags)),
    ("core-spec", lambda spec: spec.resources.core_spec),
    ("thread-spec", lambda spec: spec.resources.thread_spec),
)
"""Option of sbatch -> its value: a text or number, True for one that takes none; empty, None, False: not given."""


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _switches(spec: JobSpec) -> str:
    asked = spec.resources
    if asked.switches is None:
        return ""
    return str(asked.switches) + (f"@{format_time_limit(asked.switches_wait_s)}" if asked.switches_wait_s else "")


def batch_words(specs: Sequence[JobSpec], key: str) -> list[str]:
    """sbatch and its arguments, for one job or the components of a heterogeneous one."""
    argv = ["sbatch", "--parsable"]
    for place, spec in enumerate(specs):
        argv += [":"] if place else []
        argv += list(_options(spec))
        comment = f"{spec.comment} [bireme:{key}]".lstrip() if key else spec.comment
        argv += [f"--comment={comment}"] if comment else []
    return [*argv, SCRIPT, *specs[0].argv]


def _options(spec: JobSpec) -> Iterator[str]:
    for name, get in OPTIONS:
        value = get(spec)
        if value is True:
            yield f"--{name}"
        elif value not in (None, False, ""):
            yield f"--{name}={value}"


# -- orders ----------------------------------------------------------------------------------------------------------

UPDATES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "name": ("JobName", str),
    "comment": ("Comment", str),
    "admin_comment": ("AdminComment", str),
    "account": ("Account", str),
    "qos": ("QOS", str),
    "wckey": ("WCKey", str),
    "partitions": ("Partition", ",".join),
    "time_limit_s": ("TimeLimit", lambda value: _limit(value, True)),
    "time_min_s": ("TimeMin", lambda value: _limit(value, True)),
    "begin_at": ("StartTime", lambda value: _moment(value) or "now"),
    "deadline_at": ("Deadline", _moment),
    "dependencies": ("Dependency", _dependencies),
    "nice": ("Nice", str),
    "priority": ("Priority", str),
    "site_factor": ("SiteFactor", str),
    "reservation": ("ReservationName", str),
    "requeue": ("Requeue", lambda value: "1" if value else "0"),
    "mail_type": ("MailType", ",".join),
    "mail_user": ("MailUser", str),
    "array_throttle": ("ArrayTaskThrottle", lambda value: str(value or 0)),
    "std_in": ("StdIn", str),
    "std_out": ("StdOut", str),
    "std_err": ("StdErr", str),
    "work_dir": ("WorkDir", str),
    "nodes_min": ("NumNodes", str),
    "ntasks": ("NumTasks", str),
    "cpus_min": ("NumCPUs", str),
    "cpus_per_task": ("CPUsPerTask", str),
    "memory_per_node_mib": ("MinMemoryNode", str),
    "memory_per_cpu_mib": ("MinMemoryCPU", str),
    "constraint": ("Features", str),
    "nodelist": ("ReqNodeList", compress),
    "exclude": ("ExcNodeList", compress),
    "licenses": ("Licenses", str),
    "contiguous": ("Contiguous", lambda value: "yes" if value else "no"),
    "gres_per_node": ("Gres", _gres),
}
"""Field of JobSpec or ResourceRequest -> the key of `scontrol update`, and how its value is written."""
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
    for name, value in changes.items():
        if name == "hold":
            continue
        if name not in UPDATES:
            raise ValueError(name)
        key, write = UPDATES[name]
        yield f"{key}={write(value)}"
