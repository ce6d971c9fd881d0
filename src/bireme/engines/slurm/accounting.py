"""Jobs of Slurm's accounting database (`sacct --json`) as sightings: how they ended, what their steps used.

The queue tells more about what a job asked for, the database more about what came of it: where both know a job, `told`
adds the second to the first. Pure: no IO. Called by the engine. Invariant: a job that has not ended gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bireme.core.model.jobs import ArrayTask, Finished, JobSpec, Outcome, Owner
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.model.resources import (
    NO_USAGE,
    Allocation,
    ExitStatus,
    GresShare,
    NodeShare,
    Usage,
    merge_usage,
)
from bireme.core.model.sightings import Sighting
from bireme.core.model.steps import BATCH_STEP, EXTERN_STEP, INTERACTIVE_STEP, Step, StepNode, StepSpec, StepState
from bireme.engines.slurm.asked import spec_of_ended
from bireme.engines.slurm.jobs import FINAL
from bireme.engines.slurm.values import Json, count, exit_status, look, moment, number, part, text, words
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand

_SPECIAL = {"batch": BATCH_STEP, "extern": EXTERN_STEP, "interactive": INTERACTIVE_STEP}


def ended_job(job: Json, uid_of: Any) -> Sighting | None:
    """`uid_of`: name of a user -> (uid, gid). None: it has not ended, or is not one."""
    job_id = number(job.get("job_id"))
    state = next((word for word in words(look(job, "state in accounting")) if word in FINAL), None)
    times = _inside(job, "time")
    ended = moment(times.get("end"))
    if not job_id or state is None or ended is None:
        return None
    nodes = _nodes(text(job.get("nodes")))
    started = moment(times.get("start")) if nodes else None
    restarts = number(job.get("restart_cnt")) or 0
    partition = text(job.get("partition"))
    allocation = _allocation(job, job_id, restarts + 1, partition, nodes) if nodes else None
    suspended = float(number(times.get("suspended")) or 0)
    phase = Finished(_outcome(job, state, uid_of), ended, started, allocation, suspended)
    steps = dict(_step(job_id, each) for each in job.get("steps") or ())
    batch = steps.pop(BATCH_STEP, None)
    real = tuple(step for step_id, step in sorted(steps.items()) if step_id >= 0)
    task = _task(job)
    return Sighting(
        job_id=job_id,
        spec=_spec(job, uid_of, task),
        submitted_at=moment(times.get("submission")) or ended,
        phase=phase,
        restarts=restarts,
        task=task,
        het_job_id=count(_inside(job, "het").get("job_id")),
        eligible_at=moment(times.get("eligible")),
        steps=real,
        batch_status=batch.status if batch else None,
        batch_usage=batch.usage if batch else NO_USAGE,
        usage=merge_usage(step.usage for step in (*real, batch) if step is not None),
        worst_step_status=exit_status(job.get("derived_exit_code")),
    )


def told(queue: Sighting, database: Sighting) -> Sighting:
    """What the queue said of a job, with what the database adds to it."""
    phase = queue.phase
    if isinstance(phase, Finished) and isinstance(database.phase, Finished):
        phase = replace(phase, outcome=replace(phase.outcome, by_uid=database.phase.outcome.by_uid))
    return replace(
        queue,
        phase=phase,
        steps=database.steps,
        batch_status=queue.batch_status,
        batch_usage=database.batch_usage,
        usage=database.usage,
        worst_step_status=database.worst_step_status,
    )


def _spec(job: Json, uid_of: Any, task: ArrayTask | None) -> JobSpec:
    user = text(job.get("user")) or text(_inside(job, "association").get("user"))
    uid, gid = uid_of(user)
    asked = _tres(_inside(job, "tres").get("requested"))
    owner = Owner(uid=uid, gid=gid, user=user, group=text(job.get("group")))
    return spec_of_ended(job, owner, task, asked.get("node", 1), asked.get("cpu"))


def _task(job: Json) -> ArrayTask | None:
    array = _inside(job, "array")
    job_id, task = count(array.get("job_id")), number(array.get("task_id"))
    return ArrayTask(job_id, task) if job_id and task is not None else None


def _outcome(job: Json, state: str, uid_of: Any) -> Outcome:
    status = exit_status(job.get("exit_code"))
    if state == "OUT_OF_MEMORY":
        status = ExitStatus(status.code, status.signal, out_of_memory=True)
    said = text(_inside(job, "state").get("reason"))
    known = {kind.value: kind for kind in ReasonKind}.get(said)
    reason = Reason(known) if known is not None and known is not ReasonKind.NONE else None
    by = text(job.get("kill_request_user"))
    return Outcome(state, status, reason, uid_of(by)[0] if by and state == "CANCELLED" else None)


def _allocation(job: Json, job_id: int, generation: int, partition: str, nodes: list[str]) -> Allocation:
    totals = _tres(_inside(job, "tres").get("allocated"))
    gres = [(name.partition("/")[2], many) for name, many in totals.items() if name.startswith("gres/")]

    shares = tuple(
        NodeShare(
            node,
            part(totals.get("cpu", 0), len(nodes), place),
            part(totals.get("mem", 0), len(nodes), place),
            gres=tuple(
                GresShare(name.partition(":")[0], name.partition(":")[2] or None, part(many, len(nodes), place))
                for name, many in gres
                if part(many, len(nodes), place)
            ),
        )
        for place, node in enumerate(nodes)
    )
    return Allocation(job_id, generation, partition.partition(",")[0], shares)


def _step(job_id: int, step: Json) -> tuple[int, Step]:
    step_id = _step_id(look(step, "step id"))
    times = _inside(step, "time")
    nodes = _nodes(text(look(step, "step nodes"))) or ["?"]
    tasks = number(_inside(step, "tasks").get("count")) or 1
    cpus = _tres(_inside(step, "tres").get("allocated")).get("cpu", tasks)
    state = next(iter(words(step.get("state"))), "COMPLETED")
    status = exit_status(step.get("exit_code"))
    started, ended = moment(times.get("start")), moment(times.get("end"))
    places, first = [], 0
    for place, node in enumerate(nodes):
        mine, share = part(tasks, len(nodes), place), part(cpus, len(nodes), place)
        places.append(StepNode(node, tuple(range(first, first + mine)), share))
        first += mine
    return step_id, Step(
        job_id,
        step_id,
        StepSpec(name=text(look(step, "step name")), ntasks=tasks),
        tuple(places),
        created_at=started or 0.0,
        state=StepState.ENDED if ended else StepState.RUNNING,
        started_at=started,
        ended_at=ended,
        outcome=state if ended else "",
        status=status,
        usage=_usage(step, tasks),
        ended_nodes=frozenset(nodes) if ended else frozenset(),
    )


def _step_id(value: Any) -> int:
    """0, "batch", "42.batch" or "42.0"."""
    word = str(value).rpartition(".")[2]
    return _SPECIAL.get(word, int(word) if word.isdigit() else EXTERN_STEP)


def _usage(step: Json, tasks: int) -> Usage:
    times = _inside(step, "time")
    most = {text(each.get("type")): each for each in _listed(step, "requested", "max")}
    memory = most.get("mem", {})
    virtual = most.get("vmem", {})
    return Usage(
        user_cpu_s=_seconds(times.get("user")),
        system_cpu_s=_seconds(times.get("system")),
        max_rss_kib=(number(memory.get("count")) or 0) // 1024,
        max_rss_node=text(memory.get("node")),
        max_rss_task=number(memory.get("task")) or 0,
        max_vmsize_kib=(number(virtual.get("count")) or 0) // 1024,
        tasks=tasks,
    )


def _listed(step: Json, kind: str, which: str) -> list[Json]:
    found = _inside(_inside(step, "tres"), kind).get(which)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _seconds(value: Any) -> float:
    if not isinstance(value, Mapping):
        return 0.0
    return (number(value.get("seconds")) or 0) + (number(value.get("microseconds")) or 0) / 1e6


def _tres(listed: Any) -> dict[str, int]:
    """[{"type": "gres", "name": "gpu", "count": 2}] -> {"gres/gpu": 2}."""
    totals: dict[str, int] = {}
    for each in listed if isinstance(listed, list) else ():
        name, many = text(each.get("name")), number(each.get("count"))
        if many is not None:
            totals[f"{text(each.get('type'))}/{name}" if name else text(each.get("type"))] = many
    return totals


def _nodes(written: str) -> list[str]:
    try:
        return [] if written in ("", "None assigned", "None") else expand(written)
    except SlurmSyntaxError:
        return []


def _inside(record: Json, field: str) -> Json:
    found = record.get(field)
    return found if isinstance(found, Mapping) else {}
