"""The agent of one node: takes connections and orders, holds the jobs, reports what became of them.

Started by `__main__`, one process per node. It routes: what an order does to a job is in `jobs`, what goes over
the wire in `protocol`, what survives a crash in `records`.

Orders are idempotent, keyed by (job, generation). An order about a job that ended here and whose events were not
acknowledged changes nothing: the events are said again.

Invariant: nothing a peer sends ends the agent. A bad line is answered with what is wrong with it.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bireme import __version__
from bireme.agent.confining.confined import NodeConfinement
from bireme.agent.confining.tracking import Tracking
from bireme.agent.connections import DaemonConnection
from bireme.agent.door import Door
from bireme.agent.jobs import JobRun
from bireme.agent.keeping.keepers import KeeperPool
from bireme.agent.leftovers import Remains, needs_vanished
from bireme.agent.messages import protocol
from bireme.agent.messages.census import Census, OwnedProcess
from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.orders import (
    Acknowledge,
    Exit,
    Gist,
    Order,
    Ping,
    Prepare,
    Resume,
    Signal,
    SignalStep,
    Start,
    StartStep,
    Suspend,
    Tell,
    TellUsage,
    Terminate,
    TerminateStep,
    UnreadableOrderError,
    read_order,
)
from bireme.agent.messages.protocol import Message
from bireme.agent.messages.told import (
    Answer,
    Cleared,
    Did,
    Event,
    Probed,
    Refused,
    StepBegan,
    StepEnded,
    Trouble,
    Vanished,
    Welcome,
)
from bireme.agent.node import Node, NodeSettings
from bireme.agent.outbox import Outbox
from bireme.agent.records import JobKey, TaskRecords
from bireme.agent.starting.spawn import SHORTAGES
from bireme.agent.stdio.carried_streams import CarriedClient
from bireme.agent.stdio.holdings import Holdings
from bireme.agent.stdio.streams import Arrival, StreamClient, StreamHub
from bireme.agent.steps import UNREADABLE, in_words
from bireme.agent.system.loop import Loop
from bireme.agent.system.processes import process_table
from bireme.agent.system.reaper import become_subreaper
from bireme.core.model.resources import NO_USAGE, ExitStatus

log = logging.getLogger("bireme.agent")

_STREAM_PATIENCE_S = 60.0
_EXIT_PATIENCE_S = 30.0
_FIRST_SAMPLE_S = 1.0
_SIGNALS_REMEMBERED = 10_000
_FAILED_REMEMBERED = 100
_LONGEST_NAME = 64
"""Of a client whose streams are carried."""
_READ_OUT_S = 0.2
_ABANDONED_S = 600.0
"""An agent with no daemon and no job at two looks, so far apart, ends."""


@dataclass(frozen=True, slots=True, eq=False)
class _Knock:
    """A user's connection that wants to attach to a step. Of its hello only this is kept: hundreds may wait."""

    connection: socket.socket
    uid: int
    rest: bytes
    where: tuple[int, int]
    """The job and the step."""
    key: bytes
    client: str
    """The name of one whose streams are carried."""
    heard: int

    @classmethod
    def of(cls, connection: socket.socket, uid: int, hello: Message, rest: bytes) -> _Knock:
        """Raises ProtocolError."""
        client = str(hello.get("client") or "")
        if len(client) > _LONGEST_NAME:
            raise protocol.ProtocolError(f"client must have at most {_LONGEST_NAME} letters")
        return cls(
            connection,
            uid,
            rest,
            (protocol.whole_number(hello, "job", -1), protocol.whole_number(hello, "step", -1)),
            str(hello.get("key", "")).encode("utf-8", "surrogatepass"),
            client,
            protocol.whole_number(hello, "heard", 0),
        )

    def refuse(self, why: str) -> None:
        """A client whose streams are carried would come again if the connection only ended."""
        kind = protocol.REFUSED if self.client else protocol.MESSAGE
        with contextlib.suppress(OSError):
            self.connection.send(protocol.encode_frame(kind, protocol.ALL_TASKS, why.encode()))
        self.connection.close()


