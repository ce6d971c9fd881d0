"""What operators ask of reservations: create, update, delete. Events or a Refusal, in Slurm's words.

`slurm/reservations.py` reads the `Key=Value` pairs; the api has looked up users and groups. Invariant: what is
created overlaps no other reservation and no job's time, unless its flags say that it may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bireme.core.jobs.due import limit_reached_at
from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Job, Running
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.reservations import RECURRING, Reservation, ReservationFlag
from bireme.core.reservations.replenishing import has_features, reserved_by_others
from bireme.core.reservations.reserving import unfinished_jobs
from bireme.core.state.state import State

OVER_OTHERS = frozenset({ReservationFlag.MAINT, ReservationFlag.OVERLAP})
"""With one of these, a reservation may take nodes that others have."""
YEAR_S = 365 * 86_400
"""What UNLIMITED means for a reservation."""
NOT_IN_NAMES = " ,=/\t\n"
"""`--reservation` takes a list of names, and a name is part of an address of the API."""
_KNOWN_FLAGS = {flag.value: flag for flag in ReservationFlag}
SLACK_S = 60
"""`StartTime=now` is a little past when it arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationOrder:
    """What is asked; None is not asked. Lists whose words begin with + or - change what is there."""

    begin: float | None = None
    end: float | None = None
    duration_s: int | None = None
    nodes: tuple[str, ...] | None = None
    all_nodes: bool = False
    node_count: int | None = None
    partition: str | None = None
    users: tuple[str, ...] | None = None
    accounts: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    gids: tuple[int, ...] = ()
    """Of the groups that the reservation will have, by the api."""
    flags: tuple[str, ...] | None = None
    features: str | None = None
    purge_after_s: int | None = None
    max_start_delay_s: int | None = None
    skip: bool = False
    """Go to the next occurrence now."""
    utc_offset_s: int = 0


def create_reservation(state: State, caller: Caller, name: str, order: ReservationOrder, now: float) -> list[e.Event]:
    """An empty name is chosen here, after the first user or account."""
    _operators_only(caller)
    if order.begin is None or (order.end is None and order.duration_s is None):
        raise Refusal(Why.INVALID_TIME_VALUE, "a start time, and an end time or a duration, must be given")
    if not set(name).isdisjoint(NOT_IN_NAMES):
        raise Refusal(Why.RESERVATION_INVALID, f"{name!r} is no name: blanks, commas, = and / cannot be in one")
    if name in state.reservations:
        raise Refusal(Why.RESERVATION_NAME_DUP, f"there is a reservation {name!r}")
    made = Reservation(
        name=name or _new_name(state, order),
        begin=order.begin,
        end=_end(order, order.begin),
        users=edited((), order.users or (), creating=True),
        accounts=edited((), order.accounts or (), creating=True),
        groups=order.groups or (),
        gids=order.gids,
        flags=_flags((), order.flags or ()),
        partition=order.partition or "",
        features=order.features or "",
        purge_after_s=300 if order.purge_after_s is None else order.purge_after_s,
        max_start_delay_s=order.max_start_delay_s,
        utc_offset_s=order.utc_offset_s,
    )
    return [e.ReservationSet(_checked(state, _with_nodes(state, made, order), now))]


def update_reservation(state: State, caller: Caller, name: str, order: ReservationOrder, now: float) -> list[e.Event]:
    _operators_only(caller)
    before = _known(state, name)
    begin, end = _changed_times(before, order, now)
    changed = replace(
        before,
        begin=begin,
        end=end,
        users=before.users if order.users is None else edited(before.users, order.users),
        accounts=before.accounts if order.accounts is None else edited(before.accounts, order.accounts),
        groups=before.groups if order.groups is None else edited(before.groups, order.groups),
        gids=before.gids if order.groups is None else order.gids,
        flags=before.flags if order.flags is None else _flags(before.flags, order.flags),
        partition=before.partition if order.partition is None else order.partition,
        features=before.features if order.features is None else order.features,
        purge_after_s=before.purge_after_s if order.purge_after_s is None else order.purge_after_s,
        max_start_delay_s=before.max_start_delay_s if order.max_start_delay_s is None else order.max_start_delay_s,
    )
    if order.skip:
        if not changed.recurs:
            raise Refusal(Why.RESERVATION_INVALID, f"{name} does not recur: there is no occurrence to skip")
        changed = changed.following()
    if order.all_nodes or order.nodes is not None or order.node_count is not None:
        changed = _with_nodes(state, changed, order)
    return [e.ReservationSet(_checked(state, changed, now, before))]


