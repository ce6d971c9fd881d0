"""One step on this node: its tasks started together, their streams, their PMI, their end.

`jobs` creates it and is told when it is over. Which tasks run here, with which environment and files, was decided
by the engine; `--kill-on-bad-exit` and `--wait` are decided by srun and the daemon, which see all nodes.

An order that cannot be read, or a task that cannot be begun, fails like a task that ended: nobody waits for it.
Invariant: "step_began" is reported once all tasks were started or failed to; "step_ended" once no task is left and
everything they wrote is on its way to the clients.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bireme.agent.boxing.asking import Asker, Boxes, InBox
from bireme.agent.boxing.asking import Wait as BoxWait
from bireme.agent.boxing.saving import BoxSaving
from bireme.agent.devices.binding import bound_cpus, mask_text, wants_verbose
from bireme.agent.inbox import Wait
from bireme.agent.keeping.keepers import Grouping, Keeper, signal_below
from bireme.agent.keeping.launching import Launching
from bireme.agent.messages import protocol
from bireme.agent.messages.orders import Box, StartStep, StepTask
from bireme.agent.messages.told import StepBegan, StepEnded
from bireme.agent.mpi.step_pmi import StepPmi
from bireme.agent.node import Node
from bireme.agent.records import JobKey
from bireme.agent.scripts import Done, Heard, ScriptRun, apply_task_prolog
from bireme.agent.starting.spawn import OPENING, Birth, SpawnError, TaskFile
from bireme.agent.starting.wrappers import OnCpus, Wrapper, wrapped
from bireme.agent.stdio.step_stdio import TaskStdio, open_stdio, shared_outputs
from bireme.agent.stdio.streams import StepEvents, StreamHub
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import Timer
from bireme.agent.system.output import OpenFileError
from bireme.agent.system.processes import ProcessIdentity, signal_tree
from bireme.agent.system.reaper import ReapedChild
from bireme.agent.tasks import PID_VARIABLE, Task, worst_status
from bireme.core.model.resources import ExitStatus, TaskEnd, merge_usage
from bireme.images.messages import Progress

log = logging.getLogger("bireme.agent")

_PMI_CHILD_FD = 3
_KILL_AGAIN_S = 0.5
_FRAME_BYTES = 64 * 1024
_FAILED_TOLD = 32
"""Of the tasks that did not end well, so many are told one by one."""

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What an order raises that is not as this agent expects it: its daemon may be of another version."""


@dataclass(frozen=True, slots=True)
class StepOwner:
    """What a step needs of its job."""

    key: JobKey
    identity: Identity | None
    keeper_gid: int | None
    notice: str
    around: tuple[Wrapper, ...]
    """What stands around each of its tasks."""
    boxes: Boxes
    ran_out_of_memory: Callable[[], bool]
    on_over: Callable[[], None]
    unkillable_s: float
    unkillable: Callable[[set[ProcessIdentity], int], None]


