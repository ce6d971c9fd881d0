"""Plays a story: faults and people on the virtual clock, daemons that live and die, and the rules after every step.

Phase one, safety: after every turn the rules of `witness`, the state's own, the recount of usage; the journal is read
again after every death, now and then, and at the end. Phase two, liveness: everything is repaired, operators let go
of what they hold, and every job must come to an end, or say why it cannot.

Invariant: the same story (and the same number of steps) plays the same way, so that a failure is one line.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.idle.shelves import policy_of as idle_policy_of
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.jobs.states import job_reasons
from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import Ending, Finished, Job, JobKind, Pending, Running, Suspended
from bireme.core.model.observations import IdlenessSeen, NodeClosed, Observation
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.refusals import Caller
from bireme.core.model.steps import StepState
from bireme.core.reservations.orders import delete_reservation
from bireme.core.state.state import State
from bireme.engines.simulated.agents import read_behaviour
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.crew import Fleet
from bireme.ports import HistoryQuery, JournalError
from bireme.runtime.kernel import load
from bireme.sim.faults import fencing, idling
from bireme.sim.faults.compare import differences
from bireme.sim.faults.daemon import Daemon, Death, Died, FaultyStore
from bireme.sim.faults.draw import ACCOUNTS, BEGIN, LICENCES, PEOPLE_S, Act, Story
from bireme.sim.faults.fencing import FenceRules
from bireme.sim.faults.idling import IdleRules
from bireme.sim.faults.judge import Judge, NoJudge
from bireme.sim.faults.ledger import UsageLedger
from bireme.sim.faults.people import Order, caller_named
from bireme.sim.faults.reports import Garbler
from bireme.sim.faults.serving import ServiceRules, ServingPeople
from bireme.sim.faults.witness import GroundTruth, Violation

CALM_LATENCY_S = 0.002
PATIENCE_S = 100_000.0
"""Time after the last fault within which everything must end: many times the longest limit."""
AT_REST_S = 3.0
"""A daemon that has nothing to do for so long has made every pass that it owed."""
STANDSTILL_S = 8_000.0
"""No limit, delay or reservation is longer: when nothing happened to any job for so long, nothing will."""
CALM_AFTER_S = 180.0
"""Longer than the slowest report is on its way: the longest delay, on the slowest network."""
OPERATORS_LOOK_S = 400.0
COMES_BACK_S = 6_000.0
"""So long after the last fault a service has its replicas: longer than any limit, back-off and drain together."""
TURNS_AT_ONCE = 500
"""A loop that needs more turns in one moment never comes to rest."""
READ_AGAIN_EVERY = 60
SNAPSHOT_EVERY = 25

Sabotage = Callable[[Daemon], None]
"""Breaks a daemon on purpose when it starts: the rules must notice."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was true when the journal was copied."""

    seq: int
    ids: dict[str, int]
    accepted: dict[str, int]
    forgotten: frozenset[int]
    starts: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    steps: int
    events: int
    jobs: int
    deaths: int
    acts: Counter[str]
    """How often each kind of act, faults among them, took place."""


class Failed(Violation):
    """A violation with everything that is needed to see it again."""

    def __init__(self, story: Story, steps: int, acts: Sequence[Act], cause: BaseException) -> None:
        self.seed = story.seed
        self.steps = steps
        self.rule = _rule(cause)
        """What was broken, without the names and numbers of this case."""
        said = f"{type(cause).__name__}: {cause}" if not isinstance(cause, Violation) else str(cause)
        super().__init__(said)
        self.replay = f"bireme sim world --seed {story.seed} {story.flag}".rstrip() + f" --until {steps}"
        self.lately = acts[-8:]


def _rule(cause: BaseException) -> str:
    words = re.sub(r"[0-9.]+|\(.*\)", "#", str(cause).partition(":")[0])
    return f"{type(cause).__name__} {words}"


