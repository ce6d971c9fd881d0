"""What a job asked for, read from Slurm's JSON: of the queue (`squeue --json`) and of the accounting database.

Where a field is and what form it has says its row (`slurm/job_fields`), by the same keys that our own `--json` writes.
Here is how a form is read, and the fields that need more than that. Pure: no IO.
Invariant: what Slurm does not say, or says in an unknown form, is as if nobody had asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bireme.core.model.jobs import ArraySpec, ArrayTask, Dependencies, JobKind, JobSpec, Owner, ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.engines.slurm.values import Json, count, look, moment, number, text, words
from bireme.slurm.arrays import parse_array
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.job_fields.row import Form, JobField, Place
from bireme.slurm.job_fields.table import FIELDS

TAG = re.compile(r"\s*\[bireme:([^\]\s]+)\]$")
"""What Bireme writes behind a job's comment, so that a submission is recognised (see `submission`)."""
_MINUTE = 60
_NO_TASKS = 0xFFFFFFFE

UserName = Callable[[int], str]


def spec_of(job: Json, user_name: UserName) -> JobSpec:
    """What was asked for by a job in the queue. `user_name`: uid -> name, for versions that leave it out."""
    given, resources = _fields(job, _IN_QUEUE)
    for field in _OWN:
        (resources if field.of_resources else given)[field.name] = OWN[field.path](job)
    return JobSpec(owner=_owner(job, user_name), resources=ResourceRequest(**resources), **given)


def spec_of_ended(job: Json, owner: Owner, task: ArrayTask | None, nodes: int, cpus: int | None) -> JobSpec:
    """Of a job in the database, which adds up what was asked for: how many nodes and CPUs."""
    given, resources = _fields(job, _IN_DATABASE)
    return JobSpec(
        owner=owner,
        resources=ResourceRequest(**{"nodes_min": nodes, "ntasks": cpus, **resources}),
        time_limit_given=True,
        array=ArraySpec((task.task_id,)) if task else None,
        **given,
    )


