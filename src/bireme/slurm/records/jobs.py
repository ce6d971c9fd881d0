"""A job as a record: a table from field name to how it is read, so that a caller pays only for what it asks.

`squeue` with ten thousand jobs asks a dozen cheap fields; the history asks them all, with the phase that the job is
about to enter. What was asked for is read as the table of job fields says (`slurm/job_fields`); here is the rest. What
each field means is said in the package. Invariant: every getter works in every phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import ceil
from operator import attrgetter
from typing import Any

from bireme.core.accounts.charging import MAX_TRES
from bireme.core.explain.wording import sentence
from bireme.core.idle.shelves import NOTICES
from bireme.core.idle.wording import notice_text
from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.gates import Met, condition_met
from bireme.core.jobs.states import base_state, job_reasons, phase_state
from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import (
    ArrayWaiting,
    Dependencies,
    Dependency,
    Ending,
    Finished,
    Job,
    JobSpec,
    Pending,
    Phase,
    Starting,
    Suspended,
)
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.resources import SUCCESS, Allocation, ExitStatus
from bireme.core.placement.demand import Demand, requested_tres, resolve
from bireme.core.state.state import State
from bireme.slurm.arrays import format_array
from bireme.slurm.dependencies import format_dependencies
from bireme.slurm.gres import format_gres
from bireme.slurm.hostlist import compress
from bireme.slurm.id_ranges import id_ranges
from bireme.slurm.job_fields.row import Form, JobField, Place
from bireme.slurm.job_fields.table import FIELDS as TABLE
from bireme.slurm.records import values
from bireme.slurm.records.partitions import cluster_names
from bireme.slurm.records.paths import stream_paths
from bireme.slurm.signals import format_warning_signal

_NOWHERE = PartitionConfig(name="", nodes=())
"""Stands in for a partition that left the configuration while a job named it."""


class JobView:
    """One job as seen now, in its own phase or one it is about to enter. What is expensive is worked out once."""

    def __init__(self, state: State, job: Job, now: float, phase: Phase) -> None:
        self.state = state
        self.job = job
        self.spec = job.spec
        self.asked = job.spec.resources
        self.owner = job.spec.owner
        self.now = now
        self.phase = phase
        self.allocation: Allocation | None = None if isinstance(phase, Pending) else phase.allocation
        self._paths: tuple[str, str, str] | None = None

    @property
    def partition(self) -> PartitionConfig:
        """Where it runs, or the first of those where it may."""
        name = self.allocation.partition if self.allocation else next(iter(self.spec.partitions), "")
        return self.state.partitions.get(name, _NOWHERE)

    @property
    def demand(self) -> Demand:
        return resolve(self.spec, self.partition, self.state.config.settings)

    def with_billing(self, tres: dict[str, int]) -> dict[str, int]:
        flags = self.state.config.settings.priority_flags
        return values.with_billing(tres, self.partition.tres_billing_weights, MAX_TRES in flags)

    @property
    def paths(self) -> tuple[str, str, str]:
        if self._paths is None:
            self._paths = stream_paths(self.job, self.allocation)
        return self._paths

    @property
    def status(self) -> ExitStatus:
        """What ended by other hands has no status of its own in the history; while it is remembered, Slurm shows its
        script's."""
        if not isinstance(self.phase, Ending | Finished):
            return SUCCESS
        status = self.phase.outcome.status
        by_others = self.phase is self.job.phase and self.phase.outcome.state in ("CANCELLED", "TIMEOUT")
        return self.job.batch_status or status if by_others and status == SUCCESS else status

    @property
    def started_at(self) -> float | None:
        if isinstance(self.phase, Pending):
            return None
        return self.phase.since if isinstance(self.phase, Starting) else self.phase.started_at

    @property
    def suspended_s(self) -> float:
        phase = self.phase
        if isinstance(phase, Pending | Starting):
            return 0.0
        running_on = self.now - phase.since if isinstance(phase, Suspended) else 0.0
        return phase.suspended_s + running_on

    @property
    def ended_at(self) -> float | None:
        if isinstance(self.phase, Finished):
            return self.phase.ended_at
        if isinstance(self.phase, Ending):
            return self.phase.ended_at or self.job.batch_ended_at or self.phase.since
        return None


