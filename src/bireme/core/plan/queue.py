"""Who stands where: the queue in Slurm's order, in which a job stands once for each partition that it may use; and the
lines of it that stand still.

Jobs with an expedited requeue stand first. Who may preempt stands before whom it may preempt; then jobs in
reservations, then by the partition's tier, the job's priority in that partition, submit time and id.
Called by the planner for all waiting jobs, or for those it looks at again; by `trial` and `why` for a job's place.
Invariant: an order that depends on nothing but the entries themselves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bireme.core.model.jobs import Job, Pending
from bireme.core.state.state import State

FIRST = -(1 << 30)
"""The rank of a job with an expedited requeue."""


class Entry(NamedTuple):
    """A job in one of its partitions. Entries compare by their place in the queue; no two are equal."""

    rank: int
    """Negative: how many others, one below the other, its QOS may preempt."""
    outside: bool
    tier: int
    priority: int
    """Both negative: the highest comes first."""
    submitted_at: float
    job_id: int
    number: int
    """Which of the job's partitions: at equal tier and priority in the order in which they were asked for."""
    partition: str
    plain: bool
    """It is ours, asks for this partition only, is in no reservation, and no gate is known to hold it: behind a job
    that blocks the partition it need not be looked at."""


def entries_of(state: State, jobs: Iterable[Job]) -> list[Entry]:
    """In order. The components of a heterogeneous job are considered with their leader, which stands there once:
    where the last of them stands, or it would take what is not its turn, and have to give it back."""
    tiers = {name: -partition.priority_tier for name, partition in state.partitions.items()}
    by_tier, ranks = state.config.settings.policy.preemption.by == "partition", _ranks(state)
    by_partition = state.partition_priorities
    found: list[Entry] = []
    make = tuple.__new__  # what Entry(...) does, for a hundred thousand jobs in half the time

    def rank(job: Job, tier: int) -> int:
        if job.restarts and isinstance(job.phase, Pending) and job.phase.expedited:
            return FIRST
        return tier if by_tier else ranks.get(job.spec.qos, 0)

    def entries(job: Job) -> list[Entry]:
        spec, own = job.spec, by_partition.get(job.id, {})
        several = []
        for number, name in enumerate(spec.partitions):
            tier = tiers.get(name, 0)
            ahead = (rank(job, tier), not spec.reservation, tier, -own.get(name, job.priority))
            several.append(Entry(*ahead, job.submitted_at, job.id, number, name, False))
        return several

    for job in jobs:
        spec = job.spec
        names = spec.partitions
        if job.het_job_id is not None:
            members = (state.jobs[member] for member in state.het_members.get(job.het_job_id, (job.id,)))
            last = max(min(entries(member)) for member in members)
            found.append(last._replace(job_id=job.id))
        elif len(names) == 1:
            name, phase = names[0], job.phase
            assert isinstance(phase, Pending)
            tier, outside = tiers.get(name, 0), not spec.reservation
            first = rank(job, tier) if by_tier or ranks or job.restarts else 0
            plain = phase.free_to_go and outside and not job.mirrored
            place = (first, outside, tier, -job.priority, job.submitted_at, job.id, 0, name, plain)
            found.append(make(Entry, place))
        else:
            found.extend(entries(job))
    found.sort()
    return found


def best_first(state: State, job: Job) -> list[str]:
    """A job's partitions, in the order in which it stands in their queues."""
    tiers = {partition.name: partition.priority_tier for partition in state.partitions.values()}
    own = state.partition_priorities.get(job.id, {})
    return sorted(job.spec.partitions, key=lambda name: (-tiers.get(name, 0), -own.get(name, job.priority)))


def _ranks(state: State) -> dict[str, int]:
    """QOS -> its rank among preemptors. A QOS that nobody may preempt for has none; lists have no loops."""
    by, services = state.config.settings.policy.preemption.by, state.config.settings.service_qos
    if by == "services":
        return {services: -1} if services in state.accounts.qos else {}
    if by != "qos":
        return {}
    known = state.accounts.qos
    ranks: dict[str, int] = {}

    def rank(name: str) -> int:
        if name not in ranks:
            below = known[name].preempt if name in known else ()
            ranks[name] = min((rank(other) - 1 for other in below), default=0)
        return ranks[name]

    for name in known:
        rank(name)
    return ranks


def in_order(state: State, jobs: Iterable[Job]) -> list[Job]:
    """The jobs themselves, each where it stands first."""
    known = {job.id: job for job in jobs}
    return list({entry.job_id: known[entry.job_id] for entry in entries_of(state, known.values())}.values())


@dataclass(slots=True)
class Line:
    """Those behind a job that has no slot: they are not looked at, or they might delay it.

    A full pass leaves one in its outlook for each line that stands still: who blocks it, and all who stand behind, in
    order. Small passes add those who come and, when the line can go on, take up where the pass before stopped
    (`planner._go_on`): a long queue moves with every job that starts, and need not be walked again from its head.
    Invariant: entries from `_at` on are in the order of the queue; some of their jobs may be gone.
    """

    blocker: int | None = None
    """The job that must go first. None: as many have slots as may; the next is looked at when one of them has gone."""
    _entries: list[Entry] = field(default_factory=list)
    _at: int = 0

    def add(self, entry: Entry) -> None:
        if not self._entries or self._entries[-1] < entry:
            self._entries.append(entry)
        else:
            insort(self._entries, entry, lo=self._at)

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def first(self, pending: Container[int], gone: Container[int]) -> Entry | None:
        """Who stands at its head, of those that still wait."""
        while self._at < len(self._entries):
            entry = self._entries[self._at]
            if entry.job_id in pending and entry.job_id not in gone:
                return entry
            self._at += 1
        return None

    def leave(self) -> None:
        """The one at its head is looked at."""
        self._at += 1

    def rest(self) -> list[Entry]:
        return self._entries[self._at :]
