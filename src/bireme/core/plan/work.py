"""What one planning pass knows and has decided so far: the draft, the calendar, starts, slots, verdicts.

The planner (`planner.py`) walks the queue and asks a `Pass` three things: does it fit now (`fit_now`), then start it
(`hold`, `started`); else when (`book`). All change only the draft. Invariant: a job that starts in the draft delays no
slot that was booked before it, because it was fitted into what the calendar guarantees for its whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf

from bireme.core.calendar.booking import Booking
from bireme.core.calendar.calendar import Calendar
from bireme.core.lifecycle.due import gone_by, time_limit_s
from bireme.core.lifecycle.placing import schedulable_nodes, search_for
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.limits.asks import ask_of, ask_placed, seconds_of
from bireme.core.limits.checks import blocks
from bireme.core.limits.following import holding_of
from bireme.core.limits.ledger import Ledger
from bireme.core.model.accounts import QosFlag
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Ending, Job, Pending, ResourceRequest, Running, Starting, Suspended
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.caps import cpus_held, within_cap
from bireme.core.placement.demand import Demand, resolve
from bireme.core.placement.needs import part_of
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit, Search
from bireme.core.placement.table import BoolArray, Free, NodeTable
from bireme.core.plan.decisions import Decision, Start
from bireme.core.plan.expected import ranking_of
from bireme.core.plan.hope import Hope
from bireme.core.plan.lines import Line
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.reserved import PUBLIC, Door, Reserved
from bireme.core.plan.seniority import outranks, preempts
from bireme.core.plan.standby import Standby, before_it, waiting_for_cpus
from bireme.core.priority.fair_share import fair_share

Way = tuple[Door, tuple[int, ...]]
"""Through which door a job comes, and which of the closures behind it hold."""
LACKS_ROOM = (ReasonKind.RESOURCES, ReasonKind.PRIORITY)
ENTRIES_PER_JOB, ENTRIES_LEAST = 8, 1_000
"""A calendar that has noted more releases than that is mostly made of what was taken back: it is made anew."""
ANSWERS_MOST = 2_000
"""Shapes of requests that are remembered from one full pass to the next."""
TRIES_TOGETHER = 32
"""Moments at which the components of a heterogeneous job are tried."""
MINUTE_S = 60
"""Time limits are whole minutes."""
EVERYWHERE: Way = (PUBLIC, ())
"""No reservation leads in, and none is in the way."""
Shape = tuple[ResourceRequest, str, Way]
"""A request in a partition: jobs of one shape share searches and answers."""


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
    behind: list[int] = field(default_factory=list)
    """Jobs that were passed over: they only wait for others."""
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
    tasks_taken: dict[int, set[int]] = field(default_factory=dict)
    """array id -> tasks of its record that this pass starts."""
    tasks_started: dict[int, int] = field(default_factory=dict)
    """array id -> tasks of it that this pass starts: they count against its throttle."""
    promises: Mapping[int, Sequence[Booking]] = field(default_factory=dict)
    """Slots of the pass before, by job."""
    enough: Callable[[], bool] | None = None
    """Whether the pass is to end now."""
    looked: bool = False
    """It has looked at a job: no pass is so short that it looks at none."""
    begun: set[int] = field(default_factory=set)
    """Jobs that this pass starts."""
    known: set[int] = field(default_factory=set)
    """In a small pass: jobs that an earlier one has looked at. What blocks a line stands behind them."""
    hope: Hope | None = None
    """In a small pass: which of those that wait for room may hope."""
    hopeful: set[int] = field(default_factory=set)
    """In a small pass: the jobs that could have started where something came free, before it began."""
    _searches: dict[tuple[object, ...], Search] = field(default_factory=dict)
    """For jobs in reservations and around them; the others' are kept in the outlook."""
    _misfits: dict[tuple[Shape, float], Fit] = field(default_factory=dict)
    """Shapes that did not fit for so long: within a pass nothing is freed, so they still do not."""
    _limited: dict[tuple[int, ResourceRequest, float], tuple[Reason, ...]] = field(default_factory=dict)
    """Requests (by the identity of their rules) that a limit blocks: within a pass nothing is given back."""
    _fair_shares: dict[int, float] | None = None
    _told: dict[int, dict[Reason, None]] = field(default_factory=dict)
    """Of jobs with several partitions: what blocks them in those that were looked at."""
    _capped: list[Allocation] = field(default_factory=list)
    """What this pass started in partitions with MaxCPUsPerNode."""
    _fits_empty: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _not_before: dict[tuple[Shape, float], float] = field(default_factory=dict)
    """The latest slot of a shape and duration: the next job of the kind gets no earlier one."""

    def __post_init__(self) -> None:
        self.reserved = Reserved(self.state, self.now)
        for job in waiting_for_cpus(self.state) if self.outlook.suspended else ():
            self.standby.keep(self.draft, job)

    @property
    def calendar(self) -> Calendar:
        return self.outlook.calendar

    @property
    def blocked(self) -> dict[str, Line]:
        """Partitions whose later jobs are not looked at: they could delay one before them that has no slot."""
        return self.outlook.blocked

    def block(self, line: str, blocker: int | None = None) -> None:
        """Those behind are not looked at until the blocker is gone; None: until there are slots again."""
        self.blocked.setdefault(line, Line(blocker))

    # -- now ---------------------------------------------------------------------------------------------------------

    def asked(self, job: Job) -> ResourceRequest:
        """Its request, without --switches once it has waited long enough for them."""
        request = job.spec.resources
        if request.switches is None:
            return request
        most_s = self.policy.switches_wait_most_s
        patience_s = most_s if request.switches_wait_s is None else min(most_s, request.switches_wait_s)
        waited_s = self.now - (job.eligible_at or job.submitted_at)
        return request if waited_s < patience_s else replace(request, switches=None)

    def demand(self, job: Job, partition: PartitionConfig) -> Demand:
        return resolve(job.spec, partition, self.state.config.settings)

    def way(self, job: Job) -> Way:
        """What reservations leave to a job that starts now."""
        door = self.reserved.door(job)
        closures = self.reserved.closures(door)
        return door, closures.during(self.now, self.now + self.duration_s(job)) if closures.entries else ()

    def is_over(self) -> bool:
        return self.looked and self.enough is not None and self.enough()

    def may_hope(self, job_id: int) -> bool:
        """Whether it is worth a look: in a small pass others may have taken what it hoped for."""
        return self.hope is None or job_id not in self.hopeful or self.hope.still(self.outlook.waiting, job_id)

    def judge(self, job: Job, reasons: tuple[Reason, ...]) -> None:
        """What keeps it from starting, in all of its partitions together, and when it is expected to."""
        if len(job.spec.partitions) > 1:
            told = self._told.setdefault(job.id, {})
            told.update(dict.fromkeys(reasons))
            reasons = tuple(told)
        slots = self.outlook.bookings.get(job.id)
        self.verdicts[job.id] = Verdict(reasons, slots[0].begin if slots else None, slots[0].shares if slots else ())

    def remember(self, job: Job, partition: PartitionConfig | None) -> None:
        """For the next small passes: whether it is worth a look only when something comes free, or always."""
        verdict, outlook = self.verdicts.get(job.id), self.outlook
        if verdict is not None and partition is not None and self._only_lacks_room(job, verdict):
            shape = (job.spec.resources, partition.name)
            need = outlook.waiting.needs.get(shape) or part_of(self.demand(job, partition))
            outlook.waiting.add(job.id, shape, need, self.duration_s(job))
            outlook.again.discard(job.id)
        else:
            outlook.waiting.remove(job.id)
            outlook.again.add(job.id)

    def _only_lacks_room(self, job: Job, verdict: Verdict) -> bool:
        """And neither time alone nor anybody's end elsewhere could let it start."""
        if self.reserved.any or self.standby.kept or preempts(self.state, job, self.policy.preemption):
            return False
        if job.spec.resources.switches is not None or job.spec.time_min_s is not None:
            return False
        return all(why.kind in LACKS_ROOM or why.fact("unavailable") for why in verdict.reasons)

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
        """Where it delays no slot: by the openings of single nodes where these say all, else by columns."""
        free, capped = None, partition.max_cpus_per_node is not None
        if self.calendar.has_bookings:
            end = gone_by(self.state, job, self.now)
            plain = not capped and not self.standby.kept
            within = self.calendar.nodes_now(search, draft.free, end) if plain else None
            if within is not None:
                return search.find_within(draft, within)
            free = self.calendar.guaranteed(draft.free, self.now, end)
        if capped:
            free = self._within_cap(partition, free or draft.free)
        return search.find(draft, free)

    def _search(self, key: Shape, job: Job, partition: PartitionConfig) -> Search:
        searches = self.outlook.answers.searches if key[2] == EVERYWHERE else self._searches
        search = searches.get(key)
        if search is None:
            search = searches[key] = self.new_search(job, partition, key[2])
        return search

    def new_search(self, job: Job, partition: PartitionConfig, way: Way | None = None) -> Search:
        """One that has not moved past any node: for another draft than the pass's own."""
        door, closed = self.way(job) if way is None else way
        allowed, inside = schedulable_nodes(self.state, partition), self.reserved.inside(door)
        if inside is not None:
            allowed = allowed & inside
        if closed:
            allowed = allowed & ~self.reserved.closures(door).mask(closed)
        return search_for(
            self.state,
            self.demand(job, partition),
            partition,
            allowed,
            self.asked(job).switches,
            self.outlook.answers.ranking,
        )

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
        if self.standby.kept:
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
        kept = self.outlook.answers.fit_empty if way == EVERYWHERE else self._fits_empty
        key = (self.asked(job), partition.name, way)
        answer = kept.get(key)
        if answer is None:
            answer = kept[key] = self.new_search(job, partition, way).find(self.state.empty).found
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
        rooms = zip(self.draft.rooms, draft.rooms)
        self.calendar.doubt([position for position, (mine, before) in enumerate(rooms) if mine is not before])
        self.draft, self.ledger, self.standby = draft, ledger, standby
        del self._capped[capped:]
        for known in (self._limited, self._misfits, self._searches):
            known.clear()

    # -- later -------------------------------------------------------------------------------------------------------

    def book(self, job: Job, partition: PartitionConfig, earlier_than: Booking | None = None) -> bool:
        """Books the earliest slot in this partition, instead of one that begins later; False: there is none."""
        key = (self.asked(job), partition.name, (self.reserved.door(job), ()))
        kind = (key, self.duration_s(job))
        after = self._not_before.get(kind, self.now)
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
        self._misfits.clear()  # answers for other durations may have changed
        return True

    def book_together(self, jobs: Sequence[Job]) -> bool:
        """Slots that begin at one moment, for all of them or for none. The latest of them says when to try again."""
        after = self.now
        for _ in range(TRIES_TOGETHER):
            begins: list[float] = []
            for job in jobs:
                known = (self.state.partitions.get(name) for name in job.spec.partitions)
                slots = [self._slot(job, partition, after, inf) for partition in known if partition is not None]
                best = min((slot for slot in slots if slot is not None), key=lambda slot: slot.begin, default=None)
                if best is None or (begins and best.begin > begins[0]):
                    break
                self.outlook.restore(job.id, (best,))
                begins.append(best.begin)
                after = best.begin
            else:
                self._misfits.clear()
                return True
            for job in jobs:
                self.outlook.forget(job.id)
            if best is None:
                return False
            after = best.begin
        return False

    def _slot(self, job: Job, partition: PartitionConfig, after: float, before: float) -> Booking | None:
        """The earliest in this partition that begins in [after, before)."""
        door = self.reserved.door(job)
        horizon = min(self.now + self.policy.window_s, self.reserved.until(door), before)
        if after >= horizon:
            return None
        free = self.draft.free
        if partition.max_cpus_per_node is not None:
            free = self._within_cap(partition, free)
        search = self._search((self.asked(job), partition.name, (door, ())), job, partition)
        found = self.calendar.earliest(
            search,
            free,
            self.duration_s(job),
            after,
            horizon,
            self.reserved.closures(door),
            by_columns=partition.max_cpus_per_node is not None or bool(self.standby.kept),
        )
        if found is None:
            return None
        return self.booking(job, partition, found[0], gone_by(self.state, job, found[0]), found[1])

    def booking(
        self, job: Job, partition: PartitionConfig, begin: float, end: float, shares: tuple[NodeShare, ...]
    ) -> Booking:
        """A slot for the job, not booked yet."""
        whole, spec = self.demand(job, partition).whole_nodes, job.spec
        return Booking(begin, end, shares, whole, job.id, spec.owner.uid, partition.name, spec.account)

    def _kept_promise(self, job: Job, partition: PartitionConfig, not_after: float) -> Booking | None:
        """The slot an earlier pass gave it, if it still holds and there is no earlier one.

        Another choice of equal nodes, made because somebody behind it has started, could delay those between.
        """
        for booking in self.promises.get(job.id, ()):
            if booking in self.outlook.bookings.get(job.id, ()) or not self.now <= booking.begin <= not_after:
                continue
            usable = schedulable_nodes(self.state, partition) & ~self.reserved.closed(job, booking.begin, booking.end)
            if self._holds(booking, usable):
                return booking
        return None

    def _holds(self, booking: Booking, usable: BoolArray) -> bool:
        """Whether a booking fits into what is free, on nodes that may be used."""
        table, free = self.draft.table, self.draft.free
        positions = [table.index.get(share.node) for share in booking.shares]
        if any(position is None or not usable[position] for position in positions):
            return False
        if not table.fractions:
            return self.calendar.holds(booking, free)
        return _holds(self.calendar.guaranteed(free, booking.begin, booking.end), booking, table)

    def may_reserve(self, job: Job, partitions: Sequence[str]) -> bool:
        """Whether its QOS (NoReserve, MinPrioThreshold) and the policy (bf_*_reserve) let it hold anything back."""
        policy, phase, most = self.policy, job.phase, self.policy.reserves_in_partition
        assert isinstance(phase, Pending)
        if most is not None and any(self.outlook.booked_by[name] >= most for name in partitions):
            return False
        if job.priority < policy.reserves_from_priority:
            return False
        if policy.reserves_after_s and self.now - (phase.eligible_at or self.now) < policy.reserves_after_s:
            return False
        qos = self.state.accounts.qos.get(job.spec.qos)
        if qos is None:
            return True
        threshold = qos.limits.min_priority
        return not qos.has(QosFlag.NO_RESERVE) and (threshold is None or job.priority >= threshold)

    def may_book(self, job: Job, partition: str) -> bool:
        """Whether the policy still tests jobs, jobs of this user and association, and jobs of this partition."""
        policy, booked, uid = self.policy, self.outlook.booked_by, job.spec.owner.uid
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


