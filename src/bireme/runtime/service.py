"""The kernel on a real event loop: wakes on input, commits in a thread, answers, sends commands, tells subscribers.

One asyncio task runs the turns; everything else (API handlers, engine callbacks) only puts things into queues or reads
the state. Time-driven work and planning are rationed by their own measured cost, so that a large queue cannot make the
loop deaf. Not here: what anything means (core), how it is stored (store) or done (engines).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf

from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.requests import cancel_all
from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.due import next_due
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobSpec
from bireme.core.model.nodes import Health
from bireme.core.model.observations import Observation
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.services.unwritten import unwritten
from bireme.core.state.state import State
from bireme.ports import Clock, Engine, Journal, JournalError, Records
from bireme.runtime.bell import Bell
from bireme.runtime.breaches import BreachError
from bireme.runtime.kernel import OURS, Decide, Group, Kernel, Request
from bireme.runtime.scribe import Scribe
from bireme.runtime.uncollected import without_collecting
from bireme.runtime.work import Work

log = logging.getLogger("bireme.runtime")

TICK_S = 0.5
"""How often time-driven work is looked at while jobs exist."""
LOOK_AT_LOST_NODES_S = 5.0
RATION = 5.0
"""A due or planning pass that took t seconds is not repeated within RATION x t, unless it started jobs."""
IN_VAIN = 2.0
"""One that started nothing rests so much longer: nobody waits for it but who asks when a job will start."""
REST_S = 0.01
"""And at least so long: whoever submits one job after another has them planned some at a time."""
PASS_S = 0.2
"""A pass ends after so long, and goes on where it was in a later turn: meanwhile requests are answered."""
STREAM_OBSERVATIONS = 4
GATHER_S = 0.02
"""In a stream of observations so much time is taken to gather a group: a turn, a commit and a pass have their price."""
PAUSE_S = 0.004
"""A stream that pauses for so long may have run dry: what it brought is looked at before all nodes stand idle."""
SNAPSHOT_EVERY_EVENTS = 20_000
ANSWERING_S = 0.5
"""A snapshot that is due is taken so much later: whoever asked for what makes it due has the answer by then."""
MANY_REQUESTS = 1_000
"""While so many are decided and written the collector of garbage would find nothing, again and again."""
RETRY_AFTER_S = 1.0
"""Pause after the journal could not be written."""

BREACH = "an event could not be applied, which is a bug of Bireme"
"""What the log says then; the tests' clusters look for it."""

Subscriber = Callable[[Sequence[e.Recorded]], None]