def _fields(job: Json, places: tuple[tuple[JobField, tuple[str, ...]], ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said of the fields that their forms suffice for: those of a JobSpec, and those of its resources."""
    given: dict[str, Any] = {"name": ""}  # a job that has none is not called as ours are by default
    resources: dict[str, Any] = {}
    for field, path in places:
        found: Any = job
        for word in path:
            found = found.get(word) if isinstance(found, Mapping) else None
        value = READERS[field.form](found)
        if value is not None and value not in ("", ()):
            (resources if field.of_resources else given)[field.name] = value
    return given, resources


# -- how a form is read ----------------------------------------------------------------------------------------------


def _words(value: Any) -> tuple[str, ...]:
    return tuple(filter(None, text(value).split(",")))


def _hosts(value: Any) -> tuple[str, ...]:
    try:
        return tuple(expand(text(value)))
    except SlurmSyntaxError:
        return ()


def gres_requests(value: Any) -> tuple[GresRequest, ...]:
    """`gres:gpu:a100:2` (22.05), `gres/gpu:a100:2` and `gres/gpu:a100=2` (later); what is no GRES is left out."""
    parts = [part.replace("gres/", "gres:").replace("=", ":") for part in text(value).split(",")]
    try:
        return parse_gres(",".join(part for part in parts if part.startswith("gres:")))
    except SlurmSyntaxError:
        return ()


def _minutes(value: Any) -> int | None:
    found = count(value)
    return None if found is None else found * _MINUTE


READERS: dict[Form, Callable[[Any], Any]] = {
    Form.TEXT: text,
    Form.FEATURES: text,
    Form.WORDS: _words,
    Form.HOSTS: _hosts,
    Form.NUMBER: number,
    Form.COUNT: count,
    Form.MEMORY: count,
    Form.FLAG: lambda value: value is True,
    Form.CHOICE: lambda value: value if isinstance(value, bool) else None,
    Form.LIMIT: _minutes,
    Form.MOMENT: moment,
    Form.GRES: gres_requests,
    Form.GPUS: gres_requests,
}


# -- fields with functions of their own ------------------------------------------------------------------------------


def tag_of(job: Json) -> str:
    found = TAG.search(text(job.get("comment")))
    return found[1] if found else ""


def reason_word(job: Json) -> str:
    return text(job.get("state_reason")).partition(",")[0] or "None"


def waiting_tasks(job: Json) -> tuple[int, ...]:
    """The tasks of an array that have not started."""
    written = text(job.get("array_task_string"))
    if not written or "..." in written:
        return ()
    try:
        return parse_array(written, max_size=_NO_TASKS).task_ids
    except SlurmSyntaxError:
        return ()


def task_of(job: Json) -> ArrayTask | None:
    array, task = count(job.get("array_job_id")), number(job.get("array_task_id"))
    return ArrayTask(array, task) if array and task is not None and not text(job.get("array_task_string")) else None


def is_exclusive(job: Json) -> bool:
    """22.05 shows it; later versions once it runs, and before that only in the command line."""
    if "NONE" in words(job.get("shared")) or look(job, "whole nodes") is True:
        return True
    return "--exclusive" in text(job.get("submit_line")).split()


def _owner(job: Json, user_name: UserName) -> Owner:
    uid = number(job.get("user_id")) or 0
    name = text(job.get("user_name")) or user_name(uid)
    return Owner(uid=uid, gid=number(job.get("group_id")) or 0, user=name, group=text(job.get("group_name")))


def _array(job: Json) -> ArraySpec | None:
    task = task_of(job)
    ids = waiting_tasks(job) or ((task.task_id,) if task else ())
    throttle = count(job.get("array_max_tasks"))
    return ArraySpec(ids, throttle, text(job.get("array_task_string"))) if ids else None


def _time_limit(job: Json) -> int | None:
    limit = number(job.get("time_limit"))
    return None if limit is None else limit * _MINUTE


def _dependencies(job: Json) -> Dependencies:
    """`afterany:1(unfulfilled),afterok:2_*(unfulfilled)`."""
    bare = re.sub(r"\([a-z_]*\)|_\*", "", text(job.get("dependency")))
    try:
        return parse_dependencies(bare) if bare else Dependencies()
    except SlurmSyntaxError:
        return Dependencies()


def _nodes(job: Json) -> int:
    return number(job.get("node_count")) or 1


def _cpus_per_task(job: Json) -> int | None:
    tasks, cpus, per_task = count(job.get("tasks")), count(job.get("cpus")), count(job.get("cpus_per_task"))
    if per_task is None and tasks and cpus and cpus > tasks and cpus % tasks == 0 and not is_exclusive(job):
        return cpus // tasks  # 22.05 tells the sum only
    return per_task


OWN: dict[str, Callable[[Json], Any]] = {
    "array": _array,
    "begin_at": lambda job: moment(job.get("eligible_time")) if reason_word(job) == "BeginTime" else None,
    "comment": lambda job: TAG.sub("", text(job.get("comment"))),
    "dependencies": _dependencies,
    "het_component": lambda job: number(job.get("het_job_offset")) if count(job.get("het_job_id")) else None,
    "hold": lambda job: number(job.get("priority")) == 0,
    "kind": lambda job: JobKind.BATCH if job.get("batch_flag", True) else JobKind.INTERACTIVE,
    "resources.cpus_per_task": _cpus_per_task,
    "resources.exclusive": is_exclusive,
    "resources.nodes_given": lambda job: _nodes(job) > 1 or count(job.get("max_nodes")) is not None,
    "resources.nodes_min": _nodes,
    "resources.oversubscribe": lambda job: "OVERSUBSCRIBE" in words(job.get("shared")),
    "resources.switches_wait_s": lambda job: count(job.get("maximum_switch_wait_time")),
    "time_limit_given": lambda _: True,
    "time_limit_s": _time_limit,
}
"""By the paths of the fields. The owner, whom the machine's users are asked for, is read apart."""

_OWN = tuple(field for field in FIELDS if field.path in OWN)
_READ = tuple(field for field in FIELDS if field.seen)
_IN_QUEUE = tuple((field, (field.json,)) for field in _READ if field.json and Place.SEEN not in field.own)
_IN_DATABASE = tuple((field, tuple(field.accounting.split("/"))) for field in _READ if field.accounting)
"""The fields that are read as their forms say, and where they are."""
