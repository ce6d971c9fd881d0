"""One turn of Bireme, without a thread, a clock or a socket: inputs in, a group of events and commands out.

The daemon's loop (`runtime/service.py`) and the simulator both drive this class, so that what is tested is what runs.
A turn: decide requests, interpret observations, let time pass, plan; every event is applied at once, so that each
decision sees the ones before it. Then the group is committed; only after that are requests answered and commands sent.
If the commit fails, the state in memory is ahead of the disk and is read again from it (`rollback`). So it is when an
event could not be applied and somebody hears of that (`on_breach`): the turn is then done again without what made it.

Invariant: after `settle` or `rollback`, the state in memory is the fold of the journal on disk.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from bireme.core.calendar.booking import Booking
from bireme.core.kinds.kind import Entry
from bireme.core.kinds.life import IllegalTransition
from bireme.core.lifecycle.apply import apply
from bireme.core.lifecycle.due import due, settled
from bireme.core.lifecycle.intake import interpret, remarks
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.lifecycle.registry import MEANING, Meaning
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.commands import Command, TerminateJob
from bireme.core.model.observations import Observation
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Refusal, Why
from bireme.core.plan.decisions import Decision, Plan, accept
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.stands import CALLS_FOR_A_PASS, FOLLOWED
from bireme.core.plan.unplanned import take_verdicts, without_a_pass
from bireme.core.plan.work import Enough, look_anew
from bireme.core.priority.following import follow_priorities
from bireme.core.priority.order import reprioritise
from bireme.core.state.state import State
from bireme.ports import HistoryRow, Journal, JournalError, Records
from bireme.runtime.breaches import MOST_IN_A_TURN, BreachError, LeftOut
from bireme.runtime.stories import with_story
from bireme.runtime.uncollected import without_collecting

Decide = Callable[[State, float], list[e.Event]]
"""Pure: what a request means, decided against the newest state. Raises Refusal."""

OURS = "an internal error, nothing of it was done: the daemon's log says more"

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
    time_passed: bool = False
    """Whether what time makes happen is a part of it."""


class Kernel:
    """Turns requests, reports and time into events, commands and plans: one turn after another. Not thread-safe: one
    caller, one turn at a time."""

    def __init__(
        self,
        journal: Journal,
        records: Records,
        *,
        changes_per_job: float = 0.0,
        on_breach: Callable[[BreachError], None] | None = None,
    ) -> None:
        """`records`: how what goes into the history is written down.

        `changes_per_job`: how much must have happened, for each job that a full pass tests, before the next one. The
        daemon rations passes by the time that they take, and says 0; the simulator, whose time is free, says more.
        `on_breach`: who hears of an event that could not be applied, and was left out. Nobody: it ends the run.
        """
        self.journal = journal
        self.records = records
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
        self._anew_seq = 0
        """The newest event when the last full pass was made."""
        self.rank_at = 0.0
        """When the priorities are next weighed."""
        self._first_turn_at: float | None = None
        self._on_breach = on_breach
        self._left_out = LeftOut()
        self._source: Request | Observation | Decision | None = None
        """What the events that are recorded now come of; None: time alone."""

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
        group = Group(time_passed=time_passed)
        self._first_turn_at = now if self._first_turn_at is None else self._first_turn_at
        try:
            self._take_in(group, now)
            if may_plan:
                self._pass_over_queue(group, now)
        except BreachError as breach:
            self._again(group, breach, now, may_plan=may_plan)
        return group

    def plan(self, group: Group, now: float) -> None:
        """One pass, if anything changed that could let a job start. A turn's last part; may also follow it."""
        try:
            self._pass_over_queue(group, now)
        except BreachError as breach:
            self._again(group, breach, now, may_plan=True)

    def _take_in(self, group: Group, now: float) -> None:
        """All of a turn but the pass."""
        if self._first_turn_at is not None:
            self.state.awake_since = self._first_turn_at
        self._hold_left_out(group, now)
        while self.observations:
            self._source = seen = self.observations.popleft()
            group.observations.append(seen)
            self._record_all(group, "engine", interpret(self.state, seen, now), now)
            self._remark(group, seen, now)
        while self.requests:
            self._source = request = self.requests.popleft()
            self._decide(group, request, now)
        self._source = None
        self._settle(group, now)
        if group.time_passed:
            self._record_all(group, "time", self._left_out.without(due(self.state, now)), now)
            self._settle(group, now)
            self.replan = self.replan or bool(self.state.pending)

    def _settle(self, group: Group, now: float) -> None:
        """What the kinds decide in every turn: each event happens before the next is decided."""
        for event in settled(self.state, now):
            self._record_all(group, "time", self._left_out.without([event]), now)

    def _again(self, group: Group, breach: BreachError, now: float, *, may_plan: bool) -> None:
        """Takes back what is in the group and goes through it again without what made the event that broke."""
        for _ in range(MOST_IN_A_TURN):
            self._leave_out(group, breach)
            try:
                self._take_in(group, now)
                if may_plan:
                    self._pass_over_queue(group, now)
                return
            except BreachError as another:
                breach = another
        raise breach

    def _leave_out(self, group: Group, breach: BreachError) -> None:
        assert self._on_breach is not None
        source, self._source = self._source, None
        self._on_breach(breach)
        self.requests.extendleft(request for request, *_ in reversed(group.answers))
        self.observations.extendleft(reversed(group.observations))
        for part in (group.events, group.history, group.commands, group.answers, group.observations):
            part.clear()
        group.acknowledged.clear()
        self._read_again()
        if isinstance(source, Request):
            source.decide = _refuse
        elif isinstance(source, Observation):
            self.observations = deque(seen for seen in self.observations if seen is not source)
        else:
            self._left_out.note(self.state, breach)

    def _hold_left_out(self, group: Group, now: float) -> None:
        self._record_all(group, "breach", self._left_out.holds(self.state), now)

    def _read_again(self) -> None:
        """The state as it is on disk; nothing of a turn that was not committed."""
        self.state = load(self.journal)
        self._outlook = None
        self.replan = True
        self.rank_at = 0.0

    def _remark(self, group: Group, seen: Observation, now: float) -> None:
        """What a report comes to besides events."""
        for aside in remarks(self.state, seen, now):
            self._chronicle(group, aside.history, now)
            group.commands.extend(aside.commands)
            group.acknowledged.extend(key for key in aside.forgettable if key not in group.acknowledged)

    def _decide(self, group: Group, request: Request, now: float) -> None:
        """What fails while it is decided has changed nothing: only who asked is told. What fails when it is applied
        has: the turn cannot go on from there (`_again`)."""
        first = len(group.events)
        try:
            events = request.decide(self.state, now)
        except Exception as error:
            group.answers.append((request, first, first, error))
            return
        group.answers.append((request, first, first, None))
        self._record_all(group, request.cause, events, now)
        group.answers[-1] = (request, first, len(group.events), None)

    def _pass_over_queue(self, group: Group, now: float) -> None:
        """Decisions are accepted one by one, each against the state that the one before it left."""
        self._hold_left_out(group, now)
        self._rank(now)
        if not self.replan:
            return
        self.replan = False
        unplanned = without_a_pass(self.state)
        if unplanned is not None:
            self.state.verdicts, self._outlook = unplanned, None
            return
        policy = self.state.config.settings.policy
        with without_collecting():
            passed = self._pass(policy, now)
        self.state.planned_at = now
        take_verdicts(self.state, passed)
        anew = passed.outlook is not self._outlook
        self._outlook, self._promises = passed.outlook, passed.outlook.bookings
        for decision in passed.starts:
            self._source = decision
            accepted = self._left_out.without(accept(self.state, decision))
            self._record_all(group, "planner", accepted, now)
            if not accepted:  # the calendar counts on a start that is not made
                self._outlook = None
        self._source = None
        if anew:
            self._anew_seq = self.state.seq
        if passed.outlook.left or passed.outlook.owed:
            self.replan = True

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
        if self._is_old(outlook, now):
            return plan(snapshot, look_anew(snapshot, self._promises, outlook), enough=self.enough)
        renew = outlook.changes >= NEWCOMERS_PART * self.changes_per_job * outlook.tested
        return plan(snapshot, outlook, enough=self.enough, renew=renew)

    def _is_old(self, outlook: Outlook, now: float) -> bool:
        """Whether a full pass could give somebody a better place: slots may be found earlier, lines go on."""
        if not self._may_improve(outlook):
            return False
        return outlook.reordered or (outlook.changes > 0 and abs(now - outlook.made_at) >= self._patience_s)

    def _may_improve(self, outlook: Outlook) -> bool:
        much = outlook.changes >= self.changes_per_job * outlook.tested
        return much and bool(outlook.bookings or outlook.blocked)

    @property
    def _patience_s(self) -> float:
        """How long small passes do, after a full one."""
        policy = self.state.config.settings.policy
        many = len(self.state.pending) > policy.many
        return policy.interval_s if many else min(policy.interval_s, FULL_PASS_S)

    @property
    def full_pass_at(self) -> float:
        """When a full pass is owed for what has changed since the last one, whether or not anything else happens."""
        outlook = self._outlook
        if outlook is None or not outlook.changes or not self._may_improve(outlook):
            return inf
        return outlook.made_at + self._patience_s

    def overlooked(self, now: float) -> list[Decision]:
        """Whom a full pass would start now, or make room for. At rest, and if something has happened since the last
        one, that is nobody, or the small passes have passed somebody over. Changes nothing."""
        if self._outlook is None or self.replan or self.state.seq == self._anew_seq:
            return []
        outlook = copy.deepcopy(self._outlook)
        snapshot = Snapshot(self.state, self.state.config.settings.policy, now)
        decided = plan(snapshot, look_anew(snapshot, self._promises, outlook)).starts
        return [each for each in decided if accept(self.state, each)]

    def _record_all(self, group: Group, cause: str, events: Sequence[e.Event], now: float) -> None:
        for event in events:
            self._record(group, cause, event, now)

    def _record(self, group: Group, cause: str, event: e.Event, now: float) -> None:
        try:
            self._let_happen(group, cause, event, now)
        except (BreachError, JournalError):
            raise
        except Exception as error:
            if self._on_breach is None:
                raise
            decision = self._source if isinstance(self._source, Decision) else None
            raise BreachError(decision, event, error) from error

    def _let_happen(self, group: Group, cause: str, event: e.Event, now: float) -> None:
        recorded = e.Recorded(self.state.seq + 1, now, cause, event)
        meaning = MEANING[type(event)]
        for chronicle in meaning.chronicles:
            self._chronicle(group, chronicle(self.state, event, now), now)
        try:
            group.commands.extend(apply(self.state, recorded))
        except IllegalTransition as error:
            raise with_story(error, self.journal, recorded.seq, group.events) from error
        group.events.append(recorded)
        for entail in meaning.entails:
            self._record_all(group, cause, list(entail(self.state)), now)
        if self._outlook is not None and not self._outlook.note(self.state, event, now):
            self._outlook = None
            self.replan = self.replan or type(event) in FOLLOWED  # it could not be, as it is usually
        if follow_priorities(self.state, event, now):
            self.rank_at = 0.0
        for chronicle in meaning.chronicles_after:
            self._chronicle(group, chronicle(self.state, event, now), now)
        if meaning.closes or meaning.reopens:
            self._hear_out(group, meaning, event)
        if type(event) in CALLS_FOR_A_PASS:
            self.replan = True

    def _chronicle(self, group: Group, entries: Iterable[Entry], now: float) -> None:
        for entry in entries:
            group.history.extend(self.records(self.state, entry, now))

    def _hear_out(self, group: Group, meaning: Meaning, event: Any) -> None:
        """The engine may forget the start that the event names, or has to hear it out."""
        key = (event.job_id, event.generation)
        if meaning.reopens:
            group.acknowledged = [each for each in group.acknowledged if each != key]
        elif any(closes(event) for closes in meaning.closes):
            group.acknowledged.append(key)

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
        self._read_again()
        self.observations.extendleft(reversed(group.observations))
        for request, _, _, refusal in group.answers:
            request.answer((), refusal or error)

    def outstanding(self) -> list[Command]:
        return outstanding(self.state)


def _refuse(state: State, now: float) -> list[e.Event]:
    raise Refusal(Why.ERROR, OURS)


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
