"""What one planning pass knows and has decided so far: the draft, the calendar, starts, slots, verdicts.

The planner (`planner.py`) walks the queue and asks a `Pass` three things: does it fit now (`fit_now`), then start it
(`hold`, `started`); else when (`book`). All change only the draft. Invariant: a job that starts in the draft delays no
slot that was booked before it, because it was fitted into what the calendar guarantees for its whole time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf

from bireme.core.calendar.calendar import Booking, Calendar
from bireme.core.lifecycle.due import gone_by, time_limit_s
from bireme.core.lifecycle.placing import schedulable_nodes, search_for
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.limits.asks import ask_of, ask_placed, seconds_of
from bireme.core.limits.checks import blocks
from bireme.core.limits.following import holding_of
from bireme.core.limits.ledger import Ledger
from bireme.core.model.accounts import QosFlag
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Ending, Job, ResourceRequest, Running, Starting, Suspended
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation
from bireme.core.placement.caps import cpus_held, within_cap
from bireme.core.placement.demand import Demand, resolve
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit, Search
from bireme.core.placement.table import BoolArray, Free, NodeTable
from bireme.core.plan.decisions import Decision, Start
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.reserved import Door, Reserved
from bireme.core.plan.seniority import outranks
from bireme.core.plan.standby import Standby, before_it, waiting_for_cpus
from bireme.core.priority.fair_share import fair_share

Way = tuple[Door, tuple[int, ...]]
"""Through which door a job comes, and which of the closures behind it hold."""
MINUTE_S = 60
"""Time limits are whole minutes."""
SWITCHES_WAIT_S = 300
"""How long --switches is insisted on when it names no time: Slurm's max_switch_wait."""
Shape = tuple[ResourceRequest, str, Way]
"""A request in a partition: jobs of one shape share searches and answers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A promise: this job may start then, on nodes of this partition."""

    begin: float
    partition: str


