"""One turn of Bireme, without a thread, a clock or a socket: inputs in, a group of events and commands out.

The daemon's loop (`runtime/service.py`) and the simulator both drive this class, so that what is tested is what runs.
A turn: decide requests, interpret observations, let time pass, plan; every event is applied at once, so that each
decision sees the ones before it. Then the group is committed; only after that are requests answered and commands sent.
If the commit fails, the state in memory is ahead of the disk and is read again from it (`rollback`).

Invariant: after `settle` or `rollback`, the state in memory is the fold of the journal on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.calendar.booking import Booking
from bireme.core.lifecycle.apply import apply, finished_phase
from bireme.core.lifecycle.due import departures, due
from bireme.core.lifecycle.intake import interpret, stale_in
from bireme.core.lifecycle.life import IllegalTransition
from bireme.core.lifecycle.loss import settled
from bireme.core.lifecycle.mirroring import is_history, mirrored_job, missing_from, take_standings
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.lifecycle.ranking import follow_priorities
from bireme.core.lifecycle.state import State, Verdict
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.commands import Command, FindJob, TerminateJob
from bireme.core.model.jobs import Ending, Finished
from bireme.core.model.observations import JobSeen, NodeAnswered, Observation, QueueSeen
from bireme.core.model.policy import Policy
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.steps import StepState
from bireme.core.plan.decisions import BEHIND, Plan, accept
from bireme.core.plan.outlook import HARMLESS, Outlook
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.work import Enough, look_anew
from bireme.core.priority.order import reprioritise
from bireme.ports import HistoryRow, Journal, JournalError
from bireme.runtime.collector import without_collecting
from bireme.runtime.stories import with_story
from bireme.slurm.records.steps import history_rows, step_row

Decide = Callable[[State, float], list[e.Event]]
"""Pure: what a request means, decided against the newest state. Raises Refusal."""

CHANGES_NOTHING_FREE = (HARMLESS - {e.JobHeld}) | {e.JobAllocated, e.JobEnding, e.JobResumed}
"""Events after which no waiting job can start that could not before: no pass is needed for them."""

ENDS = (e.JobEnded, e.JobCancelled)
CLEARS = (e.JobEnded, e.JobLaunchFailed, e.LeftoverCleared)
"""Events after which the engine may forget a start."""

ASKING = "events were lost from the journal: nothing starts before every node has said what it holds"

NEWCOMERS_PART = 0.25
"""This part of the changes that call for a full pass is enough when one comes who stands before jobs with slots."""
FULL_PASS_S = 1.0
"""With a short queue, all of it is planned anew this often; a long one waits for the policy's interval."""


@dataclass(slots=True)
class Request:
    """Somebody's wish, waiting for its turn. `answer` is called once, after the commit: (events, error)."""

    cause: str
    decide: Decide
    answer: Callable[[Sequence[e.Recorded], Exception | None], None]


@dataclass(slots=True)
class Group:
    """What one turn produced, committed together."""

    events: list[e.Recorded] = field(default_factory=list)
    history: list[HistoryRow] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    answers: list[tuple[Request, int, int, Exception | None]] = field(default_factory=list)
    """(request, first event, end of its events, error)."""
    observations: list[Observation] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """(job, generation) whose end is in this group: the engine may forget them once it is on disk."""


