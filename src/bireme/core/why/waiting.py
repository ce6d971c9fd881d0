"""Why a job waits and when it will start: its place, what blocks it, and the slot that the planner gives it.

Asks the planner itself (a pass in a copy of the queue, `plan/trial.py`), so that what it says is what will be done.
Called by the API for `bireme why`. Invariant: an answer with no expected start says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from bireme.core.explain.wording import sentence
from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.gates import Met, closed_gates, condition_met
from bireme.core.jobs.placing import demand_of, fenced_gpus, schedulable_nodes, search_for
from bireme.core.jobs.states import job_state
from bireme.core.limits.asks import ask_of
from bireme.core.limits.checks import about_the_job_alone
from bireme.core.limits.relief import Relief, relief
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import DependencyKind, Job, Pending
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.placement.demand import resolve
from bireme.core.placement.table import BoolArray
from bireme.core.plan.queue import in_order
from bireme.core.plan.reserved import Reserved
from bireme.core.plan.trial import Trial, try_jobs
from bireme.core.priority.multifactor import Parts
from bireme.core.priority.order import parts_of
from bireme.core.state.state import State
from bireme.core.why.answers import (
    Block,
    Certainty,
    Closed,
    Expected,
    Other,
    Place,
    Priority,
    Release,
    Room,
    SentBack,
    Waiting,
    Weight,
)
from bireme.core.why.needs import needs_of, spare_of
from bireme.core.why.opening import opening

Sees = Callable[[Job], bool]
"""Whether the asker may know of a job."""

BEFORE_SHOWN = 5
_SOON_S = 60.0
"""Another scheduler's guess that is nearer is as good as now: it looks at its queue every half a minute or so."""
_QUEUE = (ReasonKind.RESOURCES, ReasonKind.PRIORITY)
_UNAVAILABLE = {
    ReasonKind.REQUIRED_NODE_NOT_AVAILABLE,
    ReasonKind.BAD_CONSTRAINTS,
    ReasonKind.PARTITION_DOWN,
    ReasonKind.PARTITION_INACTIVE,
    ReasonKind.PARTITION_NODE_LIMIT,
    ReasonKind.PARTITION_TIME_LIMIT,
    ReasonKind.MAX_MEM_PER_LIMIT,
}
"""What other jobs' ends do not change. Every other reason is a limit on what somebody holds at once."""


def explain_waiting(state: State, job: Job, now: float, sees: Sees = lambda _: True) -> tuple[Waiting, Trial]:
    """The answer, and the trial it comes from (what suggestions are compared with)."""
    assert isinstance(job.phase, Pending)
    members = [state.jobs[member] for member in state.het_members.get(job.het_job_id or 0, ())]
    trial = try_jobs(state, members or [job], now)
    gates = closed_gates(state, job, now)
    reasons = _with_their_own(state, job, gates or (trial.verdict.reasons if trial.verdict else ()))
    rooms = tuple(_rooms(state, job, reasons, now))
    answer = Waiting(
        _expected(state, job, members, trial, gates, now, sees),
        tuple(_place(state, job, name, sees) for name in job.spec.partitions),
        tuple(_priorities(state, job, now)),
        tuple(_block(state, job, reason, now, sees) for reason in reasons),
        rooms,
        sent_back(job),
        max(1, len(members)),
    )
    return answer, trial


def sent_back(job: Job) -> SentBack | None:
    if job.last_restart_at is None:
        return None
    text = sentence(job.sent_back_for) if job.sent_back_for is not None else "It was requeued."
    return SentBack(job.last_restart_at, text, job.restarts)