@dataclass(slots=True)
class Pass:
    state: State
    policy: Policy
    now: float
    draft: Occupancy
    ledger: Ledger
    """What everybody holds in the draft, for the limits."""
    outlook: Outlook
    reserved: Reserved = field(init=False)
    starts: list[Decision] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    waited_for: set[str] = field(default_factory=set)
    """Partitions in which some job waits for resources already: Slurm calls the later ones' reason Priority."""
    doomed: set[int] = field(default_factory=set)
    """Jobs that this pass ends for others."""
    after_preemption: tuple[Occupancy, Standby] | None = None
    """The draft once they are gone and those they make room for have started."""
    standby: Standby = field(default_factory=Standby)
    """CPUs that the draft keeps for suspended jobs."""
    resumptions: dict[int, Booking] = field(default_factory=dict)
    """When suspended jobs take back what they lent: in the calendar."""
    tasks_started: dict[int, int] = field(default_factory=dict)
    """array id -> tasks of it that this pass starts: they count against its throttle."""
    promises: Mapping[int, Sequence[Booking]] = field(default_factory=dict)
    """Slots of the pass before, by job."""
    _demands: dict[tuple[ResourceRequest, str], Demand] = field(default_factory=dict)
    _searches: dict[Shape, Search] = field(default_factory=dict)
    _misfits: dict[tuple[Shape, float], Fit] = field(default_factory=dict)
    """Shapes that did not fit for so long: within a pass nothing is freed, so they still do not."""
    _limited: dict[tuple[int, ResourceRequest, float], tuple[Reason, ...]] = field(default_factory=dict)
    """Requests (by the identity of their rules) that a limit blocks: within a pass nothing is given back."""
    _fair_shares: dict[int, float] | None = None
    _capped: list[Allocation] = field(default_factory=list)
    """What this pass started in partitions with MaxCPUsPerNode."""
    _fits_empty: dict[Shape, bool] = field(default_factory=dict)
    _not_before: dict[tuple[Shape, float], float] = field(default_factory=dict)
    """The latest slot of a shape and duration: the next job of the kind gets no earlier one."""
    _booked: int = 0
    _booked_by_user: Counter[int] = field(default_factory=Counter)
    _booked_in: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.reserved = Reserved(self.state, self.now)
        for job in waiting_for_cpus(self.state):
            self.standby.keep(self.draft, job)

    @property
    def calendar(self) -> Calendar:
        return self.outlook.calendar

    @property
    def blocked(self) -> set[str]:
        """Partitions whose later jobs are not looked at: they could delay one before them that has no slot."""
        return self.outlook.blocked

    # -- now ---------------------------------------------------------------------------------------------------------

    def asked(self, job: Job) -> ResourceRequest:
        """Its request, without --switches once it has waited long enough for them."""
        request = job.spec.resources
        if request.switches is None:
            return request
        patience_s = SWITCHES_WAIT_S if request.switches_wait_s is None else request.switches_wait_s
        waited_s = self.now - (job.eligible_at or job.submitted_at)
        return request if waited_s < patience_s else replace(request, switches=None)

    def demand(self, job: Job, partition: PartitionConfig) -> Demand:
        key = (self.asked(job), partition.name)
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = resolve(job.spec, partition, self.state.config.settings)
        return found

    def way(self, job: Job) -> Way:
        """What reservations leave to a job that starts now."""
        door = self.reserved.door(job)
        closures = self.reserved.closures(door)
        return door, closures.during(self.now, self.now + self.duration_s(job)) if closures.entries else ()

    def line(self, job: Job, partition: str) -> str:
        """Where it queues up: those in a reservation and those outside do not wait for each other."""
        return f"{partition}/{job.spec.reservation}" if job.spec.reservation else partition

    def fit_now(self, job: Job, partition: PartitionConfig) -> Fit:
        key = (self.asked(job), partition.name, self.way(job))
        duration = self.duration_s(job) if self.calendar.has_bookings else 0.0
        missed = self._misfits.get((key, duration))
        if missed is not None:
            return missed
        fit = self._fit_in(self.draft, self._search(key, job, partition), job, partition)
        if not fit.found:
            self._misfits[key, duration] = fit
        return fit

    def fit_on_lent(self, job: Job, partition: PartitionConfig) -> Fit | None:
        """Its place when it may also use CPUs that are kept for suspended jobs which it outranks."""
        lenders = self.lenders(job, partition)
        if not lenders:
            return None
        opened = self.standby.opened(self.draft, lenders.__contains__)
        with self.resuming_later(lenders):
            fit = self._fit_in(opened, self.new_search(job, partition), job, partition)
        return fit if fit.found else None

    def lenders(self, job: Job, partition: PartitionConfig) -> list[int]:
        """Suspended jobs that it outranks."""
        jobs, rules = self.state.jobs, self.policy.preemption
        return [other for other in self.standby.kept if outranks(self.state, job, partition, jobs[other], rules)]

    @contextmanager
    def resuming_later(self, lenders: Iterable[int]) -> Iterator[None]:
        """For the question of a job that they make way for: in the calendar too they wait for it."""
        bookings = [self.resumptions[lender] for lender in lenders if lender in self.resumptions]
        for booking in bookings:
            self.calendar.unbook(booking)
        yield
        for booking in bookings:
            self.calendar.book(booking)

    def _fit_in(self, draft: Occupancy, search: Search, job: Job, partition: PartitionConfig) -> Fit:
        free = None
        if self.calendar.has_bookings:
            free = self.calendar.guaranteed(draft.free, self.now, gone_by(self.state, job, self.now))
        if partition.max_cpus_per_node is not None:
            free = self._within_cap(partition, free or draft.free)
        return search.find(draft, free)

    def _search(self, key: Shape, job: Job, partition: PartitionConfig) -> Search:
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = self.new_search(job, partition, key[2])
        return search

    def new_search(self, job: Job, partition: PartitionConfig, way: Way | None = None) -> Search:
        """One that has not moved past any node: for another draft than the pass's own."""
        door, closed = self.way(job) if way is None else way
        allowed, inside = schedulable_nodes(self.state, partition), self.reserved.inside(door)
        if inside is not None:
            allowed = allowed & inside
        if closed:
            allowed = allowed & ~self.reserved.closures(door).mask(closed)
        return search_for(self.state, self.demand(job, partition), partition, allowed, self.asked(job).switches)

    def shorter(self, job: Job) -> list[Job]:
        """The job with limits --time-min lets it have, each up to the begin of a slot or reservation; least first."""
        least = job.spec.time_min_s
        if least is None or not job.spec.time_limit_given:
            return []
        most = self.duration_s(job)
        closures = self.reserved.closures(self.reserved.door(job))
        begins = (*self.calendar.begins, *(closure.begin for closure in closures.entries))
        gaps = (int((begin - self.now) // MINUTE_S) * MINUTE_S for begin in begins)
        lengths = sorted({length for length in (least, *gaps) if least <= length < most})
        return [replace(job, spec=replace(job.spec, time_limit_s=length)) for length in lengths]

    def hold(self, job: Job, partition: PartitionConfig, fit: Fit) -> None:
        """Takes the shares in the draft."""
        allocation = self._allocation(job, partition, fit)
        self.standby.lend(self.draft, fit.shares)
        self.draft.hold(allocation)
        if partition.max_cpus_per_node is not None:
            self._capped.append(allocation)
        self.count_as_held(job, partition, fit)

    def count_as_held(self, job: Job, partition: PartitionConfig, fit: Fit) -> None:
        """For the limits: of a job that starts, or for which others make way."""
        rules = self.ledger.rules
        if rules.for_job(job.spec, partition.name).holders:
            allocation = self._allocation(job, partition, fit)
            self.ledger.hold(holding_of(self.state, rules, job, allocation, self.now))

    def limited(self, job: Job, partition: PartitionConfig, fit: Fit | None = None) -> tuple[Reason, ...]:
        """The limits that keep it from starting there: as asked for, or with the shares that were found."""
        rules = self.ledger.rules.for_job(job.spec, partition.name)
        if rules.share_min is not None and (poor := self._below_share(job, partition, rules.share_min)):
            return (poor,)
        if not rules.to_start:
            return ()
        settings = self.state.config.settings
        if fit is not None:
            ask = ask_placed(job.spec, partition, self._allocation(job, partition, fit), settings)
            return blocks(rules, ask, self.ledger, self.state.usage, self.now)
        key = (id(rules), self.asked(job), seconds_of(job.spec, partition))
        known = self._limited.get(key)
        if known is None:
            ask = ask_of(job.spec, partition, self.demand(job, partition), settings)
            known = blocks(rules, ask, self.ledger, self.state.usage, self.now)
            if known:
                self._limited[key] = known
        return known

    def started(self, job: Job, partition: PartitionConfig, fit: Fit, task_id: int | None = None) -> Start:
        """What was held stays held: the calendar learns when it comes back, and the decision is made."""
        allocation = self._allocation(job, partition, fit)
        self.calendar.started(gone_by(self.state, job, self.now), allocation)
        asked = self.state.jobs[job.id].spec.time_limit_s
        limit = job.spec.time_limit_s if job.spec.time_limit_s != asked else None
        return Start(job.id, partition.name, fit.shares, allocation.whole_nodes, task_id, limit)

    def _allocation(self, job: Job, partition: PartitionConfig, fit: Fit) -> Allocation:
        return Allocation(job.id, 0, partition.name, fit.shares, self.demand(job, partition).whole_nodes)

    def duration_s(self, job: Job) -> float:
        limit = time_limit_s(self.state, job)
        return inf if limit is None else float(limit)

    def would_fit_empty(self, job: Job, partition: PartitionConfig, way: Way) -> bool:
        """Whether the nodes that are up would hold it with nothing on them."""
        key = (self.asked(job), partition.name, way)
        answer = self._fits_empty.get(key)
        if answer is None:
            answer = self._fits_empty[key] = self.new_search(job, partition, way).find(self.state.empty).found
        return answer

    def _below_share(self, job: Job, partition: PartitionConfig, least: float) -> Reason | None:
        """UsageThreshold of a QOS: who has used too much waits until the fair share has grown again."""
        state = self.state
        if self._fair_shares is None:
            self._fair_shares = fair_share(state.accounts, state.usage, self.now, state.config.settings)
        association = state.accounts.for_job(job.spec.account, job.spec.owner.user, partition.name)
        share = self._fair_shares.get(association.id, 1.0) if association else 1.0
        return reason(ReasonKind.QOS_USAGE_THRESHOLD, limit=least, share=round(share, 6)) if share < least else None

    def _within_cap(self, partition: PartitionConfig, free: Free) -> Free:
        """What MaxCPUsPerNode leaves of it to jobs of the partition."""
        assert partition.max_cpus_per_node is not None
        held = [job.held for job in self.state.holding.values()]
        mine = [each for each in (*held, *self._capped) if each.partition == partition.name]
        return within_cap(free, self.draft.table, cpus_held(self.draft.table, mine), partition.max_cpus_per_node)

    def branch(self) -> tuple[Occupancy, Ledger, Standby, int]:
        """From here on in drafts of their own; `take_back` goes back to what is returned."""
        before = self.draft, self.ledger, self.standby, len(self._capped)
        self.draft, self.ledger, self.standby = self.draft.draft(), self.ledger.draft(), self.standby.copy()
        return before

    def take_back(self, draft: Occupancy, ledger: Ledger, standby: Standby, capped: int) -> None:
        """Goes back to an earlier draft: what did not fit or was blocked may no longer be, and searches moved on."""
        self.draft, self.ledger, self.standby = draft, ledger, standby
        del self._capped[capped:]
        for known in (self._limited, self._misfits, self._searches):
            known.clear()

    # -- later -------------------------------------------------------------------------------------------------------

    def book(self, job: Job, partitions: list[PartitionConfig]) -> Slot | None:
        """The earliest slot in any of these partitions, booked; None if the window has none."""
        if not partitions:
            return None
        best: tuple[float, PartitionConfig, Booking] | None = None
        horizon = self.now + self.policy.window_s
        duration = self.duration_s(job)
        door = self.reserved.door(job)
        closures = self.reserved.closures(door)
        horizon = min(horizon, self.reserved.until(door))
        for partition in partitions:
            key = (self.asked(job), partition.name, (door, ()))
            search = self._search(key, job, partition)
            after = self._not_before.get((key, duration), self.now)
            if after >= horizon:
                continue
            free = self.draft.free
            if partition.max_cpus_per_node is not None:
                free = self._within_cap(partition, free)
            found = self.calendar.earliest(search, free, duration, after, horizon, closures)
            if found is None and best is None:  # and none for the next job of the kind
                self._not_before[key, duration] = horizon
            if found is not None and (best is None or found[0] < best[0]):
                whole = self.demand(job, partition).whole_nodes
                booking = Booking(found[0], gone_by(self.state, job, found[0]), found[1], whole)
                best, horizon = (found[0], partition, booking), found[0]
        if best is None:
            return None
        best = self._kept_promise(job, partitions, best[0]) or best
        self.calendar.book(best[2])
        self.outlook.bookings.setdefault(job.id, []).append(best[2])
        self._not_before[(self.asked(job), best[1].name, (door, ())), duration] = best[0]
        self._misfits.clear()  # answers for other durations may have changed
        self._count(job, best[1])
        return Slot(best[0], best[1].name)

    def _kept_promise(
        self, job: Job, partitions: list[PartitionConfig], not_after: float
    ) -> tuple[float, PartitionConfig, Booking] | None:
        """The slot an earlier pass gave it, if it still holds and there is no earlier one.

        Another choice of equal nodes, made because somebody behind it has started, could delay those between.
        """
        for booking in self.promises.get(job.id, ()):
            if booking in self.outlook.bookings.get(job.id, ()) or not self.now <= booking.begin <= not_after:
                continue
            free = self.calendar.guaranteed(self.draft.free, booking.begin, booking.end)
            free.close(self.reserved.closed(job, booking.begin, booking.end))
            for partition in partitions:
                if _holds(free, booking, self.draft.table, schedulable_nodes(self.state, partition)):
                    return booking.begin, partition, booking
        return None

    def may_reserve(self, job: Job) -> bool:
        """Whether its QOS lets it hold back resources at all: NoReserve, and MinPrioThreshold."""
        qos = self.state.accounts.qos.get(job.spec.qos)
        if qos is None:
            return True
        threshold = qos.limits.min_priority
        return not qos.has(QosFlag.NO_RESERVE) and (threshold is None or job.priority >= threshold)

    def may_book(self, job: Job) -> bool:
        """Whether the policy still tests jobs, jobs of this user, and jobs of these partitions."""
        policy = self.policy
        if self._booked >= policy.bookings_max:
            return False
        per_user, per_partition = policy.bookings_per_user, policy.bookings_per_partition
        if per_user is not None and self._booked_by_user[job.spec.owner.uid] >= per_user:
            return False
        return per_partition is None or any(self._booked_in[name] < per_partition for name in job.spec.partitions)

    def count_bookings(self) -> None:
        for job_id, bookings in self.outlook.bookings.items():
            job = self.state.jobs.get(job_id)
            if job is not None:
                self._booked += len(bookings)
                self._booked_by_user[job.spec.owner.uid] += len(bookings)

    def _count(self, job: Job, partition: PartitionConfig) -> None:
        self._booked += 1
        self._booked_by_user[job.spec.owner.uid] += 1
        self._booked_in[partition.name] += 1


def _holds(free: Free, booking: Booking, table: NodeTable, allowed: BoolArray) -> bool:
    """Whether a booking fits into what is free."""
    for share in booking.shares:
        position = table.index.get(share.node)
        if position is None or not allowed[position] or free.whole[position]:
            return False
        if booking.whole_nodes and free.jobs[position]:
            return False
        if share.cpus > free.cpus[position] or share.memory_mib > free.memory[position]:
            return False
        if any(gres.count > free.gres_of(gres.name, gres.type)[position] for gres in share.gres):
            return False
    return True


def begin_pass(
    state: State, policy: Policy, now: float, promises: Mapping[int, Sequence[Booking]] | None = None
) -> Pass:
    """A full pass: a new calendar, from the jobs that hold resources."""
    draft = state.occupancy.draft()
    ends = {job.id: (_ends_at(state, job, now), job.held) for job in state.holding.values()}
    calendar = Calendar(draft.table, now, ends.values(), policy.resolution_s)
    outlook = Outlook(now, calendar, ends)
    work = Pass(state, policy, now, draft, state.ledger.draft(), outlook, promises=promises or {})
    _expect_resumptions(work)
    return work


def _expect_resumptions(work: Pass) -> None:
    """The calendar learns when suspended jobs go on, taking the CPUs that they lent, and when they end then."""
    calendar, ends, now = work.calendar, work.outlook.ends, work.now
    for job in waiting_for_cpus(work.state):
        assert isinstance(job.phase, Suspended)
        goes_on = max((ends[other.id][0] for other in before_it(work.state, job)), default=now)
        ran_s = job.phase.since - job.phase.suspended_s - job.phase.started_at
        end = max(gone_by(work.state, job, goes_on - ran_s), goes_on + 1.0)
        if end == inf:
            continue
        kept = work.standby.kept[job.id]
        ends[job.id] = (end, job.held)
        calendar.started(end, job.held)
        calendar.started(end, kept)
        lent = _less(job.phase.allocation.only_cpus(), kept)
        if lent.shares:
            work.resumptions[job.id] = Booking(calendar.rounded(goes_on), end, lent.shares)
            calendar.book(work.resumptions[job.id])


def _less(whole: Allocation, part: Allocation) -> Allocation:
    """CPUs of the one that are not among those of the other."""
    taken = {share.node: set(share.cpu_ids) for share in part.shares}
    ids = (tuple(cpu for cpu in share.cpu_ids if cpu not in taken.get(share.node, ())) for share in whole.shares)
    shares = (replace(share, cpu_ids=each, cpus=len(each)) for share, each in zip(whole.shares, ids))
    return replace(whole, shares=tuple(share for share in shares if share.runs))


def resume_pass(state: State, policy: Policy, now: float, outlook: Outlook) -> Pass:
    """A pass that keeps the slots of an earlier one."""
    work = Pass(state, policy, now, state.occupancy.draft(), state.ledger.draft(), outlook)
    work.count_bookings()
    return work


def _ends_at(state: State, job: Job, now: float) -> float:
    """When a job's resources come back at the latest: its limit, or at once if it is ending."""
    phase = job.phase
    if isinstance(phase, Ending):
        return now + 1.0
    if isinstance(phase, Suspended):
        return inf
    if isinstance(phase, Running):
        return max(gone_by(state, job, phase.started_at + phase.suspended_s), now + 1.0)
    assert isinstance(phase, Starting)
    return gone_by(state, job, phase.since)
