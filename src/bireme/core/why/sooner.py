"""What would start a waiting job sooner: changes of its request, each planned in a copy before it is named.

A `Family` is one kind of change (a shorter limit, fewer GPUs) with its candidates, the mildest first; they are tried
until one starts now, and those are named that start clearly sooner than a milder one. `find_sooner` is a generator that
yields after every trial, so that whoever asks can stop when it has spent enough time.
Invariant: nothing is suggested that submission would refuse, or that was not planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from bireme.core.explain.wording import clock
from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.gates import closed_gates
from bireme.core.jobs.submission import admitted, can_ever_run, check_access
from bireme.core.model.cluster import PartitionState
from bireme.core.model.jobs import ArrayWaiting, Dependencies, Job, JobSpec, Pending, ResourceRequest
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.resources import GresRequest
from bireme.core.placement.demand import resolve
from bireme.core.plan.trial import Trial, try_jobs
from bireme.core.state.state import State
from bireme.core.why.answers import Suggestion

MINUTE_S = 60
TRIES_PER_FAMILY = 5
_OPENABLE = {
    ReasonKind.JOB_HELD_USER,
    ReasonKind.JOB_HELD_ADMIN,
    ReasonKind.BEGIN_TIME,
    ReasonKind.DEPENDENCY_NEVER_SATISFIED,
}
_DROPPED: tuple[tuple[str, str, str, Any], ...] = (
    ("exclusive", "--exclusive", "", False),
    ("constraint", "--constraint", "Features=", ""),
    ("nodelist", "--nodelist", "ReqNodeList=", ()),
    ("exclude", "--exclude", "ExcNodeList=", ()),
    ("contiguous", "--contiguous", "Contiguous=no", False),
    ("switches", "--switches", "Switches=0", None),
    ("segment", "--segment", "", None),
)
"""Field, option, what to tell `scontrol update`, the value without it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    what: str
    command: str
    job: Job
    """The job as it would be."""


Family = Sequence[Candidate]


def find_sooner(state: State, job: Job, caller: Caller, base: Trial, now: float) -> Iterator[Suggestion | None]:
    """One yield for each trial: the suggestion it led to, or None. `caller`: whose rights count; the owner's."""
    if base.starts_now:
        return
    for family in _families(state, job, base, now):
        best = base.start
        for candidate in family[:TRIES_PER_FAMILY]:
            trial = _planned(state, candidate, caller, now)
            start = trial.start if trial else None
            if trial is None or start is None or not _clearly_sooner(start, best, now):
                yield None
                continue
            best = start
            gain = None if base.start is None else base.start - start
            where = (trial.partition, trial.nodes)
            yield Suggestion(candidate.what, candidate.command, start, trial.starts_now, gain, *where)
            if trial.starts_now:
                break


def _planned(state: State, candidate: Candidate, caller: Caller, now: float) -> Trial | None:
    try:
        spec = (_admitted_elsewhere if candidate.job.mirrored else admitted)(state, caller, candidate.job.spec)
    except Refusal:
        return None
    changed = replace(candidate.job, spec=spec)
    members = state.het_members.get(changed.het_job_id or 0, [changed.id])  # the others stay as they are
    return try_jobs(state, [changed if member == changed.id else state.jobs[member] for member in members], now)


def _admitted_elsewhere(state: State, caller: Caller, spec: JobSpec) -> JobSpec:
    """Of another scheduler's job: that one admits it, by a book and with a script that are not ours. Whether such
    nodes exist, and whether the partition is open to the caller, is known here."""
    partitions = [state.partitions[name] for name in spec.partitions if name in state.partitions]
    for partition in partitions:
        check_access(caller, spec, partition)
    if not any(can_ever_run(state, spec, partition) for partition in partitions):
        raise Refusal(Why.NODE_CONFIG_UNAVAILABLE)
    return spec


def _clearly_sooner(start: float, than: float | None, now: float) -> bool:
    """By a minute and by a tenth of the wait: nobody gives up a node for less."""
    return than is None or start <= than - max(MINUTE_S, (than - now) / 10)


def _families(state: State, job: Job, base: Trial, now: float) -> list[Family]:
    gates = closed_gates(state, job, now)
    if gates:
        kinds = {gate.kind for gate in gates}
        return [_opened(job, kinds, now)] if kinds <= _OPENABLE else _unthrottled(job, kinds)
    return [
        _shorter(state, job, base, now),
        *([candidate] for candidate in _elsewhere(state, job)),
        _fewer_nodes(state, job),
        *_fewer_gpus(state, job),
        *([candidate] for candidate in _any_gpu_type(job)),
        _fewer_cpus(job),
        *_less_memory(state, job),
        *([candidate] for candidate in _without(job)),
    ]


# -- gates -----------------------------------------------------------------------------------------------------------