class StepRun:
    def __init__(self, node: Node, owner: StepOwner, order: StartStep) -> None:
        self.node = node
        self.key = owner.key
        self.id = order.step
        self.io_key = order.io_key
        self.over = False
        self.hub = StreamHub(node.loop, StepEvents(self._signal_from_client, self._fence_result))
        self._owner = owner
        self._order = order
        self._tasks: dict[int, Task] = {}
        self._unfinished = {task.id for task in order.tasks}
        self._unstarted = set(self._unfinished)
        self._waiting: dict[int, Wait] = {}
        """Tasks whose input is not here yet."""
        self._prologs: dict[int, ScriptRun] = {}
        """Tasks whose prolog runs."""
        self._statuses: list[ExitStatus] = []
        self._failed: list[TaskEnd] = []
        self._keeper: Keeper | None = None
        """Above all tasks and all they start; given back when nothing of that is left."""
        self._grouping: Grouping | None = None
        """While a keeper of its job's group is waited for."""
        self._boxing: BoxWait | None = None
        """While its box is waited for."""
        self._box: InBox | None = None
        self._saving: BoxSaving | None = None
        self._saved = False
        self._unsaved = ExitStatus()
        """What the step ends with at least: not 0 where its box could not be saved."""
        self._shared: list[str] = []
        """Files that several of its tasks write to."""
        self._deadline: Timer | None = None
        self._killed = False
        self._ended_by = 0
        """The signal that ended it: what has not started by then never does."""
        self._emptying = 0
        """The process that empties shared files, before any task starts."""
        self._first_node = False
        self._began = False
        self._pmi: StepPmi | None = None

    # --- starting ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins it, in a keeper of its job's group, which may have to be waited for (`KeeperPool.prepare`)."""
        try:
            if self._owner.keeper_gid is not None:
                self._grouping = self.node.keepers.prepare(self._owner.keeper_gid, self._group_came)
        except OSError as error:
            self._tell(f"slurmstepd: error: it cannot be started: {in_words(error)}\n")
            for task in self._order.tasks:
                self._not_started(task.id, ExitStatus(1))
            return
        if self._grouping is None:
            self._begin()

    def _group_came(self) -> None:
        self._grouping = None
        self._begin()

    def _begin(self) -> None:
        tasks = self._order.tasks
        try:
            self._keeper = self.node.take_keeper(self.key, self._owner.keeper_gid)
            self._keeper.on_empty = self._finish_if_all_over
            self._first_node = "0" in [task.env.get("SLURM_NODEID", "0") for task in tasks]
            self._pmi = self._pmi_server() if self._order.mpi == "pmi2" else None
        except (*UNREADABLE, OSError) as error:
            log.exception("step %d.%d: its order cannot be read", self.key[0], self.id)
            self._tell(f"slurmstepd: error: cannot read the order to start it: {in_words(error)}\n")
            for task in tasks:
                self._not_started(task.id, ExitStatus(1))
            return
        self._shared = shared_outputs(self._order)
        if self._order.box is None:
            self._empty_then_begin(list(self._shared))
        else:
            self._ask_for_box(self._order.box)

    def _ask_for_box(self, order: Box) -> None:
        assert self._keeper is not None
        birth = Birth(
            argv=(),
            env={**self._order.env, **self._order.tasks[0].env},
            stdin=0,
            stdout=1,
            stderr=2,
            cwd=self._order.cwd,
            identity=self._owner.identity,
            umask=self._order.umask,
        )
        asker = Asker(
            keeper=self._keeper,
            birth=wrapped(birth, self._owner.around),
            say=lambda text: self._tell(f"pyxis: {text}\n"),
            heard=self._image_on_its_way,
            done=self._box_came,
        )
        self._boxing = self._owner.boxes.ask(order, asker)

    def _image_on_its_way(self, image: str, progress: Progress, line: str) -> None:
        shown = {"image": image, "doing": progress.doing, "done": progress.done, "of": progress.of}
        shown["line"] = line and f"pyxis: {line}\n"
        self.hub.show(protocol.encode_json_frame(protocol.PROGRESS, protocol.ALL_TASKS, shown))

    def _box_came(self, outcome: InBox | str) -> None:
        self._boxing = None
        if isinstance(outcome, InBox):
            self._box = outcome
            self._empty_then_begin(list(self._shared))
            return
        self._tell(f"slurmstepd: error: pyxis: {outcome}\n")
        for rank in sorted(self._unstarted):
            self._not_started(rank, ExitStatus(1))

    def _empty_then_begin(self, paths: list[str]) -> None:
        """Empties the files that tasks share, one after the other. One that cannot be emptied fails its tasks."""
        if not paths:
            for index, task in enumerate(self._order.tasks):
                self._attempt(task.id, partial(self._begin_task, index, task))
            return
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        birth = Birth(
            argv=(),
            env={},
            stdin=null_fd,
            stdout=TaskFile("stdout", paths.pop(0), "truncate"),
            stderr=null_fd,
            identity=self._owner.identity,
            umask=self._order.umask,
        )

        def emptied() -> None:
            self._emptying = 0
            if self._ended_by:
                self._start_none_of_them()
            else:
                self._empty_then_begin(paths)

        def started(problem: SpawnError | None) -> None:
            if problem is not None:
                emptied()

        def has_process(pid: int) -> None:
            self._emptying = pid

        launching = Launching(
            self.node.loop, birth, process=has_process, started=started, exited=lambda _reaped: emptied()
        )
        launching.begin()
        os.close(null_fd)

    def _attempt(self, rank: int, begin: Callable[[], None]) -> None:
        try:
            begin()
        except (*UNREADABLE, OSError) as error:
            log.exception("step %d.%d: task %d cannot be started", self.key[0], self.id, rank)
            if rank in self._unfinished and rank not in self._tasks:
                self._not_started(rank, ExitStatus(1), f"task {rank} cannot be started: {in_words(error)}")
            else:  # it runs and its end will be told, or was
                self._one_started(rank)

    def confirm(self) -> None:
        if self._began:
            self.node.report(StepBegan(*self.key, self.id))

    @property
    def _has_its_group(self) -> bool:
        return self._keeper is not None and self._keeper.gid == self._owner.keeper_gid

    def living_tasks(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.ended is None]

    def _environment(self, spec: StepTask) -> dict[str, str]:
        """A task's, before its prolog; of its epilog, too, as in Slurm."""
        return {**self.node.settings.container.environment(self._order.env), **spec.env}

    def _begin_task(self, index: int, spec: StepTask) -> None:
        env = self._environment(spec)
        prologs = self._order.task_prolog
        if not prologs:
            self._start_task(index, spec, env, b"")
            return

        rank = spec.id

        def prolog_done(problem: str, output: bytes) -> None:
            self._prologs.pop(rank, None)
            if self._ended_by:
                self._not_started(rank, ExitStatus(0, self._ended_by))
            elif problem:
                log.error("step %d.%d: task prolog: %s", self.key[0], self.id, problem)
                self._not_started(rank, ExitStatus(1), f"task prolog: {problem}")
            else:
                changed = dict(env)
                greeting = apply_task_prolog(output, changed)
                self._attempt(rank, lambda: self._start_task(index, spec, changed, greeting))

        self._prologs[rank] = self._script("prolog_task", prologs, env, prolog_done, "stdout")
        self._prologs[rank].run()

    def _script(self, context: str, paths: Sequence[str], env: dict[str, str], done: Done, heard: Heard) -> ScriptRun:
        return ScriptRun(
            self.node.loop,
            paths,
            env,
            done,
            context=context,
            identity=self._owner.identity,
            cwd=self._order.cwd,
            keeper=self._keeper,
            heard=heard,
        )

    def _start_task(self, index: int, spec: StepTask, env: dict[str, str], greeting: bytes) -> None:
        """Now, or when its input is here."""
        rank, stdin = spec.id, spec.stdin

        def input_came(problem: str) -> None:
            del self._waiting[rank]
            if problem:
                self._not_started(rank, ExitStatus(1), problem)
            else:
                self._attempt(rank, lambda: self._start_with_input(index, spec, env, greeting))

        if self.node.inbox.has(stdin):
            self._start_with_input(index, spec, env, greeting)
        else:
            self._waiting[rank] = self.node.inbox.fetch(stdin, input_came)

    def _start_with_input(self, index: int, spec: StepTask, env: dict[str, str], greeting: bytes) -> None:
        try:
            stdio = open_stdio(self._order, spec, self._owner.identity, self._shared)
        except OpenFileError as error:
            self._not_started(spec.id, ExitStatus(1), str(error))
            return
        self._launch_task(index, spec, env, stdio, greeting)

    def _launch_task(self, index: int, spec: StepTask, env: dict[str, str], stdio: TaskStdio, greeting: bytes) -> None:
        rank = spec.id
        cpus = self._cpus(index)
        pmi_fd = self._pmi.open(rank, env, _PMI_CHILD_FD) if self._pmi else -1
        birth = Birth(
            argv=spec.argv or self._order.argv,
            env=env,
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            cwd=self._order.cwd,
            identity=self._owner.identity,
            umask=self._order.umask,
            controlling_tty=stdio.terminal,
            extra_fds={_PMI_CHILD_FD: pmi_fd} if pmi_fd >= 0 else {},
            pid_variable=PID_VARIABLE,
            greeting=greeting,
            notice=self._owner.notice if rank == 0 and not self._has_its_group else "",
        )

        def has_process(pid: int) -> None:
            self.node.task_started(self.key, pid)
            assert self._keeper is not None
            self._tasks[rank] = Task(rank, pid, self._keeper)
            if wants_verbose(self._order.cpu_bind):
                self._tell_binding(index, self._tasks[rank], cpus)

        box: tuple[Wrapper, ...] = () if self._box is None else (self._box,)
        bound: tuple[Wrapper, ...] = () if cpus is None else (OnCpus(cpus),)
        launching = Launching(
            self.node.loop,
            wrapped(birth, (*box, *bound, *self._owner.around)),
            process=has_process,
            started=lambda problem: self._task_launched(rank, problem),
            exited=lambda reaped: self._exited(self._tasks[rank], spec, reaped),
            keeper=self._keeper,
        )
        try:
            launching.begin()
        finally:
            stdio.hand_over(self.hub, rank)
            if pmi_fd >= 0:
                os.close(pmi_fd)

    def _task_launched(self, rank: int, problem: SpawnError | None) -> None:
        """Its program runs, or will never: then the child has said why on its stderr, if it came to have one."""
        if problem is None:
            self._one_started(rank)
            return
        self._tasks.pop(rank, None)
        if problem.stage == OPENING:
            self._not_started(rank, ExitStatus(1), str(problem))
        else:
            self._not_started(rank, ExitStatus(problem.exit_code))

    def _cpus(self, index: int) -> frozenset[int] | None:
        wish = self._order.cpu_bind
        if self.node.settings.virtual or not (wish or self.node.settings.bind_cpus):
            return None
        try:
            cpus = bound_cpus(wish, self._order.cpu_ids, index, len(self._order.tasks))
        except (ValueError, IndexError):
            self._tell(f"slurmstepd: error: cannot understand --cpu-bind={wish}\n")
            return None
        return cpus

    def _tell_binding(self, index: int, task: Task, cpus: frozenset[int] | None) -> None:
        mask = mask_text(cpus if cpus is not None else frozenset(os.sched_getaffinity(0)))
        how, done = ("MASK", " set") if cpus is not None else ("NULL", "")
        self._tell(f"cpu-bind={how} - {self.node.name}, task {task.id:2d} {index:2d} [{task.pid}]: mask {mask}{done}\n")

    def _tell(self, line: str) -> None:
        self.hub.broadcast(protocol.encode_frame(protocol.STDERR, protocol.ALL_TASKS, line.encode()))

    def _one_started(self, rank: int) -> None:
        """Notes that a task of the step has started, or will never start."""
        self._unstarted.discard(rank)
        if self._unstarted or self._began:
            return
        self._began = True
        pids = {str(task.id): task.pid for task in self._tasks.values()}
        self.hub.broadcast(protocol.encode_json_frame(protocol.TASKS_STARTED, protocol.ALL_TASKS, pids))
        self.node.report(StepBegan(*self.key, self.id))
        self._finish_if_all_over()

    # --- ending --------------------------------------------------------------------------------------------

    def _not_started(self, rank: int, how: ExitStatus, why: str = "") -> None:
        if why:
            self._tell(f"slurmstepd: error: {why}\n")
        self._task_over(rank, how)
        self._one_started(rank)

    def start_nothing_more(self, number: int) -> None:
        """The step or its job is to end: tasks that wait for their input or prolog end without having run."""
        self._ended_by = self._ended_by or number
        if self._emptying:
            os.kill(self._emptying, signal.SIGKILL)
        for prolog in list(self._prologs.values()):
            prolog.cancel()  # which says when it is over
        if self._grouping is not None:
            self._grouping.cancel()
            self._grouping = None
            self._start_none_of_them()
        if self._saving is not None:
            self._saving.cancel()
        if self._boxing is not None:
            self._boxing.cancel()
            self._boxing = None
            self._start_none_of_them()
        waiting, self._waiting = self._waiting, {}
        for rank, wait in waiting.items():
            wait.cancel()
            self._not_started(rank, ExitStatus(0, self._ended_by))

    def _start_none_of_them(self) -> None:
        for rank in sorted(self._unstarted):
            self._not_started(rank, ExitStatus(0, self._ended_by))

    def _exited(self, task: Task, spec: StepTask, reaped: ReapedChild) -> None:
        task.finish(reaped, self.node.name, self._owner.ran_out_of_memory())
        how = task.ended
        assert how is not None
        epilogs = self._order.task_epilog
        if not epilogs:
            self._task_over(task.id, how)
            return

        def epilog_done(_problem: str, said: bytes) -> None:
            for start in range(0, len(said), _FRAME_BYTES):
                part = said[start : start + _FRAME_BYTES]
                self.hub.broadcast(protocol.encode_frame(protocol.STDERR, task.id, part))
            self._task_over(task.id, how)

        self._script("epilog_task", epilogs, self._environment(spec), epilog_done, "stderr").run()

    def _task_over(self, rank: int, how: ExitStatus) -> None:
        self.hub.drain(rank)
        if self._pmi:
            self._pmi.close(rank)
        told = {"code": how.code, "signal": how.signal, "oom": how.out_of_memory}
        self.hub.broadcast(protocol.encode_json_frame(protocol.TASK_EXITED, rank, told))
        self._statuses.append(how)
        if not how.ok and len(self._failed) < _FAILED_TOLD:
            self._failed.append(TaskEnd(rank, how, time.time()))
        self._unfinished.discard(rank)
        self._finish_if_all_over()

    def _finish_if_all_over(self) -> None:
        """Background processes do not outlive their step: what is left is killed, and it is over when that is gone."""
        if self._unfinished or not self._began or self.over:
            return
        if self._keeper is not None and not self._keeper.empty:
            self.kill()
            return
        if self._box is not None and self._box.order.save and not self._saved:
            self._save(self._box)
            return
        self.over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._keeper is not None:
            self.node.keepers.give_back(self._keeper)
            self._keeper = None
        if self._box is not None:
            self._owner.boxes.give_back(self._box.box)
            self._box = None
        self.hub.finish(self._unsaved.code)
        used = merge_usage(task.used for task in self._tasks.values() if task.used is not None)
        self.node.report(StepEnded(*self.key, self.id, worst_status(self._statuses), used, failed=tuple(self._failed)))
        self._order = _nothing_more(self._order)  # a job may have thousands of steps, each with its environment
        self._tasks.clear()
        self._owner.on_over()

    def _save(self, box: InBox) -> None:
        """`--container-save`: the step's end waits for it."""
        if self._saving is not None:
            return

        def saved(problem: str) -> None:
            self._saving, self._saved = None, True
            if problem:
                self._tell(f"slurmstepd: error: pyxis: {problem}\n")
                self._unsaved = ExitStatus(1)
                self._statuses.append(self._unsaved)
            self._finish_if_all_over()

        self._tell(f"pyxis: saving container filesystem at {box.order.save}\n")
        self._saving = BoxSaving(self.node.loop, box, self._owner.identity, saved)
        self._saving.begin()

    def close(self) -> None:
        self.hub.close()

    # --- signals -------------------------------------------------------------------------------------------

    def send_signal(self, number: int, rank: int = protocol.ALL_TASKS) -> None:
        if rank == protocol.ALL_TASKS:
            signal_below(self.keepers(), number)
        else:
            signal_tree([task.process for task in self.living_tasks() if rank == task.id], number)

    def keepers(self) -> list[Keeper]:
        """The one that has all of the step below it, as long as the step is not over."""
        return [] if self._keeper is None else [self._keeper]

    def terminate(self, grace_s: float, cause: str = "") -> None:
        if self.over or self._killed or (self._deadline is not None and grace_s > 0):
            return
        if self._deadline is None:
            self.announce_end(cause)
        else:
            self._deadline.cancel()
        if grace_s <= 0:
            self._kill()
            return
        signal_below(self.keepers(), signal.SIGCONT, signal.SIGTERM)
        self._deadline = self.node.loop.call_later(grace_s, self._kill)
        self.start_nothing_more(signal.SIGTERM)

    def end_over_memory(self, why: str) -> None:
        """Whatever its first node says: every node speaks of its own tasks."""
        self._tell(why)
        self.terminate(0.0)

    def announce_end(self, cause: str) -> None:
        """What Slurm tells the user of a step that is ended from outside; its first node says it for all."""
        if self.over or not self._first_node:
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        due = f" DUE TO {cause}" if cause else ""
        what = f"STEP {self.key[0]}.{self.id} ON {self.node.name} CANCELLED AT {stamp}{due}"
        self._tell(f"slurmstepd: error: *** {what} ***\n")

    def say(self, line: str) -> None:
        """Tells the user of a step that goes on; its first node says it for all."""
        if not self.over and self._first_node:
            self._tell(line)

    def _kill(self) -> None:
        self._killed = True
        if self.over:
            return
        self._deadline = self.node.loop.call_later(_KILL_AGAIN_S, self._kill)  # first: what follows may fail
        self.kill()
        self.start_nothing_more(signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL for all that is left of it, until nothing is."""
        if self._keeper is not None:
            self._keeper.kill(self._owner.unkillable_s, lambda left: self._owner.unkillable(left, self.id))

    def _signal_from_client(self, number: int, rank: int) -> None:
        if 0 < number < signal.NSIG:
            self.send_signal(number, rank)

    # --- PMI -----------------------------------------------------------------------------------------------

    def _pmi_server(self) -> StepPmi:
        world = self._order.world
        if world is None:
            raise ValueError("it asks for PMI and does not say who takes part")
        return StepPmi(
            self.node.loop,
            key_space=world.name,
            node_of_rank=world.node_of_rank,
            local_tasks=tuple(task.id for task in self._order.tasks),
            first_rank=world.first_rank,
            send_fence=self._send_fence,
            abort=self._pmi_abort,
        )

    def _send_fence(self, pairs: dict[str, str]) -> None:
        self.hub.broadcast(protocol.encode_json_frame(protocol.FENCE, protocol.ALL_TASKS, pairs))

    def _fence_result(self, merged: dict[str, str]) -> None:
        if self._pmi:
            self._pmi.complete(merged)

    def _pmi_abort(self, rank: int, why: str) -> None:
        self._tell(f"slurmstepd: error: *** STEP {self.key[0]}.{self.id} ABORTED by task {rank}: {why} ***\n")
        self._kill()


def _nothing_more(order: StartStep) -> StartStep:
    return StartStep(job=order.job, gen=order.gen, step=order.step, tasks=[], env={}, cwd="/")


def in_words(error: Exception) -> str:
    """What went wrong with an order, for whoever gave it."""
    return f"{type(error).__name__}: {error}"