def delete_reservation(state: State, caller: Caller, name: str) -> list[e.Event]:
    _operators_only(caller)
    _known(state, name)
    user = next(unfinished_jobs(state, name), None)
    if user is not None:
        raise Refusal(Why.RESERVATION_BUSY, f"job {user.label} is in it or waits for it")
    return [e.ReservationRemoved(name)]


def _operators_only(caller: Caller) -> None:
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)


def _known(state: State, name: str) -> Reservation:
    found = state.reservations.get(name)
    if found is None:
        raise Refusal(Why.RESERVATION_INVALID, f"there is no reservation {name!r}")
    return found


def _new_name(state: State, order: ReservationOrder) -> str:
    """The name of a reservation that was given none, such as `alice_3`."""
    named = (*(order.users or ()), *(order.accounts or ()), *(order.groups or ()))
    base = named[0].lstrip("+-") if named else "resv"
    number = len(state.reservations) + 1
    while f"{base}_{number}" in state.reservations:
        number += 1
    return f"{base}_{number}"


# -- times -----------------------------------------------------------------------------------------------------------


def _end(order: ReservationOrder, begin: float) -> float:
    if order.duration_s is not None:
        return begin + order.duration_s
    assert order.end is not None
    return order.end


def _changed_times(before: Reservation, order: ReservationOrder, now: float) -> tuple[float, float]:
    if order.begin is not None and before.active(now) and order.begin != before.begin:
        raise Refusal(Why.RESERVATION_STARTED, f"{before.name} began already; its EndTime or Duration can be changed")
    begin = before.begin if order.begin is None else order.begin
    if order.duration_s is not None or order.end is not None:
        return begin, _end(order, begin)
    return begin, begin + (before.end - before.begin)


# -- lists -----------------------------------------------------------------------------------------------------------


def edited(present: Sequence[str], words: Iterable[str], *, creating: bool = False) -> tuple[str, ...]:
    """`a,b` replaces; `+a` adds, `-a` takes away. At creation, and where it was not there, `-a` denies."""
    words = tuple(words)
    if not any(word[:1] in ("+", "-") for word in words):
        return tuple(dict.fromkeys(words))
    result = list(present)
    for word in words:
        name = word.lstrip("+-")
        if word.startswith("-") and name in result:
            result.remove(name)
        elif word.startswith("-") and (creating or not result or result[0].startswith("-")):
            result.append(word)
        elif not word.startswith("-") and name not in result:
            result = [other for other in result if other != f"-{name}"] + [name]
    return tuple(dict.fromkeys(result))


def _flags(present: Sequence[ReservationFlag], words: Iterable[str]) -> tuple[ReservationFlag, ...]:
    """The flags that a reservation has after these words, in Slurm's order. Only one recurrence:
    the latest one named. SPEC_NODES and ALL_NODES are not asked for."""
    words = tuple(words)
    signed = any(word[:1] in ("+", "-") for word in words)
    own = {ReservationFlag.SPEC_NODES, ReservationFlag.ALL_NODES}
    chosen = set(present) if signed else set(present) & own
    for word in words:
        flag = _KNOWN_FLAGS.get(word.lstrip("+-"))
        if flag is None:
            raise Refusal(Why.NOT_SUPPORTED, f"there is no flag {word!r}; there are: {', '.join(_KNOWN_FLAGS)}")
        if word.startswith("-"):
            chosen.discard(flag)
            continue
        if flag in RECURRING:
            chosen -= RECURRING
        chosen.add(flag)
    return tuple(flag for flag in ReservationFlag if flag in chosen)


# -- nodes -----------------------------------------------------------------------------------------------------------