def _opened(job: Job, kinds: set[ReasonKind], now: float) -> Family:
    """Held, not before a time, or after what can no longer happen: what if not."""
    assert isinstance(job.phase, Pending)
    phase = replace(job.phase, held_by=None, reasons=(), eligible_at=now, not_before=None)
    spec = replace(job.spec, begin_at=None, hold=False)
    words, commands = [], []
    if job.phase.held_by is not None:
        words.append("released")
        commands.append(f"scontrol release {job.id}")
    if job.spec.begin_at is not None and job.spec.begin_at > now:
        words.append("without --begin")
        commands.append(f"scontrol update JobId={job.id} StartTime=now")
    if ReasonKind.DEPENDENCY_NEVER_SATISFIED in kinds:
        spec = replace(spec, dependencies=Dependencies())
        words.append("without --dependency")
        commands.append(f"scontrol update JobId={job.id} Dependency=")
    if not words:
        return []  # the scheduler itself keeps it back for a while, as after a restart: nothing that one could say
    return [Candidate(" and ".join(words), " && ".join(commands), replace(job, spec=spec, phase=phase))]


def _unthrottled(job: Job, kinds: set[ReasonKind]) -> list[Family]:
    if kinds != {ReasonKind.JOB_ARRAY_TASK_LIMIT} or not isinstance(job.array, ArrayWaiting):
        return []
    command = f"scontrol update JobId={job.id} ArrayTaskThrottle=0"
    changed = replace(job, array=ArrayWaiting(job.array.waiting, None))
    return [[Candidate("without the array's throttle (%)", command, changed)]]


# -- time and place --------------------------------------------------------------------------------------------------


