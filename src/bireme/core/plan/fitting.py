"""Where jobs fit now: the draft of a pass, with the slots of others, reservations and kept CPUs in the way.

`consider` asks whether a job fits (`now`, `on_lent`) and takes the place (`hold`); `slots` and `preempt` search in the
same way for later, and in other drafts. All change only the draft. Invariant: a job that starts in the draft delays no
slot that was booked before it, because it was fitted into what the calendar guarantees for its whole time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bireme.core.calendar.calendar import Calendar
from bireme.core.jobs.placing import Crowds, crowds_of, search_for
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job, ResourceRequest
from bireme.core.model.resources import Allocation
from bireme.core.placement.caps import cpus_held, within_cap
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit, Search
from bireme.core.placement.table import BoolArray, Free, IntArray
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.reserved import PUBLIC, Door, Reserved
from bireme.core.plan.seniority import outranks
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.standby import Standby

Way = tuple[Door, tuple[int, ...]]
"""Through which door a job comes, and which of the closures behind it hold."""
EVERYWHERE: Way = (PUBLIC, ())
"""No reservation leads in, and none is in the way."""
Shape = tuple[ResourceRequest, str, Way]
"""A request in a partition: jobs of one shape share searches and answers."""
Before = tuple[Occupancy, Standby, int]
"""The drafts from which a branch was made, and how many capped allocations there were."""
MINUTE_S = 60
"""Time limits are whole minutes."""


@dataclass(slots=True)
class Fitting:
    """The draft of one pass, and what was found out in it."""

    snapshot: Snapshot
    outlook: Outlook
    draft: Occupancy
    reserved: Reserved
    standby: Standby = field(default_factory=Standby)
    """CPUs that the draft keeps for suspended jobs."""
    _searches: dict[tuple[object, ...], Search] = field(default_factory=dict)
    """For jobs in reservations and around them; the others' are kept in the outlook."""
    _shapes: dict[Shape, Shape] = field(default_factory=dict)
    """One object for each: the same object is found again as a key without comparing what it is made of."""
    _misfits: dict[tuple[Shape, float], Fit] = field(default_factory=dict)
    """Shapes that did not fit for so long: within a pass nothing is freed, so they still do not."""
    _fits_empty: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _crowds: dict[str, Crowds] = field(default_factory=dict)
    """By service, where its replicas are."""
    _capped: list[Allocation] = field(default_factory=list)
    """What this pass started in partitions with MaxCPUsPerNode."""

    @property
    def calendar(self) -> Calendar:
        return self.outlook.calendar

    def way(self, job: Job) -> Way:
        """What reservations leave to a job that starts now."""
        if not self.reserved.any:
            return EVERYWHERE
        door = self.reserved.door(job)
        closures, now = self.reserved.closures(door), self.snapshot.now
        return door, closures.during(now, now + self.snapshot.duration_s(job)) if closures.entries else ()

    def usable(self, partition: PartitionConfig) -> BoolArray:
        """The partition's nodes that are up and not drained. To read only."""
        return self.outlook.answers.usable_nodes(self.snapshot.state, partition)

    def shape(self, job: Job, partition: PartitionConfig) -> Shape:
        """The shape that it has now: it may get tired of waiting for --switches."""
        shape = (self.snapshot.asked(job), partition.name, self.way(job))
        return self._shapes.setdefault(shape, shape)

    def now(self, job: Job, partition: PartitionConfig, shape: Shape, duration_s: float) -> Fit:
        """Where it fits and delays nobody's slot, or why not."""
        kind = (shape, duration_s if self.calendar.has_bookings else 0.0)
        missed = self._misfits.get(kind)
        if missed is not None:
            return missed
        alone = job.spec.replica is not None
        search = self._apart(job, partition, shape[2]) if alone else self.search(shape, job, partition)
        fit = self._fit_in(self.draft, search, job, partition)
        if not fit.found:
            self._misfits[kind] = fit
        return fit

    def on_lent(self, job: Job, partition: PartitionConfig) -> Fit | None:
        """A job's place when it may also use CPUs that are kept for suspended jobs which it outranks."""
        lenders = self.lenders(job, partition)
        if not lenders:
            return None
        opened = self.standby.opened(self.draft, lenders.__contains__)
        with self.resuming_later(lenders):
            fit = self._fit_in(opened, self.new_search(job, partition), job, partition)
        return fit if fit.found else None

    def lenders(self, job: Job, partition: PartitionConfig) -> list[int]:
        """Suspended jobs that it outranks."""
        state, rules = self.snapshot.state, self.snapshot.policy.preemption
        return [other for other in self.standby.kept if outranks(state, job, partition, state.jobs[other], rules)]

    @contextmanager
    def resuming_later(self, lenders: Iterable[int]) -> Iterator[None]:
        """For the question of a job that they make way for: in the calendar too they wait for it."""
        bookings = [self.outlook.resumptions[lender] for lender in lenders if lender in self.outlook.resumptions]
        with self.calendar.without(bookings):
            yield

    def _fit_in(self, draft: Occupancy, search: Search, job: Job, partition: PartitionConfig) -> Fit:
        """Where it delays no slot: by the openings of single nodes where these say all, else by columns."""
        free, capped = None, partition.max_cpus_per_node is not None
        if self.calendar.has_bookings:
            end = self.snapshot.gone_by(job, self.snapshot.now)
            plain = not capped and not self.standby.kept
            within = self.calendar.nodes_now(search, draft.free, end) if plain else None
            if within is not None:
                return search.find_within(draft, within)
            free = self.calendar.guaranteed(draft.free, self.snapshot.now, end)
        if capped:
            free = self.within_cap_of(partition, free or draft.free)
        return search.find(draft, free)

    def search(self, key: Shape, job: Job, partition: PartitionConfig) -> Search:
        """The one of its shape in the pass's own draft: it does not look again at nodes that it has moved past."""
        searches = self.outlook.answers.searches if key[2] == EVERYWHERE else self._searches
        search = searches.get(key)
        if search is None:
            search = searches[key] = self.new_search(job, partition, key[2])
        return search

    def _apart(self, job: Job, partition: PartitionConfig, way: Way) -> Search:
        """One of its own for a service's replica, which would rather be where no other of its service is."""
        assert job.spec.replica is not None
        name = job.spec.replica.service
        if name not in self._crowds:
            self._crowds[name] = crowds_of(self.snapshot.state, name)
        return self.new_search(job, partition, way, self._crowds[name].column(self.snapshot.state.fabric))

    def new_search(
        self, job: Job, partition: PartitionConfig, way: Way | None = None, crowds: IntArray | None = None
    ) -> Search:
        """One that has not moved past any node: for another draft than the pass's own."""
        door, closed = self.way(job) if way is None else way
        allowed, inside = self.usable(partition), self.reserved.inside(door)
        if inside is not None:
            allowed = allowed & inside
        if closed:
            allowed = allowed & ~self.reserved.closures(door).mask(closed)
        return search_for(
            self.snapshot.state,
            self.snapshot.demand(job, partition),
            partition,
            allowed,
            self.snapshot.asked(job).switches,
            self.outlook.answers.ranking,
            crowds,
        )

    def shorter(self, job: Job) -> list[Job]:
        """The job with limits --time-min lets it have, each up to the begin of a slot or reservation; least first."""
        least = job.spec.time_min_s
        if least is None or not job.spec.time_limit_given:
            return []
        most = self.snapshot.duration_s(job)
        closures = self.reserved.closures(self.reserved.door(job))
        begins = (*self.calendar.begins, *(closure.begin for closure in closures.entries))
        gaps = (int((begin - self.snapshot.now) // MINUTE_S) * MINUTE_S for begin in begins)
        lengths = sorted({length for length in (least, *gaps) if least <= length < most})
        return [replace(job, spec=replace(job.spec, time_limit_s=length)) for length in lengths]

    def hold(self, partition: PartitionConfig, allocation: Allocation) -> None:
        """Takes the shares in the draft."""
        if self.standby.kept:
            self.standby.lend(self.draft, allocation.shares)
        self.draft.hold(allocation)
        if self._crowds:
            self._note_crowd(allocation)
        if partition.max_cpus_per_node is not None:
            self._capped.append(allocation)

    def _note_crowd(self, allocation: Allocation) -> None:
        """Of one that starts in this pass: those of its service that follow keep away from it."""
        job = self.snapshot.state.jobs.get(allocation.job_id)
        of = job.spec.replica if job is not None else None
        if of is not None and of.service in self._crowds:
            self._crowds[of.service].add(self.draft.table, allocation.node_names)

    def would_fit_empty(self, job: Job, partition: PartitionConfig, way: Way) -> bool:
        """Whether the nodes that are up would hold it with nothing on them."""
        kept = self.outlook.answers.fit_empty if way == EVERYWHERE else self._fits_empty
        key = (self.snapshot.asked(job), partition.name, way)
        answer = kept.get(key)
        if answer is None:
            answer = kept[key] = self.new_search(job, partition, way).find(self.snapshot.state.serviceable).found
        return answer

    def within_cap_of(self, partition: PartitionConfig, free: Free) -> Free:
        """What MaxCPUsPerNode leaves of it to jobs of the partition."""
        assert partition.max_cpus_per_node is not None
        held = [job.held for job in self.snapshot.state.holding.values()]
        mine = [each for each in (*held, *self._capped) if each.partition == partition.name]
        return within_cap(free, self.draft.table, cpus_held(self.draft.table, mine), partition.max_cpus_per_node)

    def forget_misfits(self) -> None:
        """Something has come free, or slots have moved."""
        self._misfits.clear()

    def branch(self) -> Before:
        """From here on in drafts of their own; `take_back` goes back to what is returned."""
        before = self.draft, self.standby, len(self._capped)
        self.draft, self.standby = self.draft.draft(), self.standby.copy()
        return before

    def take_back(self, draft: Occupancy, standby: Standby, capped: int) -> None:
        """Goes back to an earlier draft: what did not fit may fit again, and searches have moved on."""
        rooms = zip(self.draft.rooms, draft.rooms)
        self.calendar.doubt([position for position, (mine, before) in enumerate(rooms) if mine is not before])
        self.draft, self.standby = draft, standby
        del self._capped[capped:]
        self._misfits.clear()
        self._searches.clear()
        self._crowds.clear()