def _with_nodes(state: State, made: Reservation, order: ReservationOrder) -> Reservation:
    """The nodes that are named, all of them, those of a partition, or as many as are asked for."""
    if made.partition and made.partition not in state.partitions:
        raise Refusal(Why.INVALID_PARTITION_NAME, f"no partition {made.partition!r} here")
    if made.has(ReservationFlag.ANY_NODES):
        return replace(made, nodes=())
    if order.all_nodes:
        nodes = state.partitions[made.partition].nodes if made.partition else tuple(state.nodes)
        return _specific(made, nodes, everything=True)
    if order.nodes and order.node_count is None:
        unknown = [node for node in order.nodes if node not in state.nodes]
        if unknown:
            raise Refusal(Why.INVALID_NODE_NAME, f"no node {unknown[0]!r} here")
        return _specific(made, order.nodes)
    if order.node_count is None and not made.partition:
        raise Refusal(Why.NODE_CONFIG_UNAVAILABLE, "Nodes, NodeCnt or PartitionName must be given")
    return _chosen(state, made, order.nodes or (), order.node_count)


def _specific(made: Reservation, nodes: Sequence[str], everything: bool = False) -> Reservation:
    words = ("+SPEC_NODES", "+ALL_NODES") if everything else ("+SPEC_NODES",)
    return replace(made, nodes=tuple(dict.fromkeys(nodes)), flags=_flags(made.flags, words))


def _chosen(state: State, made: Reservation, preferred: Sequence[str], count: int | None) -> Reservation:
    """Free ones of the partition (the default one if none is named): those that are idle now first."""
    default = state.config.default_partition()
    name = made.partition or (default.name if default else "")
    if name not in state.partitions:
        raise Refusal(Why.DEFAULT_PARTITION_NOT_SET)
    able = [node for node in state.partitions[name].nodes if has_features(state, node, made.features)]
    wanted = len(able) if count is None else count
    if not 1 <= wanted <= len(able):
        raise Refusal(Why.NODE_CONFIG_UNAVAILABLE, f"{wanted} nodes asked, partition {name} has {len(able)} such nodes")
    taken = reserved_by_others(state, made) if OVER_OTHERS.isdisjoint(made.flags) else set()
    if not made.has(ReservationFlag.IGNORE_JOBS):
        taken |= {node for job in _jobs_in_the_way(state, made) for node in _nodes_of(job)}
    free = [node for node in able if node not in taken and state.nodes[node].schedulable]
    free.sort(key=lambda node: (node not in preferred, bool(state.occupancy.room(node).jobs)))
    if len(free) < wanted:
        raise Refusal(Why.NODES_BUSY, f"{wanted} nodes asked, {len(free)} of partition {name} are free then")
    chosen = set(free[:wanted])
    nodes = tuple(node for node in able if node in chosen)
    return replace(made, nodes=nodes, partition=name, flags=_flags(made.flags, ("-SPEC_NODES", "-ALL_NODES")))


def _jobs_in_the_way(state: State, made: Reservation) -> list[Job]:
    """Those that may still run when it begins, and are not its own."""
    return [
        job
        for job in state.holding.values()
        if not isinstance(job.phase, Ending) and made.name not in job.spec.reservation.split(",")
        and _may_last_until(state, job, made.begin)
    ]  # fmt: skip


def _may_last_until(state: State, job: Job, at: float) -> bool:
    if not isinstance(job.phase, Running):
        return True
    end = limit_reached_at(state, job, job.phase)
    return end is None or end > at


def _nodes_of(job: Job) -> tuple[str, ...]:
    return job.allocation.node_names if job.allocation is not None else ()


# -- all together ----------------------------------------------------------------------------------------------------


def _checked(state: State, made: Reservation, now: float, before: Reservation | None = None) -> Reservation:
    if made.end < made.begin or made.end < now or (before is None and made.begin < now - SLACK_S):
        raise Refusal(Why.INVALID_TIME_VALUE, "it must end after it begins, and not lie in the past")
    if not made.users and not made.accounts and not made.groups:
        raise Refusal(Why.RESERVATION_EMPTY)
    if made.recurs and made.following().begin < made.end:
        raise Refusal(Why.INVALID_TIME_VALUE, "it lasts longer than the time until its next occurrence")
    same_place = before is not None and (before.nodes, before.begin) == (made.nodes, made.begin)
    if OVER_OTHERS.isdisjoint(made.flags) and not reserved_by_others(state, made).isdisjoint(made.nodes):
        raise Refusal(Why.RESERVATION_OVERLAP)
    if not same_place and not made.has(ReservationFlag.IGNORE_JOBS):
        for job in _jobs_in_the_way(state, made):
            if not set(_nodes_of(job)).isdisjoint(made.nodes):
                raise Refusal(Why.NODES_BUSY, f"job {job.label} may still run there; see the flag IGNORE_JOBS")
    return made
