"""A pass under way: the parts that it asks, how far it has come in the queue, and what it has decided so far.

`begin` puts a `Pass` together for `planner.plan`, which walks the queue with it; `consider` decides one job after the
other. Where a job fits is asked of `fitting`, when of `slots`, whether a limit lets it of `limiting`. Invariant: a pass
changes its own drafts and its outlook, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.calendar.booking import Booking
from bireme.core.calendar.calendar import Calendar
from bireme.core.jobs.due import gone_by
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Ending, Job, Running, Starting, Suspended
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.model.resources import Allocation
from bireme.core.placement.needs import part_of
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Fit
from bireme.core.plan.decisions import Decision, Start, without_a_slot
from bireme.core.plan.expected import ranking_of
from bireme.core.plan.fitting import Fitting
from bireme.core.plan.hope import Hope
from bireme.core.plan.limiting import Limiting
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.queue import Line, in_order
from bireme.core.plan.reserved import Reserved
from bireme.core.plan.seniority import preempts
from bireme.core.plan.slots import Slots
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.standby import Standby, expect_resumptions, waiting_for_cpus
from bireme.core.plan.terms import Terms, line_of, terms_of
from bireme.core.state.state import State, Verdict

FOR_ROOM = (ReasonKind.RESOURCES, ReasonKind.PRIORITY)
"""The reasons of jobs that start as soon as there is room."""
ENTRIES_PER_JOB, ENTRIES_LEAST = 8, 1_000
"""A calendar that has noted more releases than that is mostly made of what was taken back: it is made anew."""
ANSWERS_MOST = 2_000
"""Shapes of requests that are remembered from one full pass to the next."""

Enough = Callable[[], bool]
"""Asked before each job that is looked at closely: True ends the pass. What it did not reach comes next time."""


@dataclass(slots=True)
class Pass:
    """One pass over the queue, as far as it has come."""

    snapshot: Snapshot
    outlook: Outlook
    fitting: Fitting
    limiting: Limiting
    slots: Slots
    hope: Hope
    enough: Enough | None = None
    looked: bool = False
    """It has looked at a job: no pass is so short that it looks at none."""
    known: set[int] = field(default_factory=set)
    """Jobs that an earlier pass has looked at. What blocks a line stands behind them."""
    hopeful: set[int] = field(default_factory=set)
    """Of these, jobs that could start where something came free, before the pass began."""
    begun: set[int] = field(default_factory=set)
    """Jobs that this pass starts."""
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
    tasks_taken: dict[int, set[int]] = field(default_factory=dict)
    """array id -> tasks of its record that this pass starts."""
    tasks_started: dict[int, int] = field(default_factory=dict)
    """array id -> tasks of it that this pass starts: they count against its throttle."""
    _told: dict[int, dict[Reason, None]] = field(default_factory=dict)
    """Of jobs with several partitions: what blocks them in those that were looked at."""
    _terms: dict[tuple[int, str], Terms] = field(default_factory=dict)
    """By specification (its identity) and partition."""
    state: State = field(init=False)
    policy: Policy = field(init=False)
    now: float = field(init=False)
    calendar: Calendar = field(init=False)
    blocked: dict[str, Line] = field(init=False)
    """Partitions whose later jobs are not looked at: they could delay one before them that has no slot."""

    def __post_init__(self) -> None:
        """What is asked for at every job stands here too."""
        self.state, self.policy, self.now = self.snapshot.state, self.snapshot.policy, self.snapshot.now
        self.calendar, self.blocked = self.outlook.calendar, self.outlook.blocked

    def block(self, line: str, blocker: int | None = None) -> None:
        """Blocks a line: those behind are not looked at until the blocker is gone; None: until there are slots
        again."""
        self.blocked.setdefault(line, Line(blocker))

    def line(self, job: Job, partition: str) -> str:
        """Where it queues up."""
        return line_of(job.spec, partition)

    def terms(self, job: Job, name: str) -> Terms | None:
        """What a job's specification comes to in this partition; None: there is no such partition."""
        key = (id(job.spec), name)
        known = self._terms.get(key)
        if known is None and (partition := self.state.partitions.get(name)) is not None:
            known = terms_of(self.snapshot, self.fitting, self.limiting.ledger.rules, job, partition)
            if known.lasting:
                self._terms[key] = known
        return known

    def is_first_to_wait(self, job: Job, line: str) -> bool:
        """Whether nobody before it waits for resources there: neither in this pass, nor since an earlier one."""
        if line in self.waited_for:
            return False
        self.waited_for.add(line)
        head = self.state.pending.get(self.outlook.heads.get(line, job.id))
        if head is not None and head.id != job.id and self._still_waits(head.id) and self._stands_before(head, job):
            return False
        self.outlook.heads[line] = job.id
        return True

    def _still_waits(self, job_id: int) -> bool:
        """For resources, as far as is known."""
        verdict = self.verdicts.get(job_id) or self.state.verdicts.get(job_id)
        reasons = () if verdict is None or job_id in self.begun else verdict.reasons
        return any(why.kind is ReasonKind.RESOURCES for why in reasons)

    def _stands_before(self, job: Job, other: Job) -> bool:
        return in_order(self.state, (job, other))[0] is job

    def is_over(self) -> bool:
        return self.looked and self.enough is not None and self.enough()

    def may_hope(self, job_id: int) -> bool:
        """Whether it is worth a look: others may have taken what it hoped for."""
        return job_id not in self.hopeful or self.hope.still(self.outlook.waiting, job_id)

    def hold(self, job: Job, partition: PartitionConfig, fit: Fit) -> Allocation:
        """Has a job take its place in the draft, and count against the limits."""
        allocation = self.snapshot.allocation(job, partition, fit)
        self.fitting.hold(partition, allocation)
        self.limiting.count_as_held(job, allocation)
        return allocation

    def branch(self) -> Callable[[], None]:
        """From here on in drafts of their own; what is returned goes back to how it was."""
        places, held = self.fitting.branch(), self.limiting.branch()

        def take_back() -> None:
            self.fitting.take_back(*places)
            self.limiting.take_back(held)

        return take_back

    def started(self, job: Job, held: Allocation, task_id: int | None = None) -> Start:
        """What was held stays held: the calendar learns when it comes back, and the decision is made."""
        self.calendar.started(self.snapshot.gone_by(job, self.now), held)
        asked = self.state.jobs[job.id].spec.time_limit_s
        limit = job.spec.time_limit_s if job.spec.time_limit_s != asked else None
        return Start(job.id, held.partition, held.shares, held.whole_nodes, task_id, limit)

    def judge(self, job: Job, reasons: tuple[Reason, ...]) -> None:
        """What keeps it from starting, in all of its partitions together, and when it is expected to."""
        if len(job.spec.partitions) > 1:
            told = self._told.setdefault(job.id, {})
            told.update(dict.fromkeys(reasons))
            reasons = tuple(told)
        slots = self.outlook.bookings.get(job.id)
        self.verdicts[job.id] = Verdict(reasons, slots[0].begin, slots[0].shares) if slots else without_a_slot(reasons)

    def remember(self, job: Job, partition: PartitionConfig | None) -> None:
        """For the next passes: whether it is worth a look only when something comes free, or always."""
        verdict, outlook = self.verdicts.get(job.id), self.outlook
        if verdict is not None and partition is not None and self._only_lacks_room(job, verdict):
            shape = (job.spec.resources, partition.name)
            need = outlook.waiting.needs.get(shape) or part_of(self.snapshot.demand(job, partition))
            outlook.waiting.add(job.id, shape, need, self.snapshot.duration_s(job))
            outlook.again.discard(job.id)
        else:
            outlook.waiting.remove(job.id)
            outlook.again.add(job.id)

    def _only_lacks_room(self, job: Job, verdict: Verdict) -> bool:
        """Whether a job lacks room alone: neither time nor anybody's end elsewhere could let it start."""
        if self.fitting.reserved.any or self.fitting.standby.kept or preempts(self.state, job, self.policy.preemption):
            return False
        if job.spec.resources.switches is not None or job.spec.time_min_s is not None:
            return False
        return all(why.kind in FOR_ROOM or why.fact("unavailable") or why.fact("fenced") for why in verdict.reasons)