class Runtime:
    def __init__(self, journal: Journal, engine: Engine, clock: Clock, records: Records) -> None:
        self.journal = journal
        self.engine = engine
        self.clock = clock
        self.kernel = Kernel(journal, records, on_breach=_tell_of_breach)
        self._wake = Bell()
        self._asked = Bell()
        self._in_a_stream = False
        """The last turn saw many observations: thousands of short jobs come and go."""
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._scribe = Scribe()
        self._snapshots = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._subscribers: list[Subscriber] = []
        self._journal_watchers: list[Callable[[], None]] = []
        self.unwritable = ""
        """Why the journal could not be written, while something waits for that; empty: all is written."""
        self._due_after = 0.0
        self._due_owed = False
        """Something happened since time-driven work was last looked at: a dependency may be met by it."""
        self._updated = False
        """A job was changed since then: what lay ahead of it may be overdue now, which `next_due` does not name."""
        self._plan_after = 0.0
        self._ask_after = 0.0
        self._look_at: float | None = None
        """When time-driven work is due; kept until it was looked at, for `next_due` does not name what is over."""
        self._snapshot_seq = self.kernel.state.seq
        self._snapshot_after: float | None = None
        """One is due, and is taken between two turns from then on."""
        self.work = Work()
        self.failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], None] | None = None

    @property
    def state(self) -> State:
        return self.kernel.state

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, config: ClusterConfig | None) -> None:
        """Applies the configuration, connects the engine, repeats what nothing had confirmed.

        `config` None: the engine reports it.
        """
        past = self.engine.capabilities.past
        if past is not None:
            past.recalls = lambda: self.state.loss is not None
        if config is not None:
            group = self.kernel.configure(config, self.clock.now())
            group.commands.clear()  # the engine is not there yet: `outstanding` says them
            await self._store(group)
        await self.engine.start(self.report)
        self.engine.send(self.kernel.outstanding())
        self._task = asyncio.create_task(self._run(), name="runtime")

    async def reconfigure(self, config: ClusterConfig | None) -> None:
        """`scontrol reconfigure`: the rules follow the new configuration at once, the engine its nodes.

        `config` None: the engine is only asked to look again.
        """
        if config is not None:
            await self._store(self.kernel.configure(config, self.clock.now()))
        self.engine.reconfigure(config or self.state.config)
        self._wake.ring()

    async def end_jobs(self, uid: int) -> None:
        """Nothing starts any more; what runs is cancelled, and ended by the engine with all that it keeps up."""
        self._plan_after = inf
        with contextlib.suppress(JournalError):  # they are ended all the same
            await self._decided("down", lambda state, now: cancel_all(state, uid))
        await self.engine.end_jobs(float(self.state.config.settings.kill_wait_s))

    async def stop(self) -> None:
        self._stopping = True
        self._wake.ring()
        self._asked.ring()
        if self._task is not None:
            await self._task
        await self.engine.stop()
        self._snapshots.shutdown()
        self._write_snapshot()
        self._scribe.close()

    # -- inputs ------------------------------------------------------------------------------------------------------

    def report(self, observations: Sequence[Observation]) -> None:
        self.kernel.observations.extend(observations)
        self._wake.ring()

    async def settled(self) -> None:
        """Returns when everything that was reported so far is in the state and on disk."""
        await self._decided("", lambda state, now: [])

    async def do(self, cause: str, decide: Decide, *, own: bool = False) -> Sequence[e.Recorded]:
        """Has a request decided and committed; its events when they are on disk. Raises Refusal or JournalError.

        `own`: it is Bireme's to decide, whoever places the jobs (services).
        """
        self._check_ours(own)
        return await self._decided(cause, decide)

    def _check_ours(self, own: bool) -> None:
        queue = self.engine.capabilities.queue
        if not own and queue is not None and queue.takes(()):
            raise Refusal(Why.OWN_COMMAND, "this is decided by the cluster's own scheduler: use its own commands")

    async def do_all(
        self, cause: str, decides: Sequence[Decide], *, own: bool = False
    ) -> list[Sequence[e.Recorded] | Refusal]:
        """As `do`, of many wishes in one turn and one commit, each decided when those before it are; each one's answer.

        What fails by a fault of Bireme's own is refused, and in the log. Raises JournalError: then none was done.
        """
        if not decides:
            return []
        self._check_ours(own)
        if self.failure is not None:
            raise JournalError("the daemon stopped after an internal error; see its log")
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[Sequence[e.Recorded] | Exception] = []

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            answers.append(events if error is None else error)
            if len(answers) == len(decides) and not answered.done():
                answered.set_result(None)

        with without_collecting() if len(decides) >= MANY_REQUESTS else contextlib.nullcontext():
            self.kernel.requests.extend(Request(cause, decide, answer) for decide in decides)
            self._wake.ring()
            self._asked.ring()
            await answered
        return [_or_raised(each) for each in answers]

    async def _decided(self, cause: str, decide: Decide) -> Sequence[e.Recorded]:
        answered: asyncio.Future[Sequence[e.Recorded]] = asyncio.get_running_loop().create_future()

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(events)

        if self.failure is not None:
            raise JournalError("the daemon stopped after an internal error; see its log")
        self.kernel.requests.append(Request(cause, decide, answer))
        self._wake.ring()
        self._asked.ring()
        return await answered

    async def submit(self, caller: Caller, specs: Sequence[JobSpec], key: str = "") -> int:
        """Job id of the job (or of the het leader), on disk."""
        events = await self.do(
            f"{caller.user} submit", lambda state, now: submit(state, caller, specs, now, idempotency_key=key)
        )
        if not events:
            return KEYS.of(self.state)[key]
        submitted = events[0].event
        assert isinstance(submitted, e.JobSubmitted)
        return submitted.job_id

    # -- outputs -----------------------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with every committed group; returns the way out."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def watch_journal(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Calls `watcher` whenever the journal could not be written, and when it can be again; returns the way out."""
        self._journal_watchers.append(watcher)
        return lambda: self._journal_watchers.remove(watcher)

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._stopping:
                await self._sleep()
                await self._turn()
        except BaseException as error:
            self.failure = error
            log.critical("the runtime stopped", exc_info=True)
            for request in self.kernel.requests:
                request.answer((), JournalError("the daemon stopped after an internal error; see its log"))
            if self.on_failure is not None:
                self.on_failure(error)

    async def _sleep(self) -> None:
        if self.kernel.has_input:
            await self._gather()
            self._wake.hush()
            return
        wait_s = self._next_wake_s()
        if self._snapshot_after is not None:
            wait_s = min(inf if wait_s is None else wait_s, max(0.0, self._snapshot_after - time.monotonic()))
        await self._wake.wait(wait_s)
        if self._in_a_stream and self.kernel.observations:
            await self._gather()
        self._wake.hush()

    async def _gather(self) -> None:
        """Lets what is about to come join this group. Nobody who asked for something waits; a stream of ends may."""
        if self.kernel.requests or not self._in_a_stream:
            await asyncio.sleep(0)
            return
        self._asked.hush()
        until, seen = time.monotonic() + GATHER_S, 0
        while seen < len(self.kernel.observations) and time.monotonic() < until:
            seen = len(self.kernel.observations)
            if await self._asked.wait(PAUSE_S):
                return

    def _next_wake_s(self) -> float | None:
        """Rations are counted in steady time: the machine's clock may jump, and the daemon must not stand still."""
        steady, state = time.monotonic(), self.state
        if self.kernel.replan:
            return max(0.0, self._plan_after - steady)
        owed = self._updated or (self._due_owed and state.pending)
        wait_s = self._due_after - steady if owed else self._next_look_s(steady)
        if any(node.health is Health.LOST for node in state.nodes.values()) and state.holding:
            wait_s = min(wait_s, LOOK_AT_LOST_NODES_S)
        if state.pending and self.kernel.rank_at < inf:
            wait_s = min(wait_s, self.kernel.rank_at - self.clock.now())
        if state.pending:
            wait_s = min(wait_s, self.kernel.full_pass_at - self.clock.now())
        return None if wait_s == inf else min(max(wait_s, self._due_after - steady, 0.02), 60.0)

    def _next_look_s(self, steady: float) -> float:
        """How long until time-driven work is next to be looked at. Asking costs a look at every job, so it is rationed
        too: between two answers the earlier one holds, or the time of the next."""
        now = self.clock.now()
        if self._look_at is not None and self._look_at <= now:
            return 0.0
        if steady < self._ask_after:
            asks_in_s = self._ask_after - steady
            return asks_in_s if self._look_at is None else min(self._look_at - now, asks_in_s)
        self._look_at = next_due(self.state, now)
        asked = time.monotonic()
        self._ask_after = asked + RATION * (asked - steady)
        return inf if self._look_at is None else self._look_at - now

    async def _turn(self) -> None:
        now, began = self.clock.now(), time.monotonic()
        self.state.serving.unwritten = {}  # it is taken in now
        time_passed = began >= self._due_after
        may_plan = began >= self._plan_after
        group = self.kernel.turn(now, time_passed=time_passed, may_plan=False)
        self._in_a_stream = len(group.observations) >= STREAM_OBSERVATIONS
        turned = time.monotonic()
        self._due_owed = bool(group.events) or (self._due_owed and not time_passed)
        updated = any(isinstance(recorded.event, e.JobUpdated) for recorded in group.events)
        self._updated = updated or (self._updated and not time_passed)
        if time_passed:
            self._look_at = None
            self._due_after = turned + max(TICK_S, RATION * (turned - began))
        if may_plan and group.answers:
            # A pass may take long: who asked has the answer before it, and what it decides is a group of its own.
            if await self._commit(group) is not None:
                return
            await asyncio.sleep(0)  # the answers go out
            group, may_plan = Group(), time.monotonic() >= self._plan_after
        if may_plan:
            self._plan(group, now)
        await self._commit(group)
        self._look_at_snapshot()

    def _plan(self, group: Group, now: float) -> None:
        """A pass, rationed. One that starts jobs is worth its time: the more it started, the sooner comes the next."""
        commanded, began, called_for = len(group.commands), time.monotonic(), self.kernel.replan
        self.kernel.enough = lambda: time.monotonic() >= began + PASS_S
        self.kernel.plan(group, now)
        planned = time.monotonic()
        self.work.passed(planned - began)
        started, rest_s = len(group.commands) - commanded, RATION * (planned - began)
        if started <= 0 and called_for:
            rest_s = max(IN_VAIN * rest_s, REST_S)
        self._plan_after = planned + rest_s / (1 + max(0, started))

    async def _store(self, group: Group) -> None:
        """As `_commit`, of what must not be missing: raises JournalError where it cannot be written."""
        error = await self._commit(group)
        if error is not None:
            raise error

    async def _commit(self, group: Group) -> JournalError | None:
        """The error, if it could not be written: then nothing of it happened."""
        if group.events or group.history:
            began = time.monotonic()
            try:
                await self._on_disk(group)
            except JournalError as error:
                log.error("the journal cannot be written: %s", error)
                self.kernel.rollback(group, error)
                self._not_written(str(error))
                await asyncio.sleep(RETRY_AFTER_S)
                return error
            self.work.committed(time.monotonic() - began)
            self._all_written()
        else:
            self.kernel.settle(group)
            if group.time_passed and not self.kernel.observations:
                self._all_written()
        self.engine.send(self.kernel.commands(group))
        self._hear_of_a_loss(group)
        for job_id, generation in group.acknowledged:
            self.engine.acknowledge(job_id, generation)
        self._tell(group.events)
        return None

    def _not_written(self, why: str) -> None:
        """What is known and cannot be written takes replicas out of use all the same."""
        self.unwritable = why
        self.state.serving.unwritten = unwritten(self.state, self.kernel.observations)
        for watcher in tuple(self._journal_watchers):
            watcher()

    def _all_written(self) -> None:
        """Nothing waits for the journal any more."""
        if self.unwritable:
            self.unwritable = ""
            log.info("the journal can be written again")
            for watcher in tuple(self._journal_watchers):
                watcher()

    async def _on_disk(self, group: Group) -> None:
        """Writes it, and answers who asked as soon as it is written. Raises JournalError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def written(error: BaseException | None) -> None:
            try:
                if error is None:
                    self.kernel.settle(group)
            except Exception as fault:
                error = fault
            if done.done():  # nobody waits any more
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._scribe.write(partial(self.kernel.commit, group), written)
        await done

    def _hear_of_a_loss(self, group: Group) -> None:
        """A node knew of what the journal has lost: all are asked what they know before anything starts."""
        lost = [recorded.event for recorded in group.events if isinstance(recorded.event, e.EventsLost)]
        for event in lost:
            log.error("events were lost, and nothing starts before every node was heard: %s", event.note)
        past = self.engine.capabilities.past
        if lost and past is not None:
            past.hear_again()

    def _tell(self, events: Sequence[e.Recorded]) -> None:
        if not events:
            return
        for subscriber in tuple(self._subscribers):
            subscriber(events)

    def _look_at_snapshot(self) -> None:
        """Takes one when it is due. It costs as much as the jobs it holds: the more there are, the rarer it is."""
        if self.state.seq - self._snapshot_seq < SNAPSHOT_EVERY_EVENTS + len(self.state.jobs) // 2:
            self._snapshot_after = None
        elif self._snapshot_after is None:
            self._snapshot_after = time.monotonic() + ANSWERING_S
        elif time.monotonic() >= self._snapshot_after:
            self._snapshot_after = None
            self._write_snapshot_beside()

    def _write_snapshot_beside(self) -> None:
        """While the cluster goes on: only taking the state holds it up, not packing and writing it."""
        seq = self._snapshot_seq = self.state.seq
        writing = self._snapshots.submit(self.journal.snapshot_writer(seq, self.state))
        writing.add_done_callback(_tell_of_failure)

    def _write_snapshot(self) -> None:
        """Not after a failure in the middle of a turn: the state then has what was never committed."""
        seq = self.state.seq
        if seq == self._snapshot_seq or self.failure is not None:
            return
        try:
            self.journal.write_snapshot(seq, self.state)
            self._snapshot_seq = seq
        except JournalError as error:
            log.warning("no snapshot written: %s", error)


def _or_raised(answer: Sequence[e.Recorded] | Exception) -> Sequence[e.Recorded] | Refusal:
    """What is not on disk is nobody's. An error of ours in deciding one wish is that one's: the others are done."""
    if isinstance(answer, JournalError):
        raise answer
    if isinstance(answer, Exception) and not isinstance(answer, Refusal):
        log.error("a request could not be decided", exc_info=answer)
        return Refusal(Why.ERROR, OURS)
    return answer


def _tell_of_breach(breach: BreachError) -> None:
    """Loud: it is a bug of ours, and somebody's wish, report or job is left out for it."""
    log.critical("%s: it is left out, the rest goes on: %s", BREACH, breach.error, exc_info=breach.error)


def _tell_of_failure(writing: Future[None]) -> None:
    """A snapshot that could not be written is missed at the next start only; the next one is not far."""
    if (error := writing.exception()) is not None:
        log.warning("no snapshot written: %s", error)