def _with_their_own(state: State, job: Job, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Where another scheduler decides, its own word comes first; ours adds the numbers."""
    verdict = state.verdicts.get(job.id) if job.mirrored else None
    if job.mirrored and verdict is None and isinstance(job.phase, Pending) and not job.phase.reasons:
        return (reason(ReasonKind.NONE, untold=1), *reasons)
    theirs = tuple(why for why in verdict.reasons if why.kind is not ReasonKind.NONE) if verdict else ()
    known = {why.kind for why in reasons}
    return (*(why for why in theirs if why.kind not in known), *reasons)


def label_of(state: State, job_id: int, sees: Sees) -> str:
    job = state.jobs.get(job_id)
    return job.label if job is not None and sees(job) else "?"


# -- the queue -------------------------------------------------------------------------------------------------------


def _stands_in_line(job: Job) -> bool:
    phase = job.phase
    return isinstance(phase, Pending) and phase.eligible_at is not None and phase.held_by is None


def _place(state: State, job: Job, partition: str, sees: Sees) -> Place:
    queue = [other for other in in_order(state, state.pending.values()) if partition in other.spec.partitions]
    line = [other for other in queue if _stands_in_line(other)]
    position = next((number for number, other in enumerate(line, start=1) if other.id == job.id), 0)
    nearest = line[max(0, position - 1 - BEFORE_SHOWN) : position - 1] if position else []
    return Place(
        partition, position, len(line), len(queue) - len(line), tuple(_other(state, other, sees) for other in nearest)
    )


def _other(state: State, job: Job, sees: Sees) -> Other:
    verdict = state.verdicts.get(job.id)
    expected = verdict.expected_start if verdict else None
    if not sees(job):
        return Other("?", "", "", expected)
    return Other(job.label, job.spec.owner.user, job.spec.name, expected)


def _priorities(state: State, job: Job, now: float) -> Iterator[Priority]:
    if not state.config.settings.priority.multifactor:
        yield Priority(",".join(job.spec.partitions), job.priority, job.spec.priority is not None)
        return
    for parts in parts_of(state, job, now):
        yield Priority(parts.partition, parts.priority, parts.set_by_operator, tuple(_weights(parts)))


def _weights(parts: Parts) -> Iterator[Weight]:
    named = (
        ("site", parts.site),
        ("age", parts.age),
        ("association", parts.assoc),
        ("fair share", parts.fair_share),
        ("job size", parts.job_size),
        ("partition", parts.partition_factor),
        ("QOS", parts.qos),
        *parts.tres,
        ("nice", -parts.nice),
    )
    for name, value in named:
        if value:
            yield Weight(name, float(value))


# -- what blocks it --------------------------------------------------------------------------------------------------


def _block(state: State, job: Job, reason: Reason, now: float, sees: Sees) -> Block:
    text = sentence(reason)
    if reason.kind in (ReasonKind.DEPENDENCY, ReasonKind.DEPENDENCY_NEVER_SATISFIED):
        told = " ".join(_unmet(state, job, now, sees))
        text = f"{text} {told}".strip()
    return Block(reason.kind.value, text, reason.facts)


def _unmet(state: State, job: Job, now: float, sees: Sees) -> Iterator[str]:
    """What the jobs that it depends on are doing."""
    for item in job.spec.dependencies.items:
        target = state.jobs.get(item.job_id)
        if item.kind is DependencyKind.SINGLETON or target is None or not sees(target):
            continue
        if condition_met(state, job, item, now) is not Met.YES:
            yield f"Job {target.label} is {job_state(target)}."


def _rooms(state: State, job: Job, reasons: tuple[Reason, ...], now: float) -> Iterator[Room]:
    """Of every partition in which it waits for resources."""
    long_enough = {why.fact("partition"): why.fact("nodes_able") for why in reasons if why.kind in _QUEUE}
    doors = Reserved(state, now)
    for name in job.spec.partitions:
        partition = state.partitions.get(name)
        if partition is not None:
            able = long_enough.get(name)
            yield _room(state, job, partition, able if isinstance(able, int) else None, doors, now)


def _room(
    state: State, job: Job, partition: PartitionConfig, long_enough: int | None, doors: Reserved, now: float
) -> Room:
    demand = demand_of(state, job, partition)
    nodes = _open_now(state, job, partition, doors, now)
    search = search_for(state, demand, partition, nodes)
    fit = search.find(state.occupancy)
    return Room(
        partition.name,
        needs_of(demand),
        demand.nodes_wanted,
        search.nodes_able(state.occupancy.free),
        long_enough,
        fit.found,
        tuple(_closed(state, job, partition, doors, now)),
        tuple(fenced_gpus(state, partition)),
        tuple(spare_of(demand, state.occupancy, nodes)),
    )


def _open_now(state: State, job: Job, partition: PartitionConfig, doors: Reserved, now: float) -> BoolArray:
    """Nodes that are up and that no reservation keeps it off at this moment."""
    door = doors.door(job)
    nodes = schedulable_nodes(state, partition)
    inside = doors.inside(door)
    if inside is not None:
        nodes = nodes & inside
    for closure in doors.closures(door).entries:
        if closure.begin <= now < closure.end:
            nodes = nodes & ~closure.nodes
    return nodes


def _closed(state: State, job: Job, partition: PartitionConfig, doors: Reserved, now: float) -> Iterator[Closed]:
    door, limit = doors.door(job), time_limit_s(state, job)
    over = inf if limit is None else now + limit
    for each in state.reservations.values() if not door.confined else ():
        nodes = tuple(node for node in each.nodes if node in partition.nodes)
        if nodes and each.name not in door.names and each.begin < over and each.end > now:
            yield Closed(each.name, nodes, each.begin, each.end)


# -- when ------------------------------------------------------------------------------------------------------------


def _expected(
    state: State,
    job: Job,
    members: Sequence[Job],
    trial: Trial,
    gates: tuple[Reason, ...],
    now: float,
    sees: Sees,
) -> Expected:
    """`members`: the components of a heterogeneous job, none of any other."""
    endless = _endless(state, job, trial)
    bookings = trial.plan.outlook.bookings
    certainty = _certainty(state, job, trial, gates, endless)
    unforeseen = certainty in (Certainty.BEYOND_WINDOW, Certainty.NO_TIME_LIMIT)
    if unforeseen and members and _each_has_a_slot(state, members, now):
        certainty = Certainty.NEVER_TOGETHER
    if trial.starts_now and _kept_back(state, job, now):
        certainty = Certainty.THEIRS
    lifted = _relief(state, job, now) if certainty is Certainty.LIMITED else None
    if certainty is Certainty.GATED:
        lifted = opening(state, job, gates, now)
    ours = certainty is not Certainty.THEIRS
    return Expected(
        _promised(state, job, trial) if ours else _their_start(state, job, now),
        certainty,
        trial.partition if trial.shares and ours else "",
        trial.nodes if ours else (),
        len(bookings.keys() - {job.id, *(member.id for member in members)}),
        tuple(_releases(state, job, trial, sees)),
        tuple(label_of(state, victim, sees) for victim in trial.victims(job.id)),
        tuple(label_of(state, other, sees) for other in endless),
        state.config.settings.policy.window_s,
        lifted.at if lifted else None,
        tuple(label_of(state, other, sees) for other in lifted.by) if lifted else (),
    )


def _each_has_a_slot(state: State, members: Sequence[Job], now: float) -> bool:
    """Whether every component would get one if it were a job by itself, and the others were not there."""
    ids = {member.id for member in members}
    others = {number: other for number, other in state.pending.items() if number not in ids}
    apart = {leader: found for leader, found in state.het_members.items() if not ids.intersection(found)}
    without = replace(state, pending=others, het_members=apart)
    return all(try_jobs(without, [replace(member, het_job_id=None)], now).start is not None for member in members)


def _relief(state: State, job: Job, now: float) -> Relief | None:
    """When its limits let it go, in the first of its partitions that does."""
    found = []
    for partition in (state.partitions[name] for name in job.spec.partitions if name in state.partitions):
        settings, rules = state.config.settings, state.ledger.rules.for_job(job.spec, partition.name)
        ask = ask_of(job.spec, partition, resolve(job.spec, partition, settings), settings)
        if (lifted := relief(rules, ask, state.ledger, state.usage, now)) is not None:
            found.append(lifted)
    return min(found, key=lambda each: each.at, default=None)


def _endless(state: State, job: Job, trial: Trial) -> list[int]:
    """Who never gives back what it holds, or will hold, as far as anybody knows."""
    names = [state.partitions[name].nodes for name in job.spec.partitions if name in state.partitions]
    nodes = {node for each in names for node in each}
    outlook = trial.plan.outlook
    held = [(number, end, allocation.shares) for number, (end, allocation) in outlook.ends.items()]
    booked = [(number, slot.end, slot.shares) for number, slots in outlook.bookings.items() for slot in slots]
    found = (
        number
        for number, end, shares in (*held, *booked)
        if end == inf and number != job.id and any(share.node in nodes for share in shares)
    )
    return list(dict.fromkeys(found))


def _promised(state: State, job: Job, trial: Trial) -> float | None:
    """What squeue shows, where that is sooner: the planner keeps slots that it promised in an earlier pass.

    Of another scheduler's job, what that one says: it knows of limits and reservations that are not mirrored.
    """
    verdict = state.verdicts.get(job.id)
    if job.mirrored and verdict is not None and verdict.expected_start is not None and trial.start is not None:
        return max(trial.start, verdict.expected_start)
    if trial.start is None or trial.starts_now or verdict is None or verdict.expected_start is None:
        return trial.start
    return min(trial.start, verdict.expected_start)


def _their_start(state: State, job: Job, now: float) -> float | None:
    """When the scheduler whose job it is expects it to start; None where it does not say, or said so long ago."""
    verdict = state.verdicts.get(job.id) if job.mirrored else None
    expected = verdict.expected_start if verdict else None
    return expected if expected is not None and expected > now else None


def _kept_back(state: State, job: Job, now: float) -> bool:
    """Whether another scheduler lets a job wait that, as far as the mirror knows, could start: for a limit or a
    reservation, which are not mirrored."""
    verdict = state.verdicts.get(job.id) if job.mirrored else None
    theirs = {why.kind for why in verdict.reasons} if verdict else set()
    start = _their_start(state, job, now)
    return bool(theirs - {ReasonKind.NONE, *_QUEUE}) or (start is not None and start > now + _SOON_S)


def _certainty(state: State, job: Job, trial: Trial, gates: tuple[Reason, ...], endless: list[int]) -> Certainty:
    if trial.starts_now:
        return Certainty.NOW
    if trial.victims(job.id):
        return Certainty.PREEMPTS
    if trial.start is not None:
        return Certainty.SLOT
    if gates:
        return Certainty.GATED
    reasons = trial.verdict.reasons if trial.verdict else ()
    if {why.kind for why in reasons}.isdisjoint(_QUEUE):
        lasting = all(why.kind in _UNAVAILABLE or about_the_job_alone(why) for why in reasons)
        return Certainty.BLOCKED if lasting else Certainty.LIMITED
    if not state.config.settings.policy.backfill:
        return Certainty.STRICT_ORDER
    if any(line.partition("/")[0] in job.spec.partitions for line in trial.plan.outlook.blocked):
        return Certainty.NOT_TESTED
    return Certainty.NO_TIME_LIMIT if endless else Certainty.BEYOND_WINDOW


def _releases(state: State, job: Job, trial: Trial, sees: Sees) -> Iterator[Release]:
    """Running jobs and earlier slots that end on the slot's nodes before it begins; the last one last."""
    if trial.starts_now or trial.start is None:
        return
    lacking = _lacking(state, trial)
    outlook = trial.plan.outlook
    found: list[tuple[float, int, tuple[str, ...], bool]] = []
    for job_id, (end, allocation) in outlook.ends.items():
        nodes = tuple(node for node in allocation.node_names if node in lacking)
        if nodes and end <= trial.start:
            found.append((end, job_id, nodes, True))
    slot_nodes = set(trial.nodes)
    for job_id, bookings in outlook.bookings.items():
        for booking in bookings if job_id != job.id else ():
            nodes = tuple(share.node for share in booking.shares if share.node in slot_nodes)
            if nodes and booking.end <= trial.start and booking.end != inf:
                found.append((booking.end, job_id, nodes, False))
    for end, job_id, nodes, running in sorted(found):
        yield Release(label_of(state, job_id, sees), nodes, end, running)


def _lacking(state: State, trial: Trial) -> set[str]:
    """Nodes of the slot that do not have now what it will take of them."""
    free, index = state.occupancy.free, state.occupancy.table.index
    whole = any(booking.whole_nodes for booking in trial.bookings)
    memory_counts = state.config.settings.memory_is_consumable
    lacking = set()
    for share in trial.shares:
        at = index[share.node]
        has_all = (
            not free.whole[at]
            and free.cpus[at] >= share.cpus
            and (free.memory[at] >= share.memory_mib or not memory_counts)
            and all(free.gres_of(gres.name, gres.type)[at] >= gres.count for gres in share.gres)
        )
        if not has_all or (whole and free.jobs[at]):
            lacking.add(share.node)
    return lacking
