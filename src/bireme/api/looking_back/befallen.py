"""What gatherers told of that concerns a job: faults of its own processes, of GPUs while it had them, of its nodes.

One rule for who shows a job over time (`timelines`) and for who asks why it died (`testimony`). Reads the store of
series, in a thread. Who may see it was asked before.
Invariant: a fault of a GPU concerns the job that had it whole at that time; where nobody had it, the one that had it
until a moment before: cards are told to be lost when their job has just died of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from bireme.ports import Happened, Holding, Series

BEFORE_S, AFTER_S = 5.0, 60.0
"""So much beside a job's life is looked at for what is its own."""
LATE_S = 2.0
"""A fault that nobody held the GPU at is that of the job that had it until then."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One start of a job: when, and on which nodes and machines."""

    start: float
    end: float | None
    machines: Collection[str]


def befallen(series: Series, job_id: int, stays: Sequence[Stay], span: tuple[float, float]) -> list[Happened]:
    """Oldest first. Raises SeriesError."""
    start, end = span
    held = {one.uuid for one in series.holdings(job_id=job_id, start=start, end=end)}
    holders = {uuid: series.holdings(uuid=uuid, start=start, end=end) for uuid in held}
    told = series.happenings(task_prefix=f"{job_id}.", uuids={"", *held}, start=start, end=end)
    return [one for one in told if _concerns(one, job_id, holders, stays)]


def machines_of(nodes: Collection[str], machines: Mapping[str, str]) -> frozenset[str]:
    """Nodes, and the machines that several virtual ones of them share. `machines`: by node."""
    return frozenset(nodes) | {machines[node] for node in nodes if node in machines}


def _concerns(one: Happened, job_id: int, holders: Mapping[str, Sequence[Holding]], stays: Sequence[Stay]) -> bool:
    if one.task:
        return one.task.startswith(f"{job_id}.")
    if not one.uuid:
        return not one.pid and any(
            one.node in stay.machines and stay.start <= one.at <= _end_of(stay) + LATE_S for stay in stays
        )
    had = [each for each in holders.get(one.uuid, ()) if each.start <= one.at <= _end_of(each)]
    if not had:
        had = [each for each in holders.get(one.uuid, ()) if _end_of(each) <= one.at <= _end_of(each) + LATE_S]
    return any(each.job_id == job_id and not each.shared for each in had)


def _end_of(time: Stay | Holding) -> float:
    return time.end if time.end is not None else inf
