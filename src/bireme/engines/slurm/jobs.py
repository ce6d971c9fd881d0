"""A job of `squeue --json` (or slurmrestd) as a sighting.

Called by the engine for every job that changed. What it asked for is read by `asked`. Not here: what the sighting
changes (`core/jobs/mirroring`), jobs of the accounting database (`accounting`). Pure: no IO. Invariant: any object that
names a job gives a sighting, however odd the rest of it is; a record that names none gives ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.core.model.jobs import (
    Ending,
    Finished,
    Outcome,
    Pending,
    Phase,
    Running,
    Starting,
    Suspended,
)
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation, ExitStatus, GresShare, NodeShare
from bireme.core.model.sightings import Sighting, Standing
from bireme.engines.slurm.asked import gres_requests, is_exclusive, reason_word, spec_of, tag_of, task_of, waiting_tasks
from bireme.engines.slurm.values import Json, count, exit_status, look, moment, number, part, text, words
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_tres
from bireme.slurm.hostlist import expand

FINAL = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE", "BOOT_FAIL",
    "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
_HELD = {ReasonKind.JOB_HELD_USER: "user", ReasonKind.JOB_HELD_ADMIN: "admin"}
_ENDS_OF_REASONS = {
    ReasonKind.NON_ZERO_EXIT: "FAILED",
    ReasonKind.LAUNCH_FAILED: "FAILED",
    ReasonKind.RAISED_SIGNAL: "FAILED",
    ReasonKind.TIME_LIMIT: "TIMEOUT",
    ReasonKind.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    ReasonKind.NODE_DOWN: "NODE_FAIL",
    ReasonKind.DEADLINE: "DEADLINE",
}
_DETAIL = re.compile(r"(?P<name>[^:(,]+)(?::(?P<type>[^:(,]+))?:(?P<count>\d+)(?:\((?:IDX|S):(?P<index>[^)]*)\))?")


class JobReader:
    """Reads jobs of one cluster. `config` says what its nodes have: CPUs are numbered by it."""

    def __init__(self, config: ClusterConfig, user_name: Any) -> None:
        """`user_name`: uid -> name, for versions that leave it out."""
        self._nodes = {node.name: node for node in config.nodes}
        self._user_name = user_name

    def sighting(self, job: Json) -> Sighting:
        job_id = number(job.get("job_id"))
        if not job_id:
            raise ValueError("a job without a number")
        submitted = moment(job.get("submit_time")) or 0.0
        restarts = number(job.get("restart_cnt")) or 0
        phase = self._phase(job, job_id, restarts, submitted)
        status = exit_status(job.get("exit_code"))
        ended = isinstance(phase, Finished | Ending) and bool(job.get("batch_flag", True))
        waiting = waiting_tasks(job)
        return Sighting(
            job_id=job_id,
            spec=spec_of(job, self._user_name),
            submitted_at=submitted,
            phase=phase,
            restarts=restarts,
            waiting=waiting,
            task=task_of(job),
            het_job_id=count(job.get("het_job_id")),
            eligible_at=moment(job.get("eligible_time")),
            batch_status=status if ended and getattr(phase, "started_at", None) else None,
            worst_step_status=exit_status(job.get("derived_exit_code")),
            key=tag_of(job),
        )

    # -- where it is in its life -------------------------------------------------------------------------------------

    def _phase(self, job: Json, job_id: int, restarts: int, submitted: float) -> Phase:
        states = words(job.get("job_state"))
        started, ended = moment(job.get("start_time")), moment(job.get("end_time"))
        if "PENDING" in states or "REQUEUED" in states or not states:
            return _pending(job, submitted)
        allocation = self.allocation(job, job_id, restarts + 1)
        final = next((word for word in states if word in FINAL), None)
        if allocation is None:  # cancelled before it began, or no longer told
            return Finished(_outcome(job, final or "CANCELLED"), ended or submitted)
        if "COMPLETING" in states:
            return Ending(allocation, started, ended or submitted, _outcome(job, final or _ending_word(job)))
        if final:
            return Finished(_outcome(job, final), ended or submitted, started, allocation, _suspended_s(job, started))
        began = started or submitted
        if "CONFIGURING" in states:
            return Starting(allocation, began)
        suspended = _suspended_s(job, started)
        if "SUSPENDED" in states:
            return Suspended(allocation, began, suspended, moment(job.get("suspend_time")) or began)
        return Running(allocation, began, suspended)

    def allocation(self, job: Json, job_id: int, generation: int) -> Allocation | None:
        try:
            names = expand(text(job.get("nodes")))
        except SlurmSyntaxError:
            names = []
        if not names:
            return None
        told = {text(look(each, "node name")): each for each in _allocated_nodes(job)}
        totals = _tres(text(job.get("tres_alloc_str")))
        cpus = number(job.get("cpus")) or totals.get("cpu", 0)
        evenly = _Evenly(cpus, totals.get("mem", 0), number(job.get("tasks")) or len(names), names)
        details = [text(each) for each in job.get("gres_detail") or ()]
        shares = []
        for place, name in enumerate(names):
            detail = details[place] if len(details) == len(names) else ""
            shares.append(self._share(name, told.get(name), evenly, place, detail, job))
        whole = is_exclusive(job)
        partition = text(job.get("partition")).partition(",")[0]
        return Allocation(job_id, generation, partition, tuple(shares), whole)

    def _share(self, name: str, told: Json | None, evenly: _Evenly, place: int, detail: str, job: Json) -> NodeShare:
        node = self._nodes.get(name)
        cpu_ids = _cpu_ids(told, node) if told is not None and node is not None else ()
        memory = number(look(told, "node memory")) if told is not None else None
        gres = tuple(_detailed_gres(detail)) or _asked_gres(job)
        return NodeShare(
            name,
            len(cpu_ids) or evenly.cpus(place),
            evenly.memory(place) if memory is None else memory,
            cpu_ids,
            gres,
            evenly.tasks(place),
        )


class _Evenly:
    """What each node has when only the sums are told."""

    def __init__(self, cpus: int, memory_mib: int, tasks: int, names: list[str]) -> None:
        self._sums, self._nodes = (cpus, memory_mib, tasks), len(names)

    def cpus(self, place: int) -> int:
        return part(self._sums[0], self._nodes, place)

    def memory(self, place: int) -> int:
        return part(self._sums[1], self._nodes, place)

    def tasks(self, place: int) -> int:
        return part(self._sums[2], self._nodes, place)


def standing(job: Json, seen: Sighting) -> Standing | None:
    """What Slurm thinks of a job that waits; None of one that does not."""
    if not isinstance(seen.phase, Pending):
        return None
    return Standing(seen.job_id, number(job.get("priority")) or 0, reasons_of(job), moment(job.get("start_time")))


def reasons_of(job: Json) -> tuple[Reason, ...]:
    word = reason_word(job)
    told = text(job.get("state_description"))
    facts = {"told_by": "Slurm", **({"said": told} if told else {})}
    if word == ReasonKind.NONE.value:
        return (Reason(ReasonKind.NONE),)
    try:
        return (reason(ReasonKind(word), **facts),)
    except ValueError:  # a reason that only Slurm has
        return (reason(ReasonKind.OTHER, word=word, **facts),)


def _pending(job: Json, submitted: float) -> Pending:
    kind = reasons_of(job)[0].kind
    held = _HELD.get(kind) or ("user" if number(job.get("priority")) == 0 or job.get("hold") is True else None)
    waits = kind in (ReasonKind.BEGIN_TIME, ReasonKind.DEPENDENCY, ReasonKind.DEPENDENCY_NEVER_SATISFIED)
    eligible = None if held or waits else moment(job.get("eligible_time")) or submitted
    kept = reasons_of(job) if kind in (ReasonKind.SPECIAL_EXIT, ReasonKind.REQUEUED_HELD) else ()
    return Pending(submitted, eligible, held, kept)


def _ending_word(job: Json) -> str:
    """What a completing job will be: 22.05 does not say it, but why it ends is often known already. One that is being
    cancelled has no status yet, and looks as one that was successful: nothing is said of either before it is over.
    """
    status = exit_status(job.get("exit_code"))
    known = _ENDS_OF_REASONS.get(reasons_of(job)[0].kind)
    return known or ("COMPLETING" if status.ok else "CANCELLED" if status.signal else "FAILED")


def _outcome(job: Json, word: str) -> Outcome:
    status = exit_status(job.get("exit_code"))
    if word == "OUT_OF_MEMORY":
        status = ExitStatus(status.code, status.signal, out_of_memory=True)
    why = None if word in ("COMPLETED", "COMPLETING") else reasons_of(job)[0]
    if why is not None and why.kind is ReasonKind.NON_ZERO_EXIT:
        why = reason(ReasonKind.NON_ZERO_EXIT, code=status.code)
    return Outcome(word, status, None if why is None or why.kind is ReasonKind.NONE else why)


def _suspended_s(job: Json, started: float | None) -> float:
    """Slurm keeps when the job last stopped or went on, and how long it had run by then."""
    turned, ran = moment(job.get("suspend_time")), number(job.get("pre_sus_time")) or 0
    return max(0.0, turned - started - ran) if turned and started else 0.0


def _asked_gres(job: Json) -> tuple[GresShare, ...]:
    """Of a job that ended its devices are not told any more: what it asked for on each node stands in."""
    return tuple(GresShare(each.name, each.type, each.count) for each in gres_requests(job.get("tres_per_node")))


def _tres(written: str) -> dict[str, int]:
    try:
        return parse_tres(written)
    except SlurmSyntaxError:
        return {}


def _allocated_nodes(job: Json) -> list[Json]:
    nodes = look(job, "allocated nodes")
    return [each for each in nodes if isinstance(each, Mapping)] if isinstance(nodes, list) else []


def _cpu_ids(told: Json, node: NodeConfig) -> tuple[int, ...]:
    """Slurm tells cores by socket; every thread of a core is the job's."""
    threads, per_socket = node.threads_per_core, node.cores_per_socket
    cores = [socket * per_socket + core for socket, core in _cores(told.get("sockets"))]
    return tuple(cpu for core in sorted(cores) for cpu in range(core * threads, core * threads + threads))


def _cores(sockets: Any) -> Iterator[tuple[int, int]]:
    """{"0": {"cores": {"0": "allocated"}}} (22.05) or [{"index": 0, "cores": [{"index": 0, "status": [...]}]}]."""
    if isinstance(sockets, Mapping):
        for socket, inside in sockets.items():
            for core, status in (inside.get("cores") or {}).items():
                if "alloc" in str(status).lower():
                    yield int(socket), int(core)
    elif isinstance(sockets, list):
        for each in sockets:
            for core in each.get("cores") or ():
                if {"ALLOCATED", "IN_USE", "ALLOCATED_AND_IN_USE"} & set(words(core.get("status"))):
                    yield number(each.get("index")) or 0, number(core.get("index")) or 0


def _detailed_gres(detail: str) -> Iterator[GresShare]:
    """`gpu:a100:2(IDX:0-1)`."""
    for match in _DETAIL.finditer(detail):
        how_many = int(match["count"])
        indices = _indices(match["index"] or "")
        if how_many:
            yield GresShare(match["name"], match["type"], how_many, indices if len(indices) == how_many else ())


def _indices(written: str) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in expand(f"[{written}]")) if written and written != "N/A" else ()
    except (SlurmSyntaxError, ValueError):
        return ()