def job_record(
    state: State, job: Job, now: float, fields: Sequence[str] | None = None, phase: Phase | None = None
) -> dict[str, Any]:
    """The asked fields (all of them when None). Names that are no fields are left out."""
    view = JobView(state, job, now, phase or job.phase)
    if fields is None:
        record = what_was_asked(view).copy()
        for name, get in _CHANGING:
            record[name] = get(view)
        return record
    return {name: FIELDS[name](view) for name in fields if name in FIELDS}


# -- identity --------------------------------------------------------------------------------------------------------


def _array_tasks(view: JobView) -> str:
    array = view.job.array
    return format_array(tuple(array.waiting), array.throttle, 0) if isinstance(array, ArrayWaiting) else ""


def _array_throttle(view: JobView) -> int | None:
    if isinstance(view.job.array, ArrayWaiting):
        return view.job.array.throttle
    return view.spec.array.throttle if view.spec.array else None


def _het_offset(view: JobView) -> int | None:
    if view.job.het_job_id is None:
        return None
    return view.job.id - view.job.het_job_id  # components have consecutive ids


def _het_job_id_set(view: JobView) -> str:
    if view.job.het_job_id is None:
        return ""
    return id_ranges(view.state.het_members.get(view.job.het_job_id, (view.job.id,)))


def _partition(view: JobView) -> str:
    return view.allocation.partition if view.allocation else ",".join(view.spec.partitions)


def _cluster(view: JobView) -> str:
    """The cluster of a job's partition; of a mirrored job whose partition is not known yet, the one beside ours."""
    if view.job.mirrored and not view.partition.cluster:
        return cluster_names(view.state)[-1]
    return view.partition.cluster or view.state.config.name


# -- state and reasons -----------------------------------------------------------------------------------------------


def _cancelled_by(view: JobView) -> int | None:
    return view.phase.outcome.by_uid if isinstance(view.phase, Ending | Finished) else None


def _reason(view: JobView) -> str:
    first = job_reasons(view.state, view.job, view.phase)[0]
    kind = first.kind
    if kind is ReasonKind.OTHER:
        return str(first.fact("word") or kind.value)
    if kind is ReasonKind.RESERVATION_DELETED:
        return f"Reservation_{first.fact('name')}_was_deleted"
    if first.fact("reserved") is not None:
        return f"{kind.value},_May_be_reserved_for_other_job"
    if kind is ReasonKind.REQUIRED_NODE_NOT_AVAILABLE:
        return _nodes_away(view, str(first.fact("unavailable") or ""))
    # Slurm tells this one by the state (SPECIAL_EXIT) and shows the reason of any other held job.
    return str((ReasonKind.JOB_HELD_USER if kind is ReasonKind.SPECIAL_EXIT else kind).value)


def _nodes_away(view: JobView, unavailable: str) -> str:
    """Slurm names the nodes that the user asked for; of others it says only that there are too few."""
    wanted = [name for name in unavailable.split(",") if name in view.asked.nodelist]
    if wanted:
        return f"{ReasonKind.REQUIRED_NODE_NOT_AVAILABLE.value},_UnavailableNodes:{compress(wanted)}"
    return "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"


def _system_comment(view: JobView) -> str:
    """What the controller says of a job in its own name: what the owner of an idle one was told, and why one was ended
    or sent back for it."""
    if isinstance(view.phase, Ending | Finished):
        why = view.phase.outcome.reason
    elif isinstance(view.phase, Pending):
        why = view.job.sent_back_for
    else:
        notice = NOTICES.of(view.state).get(view.job.id)
        return notice_text(notice) if notice is not None else ""
    return sentence(why) if why is not None and why.kind is ReasonKind.IDLE_GPUS else ""


def _reasons(view: JobView) -> list[dict[str, Any]]:
    return [
        {"kind": each.kind.value, "facts": dict(each.facts), "text": sentence(each)}
        for each in job_reasons(view.state, view.job, view.phase)
    ]


def _held_by(view: JobView) -> str | None:
    return view.phase.held_by if isinstance(view.phase, Pending) else view.job.held_on_return