def begin_pass(
    state: State,
    policy: Policy,
    now: float,
    promises: Mapping[int, Sequence[Booking]] | None = None,
    before: Outlook | None = None,
) -> Pass:
    """A full pass: a new calendar, from the jobs that hold resources. `before` knows them already, if it is given."""
    draft = state.occupancy.draft()
    waiting = bool(waiting_for_cpus(state))
    if before is not None and not waiting and before.calendar.entries < _entries_most(before):
        outlook = Outlook(now, before.calendar.renewed(now), before.ends, again_at=now)
        if len(before.answers.searches) < ANSWERS_MOST:
            outlook.answers = before.answers
    else:
        ends = {job.id: (_ends_at(state, job, now), job.held) for job in state.holding.values()}
        outlook = Outlook(now, Calendar(draft.table, now, ends.values(), policy.resolution_s), ends, again_at=now)
    outlook.answers.ranking = ranking_of(state, policy, outlook.answers.ranking)
    outlook.suspended = waiting
    work = Pass(state, policy, now, draft, state.ledger.draft(), outlook, promises=promises or {})
    _expect_resumptions(work)
    return work


def _entries_most(outlook: Outlook) -> int:
    return ENTRIES_PER_JOB * len(outlook.ends) + ENTRIES_LEAST


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
    outlook.calendar.move_to(now)
    work = Pass(state, policy, now, state.occupancy.draft(), state.ledger.draft(), outlook)
    work.hope = Hope(state, work.draft.free, outlook.calendar, now)
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