class Kernel:
    """See the module. Not thread-safe: one caller, one turn at a time."""

    def __init__(self, journal: Journal, *, changes_per_job: float = 0.0) -> None:
        """`changes_per_job`: how much must have happened, for each job that a full pass tests, before the next one.

        The daemon rations passes by the time that they take, and says 0; the simulator, whose time is free, says more.
        """
        self.journal = journal
        self.changes_per_job = changes_per_job
        self.state = load(journal)
        self.requests: deque[Request] = deque()
        self.observations: deque[Observation] = deque()
        self.replan = True
        self.enough: Enough | None = None
        """Ends a pass early; what it did not reach, the next one takes up."""
        self._outlook: Outlook | None = None
        self._promises: Mapping[int, Sequence[Booking]] = {}
        """The slots of the last pass: the next keeps them where it finds none earlier, even if its outlook is void."""
        self.rank_at = 0.0
        """When the priorities are next weighed."""
        self._first_turn_at: float | None = None

    # -- inputs ------------------------------------------------------------------------------------------------------

    def configure(self, config: ClusterConfig, now: float) -> Group:
        """The first group of a run, and of every reconfiguration; empty if nothing changed."""
        group = Group()
        if self.state.config != config:
            self._record(group, "configuration", e.ClusterConfigured(config), now)
        return group

    @property
    def has_input(self) -> bool:
        return bool(self.requests or self.observations)

    # -- a turn ------------------------------------------------------------------------------------------------------

    def turn(self, now: float, *, time_passed: bool, may_plan: bool = True) -> Group:
        group = Group()
        self._first_turn_at = now if self._first_turn_at is None else self._first_turn_at
        self.state.awake_since = self._first_turn_at
        while self.observations:
            seen = self.observations.popleft()
            group.observations.append(seen)
            self._record_all(group, "engine", interpret(self.state, seen, now), now)
            self._let_go(group, seen)
            self._mirror(group, seen, now)
        while self.requests:
            self._decide(group, self.requests.popleft(), now)
        self._record_all(group, "time", settled(self.state, now), now)
        if time_passed:
            self._record_all(group, "time", due(self.state, now), now)
            self.replan = self.replan or bool(self.state.pending)
        if may_plan:
            self.plan(group, now)
        return group

    def _let_go(self, group: Group, seen: Observation) -> None:
        """An engine need not keep what the state no longer holds: an old start, a job long over.

        What a node says it still holds must be ended first; where the state knows the node, it sees to that.
        """
        stale = stale_in(self.state, seen)
        if not isinstance(seen, NodeAnswered):
            group.acknowledged.extend(key for key in stale if key not in group.acknowledged)
        elif seen.node not in self.state.nodes:
            group.commands.extend(TerminateJob(job_id, generation, (seen.node,), 0) for job_id, generation in stale)

    def _mirror(self, group: Group, seen: Observation, now: float) -> None:
        """What another scheduler's queue says that is not journaled: history of long ago, standings, what is gone."""
        if isinstance(seen, JobSeen) and (seen.past or is_history(self.state, seen.seen, now)):
            group.history.extend(history_rows(self.state, mirrored_job(None, seen.seen), seen.seen.phase, now))
        elif isinstance(seen, QueueSeen):
            take_standings(self.state, seen.standings)
            group.commands.extend(FindJob(job) for job in missing_from(self.state, seen.listed))

    def _decide(self, group: Group, request: Request, now: float) -> None:
        """What fails while it is decided has changed nothing: only who asked is told. What fails when it is applied
        has, and ends the run."""
        first = len(group.events)
        try:
            events = request.decide(self.state, now)
        except Exception as error:
            group.answers.append((request, first, first, error))
            return
        self._record_all(group, request.cause, events, now)
        group.answers.append((request, first, len(group.events), None))

    def plan(self, group: Group, now: float) -> None:
        """One pass, if anything changed that could let a job start. A turn's last part; may also follow it.

        Decisions are accepted one by one, each against the state that the one before it left.
        """
        self._rank(now)
        if not self.replan:
            return
        self.replan = False
        if self.state.loss is not None:
            self.state.verdicts = self._mirrored_verdicts() | self._verdicts_after_loss()
            return
        if all(job.mirrored for job in self.state.pending.values()):
            self.state.verdicts = self._mirrored_verdicts()
            return
        policy = self.state.config.settings.policy
        with without_collecting():
            passed = self._pass(policy, now)
        self.state.planned_at = now
        self._take_verdicts(passed)
        self._outlook, self._promises = passed.outlook, passed.outlook.bookings
        for decision in passed.starts:
            accepted = accept(self.state, decision)
            self._record_all(group, "planner", accepted, now)
            if not accepted:  # the calendar counts on a start that is not made
                self._outlook = None
        if passed.outlook.left or passed.outlook.owed:
            self.replan = True

    def _take_verdicts(self, passed: Plan) -> None:
        """Of jobs that wait, and not in another scheduler's queue; of a heterogeneous job some may be over."""
        pending, judged = self.state.pending, passed.judged.items()
        own = {job_id: said for job_id, said in judged if job_id in pending and not pending[job_id].mirrored}
        self.state.verdicts.update(dict.fromkeys(passed.behind, BEHIND))
        self.state.verdicts.update(own)

    def _mirrored_verdicts(self) -> dict[int, Verdict]:
        """What the planner thinks of jobs that another scheduler places is not what will be done."""
        verdicts, pending = self.state.verdicts, self.state.pending
        return {job_id: verdicts[job_id] for job_id in verdicts if job_id in pending and pending[job_id].mirrored}

    def _verdicts_after_loss(self) -> dict[int, Verdict]:
        """Nobody starts who may be running already: the nodes are asked first (`core/lifecycle/loss.py`)."""
        asking = Verdict((reason(ReasonKind.SYSTEM_FAILURE, why=ASKING),))
        return {job_id: asking for job_id, job in self.state.pending.items() if not job.mirrored}

    def _rank(self, now: float) -> None:
        settings = self.state.config.settings.priority
        if self.rank_at == inf or self.rank_at - settings.calc_period_s <= now < self.rank_at:
            return  # a longer wait than the period: the clock was set back
        reprioritise(self.state, now)
        self.rank_at = now + settings.calc_period_s if settings.multifactor else inf
        if settings.multifactor and self.state.pending:
            if self._outlook is not None:
                self._outlook.reordered = True
            self.replan = True

    def _pass(self, policy: Policy, now: float) -> Plan:
        """A full pass when the outlook is void or old; else only what changed is looked at."""
        outlook, snapshot = self._outlook, Snapshot(self.state, policy, now)
        if outlook is None:
            return plan(snapshot, look_anew(snapshot, self._promises), enough=self.enough)
        enough_changes = self.changes_per_job * outlook.tested
        much = outlook.changes >= enough_changes
        if much and self._is_old(outlook, policy, now):
            return plan(snapshot, look_anew(snapshot, self._promises, outlook), enough=self.enough)
        renew = outlook.changes >= NEWCOMERS_PART * enough_changes
        return plan(snapshot, outlook, enough=self.enough, renew=renew)

    def _is_old(self, outlook: Outlook, policy: Policy, now: float) -> bool:
        """Whether a full pass could give somebody a better place: slots may be found earlier, lines go on."""
        if not outlook.bookings and not outlook.blocked:
            return False
        many = len(self.state.pending) > policy.many
        patience_s = policy.interval_s if many else min(policy.interval_s, FULL_PASS_S)
        return outlook.reordered or (outlook.changes > 0 and abs(now - outlook.made_at) >= patience_s)

    def _record_all(self, group: Group, cause: str, events: Sequence[e.Event], now: float) -> None:
        for event in events:
            self._record(group, cause, event, now)

    def _record(self, group: Group, cause: str, event: e.Event, now: float) -> None:
        recorded = e.Recorded(self.state.seq + 1, now, cause, event)
        if isinstance(event, ENDS):
            group.history.extend(self._final_rows(event, now))
        try:
            group.commands.extend(apply(self.state, recorded))
        except IllegalTransition as error:
            raise with_story(error, self.journal, recorded.seq, group.events) from error
        group.events.append(recorded)
        if isinstance(event, e.ClusterConfigured):
            self._record_all(group, cause, departures(self.state), now)
        if self._outlook is not None and not self._outlook.note(self.state, event, now):
            self._outlook = None
        if follow_priorities(self.state, event, now):
            self.rank_at = 0.0
        if isinstance(event, e.JobMirrored) and isinstance(event.seen.phase, Finished):
            group.history.extend(history_rows(self.state, self.state.jobs[event.job_id], event.seen.phase, now))
        if isinstance(event, e.StepNodeEnded):
            group.history.extend(self._step_rows(event, now))
        if isinstance(event, CLEARS) and not (isinstance(event, e.LeftoverCleared) and event.still_on):
            group.acknowledged.append((event.job_id, event.generation))
        elif isinstance(event, e.LeftoverFound):  # the engine has to hear it out
            key = (event.job_id, event.generation)
            group.acknowledged = [each for each in group.acknowledged if each != key]
        if type(event) not in CHANGES_NOTHING_FREE:
            self.replan = True

    def _final_rows(self, event: e.JobEnded | e.JobCancelled, now: float) -> list[HistoryRow]:
        """Built before the event is applied: a requeued job forgets the run that just ended."""
        job = self.state.jobs.get(event.job_id)
        if job is None:
            return []
        if isinstance(event, e.JobCancelled):
            phase = Finished(event.outcome, now)
        else:
            if not isinstance(job.phase, Ending):
                return []
            phase = finished_phase(job.phase, event)
        return history_rows(self.state, job, phase, now)

    def _step_rows(self, event: e.StepNodeEnded, now: float) -> list[HistoryRow]:
        job = self.state.jobs[event.job_id]
        step = job.steps[event.step_id]
        return [step_row(self.state, job, step, now)] if step.state is StepState.ENDED else []

    # -- the end of a turn -------------------------------------------------------------------------------------------

    def commit(self, group: Group) -> None:
        """Writes the group; may run in another thread. Raises JournalError: then call `rollback`, not `settle`."""
        if group.events or group.history:
            events = [(recorded.at, recorded.cause, recorded.event) for recorded in group.events]
            self.journal.append(events, group.history)

    def commands(self, group: Group) -> list[Command]:
        """What the engine is to do after the commit. What ended within the group need not be ended any more."""
        ended = set(group.acknowledged)
        return [
            command
            for command in group.commands
            if not isinstance(command, TerminateJob) or (command.job_id, command.generation) not in ended
        ]

    def settle(self, group: Group) -> None:
        """After the commit: every request gets its answer."""
        for request, first, end, error in group.answers:
            request.answer(group.events[first:end], error)

    def rollback(self, group: Group, error: JournalError) -> None:
        """Nothing of the group is on disk: forget it, answer its requests with the error, keep its observations."""
        self.state = load(self.journal)
        self._outlook = None
        self.observations.extendleft(reversed(group.observations))
        self.replan = True
        self.rank_at = 0.0
        for request, _, _, refusal in group.answers:
            request.answer((), refusal or error)

    def outstanding(self) -> list[Command]:
        return outstanding(self.state)


def load(journal: Journal) -> State:
    """The state on disk: the newest snapshot and what happened since."""
    found = journal.latest_snapshot()
    seq, state = found if found is not None else (0, State())
    for recorded in journal.replay(seq):
        try:
            apply(state, recorded)
        except IllegalTransition as error:
            raise with_story(error, journal, recorded.seq, ()) from error
    assert isinstance(state, State)
    return state