def _priority(view: JobView) -> int:
    return 0 if _held_by(view) else view.job.priority


def _dependency(view: JobView) -> str:
    if not isinstance(view.phase, Pending) or not view.spec.dependencies.items:
        return ""
    met = {item: condition_met(view.state, view.job, item, view.now) for item in view.spec.dependencies.items}
    unmet = tuple(item for item, answer in met.items() if answer is not Met.YES)

    def word(item: Dependency) -> str:
        return "failed" if met[item] is Met.NEVER else "unfulfilled"

    left = Dependencies(unmet, view.spec.dependencies.any_suffices)
    return format_dependencies(left, is_array=view.state.arrays.__contains__, state_of=word)


# -- times -----------------------------------------------------------------------------------------------------------


def _eligible_time(view: JobView) -> float | None:
    return view.phase.eligible_at if isinstance(view.phase, Pending) else view.job.eligible_at


def _accrue_time(view: JobView) -> float | None:
    if isinstance(view.phase, Pending) and not view.phase.accrues:
        return None
    since = view.phase.accrues_since if isinstance(view.phase, Pending) else None
    return _eligible_time(view) if since is None else since


def _end_time(view: JobView) -> float | None:
    ended, started = view.ended_at, view.started_at
    if ended is not None or started is None:
        return ended
    limit = time_limit_s(view.state, view.job)
    return None if limit is None else started + limit + view.suspended_s


def _elapsed(view: JobView) -> int:
    if isinstance(view.phase, Starting):
        return 0
    return values.elapsed_s(view.started_at, view.ended_at or view.now, view.suspended_s)


def _checkpoint(view: JobView) -> dict[str, Any] | None:
    found = view.job.checkpoint
    return None if found is None else {**asdict(found), "passed_over": list(found.passed_over)}


def _unsaved_s(view: JobView) -> int | None:
    """What would have to be done again if it ended now, or had to be when it ended."""
    if view.started_at is None or isinstance(view.phase, Starting):
        return None
    return values.elapsed_s(max(view.started_at, view.job.checkpointed_at or 0.0), view.ended_at or view.now, 0.0)


def _expected_start(view: JobView) -> float | None:
    if not isinstance(view.phase, Pending):
        return None
    verdict = view.state.verdicts.get(view.job.id)
    return verdict.expected_start if verdict else view.phase.expected_start


def _planned_nodes(view: JobView) -> str:
    verdict = view.state.verdicts.get(view.job.id) if isinstance(view.phase, Pending) else None
    return values.node_list(tuple(share.node for share in verdict.slot)) if verdict else ""


def _last_looked_at(view: JobView) -> float | None:
    """Of a waiting job, the latest pass; of any other, the one that started it. A job is judged when it comes, too."""
    if view.job.mirrored:
        return None  # its scheduler knows
    if isinstance(view.phase, Pending):
        return max(view.state.planned_at or 0.0, view.job.submitted_at)
    return view.started_at or view.job.submitted_at


# -- resources -------------------------------------------------------------------------------------------------------


def _node_list(view: JobView) -> str:
    return values.node_list(view.allocation.node_names) if view.allocation else ""


def _node_count(view: JobView) -> int:
    """Of a waiting job, how many it is to get; where no slot was found for it, how many it asks for."""
    if view.allocation:
        return len(view.allocation.shares)
    verdict = view.state.verdicts.get(view.job.id)
    return len(verdict.slot) if verdict and verdict.slot else _nodes_wanted(view)


def _nodes_wanted(view: JobView) -> int:
    """As `Demand.nodes_wanted`, without resolving the rest of the request: squeue asks it of every waiting job."""
    asked = view.asked
    nodes = max(asked.nodes_min, len(asked.nodelist))
    if asked.ntasks is None:
        return nodes
    if asked.ntasks_per_node:
        return max(min(nodes, asked.ntasks), ceil(asked.ntasks / asked.ntasks_per_node))
    return min(nodes, asked.ntasks)


