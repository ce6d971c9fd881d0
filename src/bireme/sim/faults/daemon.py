"""One life of a daemon on the virtual clock: the real kernel, store and crew engine, and the points where it may die.

What `runtime/service.py` does in one turn, in the same order, with a place to die between any two steps. A world has
one after the other; what they share is the file of the journal and the fleet. Decides nothing.
Invariant: `committed` is told of every group that is on disk, before anything follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from bireme.core.lifecycle.due import next_due
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.nodes import Health
from bireme.core.model.observations import Observation
from bireme.core.state.state import State
from bireme.engines.simulated.crew import Fleet, SimulatedCrew
from bireme.ports import HistoryRow, JournalError
from bireme.runtime.kernel import Group, Kernel
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore

TICK_S = 0.5
LEAST_S = 0.02
LOOK_AT_LOST_NODES_S = 5.0
RETRY_AFTER_S = 1.0
PAGES_WITHOUT_END = 1_073_741_823

Committed = Callable[[State, Sequence[e.Recorded]], None]


class Died(Exception):  # noqa: N818  (named for what happened)
    """kill -9, at the armed point."""


class FaultyStore(SqliteStore):
    """The real store, whose disk may be full for some writes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, durable=False)
        self.failing = 0
        self.really_full = False
        """SQLite itself finds no room, instead of us saying so before it tries."""

    def append(self, events: Sequence[tuple[float, str, e.Event]], history: Sequence[HistoryRow] = ()) -> int:
        if not self.failing:
            return super().append(events, history)
        self.failing -= 1
        if not self.really_full:
            raise JournalError("no space left on this disk")
        (pages,) = self._writer.execute("PRAGMA page_count").fetchone()
        self._writer.execute(f"PRAGMA max_page_count={pages}")
        try:
            return super().append(events, history)
        finally:
            self._writer.execute(f"PRAGMA max_page_count={PAGES_WITHOUT_END}")


@dataclass(slots=True)
class Death:
    """Where the daemon is to die: at a point of its next turn; of the orders or acknowledgements, after so many."""

    point: str
    after: int = 0


class Daemon:
    def __init__(self, store: FaultyStore, fleet: Fleet, committed: Committed) -> None:
        self.store = store
        self.fleet = fleet
        self.kernel = Kernel(store, rows_of)
        self.crew = SimulatedCrew(fleet, self.kernel.state.config)
        self.death: Death | None = None
        self.turns = 0
        self.paused_until = -inf
        self._committed = committed
        self._due_after = -inf
        self._due_owed = True
        self._look_at: float | None = None
        """As the daemon's, by the machine's clock, which may jump over it: kept until it was looked at."""
        self._turned_at = -inf

    @property
    def state(self) -> State:
        return self.kernel.state

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self, config: ClusterConfig, report: Callable[[Sequence[Observation]], None]) -> None:
        """Starts the daemon, as `Runtime.start` does. Raises JournalError where the configuration cannot be stored: it
        does not come up."""
        group = self.kernel.configure(config, self.fleet.wall())
        group.commands.clear()  # the engine is not there yet: `outstanding` says them
        self.kernel.commit(group)
        self._committed(self.state, group.events)
        self.crew = SimulatedCrew(self.fleet, config)
        self.crew.recalls = lambda: self.state.loss is not None
        self.crew.begin(report)
        self.crew.send(self.kernel.outstanding())

    def reconfigure(self, config: ClusterConfig) -> None:
        """Takes another configuration, as `scontrol reconfigure` has it. Raises JournalError, and everything is as it
        was."""
        group = self.kernel.configure(config, self.fleet.wall())
        if self._finish(group):
            self.crew.reconfigure(config)

    def die(self) -> None:
        self.crew.die()
        self.store.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_turn_at(self) -> float | None:
        """In the time that really passes; None: it waits for something to come."""
        now = self.fleet.clock.now()
        if self.paused_until > now:
            return self.paused_until
        if self.kernel.has_input or self.kernel.replan or self.death is not None:
            return now
        times = [self._next_look_at()]
        if any(node.health is Health.LOST for node in self.state.nodes.values()) and self.state.holding:
            times.append(self._turned_at + LOOK_AT_LOST_NODES_S)
        if self.state.pending and self.kernel.rank_at < inf:
            times.append(self.kernel.rank_at - self.fleet.skew_s)
        if self.state.pending:
            times.append(self.kernel.full_pass_at - self.fleet.skew_s)
        at = min(times)
        return None if at == inf else max(at, self._due_after, self._turned_at + LEAST_S)

    def _next_look_at(self) -> float:
        if self._due_owed and self.state.pending:
            return self._due_after
        wall = self.fleet.wall()
        if self._look_at is None or self._look_at > wall:
            self._look_at = next_due(self.state, wall)
        return inf if self._look_at is None else self._look_at - self.fleet.skew_s

    # -- a turn --------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Raises Died at the armed point."""
        self.turns += 1
        self._may_die("idle")
        now = self._turned_at = self.fleet.clock.now()
        passed = now >= self._due_after
        group = self.kernel.turn(self.fleet.wall(), time_passed=passed)
        if passed:
            self._look_at = None
            self._due_after = now + TICK_S
        self._due_owed = bool(group.events) or (self._due_owed and not passed)
        self._finish(group)

    def _finish(self, group: Group) -> bool:
        """Whether it is on disk."""
        self._may_die("decided")
        try:
            self.kernel.commit(group)
        except JournalError as error:
            self.kernel.rollback(group, error)
            self.paused_until = self.fleet.clock.now() + RETRY_AFTER_S
            return False
        self._committed(self.state, group.events)
        self._may_die("committed")
        self.kernel.settle(group)
        self._may_die("settled")
        self._send(group)
        if any(isinstance(recorded.event, e.EventsLost) for recorded in group.events):
            self.crew.hear_again()
        self._may_die("sent")
        self._acknowledge(group)
        return True

    def _send(self, group: Group) -> None:
        dies = self.death is not None and self.death.point == "sending"
        if dies:
            assert self.death is not None
            self.crew.mute_after(self.death.after)
        self.crew.send(self.kernel.commands(group))
        if dies:
            raise Died

    def _acknowledge(self, group: Group) -> None:
        for position, (job_id, generation) in enumerate(group.acknowledged):
            if self.death is not None and self.death.point == "acknowledged" and position >= self.death.after:
                raise Died
            self.crew.acknowledge(job_id, generation)
        self._may_die("acknowledged")

    def _may_die(self, point: str) -> None:
        if self.death is not None and self.death.point == point:
            raise Died
