"""When jobs fit: the slots that a pass books in the calendar for those that do not fit now.

`consider` asks for a slot where a job only lacks room (`book`, `book_together`), if the policy lets it have one
(`may_reserve`, `may_book`). Slots lie in the outlook: later passes keep them. Invariant: a slot is guaranteed, because
whatever starts or is booked after it was fitted around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.calendar.booking import Booking
from bireme.core.model.accounts import QosFlag
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, Pending
from bireme.core.model.resources import NodeShare
from bireme.core.placement.table import BoolArray, Free, NodeTable
from bireme.core.plan.fitting import Fitting, Shape
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.snapshot import Snapshot

TRIES_TOGETHER = 32
"""Moments at which the components of a heterogeneous job are tried."""


@dataclass(slots=True)
class Slots:
    """What is promised to jobs that wait for room."""

    snapshot: Snapshot
    fitting: Fitting
    outlook: Outlook
    promises: Mapping[int, Sequence[Booking]] = field(default_factory=dict)
    """Slots of the pass before, by job: kept where no earlier ones are found."""
    _not_before: dict[tuple[Shape, float], float] = field(default_factory=dict)
    """The latest slot of a shape and duration: the next job of the kind gets no earlier one."""

    def book(self, job: Job, partition: PartitionConfig, earlier_than: Booking | None = None) -> bool:
        """Books the earliest slot in this partition, instead of one that begins later; False: there is none."""
        key = (self.snapshot.asked(job), partition.name, (self.fitting.reserved.door(job), ()))
        kind = (key, self.snapshot.duration_s(job))
        after = self._not_before.get(kind, self.snapshot.now)
        booking = self._slot(job, partition, after, inf if earlier_than is None else earlier_than.begin)
        if booking is None:
            if earlier_than is None:  # and none for the next job of the kind
                self._not_before[kind] = inf
            return False
        booking = self._kept_promise(job, partition, booking.begin) or booking
        if earlier_than is not None:
            self.outlook.forget(job.id)
        self.outlook.restore(job.id, (*self.outlook.forget(job.id), booking))
        self._not_before[kind] = booking.begin
        self.fitting.forget_misfits()  # answers for other durations may have changed
        return True

    def book_together(self, jobs: Sequence[Job]) -> bool:
        """Slots that begin at one moment, for all of them or for none. The latest of them says when to try again."""
        after = self.snapshot.now
        for _ in range(TRIES_TOGETHER):
            begins: list[float] = []
            for job in jobs:
                known = (self.snapshot.state.partitions.get(name) for name in job.spec.partitions)
                slots = [self._slot(job, partition, after, inf) for partition in known if partition is not None]
                best = min((slot for slot in slots if slot is not None), key=lambda slot: slot.begin, default=None)
                if best is None or (begins and best.begin > begins[0]):
                    break
                self.outlook.restore(job.id, (best,))
                begins.append(best.begin)
                after = best.begin
            else:
                self.fitting.forget_misfits()
                return True
            for job in jobs:
                self.outlook.forget(job.id)
            if best is None:
                return False
            after = best.begin
        return False

    def _slot(self, job: Job, partition: PartitionConfig, after: float, before: float) -> Booking | None:
        """The earliest in this partition that begins in [after, before)."""
        door = self.fitting.reserved.door(job)
        horizon = min(self.snapshot.now + self.snapshot.policy.window_s, self.fitting.reserved.until(door), before)
        if after >= horizon:
            return None
        free = self.fitting.draft.free
        if partition.max_cpus_per_node is not None:
            free = self.fitting.within_cap_of(partition, free)
        search = self.fitting.search((self.snapshot.asked(job), partition.name, (door, ())), job, partition)
        found = self.outlook.calendar.earliest(
            search,
            free,
            self.snapshot.duration_s(job),
            after,
            horizon,
            self.fitting.reserved.closures(door),
            by_columns=partition.max_cpus_per_node is not None or bool(self.fitting.standby.kept),
        )
        if found is None:
            return None
        return self.booking(job, partition, found[0], self.snapshot.gone_by(job, found[0]), found[1])

    def booking(
        self, job: Job, partition: PartitionConfig, begin: float, end: float, shares: tuple[NodeShare, ...]
    ) -> Booking:
        """A slot for the job, not booked yet."""
        whole, spec = self.snapshot.demand(job, partition).whole_nodes, job.spec
        return Booking(begin, end, shares, whole, job.id, spec.owner.uid, partition.name, spec.account)

    def _kept_promise(self, job: Job, partition: PartitionConfig, not_after: float) -> Booking | None:
        """The slot an earlier pass gave it, if it still holds and there is no earlier one.

        Another choice of equal nodes, made because somebody behind it has started, could delay those between.
        """
        for booking in self.promises.get(job.id, ()):
            if booking in self.outlook.bookings.get(job.id, ()) or not self.snapshot.now <= booking.begin <= not_after:
                continue
            usable = self.fitting.usable(partition) & ~self.fitting.reserved.closed(job, booking.begin, booking.end)
            if self._holds(booking, usable):
                return booking
        return None

    def _holds(self, booking: Booking, usable: BoolArray) -> bool:
        """Whether a booking fits into what is free, on nodes that may be used."""
        table, free = self.fitting.draft.table, self.fitting.draft.free
        positions = [table.index.get(share.node) for share in booking.shares]
        if any(position is None or not usable[position] for position in positions):
            return False
        if not table.fractions:
            return self.outlook.calendar.holds(booking, free)
        return _holds(self.outlook.calendar.guaranteed(free, booking.begin, booking.end), booking, table)

    def may_reserve(self, job: Job, partitions: Sequence[str]) -> bool:
        """Whether its QOS (NoReserve, MinPrioThreshold) and the policy (bf_*_reserve) let it hold anything back."""
        policy, phase, most = self.snapshot.policy, job.phase, self.snapshot.policy.reserves_in_partition
        assert isinstance(phase, Pending)
        if most is not None and any(self.outlook.booked_by[name] >= most for name in partitions):
            return False
        if job.priority < policy.reserves_from_priority:
            return False
        eligible_s = self.snapshot.now - (phase.eligible_at or self.snapshot.now)
        if policy.reserves_after_s and eligible_s < policy.reserves_after_s:
            return False
        qos = self.snapshot.state.accounts.qos.get(job.spec.qos)
        if qos is None:
            return True
        threshold = qos.limits.min_priority
        return not qos.has(QosFlag.NO_RESERVE) and (threshold is None or job.priority >= threshold)

    def may_book(self, job: Job, partition: str) -> bool:
        """Whether the policy still tests jobs, jobs of this user and association, and jobs of this partition."""
        policy, booked, uid = self.snapshot.policy, self.outlook.booked_by, job.spec.owner.uid
        return self.outlook.booked < policy.bookings_max and not any(
            most is not None and booked[whose] >= most
            for whose, most in (
                (uid, policy.bookings_per_user),
                (partition, policy.bookings_per_partition),
                ((uid, job.spec.account), policy.bookings_per_association),
                ((partition, uid), policy.bookings_per_user_in_partition),
            )
        )


def _holds(free: Free, booking: Booking, table: NodeTable) -> bool:
    """By columns: on nodes that give out parts of GPUs."""
    for share in booking.shares:
        position = table.index[share.node]
        if free.whole[position]:
            return False
        if booking.whole_nodes and free.jobs[position]:
            return False
        if share.cpus > free.cpus[position] or share.memory_mib > free.memory[position]:
            return False
        if any(gres.count > free.gres_of(gres.name, gres.type)[position] for gres in share.gres):
            return False
    return True