def _shares(view: JobView) -> list[dict[str, Any]]:
    return [
        {
            "node": share.node,
            "cpus": share.cpus,
            "memory_mib": share.memory_mib,
            "cpu_ids": list(share.cpu_ids),
            "gres": values.gres_records(share.gres),
            "tasks": share.tasks,
        }
        for share in (view.allocation.shares if view.allocation else ())
    ]


def _num_tasks(view: JobView) -> int:
    if view.allocation and view.asked.ntasks is None:
        return sum(share.tasks for share in view.allocation.shares)
    return view.demand.ntasks


def _num_cpus(view: JobView) -> int:
    return view.allocation.cpus if view.allocation else requested_tres(view.demand)["cpu"]


def _memory(view: JobView) -> tuple[int, str | None]:
    demand = view.demand
    if demand.memory_per_node_mib is not None:
        return demand.memory_per_node_mib, "node"
    if demand.memory_per_cpu_mib is not None:
        return demand.memory_per_cpu_mib, "cpu"
    if demand.memory_per_gpu_mib is not None:
        return demand.memory_per_gpu_mib, "gpu"
    return 0, None


def _switches_wait_s(view: JobView) -> int | None:
    """How long it insists on them: what was asked, and no longer than max_switch_wait."""
    if view.asked.switches is None:
        return None
    asked, most = view.asked.switches_wait_s, view.state.config.settings.policy.switches_wait_most_s
    return most if asked is None else min(asked, most)


def _per_node(view: JobView) -> str:
    return format_gres(view.asked.gres_per_node)


def _cpus_per_tres(view: JobView) -> str:
    return f"gpu:{view.demand.cpus_per_gpu}" if view.demand.cpus_per_gpu else ""


def _tres_requested(view: JobView) -> dict[str, int]:
    return view.with_billing(requested_tres(view.demand))


def _tres_allocated(view: JobView) -> dict[str, int]:
    return view.with_billing(view.allocation.tres()) if view.allocation else {}


def _oversubscribe(view: JobView) -> str:
    return "NO" if view.asked.exclusive else "YES" if view.asked.oversubscribe else "OK"


# -- the table -------------------------------------------------------------------------------------------------------


def _open_mode(view: JobView) -> str | None:
    return {None: None, True: "append", False: "truncate"}[view.spec.open_append]


def _warning(view: JobView) -> str:
    return format_warning_signal(view.spec.warning) if view.spec.warning else ""


