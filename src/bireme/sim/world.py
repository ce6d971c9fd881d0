"""The kernel on a virtual clock: what `runtime/service.py` is for the daemon, without a thread or a second of waiting.

Time jumps from one thing that happens to the next: a submission, an observation, a limit. Priorities are weighed again
at the first of them after PriorityCalcPeriod: without anything that happens, another order starts nobody. Every jump
is a turn of the real kernel, committed to the real store, and its commands go to the simulated engine. Used by
`bireme sim`, `bireme whatif` and the fault worlds.

Invariant: between two turns the state in memory is the fold of the journal, and nothing that is due is left undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from bireme.core.lifecycle.due import next_due
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.observations import Observation
from bireme.core.state.state import State
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import SimulatedEngine
from bireme.ports import HistoryRow, Journal, JournalError, Records
from bireme.runtime.kernel import Decide, Group, Kernel, Request
from bireme.slurm.records.steps import rows_of

RETRY_AFTER_S = 1.0
"""Pause after the journal could not be written, as the daemon's."""

Watcher = Callable[[State, Sequence[e.Recorded]], None]
"""Told of every committed group."""
Answer = Callable[[Sequence[e.Recorded], Exception | None], None]

GATHERED_EVENTS = 40_000
"""A simulation's journal is written so many events at a time: nobody reads it meanwhile."""
CHANGES_PER_JOB = 4.0
"""The whole queue is planned anew after so many times as many changes as it has jobs with slots: virtual time rations
nothing, and more often hardly finds better places."""


def no_rows(state: State, entry: object, now: float) -> Sequence[HistoryRow]:
    """The history of a world whose journal is thrown away: nobody can read it, so it is not written."""
    return ()


class World:
    def __init__(
        self,
        journal: Journal,
        engine: SimulatedEngine,
        clock: VirtualClock,
        records: Records = rows_of,
        changes_per_job: float = CHANGES_PER_JOB,
    ) -> None:
        self.journal = journal
        self.engine = engine
        self.clock = clock
        self.kernel = Kernel(journal, records, changes_per_job=changes_per_job)
        self.watchers: list[Watcher] = []
        self.turns = 0
        self._look_at = -inf
        """When time-driven work is next to be looked at."""
        self._forget_at = -inf
        """When jobs that ended long ago are next forgotten; nothing waits for that, so it wakes nobody."""
        self._not_before = -inf
        """The journal could not be written: no turn until then."""

    @property
    def state(self) -> State:
        return self.kernel.state

    @property
    def now(self) -> float:
        return self.clock.now()

    # -- inputs ------------------------------------------------------------------------------------------------------

    def start(self, config: ClusterConfig) -> None:
        """As the daemon starts: the configuration, the nodes' answers, and what nothing had confirmed."""
        group = self.kernel.configure(config, self.now)
        group.commands.clear()  # the engine is not there yet: `outstanding` says them
        self.finish(group)
        self.engine.connect(self.report)
        self.engine.reconfigure(config)
        self.engine.send(self.kernel.outstanding())

    def report(self, seen: Sequence[Observation]) -> None:
        self.kernel.observations.extend(seen)

    def ask(self, cause: str, decide: Decide, answer: Answer) -> None:
        """A request, decided in the next turn."""
        self.kernel.requests.append(Request(cause, decide, answer))

    # -- time --------------------------------------------------------------------------------------------------------

    def run(self, until: float = inf) -> None:
        """Turn after turn, until nothing is left to happen before that time."""
        while (at := self.next_at()) is not None and at <= until:
            self.clock.advance(at)
            self.turn()
        if until < inf:
            self.clock.advance(max(until, self.now))

    def next_at(self) -> float | None:
        """When the next turn is due; None if nothing will ever happen again."""
        now = max(self.now, self._not_before)
        if self.kernel.has_input or self.kernel.replan:
            return now
        at = min(self._look_at if self._look_at > now else inf, self.clock.next_at or inf)
        return None if at == inf else max(at, now)

    # -- a turn ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self.turns += 1
        group = self.decide()
        self.finish(group)
        at = next_due(self.state, self.now, forgetting=False)
        self._look_at = inf if at is None else at

    def decide(self) -> Group:
        """Time-driven work is done when it is due, and whenever some job waits for another: this may be what for."""
        now = self.now
        time_passed = now >= min(self._look_at, self._forget_at) or bool(self.state.timetable.dependent)
        if time_passed:
            self._forget_at = now + self.state.config.settings.min_job_age_s
        return self.kernel.turn(now, time_passed=time_passed)

    def finish(self, group: Group) -> None:
        """Stores what was decided, then answers and commands; if it cannot be stored, none of it happened."""
        try:
            self.kernel.commit(group)
        except JournalError as error:
            self.kernel.rollback(group, error)
            self._not_before = self.now + RETRY_AFTER_S
            return
        self.kernel.settle(group)
        self.engine.send(self.kernel.commands(group))
        for job_id, generation in group.acknowledged:
            self.engine.acknowledge(job_id, generation)
        for watcher in self.watchers:
            watcher(self.state, group.events)