def _shorter(state: State, job: Job, base: Trial, now: float) -> Family:
    """Limits that end before a slot or reservation of somebody else begins, the longest first; what its partitions
    allow; and halves.
    """
    limit = time_limit_s(state, job)
    longest = inf if limit is None else float(limit)
    bookings = base.plan.outlook.bookings
    closing = [slot.begin for slots in bookings.values() for slot in slots]
    closing += [reservation.begin for reservation in state.reservations.values()]
    gaps = [begin - now - MINUTE_S for begin in closing]
    halves = [limit / 2, limit / 4, limit / 8] if limit is not None else [86_400.0, 3_600.0]
    allowed = [state.partitions[name].max_time_s or inf for name in job.spec.partitions if name in state.partitions]
    lengths = {int(length // MINUTE_S) * MINUTE_S for length in (*gaps, *halves, *allowed) if length < inf}
    most = max(allowed, default=inf)
    candidates = []
    for length_s in _thinned(sorted((each for each in lengths if MINUTE_S <= each < longest), reverse=True)):
        # Planned with a minute to spare: people need time to type.
        planned_s = int(min(length_s + MINUTE_S, max(most, length_s)))
        spec = replace(job.spec, time_limit_s=planned_s, time_limit_given=True, time_min_s=None)
        text = clock(length_s)
        command = f"scontrol update JobId={job.id} TimeLimit={text}"
        candidates.append(Candidate(f"with a time limit of {text}", command, replace(job, spec=spec)))
    return candidates


def _thinned(values: list[int]) -> list[int]:
    """Candidates thinned to so few that all are tried, the ends among them."""
    if len(values) <= TRIES_PER_FAMILY:
        return values
    step = (len(values) - 1) / (TRIES_PER_FAMILY - 1)
    return [values[round(step * number)] for number in range(TRIES_PER_FAMILY)]


def _elsewhere(state: State, job: Job) -> Iterator[Candidate]:
    for partition in state.partitions.values():
        if partition.name in job.spec.partitions or partition.state is not PartitionState.UP or partition.hidden:
            continue
        what, command = f"in partition {partition.name}", f"scontrol update JobId={job.id} Partition={partition.name}"
        spec = replace(job.spec, partitions=(partition.name,))
        longest = partition.max_time_s
        if longest is not None and spec.time_limit_given and (spec.time_limit_s or inf) > longest:
            text = clock(longest)
            spec = replace(spec, time_limit_s=longest, time_min_s=None)
            what, command = f"{what} with a time limit of {text}", f"{command} TimeLimit={text}"
        yield Candidate(what, command, replace(job, spec=spec))


# -- less ------------------------------------------------------------------------------------------------------------


def _asking(job: Job, **changes: Any) -> Job:
    return replace(job, spec=replace(job.spec, resources=replace(job.spec.resources, **changes)))


def _falling(count: int, *more: int) -> list[int]:
    """Numbers below `count` worth a try, the largest first."""
    halves = (count * 3 // 4, count // 2, count // 4, 1)
    return sorted({each for each in (*more, *halves) if 1 <= each < count}, reverse=True)


def _fewer_nodes(state: State, job: Job) -> Family:
    asked = job.spec.resources
    partition = next((state.partitions[name] for name in job.spec.partitions if name in state.partitions), None)
    if partition is None or asked.nodelist:
        return []
    needed = resolve(job.spec, partition, state.config.settings).nodes_wanted
    candidates = []
    for count in _falling(needed, needed - 1):
        changes: dict[str, Any] = {"nodes_min": count, "nodes_max": count, "nodes_given": True}
        command = f"scontrol update JobId={job.id} NumNodes={count}"
        if asked.ntasks is not None and asked.ntasks % needed == 0:
            changes["ntasks"] = asked.ntasks // needed * count
            command += f" NumTasks={changes['ntasks']}"
        candidates.append(Candidate(f"on {_counted(count, 'node')}", command, _asking(job, **changes)))
    return candidates


def _fewer_gpus(state: State, job: Job) -> Iterator[Family]:
    asked = job.spec.resources
    for field, words in (("gres_per_node", "on each node"), ("gres_per_job", "in all"), ("gres_per_task", "per task")):
        requests: tuple[GresRequest, ...] = getattr(asked, field)
        gpus = next((each for each in requests if each.name == "gpu"), None)
        if gpus is None:
            continue
        free = state.occupancy.free.gres_of("gpu", gpus.type)
        most = int(free.sum() if field == "gres_per_job" else free.max()) if len(free) else 0
        yield [
            Candidate(
                f"with {_counted(count, 'GPU')} {words}",
                _gres_command(job, field, _with_count(requests, gpus, count)),
                _asking(job, **{field: _with_count(requests, gpus, count)}),
            )
            for count in _falling(gpus.count, most)
        ]


def _with_count(requests: tuple[GresRequest, ...], one: GresRequest, count: int) -> tuple[GresRequest, ...]:
    return tuple(replace(each, count=count) if each is one else each for each in requests)


def _gres_command(job: Job, field: str, requests: tuple[GresRequest, ...]) -> str:
    if field != "gres_per_node":
        return ""  # as in Slurm, only what is asked on each node can be changed afterwards
    words = (":".join(part for part in (each.name, each.type, str(each.count)) if part) for each in requests)
    return f"scontrol update JobId={job.id} Gres={','.join(words)}"


def _any_gpu_type(job: Job) -> Iterator[Candidate]:
    asked = job.spec.resources
    for field in ("gres_per_node", "gres_per_job", "gres_per_task"):
        requests: tuple[GresRequest, ...] = getattr(asked, field)
        if any(each.type for each in requests):
            changed = tuple(replace(each, type=None) for each in requests)
            yield Candidate(
                "with GPUs of any type", _gres_command(job, field, changed), _asking(job, **{field: changed})
            )


def _fewer_cpus(job: Job) -> Family:
    count = job.spec.resources.cpus_per_task or 1
    return [
        Candidate(
            f"with {_counted(fewer, 'CPU')} for each task",
            f"scontrol update JobId={job.id} CPUsPerTask={fewer}",
            _asking(job, cpus_per_task=fewer),
        )
        for fewer in _falling(count)
    ]


def _less_memory(state: State, job: Job) -> Iterator[Family]:
    asked: ResourceRequest = job.spec.resources
    if whole := _whole_memory(state, job):
        amounts = (whole, *_falling(whole)[:-1])
        yield [_with_memory(job, "memory_per_node_mib", "MinMemoryNode", "node", mib) for mib in amounts]
    for field, key, unit in (
        ("memory_per_node_mib", "MinMemoryNode", "node"),
        ("memory_per_cpu_mib", "MinMemoryCPU", "CPU"),
    ):
        amount: int | None = getattr(asked, field)
        if amount:
            yield [_with_memory(job, field, key, unit, less) for less in _falling(amount)[:-1]]


def _whole_memory(state: State, job: Job) -> int:
    """Of a job that takes all memory of its nodes because it names no amount: the most that a node has free now."""
    settings, known = state.config.settings, (state.partitions.get(name) for name in job.spec.partitions)
    partition = next((each for each in known if each is not None), None)
    if partition is None or not settings.memory_is_consumable:
        return 0
    demand = resolve(job.spec, partition, settings)
    if not demand.whole_memory or demand.whole_nodes:
        return 0
    free, index = state.occupancy.free.memory, state.occupancy.table.index
    return max((int(free[index[node]]) for node in partition.nodes), default=0)


def _with_memory(job: Job, field: str, key: str, unit: str, mib: int) -> Candidate:
    command = f"scontrol update JobId={job.id} {key}={mib}"
    return Candidate(f"with {mib} MiB for each {unit}", command, _asking(job, **{field: mib}))


def _without(job: Job) -> Iterator[Candidate]:
    for field, option, update, absent in _DROPPED:
        if getattr(job.spec.resources, field) not in (absent, None):
            command = f"scontrol update JobId={job.id} {update}" if update else ""
            yield Candidate(f"without {option}", command, _asking(job, **{field: absent}))
    if job.spec.reservation:
        spec = replace(job.spec, reservation="")
        yield Candidate(
            "without --reservation", f"scontrol update JobId={job.id} Reservation=", replace(job, spec=spec)
        )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