Getter = Callable[[JobView], Any]
OWN_AS_ASKED: dict[str, Getter] = {
    "nodes_min": _nodes_wanted,
    "cpus_per_task": lambda view: view.asked.cpus_per_task or 1,
    "argv": lambda view: list(view.spec.argv),
    "open_mode": _open_mode,
    "oversubscribe": _oversubscribe,
    "switches_wait_s": _switches_wait_s,
    "kind": lambda view: view.spec.kind.value,
    "container_image": lambda view: view.spec.container_image or view.spec.container_bundle,
    "warning": _warning,
    "ignored": lambda view: list(view.spec.ignored),
}
"""Fields of the table that need more than their form, and only depend on what was asked."""
OWN_AS_LIVED: dict[str, Getter] = {
    "array_throttle": _array_throttle,
    "partition": _partition,
    "priority": _priority,
    "time_limit_s": lambda view: time_limit_s(view.state, view.job),
    "num_tasks": _num_tasks,
    "dependency": _dependency,
    "std_in": lambda view: view.paths[0],
    "std_out": lambda view: view.paths[1],
    "std_err": lambda view: view.paths[2],
}
"""Those that also depend on where the job is in its life."""
_FROM_THE_REQUEST: dict[str, Getter] = {
    "user_id": lambda view: view.owner.uid,
    "user_name": lambda view: view.owner.user,
    "group_id": lambda view: view.owner.gid,
    "group_name": lambda view: view.owner.group,
    "memory_mib": lambda view: _memory(view)[0],
    "memory_per": lambda view: _memory(view)[1],
    "gres_requested": _per_node,
    "cpus_per_tres": _cpus_per_tres,
    "tres_requested": _tres_requested,
}
"""What follows from several fields of what was asked."""
_FROM_ITS_LIFE: dict[str, Getter] = {
    "job_id": lambda view: view.job.id,
    "array_job_id": lambda view: view.job.array_job_id,
    "array_task_id": lambda view: view.job.task_id,
    "array_tasks": _array_tasks,
    "het_job_id": lambda view: view.job.het_job_id,
    "het_offset": _het_offset,
    "het_job_id_set": _het_job_id_set,
    "cluster": _cluster,
    "state": lambda view: phase_state(view.phase),
    "base_state": lambda view: base_state(view.phase),
    "cancelled_by": _cancelled_by,
    "reason": _reason,
    "reasons": _reasons,
    "system_comment": _system_comment,
    "submit_time": lambda view: view.job.submitted_at,
    "eligible_time": _eligible_time,
    "accrue_time": _accrue_time,
    "start_time": lambda view: view.started_at,
    "end_time": _end_time,
    "expected_start": _expected_start,
    "suspended_s": lambda view: int(view.suspended_s),
    "suspend_time": lambda view: view.phase.since if isinstance(view.phase, Suspended) else None,
    "elapsed_s": _elapsed,
    "preempt_time": lambda view: None,
    "last_sched_time": _last_looked_at,
    "node_list": _node_list,
    "node_count": _node_count,
    "batch_host": lambda view: view.allocation.first_node if view.allocation else "",
    "shares": _shares,
    "planned_nodes": _planned_nodes,
    "num_cpus": _num_cpus,
    "tres_allocated": _tres_allocated,
    "exit_code": lambda view: values.shown_status(view.status)[0],
    "exit_signal": lambda view: values.shown_status(view.status)[1],
    "derived_exit_code": lambda view: values.shown_status(view.job.worst_step_status)[0],
    "derived_exit_signal": lambda view: values.shown_status(view.job.worst_step_status)[1],
    "restarts": lambda view: view.job.restarts,
    "checkpoint": _checkpoint,
    "saved_time": lambda view: view.job.checkpointed_at,
    "unsaved_s": _unsaved_s,
    "generation": lambda view: view.job.generation,
    "held_by": _held_by,
    "usage": lambda view: values.usage_record(view.job.usage),
}
"""What is no field of what was asked."""


def _by_form(field: JobField) -> Getter:
    get = attrgetter(f"{'asked' if field.of_resources else 'spec'}.{field.name}")
    write = FORMS.get(field.form)
    return get if write is None else lambda view: write(get(view))


FORMS: dict[Form, Callable[[Any], Any]] = {
    Form.WORDS: ",".join,
    Form.HOSTS: compress,
    Form.GRES: format_gres,
    Form.GPUS: format_gres,
}
"""How a form is written in a record, where it is not written as it is."""


def _fields_of_the_table() -> dict[str, Getter]:
    own = OWN_AS_ASKED | OWN_AS_LIVED
    return {
        field.record: own[field.record] if Place.RECORD in field.own else _by_form(field)
        for field in TABLE
        if field.record
    }


_TABLED = _fields_of_the_table()
FIELDS: dict[str, Getter] = {**_FROM_ITS_LIFE, **_FROM_THE_REQUEST, **_TABLED}

OF_REQUEST = (*_FROM_THE_REQUEST, *(name for name in _TABLED if name not in OWN_AS_LIVED))
"""Fields that only depend on what was asked for, and of which partition: the same for all jobs that share both."""
_CHANGING = tuple((name, get) for name, get in FIELDS.items() if name not in OF_REQUEST)
_asked: dict[tuple[int, int, int], tuple[JobSpec, PartitionConfig, Settings, dict[str, Any]]] = {}
"""Those fields, by the identity of specification, partition and settings (which are kept with them)."""
_ASKED_AT_MOST = 1_000


def what_was_asked(view: JobView) -> dict[str, Any]:
    """Those fields of a record (`OF_REQUEST`): one object for all jobs that share them, not to be changed."""
    spec, partition, settings = view.spec, view.partition, view.state.config.settings
    key = (id(spec), id(partition), id(settings))
    known = _asked.get(key)
    if known is None:
        if len(_asked) >= _ASKED_AT_MOST:
            _asked.clear()
        known = _asked[key] = (spec, partition, settings, {name: FIELDS[name](view) for name in OF_REQUEST})
    return known[3]
