"""Bugs to plant, one a rule: each a small change of the product, made while a world is played, that a rule must find.

`python -m tests.simulation.planted` (`make soak-detectors`) plays worlds from seed 1 on until each is found and prints
how many it took; `test_detectors.py` plays the one world that is known to find it. A bug that nobody finds within
fifty worlds means that worlds do not draw what it needs, or that no rule sees it.
Invariant: nothing stays changed; the words of a bug match the rule that it breaks, not any other.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bireme.core.accounts import charging
from bireme.core.cluster import loss as lost
from bireme.core.jobs import applying as job_applying
from bireme.core.jobs import due as job_due
from bireme.core.jobs import gates, requests, submission
from bireme.core.jobs import intake as job_intake
from bireme.core.kinds.kind import Entry, RunOver
from bireme.core.lifecycle import due as passing
from bireme.core.lifecycle import intake as hearing
from bireme.core.lifecycle.registry import INTERPRETERS, PROGRAMME
from bireme.core.limits import rules
from bireme.core.limits.rules import Rulebook
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.accounts import NO_LIMITS
from bireme.core.model.jobs import Dependency, DependencyKind, Ending, Job, Pending
from bireme.core.model.nodes import Health, Node
from bireme.core.model.reservations import Reservation
from bireme.core.model.resources import Allocation
from bireme.core.model.serving.services import RevisionLife, Service
from bireme.core.placement import search
from bireme.core.placement.occupancy import Occupancy
from bireme.core.plan import consider, decisions, fitting, preempt, seniority
from bireme.core.plan.outlook import Outlook
from bireme.core.plan.reserved import Reserved
from bireme.core.reservations import reserving
from bireme.core.services import acting, amounts, reconciling
from bireme.core.services import kind as service_kind
from bireme.core.services.standing import Seen, Stand
from bireme.core.state.state import ArrayTally, State
from bireme.engines.crew.engine import CrewEngine
from bireme.engines.crew.gangs import Farewell, Gang, Next
from bireme.engines.simulated.agents import Run, SimulatedAgent
from bireme.ports import JournalError
from bireme.runtime.kernel import Group, Kernel
from bireme.sim.faults.daemon import Daemon
from bireme.sim.faults.draw import Story, draw, draw_with_loss
from bireme.sim.faults.draw_services import draw_with_services
from bireme.sim.faults.play import Failed, Sabotage
from bireme.sim.faults.soak import play

WORLDS = 50
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], Sabotage | None]


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    what: str
    """In one sentence."""
    words: str
    """Of the rule that finds it: a regular expression."""
    seed: int
    """Of a world that finds it soon; 0: one of the first twelve without wishes does."""
    plant: Plant
    loss: bool = False
    """Of worlds whose journal is replaced by an older copy."""
    services: bool = False
    """Of worlds with services."""


PLANTED: list[Planted] = []


def bug(words: str, seed: int, *, loss: bool = False, services: bool = False) -> Callable[[Plant], Plant]:
    """Lists the function, whose docstring is the bug in one sentence."""

    def listed(plant: Plant) -> Plant:
        assert plant.__doc__ is not None
        PLANTED.append(Planted(plant.__name__, plant.__doc__, words, seed, plant, loss, services))
        return plant

    return listed


def service_bug(words: str, seed: int) -> Callable[[Plant], Plant]:
    return bug(words, seed, services=True)


def found(planted: Planted, seeds: Sequence[int], *, wishes: bool = True) -> tuple[int, Failed] | None:
    """The first of these worlds whose rules find the bug: (how many were played, what it broke)."""
    for count, seed in enumerate(seeds, start=1):
        with Patch.context() as patch:
            sabotage = planted.plant(patch)
            try:
                play(_world(planted, seed, wishes=wishes), sabotage=sabotage)
            except Failed as failure:
                if re.search(planted.words, str(failure)):
                    return count, failure
    return None


def _world(planted: Planted, seed: int, *, wishes: bool) -> Story:
    if planted.services:
        return draw_with_services(seed)
    return draw_with_loss(seed) if planted.loss else draw(seed, wishes=wishes)


# -- resources -------------------------------------------------------------------------------------------------------


@bug("held twice", 1)
def cpus_given_twice(patch: Patch) -> None:
    """What a job holds is not counted at all."""
    patch.setattr(Occupancy, "hold", lambda self, allocation: None)
    patch.setattr(Occupancy, "release", lambda self, allocation: None)


def _counting(patch: Patch, change: Callable[[Allocation], Allocation]) -> None:
    hold, release = Occupancy.hold, Occupancy.release
    patch.setattr(Occupancy, "hold", lambda self, allocation: hold(self, change(allocation)))
    patch.setattr(Occupancy, "release", lambda self, allocation: release(self, change(allocation)))


@bug("in all, and was given", 10)
def counted_on_each_node(patch: Patch) -> None:
    """`--gpus` of several nodes is counted on each of them by itself."""
    patch.setattr(search, "split_job_gres", lambda demand, chosen, free: [list(demand.gres_per_job) for _ in chosen])


@bug("gpu:.* held twice|parts of GPU", 6)
def gpus_given_twice(patch: Patch) -> None:
    """GPUs that a job holds are not counted as held."""

    def without(allocation: Allocation) -> Allocation:
        return replace(allocation, shares=tuple(replace(share, gres=()) for share in allocation.shares))

    _counting(patch, without)


@bug("MiB are held", 9)
def memory_over_committed(patch: Patch) -> None:
    """Only half of a job's memory is counted."""

    def half(allocation: Allocation) -> Allocation:
        shares = (replace(share, memory_mib=share.memory_mib // 2) for share in allocation.shares)
        return replace(allocation, shares=tuple(shares))

    _counting(patch, half)


@bug("licences seat", 10)
def licences_over_committed(patch: Patch) -> None:
    """Nobody asks whether a licence is free."""
    patch.setattr(Rulebook, "_licence_rules", lambda self, asked: iter(()))


@bug("one more task of its array", 1)
def array_throttle_exceeded(patch: Patch) -> None:
    """One task more of an array than its throttle allows may run at once."""
    room = gates.throttle_room

    def one_more(state: State, job: Job) -> int | None:
        left = room(state, job)
        running = state.running_tasks(job.array_job_id or 0)
        return left if left is None or running != gates.throttle_of(job) else 1

    patch.setattr(gates, "throttle_room", one_more)
    patch.setattr(consider, "throttle_room", one_more)


@bug("than its QOS (allows|gives)", 5)
def qos_limit_exceeded(patch: Patch) -> None:
    """The limits of a QOS are not asked."""
    level = rules._qos_level
    patch.setattr(rules, "_qos_level", lambda *about: replace(level(*about), limits=NO_LIMITS))


@bug("than its account allows", 8)
def account_limit_exceeded(patch: Patch) -> None:
    """The limits of an account are not asked."""
    level = rules._association_level
    patch.setattr(rules, "_association_level", lambda *about, **more: replace(level(*about, **more), limits=NO_LIMITS))


# -- when a job may start --------------------------------------------------------------------------------------------


@bug("is held$", 1)
def held_job_started(patch: Patch) -> None:
    """A hold is shown, and not looked at when jobs are started."""
    patch.setattr(gates, "_hold", lambda phase: None)
    patch.setattr(Pending, "free_to_go", property(lambda phase: True))
    good = decisions._still_good

    def whoever_holds(state: State, job: Job, start: decisions.Start) -> bool:
        phase = job.phase
        if not isinstance(phase, Pending) or phase.held_by is None:
            return good(state, job, start)
        job.phase = replace(phase, held_by=None)
        try:
            return good(state, job, start)
        finally:
            job.phase = phase

    patch.setattr(decisions, "_still_good", whoever_holds)


@bug("whole queue starts whom small passes did not", 22)
def held_job_keeps_its_place(patch: Patch) -> None:
    """A job that is held keeps its slots, and those behind it wait on."""
    note = Outlook.note

    def as_if_nothing_had_happened(outlook: Outlook, state: State, event: e.Event, at: float) -> bool:
        return isinstance(event, e.JobHeld) or note(outlook, state, event, at)

    patch.setattr(Outlook, "note", as_if_nothing_had_happened)


@bug("nobody asked for it|is held$", 1)
def hold_let_go_by_time(patch: Patch) -> None:
    """What is held goes on by itself after a minute."""
    passed = passing.due

    def releasing(state: State, now: float) -> list[e.Event]:
        held = [job for job in state.pending.values() if isinstance(job.phase, Pending) and job.phase.held_by]
        old = [job for job in held if isinstance(job.phase, Pending) and now - job.phase.since > 60]
        return [*passed(state, now), *(e.JobReleased(job.id) for job in old)]

    patch.setattr("bireme.runtime.kernel.due", releasing)


@bug("another begin_at than was asked", 1)
def begin_time_lost_at_submission(patch: Patch) -> None:
    """The begin time is not stored with the job."""
    admitted = submission.admitted
    patch.setattr(submission, "admitted", lambda *about: admitted(*about).revised(begin_at=None))


@bug("before its begin time", 1)
def begin_time_ignored(patch: Patch) -> None:
    """A begin time is shown, and not waited for."""
    patch.setattr(gates, "_times", lambda job, now: [])


@bug("after its deadline", 3)
def deadline_ignored(patch: Patch) -> None:
    """A job that waits is not given up when its deadline is over."""
    patch.setattr(job_due, "_given_up_at", lambda state, job: None)


@bug("dependencies were met: afterok", 1)
def afterok_met_too_early(patch: Patch) -> None:
    """afterok is met as soon as the other's script ended well, before the other is over."""
    met = gates._job_met

    def early(target: Job, item: Dependency, now: float) -> gates.Met:
        if item.kind is DependencyKind.AFTER_OK and isinstance(target.phase, Ending):
            return gates.Met.YES
        return met(target, item, now)

    patch.setattr(gates, "_job_met", early)


def _condition(patch: Patch, kind: DependencyKind, other: DependencyKind) -> None:
    met = gates.condition_met

    def otherwise(state: State, job: Job, item: Dependency, now: float) -> gates.Met:
        return met(state, job, replace(item, kind=other) if item.kind is kind else item, now)

    patch.setattr(gates, "condition_met", otherwise)


@bug("dependencies were met: afternotok", 1)
def afternotok_met_by_any_end(patch: Patch) -> None:
    """afternotok is met by a good end, too."""
    _condition(patch, DependencyKind.AFTER_NOT_OK, DependencyKind.AFTER_ANY)


@bug("dependencies were met: afterok", 1)
def afterok_met_by_any_end(patch: Patch) -> None:
    """afterok is met by a bad end, too."""
    _condition(patch, DependencyKind.AFTER_OK, DependencyKind.AFTER_ANY)


@bug("dependencies were met: afterany", 8)
def afterany_met_by_a_start(patch: Patch) -> None:
    """afterany is met when the other has begun."""
    _condition(patch, DependencyKind.AFTER_ANY, DependencyKind.AFTER)


@bug("dependencies were met: after:", 8)
def delay_after_a_start_ignored(patch: Patch) -> None:
    """`after:42+10` is met when 42 starts, not ten minutes later."""
    of_job, of_array = gates._job_met, gates._array_met
    patch.setattr(gates, "_job_met", lambda target, item, now: of_job(target, replace(item, delay_s=0), now))
    patch.setattr(gates, "_array_met", lambda state, item, now: of_array(state, replace(item, delay_s=0), now))


@bug("dependencies were met: after:", 1)
def starts_of_an_array_counted_twice(patch: Patch) -> None:
    """A task that was started and failed counts as two of its array's tasks."""
    patch.setattr(ArrayTally, "all_begun", property(lambda tally: len(tally.begun) + len(tally.failed) >= tally.total))


@bug("dependencies were met: aftercorr", 12)
def aftercorr_met_by_any_task(patch: Patch) -> None:
    """All tasks of an array may go as soon as one of the other array has ended well."""
    patch.setattr(consider, "startable_tasks", lambda state, job: list(job.array.waiting))


@bug("dependencies were met: singleton", 5)
def singleton_looks_at_waiting_jobs_only(patch: Patch) -> None:
    """singleton waits for earlier jobs of its name until they start, not until they end."""
    namesakes = gates.namesakes

    def waiting(state: State, job: Job) -> Iterator[Job]:
        return (other for other in namesakes(state, job) if other.id in state.pending)

    patch.setattr(gates, "namesakes", waiting)


@bug("dependencies were met: singleton", 10)
def singleton_looks_at_earlier_jobs_only(patch: Patch) -> None:
    """A job of that name that was requeued runs beside a later one."""
    namesakes = gates.namesakes

    def earlier(state: State, job: Job) -> Iterator[Job]:
        return (other for other in namesakes(state, job) if other.id < job.id)

    patch.setattr(gates, "namesakes", earlier)


@bug("never finished", 1)
def dependency_never_released(patch: Patch) -> None:
    """A condition that is met is never noticed."""

    def never(state: State, job: Job, now: float) -> gates.Met:
        return gates.Met.NOT_YET if job.spec.dependencies.items else gates.Met.YES

    for module in (gates, job_due, submission):
        patch.setattr(module, "dependency_met", never)


@bug("said to wait for ever", 1)
def dependency_given_up_too_early(patch: Patch) -> None:
    """afterok is called lost while the other still runs."""
    met = gates._job_met

    def hopeless(target: Job, item: Dependency, now: float) -> gates.Met:
        said = met(target, item, now)
        lost = item.kind is DependencyKind.AFTER_OK and said is gates.Met.NOT_YET
        return gates.Met.NEVER if lost else said

    patch.setattr(gates, "_job_met", hopeless)


@bug("still waited for it", 1)
def forgotten_while_others_wait(patch: Patch) -> None:
    """A job that ended is forgotten after MinJobAge, whoever still waits for it."""
    patch.setattr(job_due, "_depended_on", lambda state: set())


@bug("is held$", 2)
def requeue_loses_its_hold(patch: Patch) -> None:
    """`scontrol requeuehold` queues the job again and does not hold it."""
    requeue = requests._requeue_one

    def unheld(state: State, caller: Any, target: Any, job: Job, held: bool) -> Any:
        return requeue(state, caller, target, job, held and isinstance(job.phase, Pending))

    patch.setattr(requests, "_requeue_one", unheld)


@bug("lost its place", 1)
def requeue_loses_its_place(patch: Patch) -> None:
    """A job that is queued again counts as submitted then."""
    back = job_applying._back_to_queue

    def as_new(state: State, job: Job, at: float, *about: Any, **more: Any) -> None:
        back(state, job, at, *about, **more)
        job.submitted_at = at

    patch.setattr(job_applying, "_back_to_queue", as_new)


@bug("after its cancel had been answered", 10)
def cancelled_job_starts_again(patch: Patch) -> None:
    """A job that is cancelled while it is being requeued comes back all the same."""
    cancel = requests._cancel_one

    def too_late(state: State, caller: Any, job: Job, task_id: int | None) -> list[e.Event]:
        events = cancel(state, caller, job, task_id)
        if not isinstance(job.phase, Ending) or not job.phase.requeue:
            return events
        return [replace(each, requeue=True) if isinstance(each, e.JobEnding) else each for each in events]

    patch.setattr(requests, "_cancel_one", too_late)


# -- where a job may start -------------------------------------------------------------------------------------------


@bug(r"takes no jobs: .*left=\{", 19)
def leftovers_ignored(patch: Patch) -> None:
    """A node on which something of a start that is over is left is given to others."""
    patch.setattr(
        Node, "schedulable", property(lambda node: node.health is Health.UP and not node.closed and not node.drained)
    )


@bug("takes no jobs", 3)
def drained_node_used(patch: Patch) -> None:
    """An operator's drain does not keep jobs away."""
    patch.setattr(
        Node, "schedulable", property(lambda node: node.health is Health.UP and not node.closed and not node.leftovers)
    )


@bug("that its cluster had closed", 3)
def closed_node_used(patch: Patch) -> None:
    """A node that its own cluster closed is given to jobs."""
    patch.setattr(
        Node, "schedulable", property(lambda node: node.health is Health.UP and not node.leftovers and not node.drained)
    )


@bug("that is not for its owner", 4)
def stranger_in_a_reservation(patch: Patch) -> None:
    """Whoever names a reservation may use it."""
    patch.setattr(reserving, "may_use", lambda state, reservation, spec: True)


@bug("outside its reservation", 2)
def job_outside_its_reservation(patch: Patch) -> None:
    """A job in a reservation may use other nodes, too."""
    patch.setattr(Reservation, "confines", property(lambda reservation: False))


@bug("outside the time", 2)
def reservation_entered_before_it_begins(patch: Patch) -> None:
    """A job in a reservation starts before that begins."""
    patch.setattr(reserving, "_open", lambda reservation, now: now < reservation.end)


@bug("that is not its own", 2)
def reserved_nodes_used(patch: Patch) -> None:
    """Reserved nodes are given to everybody."""
    patch.setattr(Reserved, "_closed_to", lambda self, door: iter(()))


@bug("that is not its own", 4)
def job_runs_into_a_reservation(patch: Patch) -> None:
    """A job is started on nodes that are reserved before it could end."""
    closed = Reserved._closed_to

    def begun(self: Reserved, door: Any) -> Iterator[Any]:
        return (each for each in closed(self, door) if each.begin <= self._now)

    patch.setattr(Reserved, "_closed_to", begun)


# -- who makes way, and when jobs end --------------------------------------------------------------------------------


@bug("has no right to it", 1)
def equals_preempted(patch: Patch) -> None:
    """A job may take from others of its own tier."""

    def outranks(state: State, job: Job, partition: Any, other: Job, about: Any) -> bool:
        return seniority.mode(state, other, about) != "OFF" and other.het_job_id is None

    patch.setattr(seniority, "would_outrank", outranks)


@bug("PreemptExemptTime", 10)
def protected_job_preempted(patch: Patch) -> None:
    """PreemptExemptTime protects nobody."""
    patch.setattr(preempt, "exempt_s", lambda state, running, about: 0)


@bug("otherwise than by", 4)
def suspended_ones_ended(patch: Patch) -> None:
    """Who is to be suspended for others is cancelled."""
    victim = seniority.as_victim
    patch.setattr(preempt, "as_victim", lambda *about: replace(victim(*about), suspend=False))


@bug("long after its time limit", 1)
def time_limit_not_enforced(patch: Patch) -> None:
    """A job runs on when its time is over."""
    patch.setattr(job_due, "_killed_at", lambda state, job, phase: None)


@bug("before its limit", 2)
def time_limit_counts_suspension(patch: Patch) -> None:
    """Time that a job was suspended counts against its limit."""
    reached = job_due.limit_reached_at

    def all_of_it(state: State, job: Job, phase: Any) -> float | None:
        return reached(state, job, replace(phase, suspended_s=0.0))

    patch.setattr(job_due, "limit_reached_at", all_of_it)


# -- what is written down --------------------------------------------------------------------------------------------


@bug("(are|is) lost", 1)
def lost_submission(patch: Patch) -> None:
    """Requests are answered before they are on disk."""
    commit = Kernel.commit

    def hasty(kernel: Kernel, group: Group) -> None:
        kernel.settle(group)
        group.answers.clear()
        commit(kernel, group)

    patch.setattr(Kernel, "commit", hasty)


@bug("the journal does not have it", 1)
def rollback_drops_observations(patch: Patch) -> None:
    """What engines said in a group that could not be stored is dropped."""
    rollback = Kernel.rollback

    def forgetful(kernel: Kernel, group: Group, error: JournalError) -> None:
        group.observations.clear()
        rollback(kernel, group, error)

    patch.setattr(Kernel, "rollback", forgetful)


@bug("the journal does not have it", 1)
def lost_end(patch: Patch) -> None:
    """That a script ended is not taken in while its job is suspended or starting."""
    finished = job_intake._batch_finished
    patch.setattr(
        job_intake,
        "_batch_finished",
        lambda state, job, seen: [] if seen.status.code == 3 else finished(state, job, seen),
    )


@bug("its history (has|says)", 1)
def history_row_missing(patch: Patch) -> None:
    """The runs of a job before its last one are not in the history."""
    chronicle = Kernel._chronicle

    def last_only(kernel: Kernel, group: Group, entries: Iterable[Entry], now: float) -> None:
        def comes_back(entry: Entry) -> bool:
            return isinstance(entry, RunOver) and isinstance(entry.job.phase, Ending) and entry.job.phase.requeue

        chronicle(kernel, group, [entry for entry in entries if not comes_back(entry)], now)

    patch.setattr(Kernel, "_chronicle", last_only)


@bug("its history (has|says)", 1)
def history_row_twice(patch: Patch) -> None:
    """An end is written to the history twice."""
    chronicle = Kernel._chronicle

    def twice(kernel: Kernel, group: Group, entries: Iterable[Entry], now: float) -> None:
        first = len(group.history)
        chronicle(kernel, group, entries, now)
        made = group.history[first:]
        group.history.extend(replace(row, submitted_at=row.submitted_at - 1) for row in made)

    patch.setattr(Kernel, "_chronicle", twice)


@bug("CPU-seconds", 1)
def usage_charged_on(patch: Patch) -> None:
    """A job that is being ended is charged on."""
    patch.setattr(charging, "STOPS", (e.JobSuspended, e.JobLaunchFailed))


@bug("CPU-seconds", 2)
def usage_not_charged_after_a_suspension(patch: Patch) -> None:
    """A job that goes on after a suspension costs nothing."""
    patch.setattr(charging, "STARTS", (e.JobAllocated,))


@bug("CPU-seconds", 1)
def usage_charged_twice(patch: Patch) -> None:
    """A job that was started again is charged double."""
    charge = charging.charge_of

    def double(state: State, job: Job) -> Any:
        made = charge(state, job)
        return replace(made, rates=tuple((name, 2 * rate) for name, rate in made.rates)) if job.restarts else made

    patch.setattr(charging, "charge_of", double)


# -- what is said to nodes and heard from them -----------------------------------------------------------------------


@bug("ran twice", 1)
def job_run_twice_after_a_restart(patch: Patch) -> Sabotage:
    """A daemon that comes back says orders again, and nodes start again what they had started."""

    def again(agent: SimulatedAgent, run: Run, order: dict[str, Any]) -> None:
        if run.ready and not run.ending:
            agent._begin_script(run)

    def says_it_twice(daemon: Daemon) -> None:
        commands = daemon.kernel.commands
        daemon.kernel.commands = lambda group: commands(group) * 2  # type: ignore[method-assign]

    patch.setattr(SimulatedAgent, "_said_again", again)
    return says_it_twice


@bug("the truth is", 6)
def late_report_believed(patch: Patch) -> None:
    """What a node says of an earlier start of a job is taken for the newest one."""
    interpret = hearing.interpret

    def newest(state: State, seen: o.Observation, now: float) -> list[e.Event]:
        job = state.holding.get(getattr(seen, "job_id", 0))
        about = replace(seen, generation=job.generation) if isinstance(seen, o.BatchFinished) and job else seen
        return interpret(state, about, now)

    patch.setattr("bireme.runtime.kernel.interpret", newest)


@bug("never finished", 1)
def orders_to_end_lost(patch: Patch) -> Sabotage:
    """Nodes are never told to end a job."""

    def sabotage(daemon: Daemon) -> None:
        commands = daemon.kernel.commands

        def fewer(group: Group) -> list[c.Command]:
            return [each for each in commands(group) if not isinstance(each, c.TerminateJob)]

        daemon.kernel.commands = fewer  # type: ignore[method-assign]

    return sabotage


@bug("is still on", 10)
def lost_node_taken_for_clear(patch: Patch) -> None:
    """A node that was given up is taken to be clear."""
    patch.setattr(CrewEngine, "_said_goodbye", lambda crew, key, farewell, at: o.JobCleared(*key, at))


@bug("which answered", 1)
def answering_node_given_up(patch: Patch) -> None:
    """A node is given up although it answers."""
    patch.setattr(Farewell, "over", lambda farewell, deaf: True)


@bug("its cluster has opened it", 0)
def node_stays_closed(patch: Patch) -> None:
    """That a cluster opened its node again is not noticed."""
    told = INTERPRETERS[o.NodeClosed]
    patch.setitem(INTERPRETERS, o.NodeClosed, lambda state, seen, now: told(state, seen, now) if seen.why else [])


@bug("the journal gives another state", 0)
def event_not_written(patch: Patch) -> None:
    """A hold is in memory and not in the journal."""
    commit = Kernel.commit

    def forgetful(kernel: Kernel, group: Group) -> None:
        kept = [each for each in group.events if not isinstance(each.event, e.JobHeld)]
        commit(kernel, Group(events=kept, history=group.history))

    patch.setattr(Kernel, "commit", forgetful)


@bug("before .* was prepared", 0)
def gang_started_in_part(patch: Patch) -> None:
    """A gang's script begins when the first of its nodes is prepared."""

    def hasty(gang: Gang, node: str) -> Next:
        gang.unprepared.discard(node)
        first, gang.batch_ordered = not gang.batch_ordered, True
        return Next.START_BATCH if first and gang.has_batch else Next.WAIT if gang.has_batch else Next.LAUNCHED

    patch.setattr(Gang, "prepared", hasty)


@bug("still holds", 0)
def acknowledgements_lost(patch: Patch) -> Sabotage:
    """Nodes are never told that they may forget a job."""

    def each_time(daemon: Daemon) -> None:
        start = daemon.start

        def started(*arguments: Any) -> None:
            start(*arguments)
            daemon.crew.acknowledge = lambda job_id, generation: None  # type: ignore[method-assign]

        daemon.start = started  # type: ignore[method-assign]

    return each_time


# -- after a loss ----------------------------------------------------------------------------------------------------


@bug("runs again after a loss", 3, loss=True)
def lost_ends_run_again(patch: Patch) -> None:
    """What a node saw to its end, and the journal has lost, is started again."""
    patch.setattr(job_intake, "found_over", lambda state, seen, outcome: [])


@bug("runs again after a loss", 30, loss=True)
def lost_ends_of_tasks_run_again(patch: Patch) -> None:
    """The same of an array's tasks, which had other ids then."""
    patch.setattr(lost, "_task_found_over", lambda state, seen, outcome: [])


@bug("held twice|began while|runs again after a loss", 1, loss=True)
def nobody_asked_after_a_loss(patch: Patch) -> None:
    """Jobs start before the nodes have said what they know."""

    def at_once(state: State, now: float) -> list[e.Event]:
        return [e.LossSettled(())] if state.loss is not None else []

    patch.setattr("bireme.runtime.kernel.settled", at_once)


@bug("allocated twice|arrived on|runs again after a loss", 10, loss=True)
def numbers_of_lost_starts_given_again(patch: Patch) -> None:
    """The next start of a job has the number of one that was lost."""

    def forgetful(state: State, event: e.LossSettled, at: float) -> tuple[c.Command, ...]:
        state.loss = None
        return ()

    patch.setitem(PROGRAMME, e.LossSettled, PROGRAMME[e.LossSettled]._replace(handler=forgetful))


# -- services --------------------------------------------------------------------------------------------------------


@service_bug("lost a good replica to an update", 6)
def lost_replicas_replaced_by_the_unproven(patch: Patch) -> None:
    """What an update loses of the replicas that work is replaced by the revision that nobody has seen work."""
    patch.setattr(reconciling, "_restored", lambda service, seen, now: iter(()))


@service_bug("nobody could hear of it", 28)
def time_without_a_daemon_counts(patch: Patch) -> None:
    """A daemon that comes back gives up what had no time to tell it that it got ready."""
    late = reconciling._late_from
    patch.setattr(reconciling, "_late_from", lambda revision, watched_since: late(revision, 0.0))


@service_bug("more than .* that it may have", 1)
def one_replica_too_many(patch: Patch) -> None:
    """An update has two more replicas than surge allows."""
    leeway = amounts.leeway
    patch.setattr(reconciling, "leeway", lambda *asked: leeway(*asked)._replace(surge=leeway(*asked).surge + 2))


@service_bug("was left with .* ready replicas", 12)
def old_replicas_go_too_early(patch: Patch) -> None:
    """An update drains one more than may be unavailable."""
    leeway = amounts.leeway

    def more(*asked: Any) -> amounts.Leeway:
        surge, unavailable = leeway(*asked)
        return amounts.Leeway(surge, unavailable + 1)

    patch.setattr(reconciling, "leeway", more)


@service_bug("before its requests were answered", 1)
def drained_for_no_time(patch: Patch) -> None:
    """A replica that gets no more requests is ended at once, whatever it has in flight."""

    def at_once(service: Service, seen: Sequence[Seen], now: float) -> Iterator[reconciling.Act]:
        over = (Stand.ORDERED, Stand.ENDING, Stand.OVER)
        drained = (each for each in seen if each.replica.withdrawn_at is not None and each.stand not in over)
        return (reconciling.End(each.number) for each in drained)

    patch.setattr(reconciling, "_ended", at_once)


@service_bug("the router still sends it requests", 1)
def ended_before_the_router_knows(patch: Patch) -> None:
    """The time of a replica that is to go begins when that is decided, not when the router has heard of it."""
    ended = reconciling._ended

    def unheard(service: Service, seen: Sequence[Seen], now: float) -> Iterator[reconciling.Act]:
        told = (replace(each.replica, withdrawn_at=each.replica.draining_since) for each in seen)
        return ended(service, [replace(each, replica=replica) for each, replica in zip(seen, told, strict=True)], now)

    patch.setattr(reconciling, "_ended", unheard)


@service_bug("shared|shares port", 1)
def one_port_for_all(patch: Patch) -> None:
    """Every replica gets the first port."""
    patch.setattr(acting, "free_port", lambda state: state.config.settings.service_ports[0])


@service_bug("settled at revision .* beside", 1)
def settled_too_early(patch: Patch) -> None:
    """A revision is said to serve as soon as it has what is wanted, whoever else is there."""

    def early(service: Service, seen: Sequence[Seen]) -> Iterator[reconciling.Act]:
        target = service.in_phase(RevisionLife.ROLLING)
        own = [each for each in seen if target is not None and each.replica.revision == target.number]
        if target is not None and any(each.ready for each in own):
            if service.serving is not None:
                yield reconciling.Retire(service.current)
            yield reconciling.Settle(target.number)

    patch.setattr(reconciling, "_settled", early)


@service_bug("made again and again", 5)
def crash_loop_without_back_off(patch: Patch) -> None:
    """However often a replica crashes, the next comes at once."""
    patch.setattr(acting, "_delay", lambda level: 0.0)


@service_bug("removed with replicas|is gone, and its replicas", 1)
def gone_with_replicas_left(patch: Patch) -> None:
    """A service that is stopped is forgotten while its replicas are still there."""
    patch.setattr(reconciling, "_wound_down", lambda seen: iter([reconciling.Remove()]))


@service_bug("is dead, and nobody ends it", 1)
def dead_replicas_kept(patch: Patch) -> None:
    """A replica that does not answer for good is neither ended nor replaced."""
    patch.setattr(reconciling, "_given_up", lambda seen: iter(()))


@service_bug("never came back", 6)
def never_given_up(patch: Patch) -> None:
    """A revision that does not get ready is waited for for ever."""
    patch.setattr(reconciling, "_failed", lambda *asked: iter(()))


@service_bug("still there, and its job is over", 1)
def ends_unnoticed(patch: Patch) -> None:
    """What happens to the jobs of replicas is not looked at."""
    for event in (e.JobEnded, e.JobCancelled, e.JobEnding):
        programme = PROGRAMME[event]
        left = tuple(each for each in programme.followers if each is not service_kind._job_changed)
        patch.setitem(PROGRAMME, event, programme._replace(followers=left))


@service_bug("never came back", 5)
def held_back_for_ever(patch: Patch) -> None:
    """A back-off after a crash is never over."""
    patch.setattr(
        reconciling, "_held_back", lambda revision, own, wanted, now: 0 if revision.backed_off is None else wanted
    )


@service_bug("which is no replica that waits|cannot come back", 32)
def who_cannot_come_back_makes_way(patch: Patch) -> None:
    """Jobs that may not be requeued are ended for services, too."""

    def outranks(state: State, job: Job, partition: Any, other: Job, rules: Any) -> bool:
        return rules.by == "services" and job.spec.replica is not None and other.spec.replica is None

    for room in (preempt, fitting):
        patch.setattr(room, "outranks", outranks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these bugs")
    parser.add_argument("--worlds", type=int, default=WORLDS, help="at most so many for each")
    given = parser.parse_args()
    missed = 0
    print(f"{'BUG':<40} {'WORLDS':>6} {'SEED':>5} {'STEPS':>5}  FOUND BY", flush=True)
    for planted in PLANTED:
        if given.names and planted.name not in given.names:
            continue
        seen = found(planted, range(1, given.worlds + 1))
        if seen is None:
            missed += 1
            print(f"{planted.name:<40} {'-':>6} {'-':>5} {'-':>5}  not found: {planted.what}", flush=True)
        else:
            count, failure = seen
            print(f"{planted.name:<40} {count:>6} {failure.seed:>5} {failure.steps:>5}  {failure}"[:150], flush=True)
    print(f"{len(PLANTED)} bugs planted, {missed} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