def begin(snapshot: Snapshot, outlook: Outlook, enough: Enough | None) -> Pass:
    """A pass that goes on from this outlook."""
    state = snapshot.state
    outlook.calendar.move_to(snapshot.now)
    fitting = Fitting(snapshot, outlook, state.occupancy.draft(), Reserved(state, snapshot.now))
    if outlook.suspended:
        fitting.standby.keep_all(fitting.draft, waiting_for_cpus(state))
    promises, outlook.promises = outlook.promises, {}
    slots = Slots(snapshot, fitting, outlook, promises)
    hope = Hope(state, fitting.usable, fitting.draft.free, outlook.calendar, snapshot.now)
    return Pass(snapshot, outlook, fitting, Limiting(snapshot, state.ledger.draft()), slots, hope, enough)


def look_anew(
    snapshot: Snapshot, promises: Mapping[int, Sequence[Booking]] | None = None, before: Outlook | None = None
) -> Outlook:
    """An outlook to which everybody who waits is fresh: a pass that goes on from it is a full one.

    `promises`: slots of the pass before, kept where no earlier ones are found. `before`: an outlook that is not void
    and is used up: what it knows of running jobs need not be found out again.
    """
    state, policy, now = snapshot.state, snapshot.policy, snapshot.now
    waiting = waiting_for_cpus(state)
    if before is not None and not waiting and before.calendar.entries < _entries_most(before):
        outlook = Outlook(now, before.calendar.renewed(now), before.ends)
        if len(before.answers.searches) < ANSWERS_MOST:
            outlook.answers = before.answers
    else:
        ends = {job.id: (_ends_at(state, job, now), job.held) for job in state.holding.values()}
        outlook = Outlook(now, Calendar(state.occupancy.table, now, ends.values(), policy.resolution_s), ends)
    outlook.answers.ranking = ranking_of(state, policy, outlook.answers.ranking)
    outlook.suspended = bool(waiting)
    expect_resumptions(snapshot, outlook, waiting)
    outlook.again_at = now
    outlook.fresh = set(state.pending)
    outlook.promises = promises or {}
    return outlook


def _entries_most(outlook: Outlook) -> int:
    return ENTRIES_PER_JOB * len(outlook.ends) + ENTRIES_LEAST


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