class AgentServer:
    """Construct it while holding the node's lock (`records.take_node`)."""

    def __init__(
        self,
        settings: NodeSettings,
        records: TaskRecords,
        isolation: dict[str, str],
        tracking: Tracking,
        remains: Sequence[Remains] = (),
    ) -> None:
        """`remains`: what an earlier agent left and nobody could kill yet."""
        self.loop = Loop()
        become_subreaper()
        confinement = NodeConfinement.open(settings.name, settings.home, settings.confine)
        self.outbox = Outbox(records)
        keepers = KeeperPool(self.loop, tracking)
        self.node = Node(settings, self.loop, records, self._send_event, confinement, keepers, isolation)
        self._jobs: dict[int, JobRun] = {}
        self._around = settings.directory / "around"
        """Where scripts are written that an order brings."""
        self._remains = {each.key: each for each in remains}
        self._awaited: set[JobKey] = set()
        """Of these, those whose end the daemon asked for."""
        self._daemon: DaemonConnection | None = None
        self._waiting_streams: dict[tuple[int, int], list[_Knock]] = {}
        self._failed_steps: dict[tuple[int, int], str] = {}
        """Why the last of those that there was never anything of here failed, for streams that come later."""
        self._did: list[int] = []
        """Numbers of orders that were carried out and are to be answered at the end of this turn."""
        self._speaker: str | None = None
        self._signals_done: dict[int, None] = {}
        """Numbers of this daemon's orders that must not be carried out twice, the oldest first."""
        self._leaving = False
        self._leaves_when_done = False
        """The cluster was taken down: nothing but what it holds keeps this agent."""
        self._first_sample_due = False
        self._alone_at_last_look = False
        self.loop.call_later(_ABANDONED_S, self._leave_when_abandoned)
        self._settle_the_past()
        self._door = Door(self.loop, str(settings.directory / "agent.sock"), self._greeted)
        # Input alone, of all the connections that there may be, reaches neither: who sends input is never cut off.
        input_frame = protocol.CLIENT_FRAME_BYTES[protocol.STDIN] + protocol.HEADER_BYTES
        two_fences = 2 * protocol.CLIENT_FRAME_BYTES[protocol.FENCE_RESULT]
        bounds = (max(count * input_frame, two_fences) for count in (self._door.most_of_one, self._door.most))
        self._holdings = Holdings(*bounds)
        self.loop.before_wait.append(self._flush)
        self.loop.on_stop = lambda: self._exit(Exit())
        self.node.on_task = self._task_started
        self.node.mention = self._mention
        self._schedule_sampling()

    def run(self) -> None:
        self.loop.run()
        self.node.keepers.close()
        self.node.confinement.close()
        with contextlib.suppress(FileNotFoundError):  # the node's folder may have been removed
            os.unlink(self.node.settings.directory / "agent.sock")

    # --- the predecessor -----------------------------------------------------------------------------------

    def _settle_the_past(self) -> None:
        """What an agent that died left: its processes were ended already, its jobs are reported."""
        self.node.confinement.kill_leftovers()
        for leftover in self.node.records.leftovers:
            for event in leftover.events:
                self.outbox.restore(event)
            if needs_vanished(leftover):
                reason = f"the agent of node {self.node.name} died while it held the job"
                self.node.report(Vanished(*leftover.key, reason))
        for remains in list(self._remains.values()):
            self.node.unkillable(remains.key, remains.living())
            remains.watch(self.loop, partial(self._remains_gone, remains.key))

    def _remains_gone(self, key: JobKey) -> None:
        """Whoever asked for the job's end in the meantime is answered now."""
        del self._remains[key]
        if key in self._awaited:
            self._awaited.discard(key)
            self.node.report(Cleared(*key))
        self._leave_if_done()

    # --- connections ---------------------------------------------------------------------------------------

    def _greeted(self, connection: socket.socket, uid: int, hello: Message, rest: bytes) -> bool:
        """Whether it is a connection of a user's, which is counted until it ends."""
        if hello.get("hello") == "daemon" and uid in (0, os.geteuid()):
            self._welcome(connection, hello, rest)
        elif hello.get("hello") == "gather" and uid in (0, os.geteuid()):
            self._let_gather(connection, rest)
        elif hello.get("hello") == "leave" and uid in (0, os.geteuid()):
            self._asked_to_leave(connection)
        elif hello.get("hello") != "stream":
            log.warning("a connection of uid %d is refused: %r", uid, hello.get("hello"))
            connection.close()
        else:
            knock = _Knock.of(connection, uid, hello, rest)
            if not (full := self._door.full_for(uid)):
                return self._attach_stream(knock)
            log.warning("%s", full)
            knock.refuse(full)
        return False

    def _welcome(self, connection: socket.socket, hello: Message, rest: bytes) -> None:
        """The newest daemon is the daemon: an older connection is of one that died or was replaced."""
        if self._daemon is not None:
            self._daemon.close()
        if hello.get("speaker") != self._speaker:
            self._speaker = hello.get("speaker")
            self._signals_done.clear()
        self._did.clear()
        self._leaves_when_done = False
        self._daemon = DaemonConnection(self.loop, connection, self._obey, self._daemon_gone)
        if hello.get("recall"):  # its journal lost its end: it is told again what it knew
            for event in self.node.records.recall():
                self.outbox.restore(event)
        holds = {run.key for run in self._jobs.values()} | set(self.outbox.unacknowledged()) | self._remains.keys()
        self._daemon.send(
            encode_typed(
                Welcome(
                    node=self.node.name,
                    version=__version__,
                    protocol=protocol.VERSION,
                    pid=os.getpid(),
                    epoch=self.node.records.epoch,
                    damaged=tuple(self.node.records.damaged),
                    isolation=self.node.isolation | self.node.confinement.report(),
                    tracking=(self.node.keepers.tracking.how, self.node.keepers.tracking.shortfall),
                    holds=tuple(sorted(holds)),
                    past=tuple(self.node.records.past()),
                    seq=self.outbox.seq,
                )
            )
        )
        for line in self.outbox.pending():
            self._daemon.send(line)
        for run in self._jobs.values():
            if run.replica is not None:
                run.replica.tell_again()
        if rest:
            self._daemon.receive(rest)

    def _let_gather(self, connection: socket.socket, rest: bytes) -> None:
        """A gatherer is told whose processes they are, once for each line that it sends."""

        def tell(_line: bytes) -> None:
            gatherer.send(encode_typed(Census(self.node.name, tuple(self._owned_processes()))))
            gatherer.flush()

        gatherer = DaemonConnection(self.loop, connection, tell, lambda _: None)
        if rest:
            gatherer.receive(rest)

    def _owned_processes(self) -> Iterator[OwnedProcess]:
        for run in self._jobs.values():
            for step, tasks in run.tasks_by_step():
                for task in tasks:
                    group = task.keeper.group
                    folder = str(group.path) if group is not None else ""
                    yield OwnedProcess(*run.key, step, task.id, task.pid, task.keeper.pid, folder)

    def _daemon_gone(self, connection: DaemonConnection) -> None:
        if self._daemon is connection:
            self._daemon = None
            self._leave_if_done()

    def _flush(self) -> None:
        if self._daemon is not None:
            if self._did:
                self._daemon.send(encode_typed(Did(self._did)))
                self._did = []
            self._daemon.flush()

    def _send_event(self, event: Event) -> None:
        line = self.outbox.add(event)
        if self._daemon is not None:
            self._daemon.send(line)

    def _mention(self, health: Probed) -> None:
        if self._daemon is not None:
            self._daemon.send(encode_typed(health))

    # --- streams -------------------------------------------------------------------------------------------

    def _attach_stream(self, knock: _Knock) -> bool:
        """Whether it stays: attached, or waiting for its step."""
        job, step = knock.where
        run = self._jobs.get(job)
        target = run.steps.get(step) if run is not None else None
        if run is None or target is None:
            if not knock.heard and knock.where not in self._failed_steps:
                self._let_stream_wait(knock)
                return True
            over = f"step {job}.{step} is over on node {self.node.name}"
            knock.refuse(over if knock.heard else self._failed_steps[knock.where])
            return False
        allowed = knock.uid in (0, os.geteuid(), run.uid)
        if not allowed or not hmac.compare_digest(target.io_key.encode("utf-8", "surrogatepass"), knock.key):
            log.warning("uid %d may not attach to step %d.%d", knock.uid, job, step)
            knock.refuse("Access denied: this is not the key of the step")
            return False
        return self._attach(knock, target.hub)

    def _attach(self, knock: _Knock, hub: StreamHub) -> bool:
        """Whether it stays, who may attach."""
        known = hub.client_named(knock.client) if knock.client else None
        arrival = Arrival(knock.connection, knock.rest, partial(self._door.left, knock.uid))
        if isinstance(known, CarriedClient):
            try:
                known.resume(arrival, knock.heard)
            except protocol.ProtocolError as error:
                knock.refuse(str(error))
                return False
            return True
        if knock.client and (knock.heard or knock.client in hub.late_clients):
            knock.refuse("its output was not kept for so long")
            return False
        if not hub.has_room():
            knock.refuse(f"Too many clients are attached to step {knock.where[0]}.{knock.where[1]} already")
            return False
        holding = self._holdings.open(knock.uid)
        if knock.client:
            CarriedClient(hub, arrival, holding, knock.client, lambda: self._daemon is not None)
        else:
            StreamClient(hub, arrival, holding)
        return True

    def _let_stream_wait(self, knock: _Knock) -> None:
        """srun may be faster than the order to start its step."""
        where = knock.where
        self._waiting_streams.setdefault(where, []).append(knock)

        def give_up() -> None:
            waiting = self._waiting_streams.get(where, [])
            if knock in waiting:
                waiting.remove(knock)
                if not waiting:
                    del self._waiting_streams[where]
                self._turn_away(knock, f"step {where[0]}.{where[1]} did not start on node {self.node.name}")

        self.loop.call_later(_STREAM_PATIENCE_S, give_up)

    def _turn_away(self, knock: _Knock, why: str) -> None:
        """One that waited."""
        knock.refuse(why)
        self._door.left(knock.uid)

    def _admit_waiting_streams(self, job: int, step: int) -> None:
        for knock in self._waiting_streams.pop((job, step), ()):
            if not self._attach_stream(knock):
                self._door.left(knock.uid)

    # --- orders --------------------------------------------------------------------------------------------

    def _obey(self, line: bytes) -> None:
        """Raises ProtocolError for what is no message."""
        try:
            order = read_order(line)
        except UnreadableOrderError as error:
            self._not_understood(error)
            return
        try:
            self.node.settings.container.unpack(order, self._around)
            _CARRY_OUT[type(order)](self, order)
        except (*UNREADABLE, OSError) as error:
            gist = Gist.of(order)
            log.exception("order %r failed", gist.op)
            short = isinstance(error, OSError) and error.errno in SHORTAGES
            self._complain(f"{gist.op}: {in_words(error)}", gist, short=short)
        else:
            self._done(order.no)

    def _not_understood(self, error: UnreadableOrderError) -> None:
        if error.is_known:
            log.error("order %r cannot be read: %s", error.gist.op, error)
            self._complain(f"{error.gist.op}: {error}", error.gist)
        else:
            self._complain(str(error), Gist())
            self._done(error.gist.no)  # it would not be known the next time either

    def _done(self, number: int | None) -> None:
        if number is not None:
            self._did.append(number)

    def _first_time(self, order: Order) -> bool:
        """Whether an order that must not be carried out twice comes for the first time. One that failed was not carried
        out."""
        number = order.no
        if number is None:
            return True
        if number in self._signals_done:
            return False
        self._signals_done[number] = None
        if len(self._signals_done) > _SIGNALS_REMEMBERED:
            del self._signals_done[next(iter(self._signals_done))]
        return True

    def _complain(self, text: str, about: Gist, *, short: bool = False) -> None:
        """A job or step that was to start and cannot has failed, which is an answer; of any other failed order it is
        told, and the daemon says it again. A start that was carried out before is said to have been."""
        self._signals_done.pop(-1 if about.no is None else about.no, None)
        if about.op in ("prepare", "start") and about.job is not None and about.gen is not None:
            run = self._run_of((about.job, about.gen))
            if run is not None and run.has_begun:
                run.confirm()
            else:
                if run is not None:
                    del self._jobs[about.job]
                self.node.report(Refused(about.job, about.gen, text, short=short))
            self._done(about.no)
        elif about.op == "step" and self._can_fail(about):
            self._fail_step(about, text)
            self._done(about.no)
        elif self._daemon is not None:
            self._daemon.send(encode_typed(Trouble(text, about.no)))

    def _can_fail(self, about: Gist) -> bool:
        """Whether it names a step that there is nothing of here."""
        if about.job is None or about.gen is None or about.step is None:
            return False
        run = self._run_of((about.job, about.gen))
        return run is None or about.step not in run.steps

    def _begin(self, order: Prepare) -> None:
        self.node.settings.container.learn_hosts(order.hosts)
        key = order.key
        run = self._jobs.get(key[0])
        if run is not None and run.key == key:
            if isinstance(order, Start):
                run.start(order)
            else:
                run.confirm()
        elif self.outbox.holds(key):
            self._say_again(key)
        elif (held := run.key if run is not None else self._remains_of(key[0])) is not None:
            reason = f"start {held[1]} of the job is still being ended on node {self.node.name}"
            self.node.report(Refused(*key, reason))
        else:
            run = JobRun(self.node, order, self._cleared)
            self._jobs[key[0]] = run
            run.begin()

    def _remains_of(self, job: int) -> JobKey | None:
        return next((key for key in self._remains if key[0] == job), None)

    def _terminate(self, order: Terminate) -> None:
        run = self._run_of(order.key)
        if run is not None:
            run.terminate(order.grace_s, order.cause)
        elif order.key in self._remains:
            self._awaited.add(order.key)
        else:
            self.node.report(Cleared(*order.key))

    def _signal(self, order: Signal) -> None:
        if (run := self._run_of(order.key)) is not None and self._first_time(order):
            run.send_signal(order.signal, order.scope)

    def _tell(self, order: Tell) -> None:
        if (run := self._run_of(order.key)) is not None:
            run.say(order.text, order.at)

    def _suspend(self, order: Suspend) -> None:
        if (run := self._run_of(order.key)) is not None:
            run.suspend()

    def _resume(self, order: Resume) -> None:
        if (run := self._run_of(order.key)) is not None:
            run.resume()

    def _step(self, order: StartStep) -> None:
        self.node.settings.container.learn_hosts(order.hosts)
        key, run = order.key, self._run_of(order.key)
        if run is None or not run.launch_step(order):
            if self.outbox.holds(key) and run is None:
                self._say_again(key)
            else:
                self._fail_step(Gist.of(order), f"job {key[0]} is not running on node {self.node.name}")
            return
        self._admit_waiting_streams(order.job, order.step)

    def _fail_step(self, about: Gist, note: str) -> None:
        """Tells the end of a step of which there is nothing here."""
        assert about.job is not None
        assert about.gen is not None
        assert about.step is not None
        key, step = (about.job, about.gen), about.step
        self.node.report(StepBegan(*key, step))
        self.node.report(StepEnded(*key, step, ExitStatus(1), NO_USAGE, note))
        for stream in self._waiting_streams.pop((key[0], step), ()):
            self._turn_away(stream, note)
        self._failed_steps[key[0], step] = note
        if len(self._failed_steps) > _FAILED_REMEMBERED:
            del self._failed_steps[next(iter(self._failed_steps))]

    def _signal_step(self, order: SignalStep) -> None:
        run = self._run_of(order.key)
        if run is not None and order.step in run.steps and self._first_time(order):
            run.steps[order.step].send_signal(order.signal)

    def _terminate_step(self, order: TerminateStep) -> None:
        run = self._run_of(order.key)
        step = run.steps.get(order.step) if run is not None else None
        if step is not None:
            step.terminate(order.grace_s, order.cause)

    def _usage(self, order: TellUsage) -> None:
        run = self._jobs.get(order.job)
        if run is None:
            self._answer(Answer(order.id))
            return
        run.sample(process_table())
        self._answer(Answer(order.id, run.live_usage(), run.awaited()))

    def _acknowledge(self, order: Acknowledge) -> None:
        if order.job is not None and order.gen is not None:
            self.outbox.acknowledge_job((order.job, order.gen))
            done = [(order.job, order.gen)]
        elif order.seq is not None:
            done = self.outbox.acknowledge_through(order.seq)
        else:
            raise ValueError("it names neither a job nor a number")
        for key in done:
            gone = self._jobs.get(key[0]) is None or self._jobs[key[0]].key != key
            if gone and key not in self._remains:
                self.node.records.forget(key, self.outbox.seq)

    def _ping(self, order: Ping) -> None:
        self._answer(Answer(order.id, jobs=len(self._jobs)))

    def _exit(self, order: Exit) -> None:
        """Ends this agent once its jobs are ended; with `if_idle` they are left to end by themselves before."""
        if order.if_idle and not self._idle:
            self._leaves_when_done = True
            return
        self._leaving = True
        for run in list(self._jobs.values()):
            run.terminate(order.grace_s)
        if self._jobs:
            self.loop.call_later(_EXIT_PATIENCE_S, self.loop.stop)
        else:
            self.loop.stop()

    @property
    def _idle(self) -> bool:
        return not self._jobs and not self._remains and not self.outbox.unacknowledged()

    @property
    def _is_done(self) -> bool:
        """Nothing to do, and nobody here to say it to: what was not acknowledged, its successor says."""
        return self._daemon is None and not self._jobs and not self._remains and self.outbox.is_written

    def _asked_to_leave(self, connection: socket.socket) -> None:
        """`bireme down`, when there is no daemon that could say so: it is told what there is to wait for."""
        self._leaves_when_done = True
        held = {job for job, _ in self._remains} | self._jobs.keys()
        with contextlib.suppress(OSError):
            connection.send(encode_typed(Census(self.node.name, (), tuple(sorted(held)), __version__)))
        connection.close()
        self.loop.call_later(0, self._leave_if_done)  # by then this connection is not counted any more

    def _leave_if_done(self) -> None:
        if not (self._leaves_when_done and self._is_done):
            return
        if self._door.is_empty:
            self.loop.stop()
        else:  # somebody still reads what a step has written
            self.loop.call_later(_READ_OUT_S, self._leave_if_done)

    def _leave_when_abandoned(self) -> None:
        """A daemon that was killed and never came back must not leave idle agents behind for ever."""
        if self._is_done and self._alone_at_last_look:
            self.loop.stop()
            return
        self._alone_at_last_look = self._is_done
        self.loop.call_later(_ABANDONED_S, self._leave_when_abandoned)

    def _answer(self, answer: Answer) -> None:
        if self._daemon is not None:
            self._daemon.send(encode_typed(answer))

    def _run_of(self, key: JobKey) -> JobRun | None:
        """The job an order is about, if this very start of it is here."""
        run = self._jobs.get(key[0])
        return run if run is not None and run.key == key else None

    def _say_again(self, key: JobKey) -> None:
        if self._daemon is not None:
            for line in self.outbox.lines_of(key):
                self._daemon.send(line)

    # --- jobs ----------------------------------------------------------------------------------------------

    def _cleared(self, run: JobRun) -> None:
        self._jobs.pop(run.key[0], None)
        if self._leaving and not self._jobs:
            self.loop.stop()
        self._leave_if_done()

    # --- sampling ------------------------------------------------------------------------------------------

    def _schedule_sampling(self) -> None:
        self.loop.call_later(self.node.settings.sample_s, self._sample_all)

    def _sample_all(self) -> None:
        self._sample(list(self._jobs.values()))
        self._schedule_sampling()

    def _task_started(self) -> None:
        """New tasks get a first sample soon: many do not live until the next regular one."""
        if not self._first_sample_due:
            self._first_sample_due = True
            self.loop.call_later(_FIRST_SAMPLE_S, self._sample_new)

    def _sample_new(self) -> None:
        self._first_sample_due = False
        self._sample([run for run in self._jobs.values() if run.has_unsampled_tasks()])

    @staticmethod
    def _sample(runs: list[JobRun]) -> None:
        if runs:
            table = process_table()
            for run in runs:
                run.sample(table)


_CARRY_OUT: dict[type[Order], Callable[[AgentServer, Any], None]] = {
    Prepare: AgentServer._begin,
    Start: AgentServer._begin,
    Terminate: AgentServer._terminate,
    Signal: AgentServer._signal,
    Tell: AgentServer._tell,
    Suspend: AgentServer._suspend,
    Resume: AgentServer._resume,
    StartStep: AgentServer._step,
    SignalStep: AgentServer._signal_step,
    TerminateStep: AgentServer._terminate_step,
    TellUsage: AgentServer._usage,
    Acknowledge: AgentServer._acknowledge,
    Ping: AgentServer._ping,
    Exit: AgentServer._exit,
}