class Player:
    def __init__(
        self, story: Story, folder: Path, *, until: int | None = None, sabotage: Sabotage | None = None
    ) -> None:
        """`until`: stops after so many steps. `folder`: for the journal."""
        self.story = story
        self.clock = VirtualClock(BEGIN)
        self.truth = GroundTruth()
        self.fleet = Fleet(self.clock, self.truth, f"network {story.seed}")
        self.judge = Judge(ACCOUNTS, LICENCES)
        self.people = ServingPeople(self.truth, self.judge, self._later)
        self.services = ServiceRules(story.seed, self._later)
        self.services.say = self._router_says
        self.idle = IdleRules()
        self.fences = FenceRules()
        self.reports = Garbler(self.clock, f"reports {story.seed}")
        self.ledger = UsageLedger()
        self.daemon: Daemon | None = None
        self.config = story.config
        self.steps = self.events = self.deaths = 0
        self.happened: list[Act] = []
        self.counts: Counter[str] = Counter()
        self._path = os.fspath(folder / f"journal-{story.seed}.db")
        self._until = until
        self._sabotage = sabotage
        self._random = random.Random(f"player {story.seed}")
        self._outages: Counter[str] = Counter()
        self._healed, self._healed_at = False, inf
        self._closed: dict[str, str] = {}
        """Nodes that their own cluster closed at some time, and why they are closed now."""
        self._known_closed: set[str] = set()
        """Those of which the journal says so."""
        self._turns_now = 0
        self._booted_at = BEGIN
        self._checked: tuple[State | None, int] = (None, 0)
        """The state that the rules were last held against, and after how many events."""
        self._looked_at: tuple[State | None, int] = (None, 0)
        """The state in which it was last seen that nobody is overlooked."""
        self._ending_at: dict[tuple[int, int], float] = {}
        """When each start of a job was told to end."""
        self._touched: dict[int, float] = {}
        """When something last happened to each job."""
        self._moved_at = BEGIN
        """When something last happened to a job."""
        self._kept: _Kept | None = None
        self._lossy = False
        """Events were lost: what was counted from them counts no more."""

    # -- the two phases ------------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """Raises Failed."""
        try:
            self._begin()
            self._run_until(BEGIN + PEOPLE_S, lambda: False)
            if not self._cut_short:
                self._heal()
                self._moved_at = self.clock.now()
                self._run_until(self.clock.now() + PATIENCE_S, lambda: self._all_over() or self._at_a_standstill())
            if not self._cut_short:
                self._check_the_end()
        except (Violation, AssertionError, RuntimeError, LookupError, TypeError, ValueError) as error:
            raise Failed(self.story, self.steps, self.happened, error) from error
        finally:
            if self.daemon is not None:
                self.daemon.die()
        jobs = len(self.truth.known)
        return Outcome(self.story.seed, self.steps, self.events, jobs, self.deaths, self.counts)

    @property
    def _cut_short(self) -> bool:
        return self._until is not None and self.steps >= self._until

    def _begin(self) -> None:
        self.fleet.follow(self.config)
        self.truth.agents = self.fleet.agents
        self.truth.nodes = {node.name: node for node in self.config.nodes}
        for act in self.story.acts:
            self.clock.call_at(act.at, partial(self._happens, act))
        self._boot()
        users = {user: {"account": account} for user, account in ACCOUNTS.items()}
        self.people.set_limits(self.story.limits, users, self.story.qos)

    def _run_until(self, end: float, over: Callable[[], bool]) -> None:
        while not self._cut_short and not over():
            at = self._next_at()
            if at is None or at > end:
                return
            self._turns_now = self._turns_now + 1 if at <= self.clock.now() else 0
            if self._turns_now > TURNS_AT_ONCE:
                raise Violation("the daemon turns and turns, and time stands still")
            if at - self.clock.now() > AT_REST_S:
                self._check_nobody_is_overlooked()
            self.clock.advance(max(at, self.clock.now()))
            self._turn()

    def _next_at(self) -> float | None:
        times = [self.clock.next_at, self.daemon.next_turn_at() if self.daemon is not None else None]
        return min((at for at in times if at is not None), default=None)

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        daemon = self.daemon
        if daemon is None or (daemon.next_turn_at() or self.clock.now() + 1) > self.clock.now():
            return
        self.steps += 1
        self._guarded(daemon.turn)
        if self.daemon is not None:
            self._check_state(self.daemon)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Died:
            self._dies()

    def _boot(self) -> None:
        """Starts a daemon on what the last one left; where the disk is full it does not come up, and is tried again."""
        store = FaultyStore(self._path)
        daemon = Daemon(store, self.fleet, self._committed)
        self._same_as_the_journal(daemon)
        if self._sabotage is not None:
            self._sabotage(daemon)
        try:
            daemon.start(self.config, lambda seen: self._hears(daemon, seen))
        except JournalError:
            daemon.die()
            self._later(1.0, self._boot)
            return
        self.daemon, self._booted_at = daemon, self.clock.now()
        self.services.daemon_started(self.fleet.wall())
        self._tell_closed(self._closed)
        self.people.daemon_is_there(daemon.kernel)

    def _hears(self, daemon: Daemon, seen: Sequence[Observation]) -> None:
        def arrive(observation: Observation) -> None:
            if self.daemon is daemon or not daemon.turns:
                daemon.kernel.observations.append(observation)
                self.judge.heard(observation, self.clock.now())

        self.reports.carry(seen, arrive)

    def _dies(self) -> None:
        daemon = self.daemon
        assert daemon is not None
        self.deaths += 1
        self.daemon = None
        down_s = self._down_s
        self.people.daemon_died()
        self.judge.daemon_died()
        daemon.die()
        self._later(down_s, self._boot)

    # -- acts ----------------------------------------------------------------------------------------------------------

    def _happens(self, act: Act) -> None:
        self.happened.append(act)
        self.counts[act.kind] += 1
        if not self.people.does(act):
            getattr(self, f"_{act.kind}")(act)

    def _crash(self, act: Act) -> None:
        self._down_s: float = act.facts["down_s"]
        if self.daemon is not None:
            self.daemon.death = Death(act.facts["point"], act.facts["after"])
            self._later(1.0, partial(self._die_now, self.daemon))

    def _die_now(self, daemon: Daemon) -> None:
        """The armed point did not come within a second: it dies where it is."""
        if self.daemon is daemon and daemon.death is not None:
            self._dies()

    def _disk_full(self, act: Act) -> None:
        if self.daemon is not None:
            self.daemon.store.failing = act.facts["writes"]
            self.daemon.store.really_full = act.facts["real"]

    def _backup(self, act: Act) -> None:
        """Somebody copies the journal while the daemon runs."""
        if self.daemon is not None:
            self.daemon.store.copy_to(self._path + ".kept")
            truth = self.truth
            told = dict(self.people.ids), dict(truth.accepted), frozenset(truth.forgotten), frozenset(truth.starts)
            self._kept = _Kept(self.daemon.state.seq, *told)

    def _journal_lost(self, act: Act) -> None:
        """The journal's disk dies with its daemon; an operator puts the copy in its place, and accepts the loss."""
        kept = self._kept
        if kept is None or self.daemon is None:
            return
        newest, self._down_s = self.daemon.state.seq, act.facts["down_s"]
        self._dies()
        for beside in ("-wal", "-shm"):
            Path(self._path + beside).unlink(missing_ok=True)
        shutil.copy(self._path + ".kept", self._path)
        lost = e.EventsLost(kept.seq + 1, newest, max(self.truth.known, default=0) + 1, newest - kept.seq + 1)
        with closing(FaultyStore(self._path)) as store:
            store.append([(self.fleet.wall(), "operator recover", lost)])
        self._lossy = True
        self.judge = NoJudge(ACCOUNTS, LICENCES)
        self.people.journal_lost(self.judge, kept.ids)
        self.truth.accepted, self.truth.forgotten = dict(kept.accepted), set(kept.forgotten)
        self.truth.lost |= self.truth.starts.keys() - kept.starts
        self.truth.numbers_skipped += lost.starts

    def _cut_off(self, act: Act) -> None:
        node = act.facts["node"]
        self._outages[node] += 1
        self.fleet.cut_off(node)
        self._later(act.facts["for_s"], lambda: self._reachable_again(node))

    def _reachable_again(self, node: str) -> None:
        self._outages[node] -= 1
        if not self._outages[node]:
            self.fleet.restore(node)

    def _node_dies(self, act: Act) -> None:
        self.fleet.restart(act.facts["node"], remembers=act.facts["remembers"])

    def _connection_breaks(self, act: Act) -> None:
        self.fleet.break_connection(act.facts["node"])

    def _node_closed(self, act: Act) -> None:
        for place, why in enumerate((*act.facts["words"], "")):
            self._later(place * act.facts["each_s"], partial(self._close, act.facts["node"], why))

    def _close(self, node: str, why: str) -> None:
        self._closed[node] = "" if self._healed else why
        self._tell_closed((node,))

    def _tell_closed(self, nodes: Iterable[str]) -> None:
        if self.daemon is not None:
            self._hears(self.daemon, [NodeClosed(node, self._closed[node], self.fleet.wall()) for node in nodes])

    def _launch_refused(self, act: Act) -> None:
        self.fleet.agents[act.facts["node"]].refuses += act.facts["times"]

    def _launch_forgotten(self, act: Act) -> None:
        self.fleet.agents[act.facts["node"]].swallows += act.facts["times"]

    def _slow_network(self, act: Act) -> None:
        self.fleet.latency_s = act.facts["latency_s"]
        self._later(act.facts["for_s"], lambda: setattr(self.fleet, "latency_s", CALM_LATENCY_S))

    def _reports_delayed(self, act: Act) -> None:
        self.reports.delayed += act.facts["times"]

    def _reports_doubled(self, act: Act) -> None:
        self.reports.doubled += act.facts["times"]

    def _reports_reordered(self, act: Act) -> None:
        self.reports.reordered += act.facts["times"]

    def _reports_of_old_generations(self, act: Act) -> None:
        self.reports.old += act.facts["times"]

    def _clock_jumps(self, act: Act) -> None:
        self.fleet.skew_s += act.facts["by_s"]

    def _reconfigure(self, act: Act) -> None:
        gone, settings = act.facts["without"], replace(self.story.config.settings, kill_wait_s=act.facts["kill_wait_s"])
        self._configure(_without(replace(self.story.config, settings=settings), gone))

    def _idle_policy(self, act: Act) -> None:
        policy = idling.policy_of(act.facts)
        self._ask(lambda state, now: [e.IdlePolicySet(policy)])

    def _idles(self, act: Act) -> None:
        until = idling.idles_until(self.clock.now(), act.facts["lasts_s"], BEGIN)
        self._measured(act.facts["job"], self.fleet.wall(), until)

    def _measured(self, number: int, since: float, until: float) -> None:
        """What is measured says so in every round, while the job runs and a daemon hears it; then that it works."""
        daemon, now = self.daemon, self.fleet.wall()
        job = daemon.state.jobs.get(self.people.ids.get(f"j{number}", 0)) if daemon is not None else None
        over = self.clock.now() >= until
        rule = next(iter(idle_policy_of(daemon.state).rules), None) if daemon is not None else None
        if daemon is not None and rule is not None and job is not None and isinstance(job.phase, Running):
            seen = IdlenessSeen(
                job_id=job.id,
                generation=job.generation,
                at=now,
                fresh_s=idling.FRESH_S,
                below_percent=rule.below_percent,
                of=rule.gpus,
                since=None if over else max(since, job.phase.started_at),
                why="used" if over else "",
                gpus=1,
                gpus_idle=1,
                measure="gpu_util",
            )
            self._hears(daemon, [seen])
        if not over:
            self._later(idling.ROUND_S, partial(self._measured, number, since, until))

    def _healing_policy(self, act: Act) -> None:
        self._ask(fencing.policy_order(act.facts))

    def _healing_answer(self, act: Act) -> None:
        self._ask(fencing.answer_order(act.facts))

    def _trouble(self, act: Act) -> None:
        if self.daemon is not None:
            self._hears(self.daemon, [fencing.seen_of(act.facts, self.fleet.wall())])

    def _configure(self, config: ClusterConfig) -> None:
        self.config = config
        if self.daemon is not None:
            self._guarded(partial(self.daemon.reconfigure, config))
        self._tell_closed(self._closed)  # also of a node that has come back, and is as new

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _committed(self, state: State, events: Sequence[e.Recorded]) -> None:
        self.events += len(events)
        self.truth.committed(events)
        self.judge.committed(events)
        self.idle.committed(events)
        self.fences.committed(events)
        if not self._lossy:
            self.services.committed(events)
        self._check_given_up(events)
        self._check_closed(events)
        if not self._lossy:
            self.ledger.follow(state, events)
        if any(getattr(recorded.event, "job_id", None) is not None for recorded in events):
            self._moved_at = self.clock.now()
        self._touched.update({getattr(each.event, "job_id", 0): self.clock.now() for each in events})
        for recorded in events:
            event = recorded.event
            job = state.jobs.get(event.job_id) if isinstance(event, e.JobStarted) else None
            if job is not None and job.spec.kind is JobKind.INTERACTIVE:
                run_s = read_behaviour(job.spec.comment).run
                self._later(run_s, partial(self.people.complete, job.id))

    def _check_given_up(self, events: Sequence[e.Recorded]) -> None:
        """A job that was told to end ends without the word of a node only when the node could not be heard."""
        ended: set[tuple[int, int]] = set()
        for event in (recorded.event for recorded in events):
            if isinstance(event, e.JobEnded):
                ended.add((event.job_id, event.generation))
            if not isinstance(event, e.LeftoverFound) or (event.job_id, event.generation) not in ended:
                continue
            told_at = self._ending_at.get((event.job_id, event.generation), -inf)
            if not self.fleet.away_since(event.node, told_at):
                raise Violation(f"job {event.job_id} was given up on {event.node}, which answered")
        for event in (recorded.event for recorded in events):
            if isinstance(event, e.JobEnding):
                self._ending_at.setdefault((event.job_id, event.generation), self.clock.now())

    def _check_closed(self, events: Sequence[e.Recorded]) -> None:
        for event in (recorded.event for recorded in events):
            if isinstance(event, e.NodeClosed):
                (self._known_closed.add if event.why else self._known_closed.discard)(event.node)
            elif isinstance(event, e.ClusterConfigured):
                self._known_closed &= {node.name for node in event.config.nodes}
            elif isinstance(event, e.JobAllocated) and self._known_closed.intersection(event.allocation.node_names):
                raise Violation(f"job {event.job_id} was put on a node that its cluster had closed")

    def _check_state(self, daemon: Daemon) -> None:
        self.judge.check_heard(self.clock.now())
        if daemon.state is self._checked[0] and self.events == self._checked[1]:
            return  # nothing was stored since, nor read again
        self._checked = daemon.state, self.events
        daemon.state.validate()
        for wrong in self.ledger.differences(daemon.state, self.fleet.wall()) if not self._lossy else ():
            raise Violation(wrong)
        if daemon.turns % SNAPSHOT_EVERY == 0 and self._random.random() < 0.5:
            daemon.store.write_snapshot(daemon.state.seq, daemon.state)
        if daemon.turns % READ_AGAIN_EVERY == 0:
            self._same_as_the_journal(daemon)

    def _same_as_the_journal(self, daemon: Daemon) -> None:
        """The state in memory, the newest snapshot with what followed, and all events from the first one: one state."""
        state = State()
        for recorded in daemon.store.replay(0):
            apply(state, recorded)
        for other in (daemon.state, load(daemon.store)):
            wrong = differences(other, state)
            if wrong:
                raise Violation("the journal gives another state: " + "; ".join(wrong)[:2_000])
        for job in daemon.state.jobs.values():
            self.judge.check_place(job.id, job.submitted_at)
        lost = [
            job for job in self.truth.accepted.values() if job not in state.jobs and job not in self.truth.forgotten
        ]
        if lost:
            raise Violation(f"jobs {lost} were accepted, and are lost")

    def _check_nobody_is_overlooked(self) -> None:
        """Nothing will happen for a while: a look at the whole queue finds nobody who could start now."""
        daemon = self.daemon
        if daemon is None or (daemon.state is self._looked_at[0] and daemon.state.seq == self._looked_at[1]):
            return
        self._looked_at = daemon.state, daemon.state.seq
        if any(isinstance(job.phase, Ending) for job in daemon.state.holding.values()):
            return  # its end is expected any moment, and what follows from it then
        for decision in daemon.kernel.overlooked(self.fleet.wall()):
            raise Violation(f"a look at the whole queue starts whom small passes did not: {decision}")

    # -- phase two -----------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Faults stop."""
        self._healed, self._healed_at = True, self.clock.now()
        self.reports.stop()
        self.fleet.latency_s = CALM_LATENCY_S
        for node, agent in self.fleet.agents.items():
            agent.swallows = agent.refuses = 0
            if self._outages[node]:
                self._outages[node] = 0
                self.fleet.restore(node)
        for node in self._closed:
            self._close(node, "")
        if self.daemon is not None:
            self.daemon.death = None
            self.daemon.store.failing = 0
        self._later(CALM_AFTER_S, self._operators_look)

    def _operators_look(self) -> None:
        """Operators let go of what is held, and come back: a job may be held again by its next failure."""
        self._later(OPERATORS_LOOK_S, self._operators_look)
        if self.daemon is None:
            return
        self._check_agreement(self.daemon.state)
        if self.clock.now() - self._booted_at > CALM_AFTER_S:
            self.judge.check_overdue(self.fleet.wall())
        if self.config != self.story.config:
            self._configure(self.story.config)
        if FINDINGS.of(self.daemon.state) or FENCES.of(self.daemon.state):
            self._ask(fencing.all_mended)
        for node in self.fleet.agents:
            self.people.set_node(node, "RESUME")
        self.people.set_limits({account: {"grp_jobs": None} for account in self.story.limits})
        if self.daemon is not None:  # it may have died of the new configuration
            self._let_go(self.daemon.state)

    def _check_agreement(self, state: State) -> None:
        """Long after the last fault: what the state says of a job that nothing happened to is what its nodes do."""
        for name in (node.name for node in state.nodes.values() if node.closed is not None):
            raise Violation(f"{name} is closed, and its cluster has opened it")
        for job in state.holding.values():
            if self.clock.now() - self._touched.get(job.id, 0.0) < CALM_AFTER_S or isinstance(job.phase, Ending):
                continue
            assert job.allocation is not None
            for node in job.allocation.node_names:
                run = self.fleet.agents[node].runs.get(job.id)
                if run is None or run.key != (job.id, job.generation):
                    raise Violation(f"job {job.label} is {type(job.phase).__name__}, and is not on {node}")
                if run.stopped != isinstance(job.phase, Suspended):
                    raise Violation(f"job {job.label} is {type(job.phase).__name__}, on {node} stopped: {run.stopped}")
                living = {step for step, _ in run.living()}
                for step in job.steps.values():
                    if step.outcome and step.state is not StepState.ENDED and step.id in living:
                        raise Violation(f"step {job.label}.{step.id} was to be ended, and still runs on {node}")

    def _look_at_services(self, state: State) -> None:
        """Each has come to what is wanted of it, and is then stopped, so that the world can end."""
        for name in state.services:
            lacks = self.services.settled_or_why(name) if not self._lossy else ""
            if lacks and self.clock.now() - self._healed_at > COMES_BACK_S:
                raise Violation(f"service {name} never came back: {lacks}")
            if not lacks:
                self.people.stop_service(name)

    def _router_says(self, seen: Observation) -> None:
        if self.daemon is not None:
            self._hears(self.daemon, [seen])

    def _let_go(self, state: State) -> None:
        root = caller_named("root")
        self._look_at_services(state)
        for name in state.reservations:
            self._ask(partial(_asked, delete_reservation, root, name))
        for job in state.jobs.values():
            target = Target(job.id)
            if isinstance(job.phase, Pending) and job.phase.held_by is not None:
                self._ask(partial(_asked, requests.release, root, target))
            elif _waits_for_ever(state, job):
                self.judge.check_never(job.id)
                self._ask(partial(_asked, requests.cancel, root, target))
            elif isinstance(job.phase, Suspended):
                self._ask(partial(_asked, requests.resume, root, target))

    def _ask(self, decide: Callable[[State, float], list[e.Event]]) -> None:
        self.people.ask(Order("root scontrol", decide, lambda state, events: None))

    def _all_over(self) -> bool:
        if self.daemon is None or self.people.still_waiting:
            return False
        state = self.daemon.state
        left = [job for job in state.jobs.values() if not isinstance(job.phase, Finished)]
        quiet = not self.daemon.crew.unconfirmed and not any(agent.held() for agent in self.fleet.agents.values())
        return quiet and not left and not state.services

    def _at_a_standstill(self) -> bool:
        return self.clock.now() - self._moved_at > STANDSTILL_S

    def _check_the_end(self) -> None:
        daemon = self.daemon
        if daemon is None:
            raise Violation("the daemon never came back")
        self._same_as_the_journal(daemon)
        state = daemon.state
        left = [job for job in state.jobs.values() if not isinstance(job.phase, Finished)]
        if left:
            raise Violation("never finished: " + "; ".join(_story_of(state, job) for job in left))
        if state.services:
            raise Violation(f"never gone: {', '.join(map(repr, state.services))}")
        for node, agent in self.fleet.agents.items():
            if agent.held():
                raise Violation(f"{node} still holds {sorted(agent.held())}, and nobody tells it to let go")
        if daemon.crew.unconfirmed:
            raise Violation(f"{daemon.crew.unconfirmed} orders were never confirmed")
        self._check_history(daemon)

    def _check_history(self, daemon: Daemon) -> None:
        """What `sacct` shows of the last run is how it ended."""
        self._check_rows(daemon)
        for job in daemon.state.finished.values():
            assert isinstance(job.phase, Finished)
            rows = daemon.store.finished(HistoryQuery(jobs=((job.id, None),)))
            mine = [row for row in rows if row["job_id"] == job.id and row["restarts"] == job.restarts]
            if not job.is_waiting_array and [row["state"] for row in mine] != [job.phase.outcome.state]:
                raise Violation(f"job {job.label} ended as {job.phase.outcome.state}, its history says {mine}")

    def _check_rows(self, daemon: Daemon) -> None:
        """Every end is one row, also of jobs that the daemon has forgotten."""
        assert not self._lossy or not self.judge.standings.jobs, "what was lost is not judged"
        for job in self.judge.standings.jobs.values():
            if job.array is not None:
                continue  # what is cancelled of an array before it starts is one row or several
            found = daemon.store.finished(HistoryQuery(jobs=((job.id, None),), duplicates=True))
            rows = [row for row in found if row["job_id"] == job.id]
            if len(rows) != job.ends:
                raise Violation(f"job {job.id} came to {job.ends} ends, its history has {len(rows)}")

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.clock.call_at(self.clock.now() + delay_s, action)


def _asked(
    request: Callable[..., list[e.Event]], caller: Caller, what: object, state: State, now: float
) -> list[e.Event]:
    return request(state, caller, what)


def _without(config: ClusterConfig, gone: str) -> ClusterConfig:
    nodes = tuple(node for node in config.nodes if node.name != gone)
    kept = [replace(each, nodes=tuple(name for name in each.nodes if name != gone)) for each in config.partitions]
    return replace(config, nodes=nodes, partitions=tuple(kept))


def _waits_for_ever(state: State, job: Job) -> bool:
    """Whether a job's dependency can never be met, and nobody asked for its end then: Slurm leaves it, too."""
    if not isinstance(job.phase, Pending):
        return False
    return any(each.kind is ReasonKind.DEPENDENCY_NEVER_SATISFIED for each in job_reasons(state, job))


def _story_of(state: State, job: Job) -> str:
    reasons = ", ".join(str(each.kind.value) for each in job_reasons(state, job))
    return f"job {job.label} is {type(job.phase).__name__} ({reasons})"
