"""One job on this node, from the first word about it to `cleared`: prolog, batch script, steps, signals, the end.

The server finds the job a message is about and calls it here; steps live in `steps`. This module does not know
sockets, nor other jobs, nor why a job is to end.

    PREPARING  -> READY      the prolog went well (or there is none): "prepared", or the batch script starts
    PREPARING  -> CLEARED    the prolog failed: "refused"
    READY      -> CLEARED    the node is short of something to start the batch script with, or somebody has the port of
                             a service's replica: "refused"
    READY      -> ENDING     terminate: SIGCONT, SIGTERM, grace, SIGKILL
    READY      -> CLEARED    the batch script of a single-node job ended and left nothing
    ENDING     -> LEAVING    no process is left: epilog
    LEAVING    -> CLEARED    "cleared"

Invariant: "cleared" is reported when no process of the job is left on the node, and only then.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, auto
from functools import partial

import msgspec

from bireme.agent.boxing.asking import Boxes, InBox
from bireme.agent.boxing.batch import BoxedBatch, NoBox
from bireme.agent.boxing.saving import BoxSaving
from bireme.agent.confining.confined import JobGroup
from bireme.agent.inbox import Wait
from bireme.agent.keeping.keepers import Grouping, Keeper, signal_below
from bireme.agent.keeping.launching import Launching
from bireme.agent.last_words import LastWords
from bireme.agent.messages.orders import Batch, Prepare, Start, StartStep
from bireme.agent.messages.told import BatchEnded, Cleared, Launched, Prepared, Refused
from bireme.agent.node import Node, asked_for
from bireme.agent.records import JobKey
from bireme.agent.replicas import ReplicaRun
from bireme.agent.scripts import Done, Heard, Prologue, ScriptRun, prologue
from bireme.agent.starting.batch import batch_streams, interpreter_of, is_sure_to_start
from bireme.agent.starting.spawn import OPENING, SHORTAGES, Birth, SpawnError
from bireme.agent.starting.wrappers import InCgroups, Wrapper, wrapped
from bireme.agent.steps import StepOwner, StepRun
from bireme.agent.system.loop import Timer
from bireme.agent.system.output import OpenFileError
from bireme.agent.system.processes import ProcessEntry, ProcessIdentity, send_signal, signal_all
from bireme.agent.system.reaper import ReapedChild
from bireme.agent.tasks import PID_VARIABLE, Task
from bireme.core.model.resources import NO_USAGE, ExitStatus, Usage, merge_usage
from bireme.core.model.steps import BATCH_STEP, step_label

log = logging.getLogger("bireme.agent")

IO_FAILURE_SIGNAL = 53
"""Slurm shows a job whose files could not be opened as ended by "signal" 53: `0:53`."""
_KILL_AGAIN_S = 0.5
_PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDER_PATIENCE_S = 1.0
_SAID_AT_MOST = 64
"""Lines that the daemon may have written into the output of one job."""
"""Clients (submitit) name the output folder after the job id, and make it when sbatch has told them the id: a job that
starts within milliseconds is there before its folder, and leaves it to them for a moment. Other folders are made at
once."""


class Phase(IntEnum):
    PREPARING = auto()
    READY = auto()
    ENDING = auto()
    LEAVING = auto()
    CLEARED = auto()


class JobRun:
    """A job's presence on this node."""

    def __init__(self, node: Node, order: Prepare, on_cleared: Callable[[JobRun], None]) -> None:
        self.node = node
        self.key: JobKey = order.key
        self.uid = order.uid
        asked = asked_for(order)
        self.identity = None if asked.is_own() else asked
        """Whom the job runs as; None when that is the agent itself."""
        self._notice = asked.lacks_group()
        """What the job's user is to read on its stderr about whom it runs as, if no keeper has its group."""
        self._keeper_gid = asked.gid if self._notice else None
        """The group in which a job without root was submitted, where that is not the agent's; None: no matter."""
        self.phase = Phase.PREPARING
        self.steps: dict[int, StepRun] = {}
        self._group: JobGroup | None = None
        self._oom_seen = self.node.settings.container.oom_kills()
        self._order = order
        self._on_cleared = on_cleared
        self.replica: ReplicaRun | None = None
        self._be_replica(order)
        self._batch: Task | None = None
        self._script_birth: Birth | None = None
        """How the script of a service's replica was started."""
        self._keeper: Keeper | None = None
        """Above the batch script and all it starts; given back when nothing of that is left."""
        self._batch_launched = False
        self._launch_told = False
        self._input: Wait | Grouping | BoxedBatch | None = None
        """What the batch script waits for before it starts: its input, a keeper of its group, then its box."""
        self._boxes = Boxes(node, self.identity, order.denied_devices, order.begun_at or time.time())
        self._saving: BoxSaving | None = None
        self._unsaved = False
        self._box: InBox | None = None
        """In which the batch script runs."""
        self._taken_script: str | None = None
        self._script: ScriptRun | None = None
        self._around: ScriptRun | None = None
        """TaskProlog before the batch script, or TaskEpilog after it."""
        self._task_prolog: Sequence[str] = ()
        self._task_epilog: Sequence[str] = ()
        """Those that run around the batch script."""
        self._epilog_runs_in: tuple[dict[str, str], str] | None = None
        """The environment, as in Slurm not as TaskProlog left it, and the folder of TaskEpilog; None: there is none."""
        self._stderr_path = ""
        self._last_words: LastWords | None = None
        self._notices: LastWords | None = None
        self._unsaid_notices = list[str]()
        """Lines that wait until those before them are written."""
        self._batch_runs = False
        """Its program was begun: its files are open."""
        self._unsaid = ""
        """Last words that wait for that."""
        self._deadline: Timer | None = None
        self._end_ordered = False
        """The order to end was carried out to its end: one that failed half-way is begun again when it comes again."""
        self._told_to_end: set[ProcessIdentity] = set()
        self._said: set[tuple[float, str]] = set()
        """Lines that were written into its output because the daemon asked for it."""
        self._over_memory: set[int] = set()
        """Steps that were ended because they used more than the job has."""

    # --- the beginning -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes the job in: written down first, then the prolog, then (for `start`) the batch script."""
        self.node.records.held(self.key)
        self._group = self.node.confinement.hold(self._order)
        if not self._order.prolog:
            self._prepared("", b"")
            return
        self._script = ScriptRun(
            self.node.loop,
            self._order.prolog,
            self._order.env,
            self._prepared,
            context="prolog_slurmd",
            timeout_s=self._order.script_timeout_s,
        )
        self._script.run()

    def start(self, order: Start) -> None:
        """The batch script of a gang's first node, after all nodes said "prepared"; or a repeated order."""
        self._be_replica(order)
        if self.phase is Phase.PREPARING:
            self._order = order
        elif self.phase is Phase.READY and not self._batch_launched and order.batch is not None:
            self._start_batch(order, order.batch)
        else:
            self.confirm()

    def _be_replica(self, order: Prepare) -> None:
        if isinstance(order, Start) and order.replica is not None and self.replica is None:
            self.replica = ReplicaRun(self.node, self.key, self.uid, order.replica)

    def confirm(self) -> None:
        """Answers an order that came again: says once more what was said, starts nothing."""
        if self._batch_launched:
            self.node.report(Launched(*self.key))
        elif self.phase is Phase.READY:
            self.node.report(Prepared(*self.key))

    @property
    def has_begun(self) -> bool:
        """Whether anything of it was started here: its prolog, its script or a step."""
        script = self._launch_told or self._input is not None or not self._batch_is_empty()
        return script or self._script is not None or bool(self.steps) or self.phase > Phase.READY

    def _prepared(self, problem: str, _output: bytes) -> None:
        self._script = None
        if self.phase is not Phase.PREPARING:  # terminated meanwhile
            self._end_if_nothing_left()
            return
        if problem:
            log.error("job %d.%d: prolog: %s", *self.key, problem)
            self.node.report(Refused(*self.key, f"Prolog: {problem}", prolog_failed=True))
            self._clear()
            return
        self.phase = Phase.READY
        if isinstance(self._order, Start) and self._order.batch is not None:
            batch, self._order.batch = self._order.batch, None  # script and environment: large, and not needed again
            self._start_batch(self._order, batch)
        else:
            self.node.report(Prepared(*self.key))

    # --- the batch script ----------------------------------------------------------------------------------

    def _start_batch(self, order: Start, batch: Batch) -> None:
        self._task_prolog, self._task_epilog = order.task_prolog, order.task_epilog
        if self.replica is not None and (problem := self.replica.port_problem()):
            log.error("job %d.%d: %s", *self.key, problem)
            self.node.report(Refused(*self.key, problem))
            self._clear()
            return
        self._batch_launched = True
        if self.node.inbox.has(batch.stdin):
            self._run_batch(batch)
            return
        self._input = self.node.inbox.fetch(batch.stdin, lambda problem: self._input_came(batch, problem))
        self._tell_launched()  # a large file takes a while, and the node is the job's from now on

    def _input_came(self, batch: Batch, problem: str) -> None:
        self._input = None
        if problem:
            self._batch_not_started(ExitStatus(0, IO_FAILURE_SIGNAL), problem)
        else:
            self._run_batch(batch)

    def _run_batch(self, batch: Batch) -> None:
        """In a keeper of its group, where that is another than the agent's: `sg` takes a while to start it."""
        try:
            if self._keeper_gid is not None:
                self._input = self.node.keepers.prepare(self._keeper_gid, lambda: self._group_came(batch))
        except OSError as error:
            if not self._refused_for_shortage(error.errno, error.strerror or str(error)):
                self._batch_not_started(ExitStatus(1), str(error))
            return
        if self._input is None:
            self._run_in_box(batch)

    def _group_came(self, batch: Batch) -> None:
        self._input = None
        self._run_in_box(batch)

    def _run_in_box(self, batch: Batch) -> None:
        """Where the script has an image, that is had first: a wait, which is told in the job's output."""
        if batch.box is None:
            self._run_with_prolog(batch)
        elif self._has_keeper():
            assert self._keeper is not None
            try:
                birth = self._batch_birth(batch, Prologue(batch.env))
            except OSError as error:
                self._batch_not_started(ExitStatus(1), str(error))
                return
            self._tell_launched()
            done = partial(self._box_came, batch)
            boxing = BoxedBatch(
                self.node, self._boxes, batch.box, self._keeper, birth, interpreter_of(batch.script), done
            )
            self._input = boxing
            boxing.begin()

    def _box_came(self, batch: Batch, outcome: InBox | NoBox) -> None:
        self._input = None
        if isinstance(outcome, NoBox):
            how = ExitStatus(0, IO_FAILURE_SIGNAL) if outcome.at_opening else ExitStatus(1)
            self._batch_not_started(how, outcome.why)
            return
        self._box = outcome
        batch.append = True  # its files were opened as it wants them, and have lines in them since
        self._run_with_prolog(batch)

    def _run_with_prolog(self, batch: Batch) -> None:
        env = self.node.settings.container.environment(batch.env)
        if not self._task_prolog:
            self._begin_batch(batch, Prologue(env))
        elif self._has_keeper():
            self._tell_launched()  # it may take a while, and the node is the job's from now on
            done = partial(self._task_prolog_done, batch, env)
            self._around = self._script_around("prolog_task", self._task_prolog, env, batch.cwd, done, "stdout")
            self._around.run()

    def _script_around(
        self, context: str, paths: Sequence[str], env: dict[str, str], cwd: str, done: Done, heard: Heard
    ) -> ScriptRun:
        return ScriptRun(
            self.node.loop, paths, env, done, context=context, identity=self.identity, cwd=cwd, keeper=self._keeper,
            heard=heard,
        )  # fmt: skip

    def _task_prolog_done(self, batch: Batch, env: dict[str, str], problem: str, output: bytes) -> None:
        script, self._around = self._around, None
        assert script is not None
        if self.phase is not Phase.READY:  # to be ended, meanwhile: no file is opened to say that in
            self._last_words, self._unsaid = None, ""
            self._report_batch_end(ExitStatus(0, signal.SIGTERM), NO_USAGE, "")
            return
        if problem:
            log.error("job %d.%d: TaskProlog: %s", *self.key, problem)
        self._begin_batch(batch, prologue(script, env, output))

    def _has_keeper(self) -> bool:
        """Whether there is a keeper for the batch script now; if not, it was said why the script does not start."""
        if self._keeper is not None:
            return True
        try:
            self._keeper = self.node.take_keeper(self.key, self._keeper_gid)
        except OSError as error:
            if not self._refused_for_shortage(error.errno, error.strerror or str(error)):
                self._batch_not_started(ExitStatus(1), str(error))
            return False
        self._keeper.on_empty = self._batch_left_nothing
        return True

    def _begin_batch(self, batch: Batch, prologue: Prologue) -> None:
        """Begins the start of the script, no more: opening its files may take as long as the user's file systems
        like."""
        try:
            birth = self._batch_birth(batch, prologue)
        except OpenFileError as error:
            self._batch_not_started(ExitStatus(0, IO_FAILURE_SIGNAL), str(error))
            return
        except OSError as error:
            if not self._refused_for_shortage(error.errno, error.strerror or str(error)):
                self._batch_not_started(ExitStatus(1), str(error))
            return
        if not self._has_keeper():
            return
        assert self._keeper is not None
        if self._keeper.gid == self._keeper_gid:
            birth = msgspec.structs.replace(birth, notice="")
        self._script_birth = birth if self.replica is not None else None
        if self._task_epilog:
            self._epilog_runs_in = (batch.env, batch.cwd)
        Launching(
            self.node.loop,
            birth,
            process=self._batch_has_process,
            started=self._batch_started,
            exited=self._batch_exited,
            keeper=self._keeper,
        ).begin()

    def _batch_birth(self, batch: Batch, prologue: Prologue) -> Birth:
        """How the script is started; where a task prolog failed, how something is that only says so and ends as that
        did."""
        stdin, stdout, stderr = batch_streams(batch)
        script = self._script_path(batch.script)
        self._stderr_path = stderr.path
        named_after_job = any(str(self.key[0]) in file.path for file in (stdout, stderr))
        argv = [script, *batch.argv] if prologue.failed is None else _failed_prolog(prologue.failed.code or 1)
        birth = Birth(
            argv=argv,
            env=prologue.env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=batch.cwd,
            identity=self.identity,
            umask=batch.umask,
            pid_variable=PID_VARIABLE,
            folder_patience_s=_FOLDER_PATIENCE_S * named_after_job,
            sure=is_sure_to_start(batch.script),
            greeting=prologue.greeting,
            notice=self._notice,
        )
        box = () if self._box is None else (self._box,)
        return wrapped(birth, (*box, *self._wrappers("batch")))

    def _script_path(self, text: str) -> str:
        """Of a script that was taken before, for the wait for its box, the same file as a rule."""
        path = self.node.scripts.take(self.uid, text)
        if self._taken_script is not None:
            self.node.scripts.give_back(self.uid, text)
        self._taken_script = text
        return path

    def _wrappers(self, leaf: str) -> tuple[Wrapper, ...]:
        """What stands around each task of the script or of a step."""
        return (InCgroups(self._group.join_files(leaf)),) if self._group else ()

    def _batch_has_process(self, pid: int) -> None:
        self.node.task_started(self.key, pid)
        assert self._keeper is not None
        self._batch = Task(0, pid, self._keeper)
        self._tell_launched()
        if self.phase is Phase.ENDING:
            self._asked_the_rest_to_end()

    def _batch_started(self, problem: SpawnError | None) -> None:
        self._batch_runs = problem is None
        if self._last_words is not None and self._unsaid:
            self._last_words.say(self._unsaid, self._stderr_path, self.identity)
            self._unsaid = ""
        if problem is None:
            if self.replica is not None and self._batch_can_be_asked():
                assert self._script_birth is not None
                assert self._keeper is not None
                self.replica.script_runs(self._script_birth, self._keeper)
            return
        if problem.stage != OPENING and self._refused_for_shortage(problem.errno, str(problem)):
            return
        how = ExitStatus(0, IO_FAILURE_SIGNAL) if problem.stage == OPENING else ExitStatus(problem.exit_code)
        if self._batch is not None:
            self._batch.ended = how
        self._batch_not_started(how, str(problem))

    def _tell_launched(self) -> None:
        if not self._launch_told:
            self._launch_told = True
            self.node.report(Launched(*self.key))

    def _batch_not_started(self, how: ExitStatus, why: str) -> None:
        """Slurm's way: the job did start, and failed at once."""
        log.error("job %d.%d: %s", *self.key, why)
        self._tell_launched()
        self._report_batch_end(how, NO_USAGE, why)

    def _refused_for_shortage(self, number: int | None, why: str) -> bool:
        """Whether the launch is given back: the node lacks something, and nothing of the script was ever there."""
        untouched = self._batch is None and not self._launch_told and self.phase is Phase.READY
        if number not in SHORTAGES or not untouched:
            return False
        log.error("job %d.%d: the node is short of something: %s", *self.key, why)
        self.node.report(Refused(*self.key, why, short=True))
        self._clear()
        return True

    def _batch_can_be_asked(self) -> bool:
        return self.phase is Phase.READY and self._batch is not None and self._batch.ended is None

    def _batch_exited(self, reaped: ReapedChild) -> None:
        if self.replica is not None:
            self.replica.end()
        task = self._batch
        assert task is not None
        assert task.pid == reaped.pid
        task.finish(reaped, self.node.name, self._ran_out_of_memory())
        if self._epilog_runs_in is None:
            self._batch_over()
            return
        env, cwd = self._epilog_runs_in
        env, done = self.node.settings.container.environment(env), self._task_epilog_done
        self._around = self._script_around("epilog_task", self._task_epilog, env, cwd, done, "stderr")
        self._around.run()

    def _task_epilog_done(self, problem: str, said: bytes) -> None:
        """What it said is added to the script's stderr; the job's end waits for that."""
        assert self._around is not None
        words, status = said.decode(errors="surrogateescape"), self._around.status
        if problem:
            words += f"slurmstepd: error: --task-epilog failed status={status.code << 8 | status.signal}\n"
        last = LastWords(self.node.loop, self._around_over)
        if words:
            last.say(words, self._stderr_path, self.identity)
        if not words or last.over:
            self._around_over()

    def _around_over(self) -> None:
        self._around = None
        self._batch_over()
        self._batch_left_nothing()

    def _batch_over(self) -> None:
        """What it left in its box is saved first, where that was asked for."""
        if self._box is None or not self._box.order.save or self._saving is not None:
            self._batch_told()
            return

        def saved(problem: str) -> None:
            self._saving = None
            if problem:
                log.error("job %d.%d: %s", *self.key, problem)
                self._unsaved = True
                words = LastWords(self.node.loop, self._batch_told)
                words.say(f"slurmstepd: error: pyxis: {problem}\n", self._stderr_path, self.identity)
            if not problem or words.over:
                self._batch_told()

        self._saving = BoxSaving(self.node.loop, self._box, self.identity, saved)
        self._saving.begin()

    def _batch_told(self) -> None:
        if self._box is not None:
            self._boxes.give_back(self._box.box)
            self._box = None
        assert self._batch is not None
        assert self._batch.ended is not None
        assert self._batch.used is not None
        how = ExitStatus(1) if self._unsaved and self._batch.ended.ok else self._batch.ended
        self._report_batch_end(how, self._batch.used, "")

    def _report_batch_end(self, how: ExitStatus, usage: Usage, note: str) -> None:
        ending = self.phase is not Phase.READY
        alone = isinstance(self._order, Start) and self._order.alone
        cleared = not ending and alone and self._leaves_nothing()
        label = self._order.label if "_" in self._order.label else ""
        self.node.report(BatchEnded(*self.key, how, usage, cleared, note, ordered=ending, label=label))
        if cleared:
            self._clear()
        elif ending:
            self._end_if_nothing_left()

    def _leaves_nothing(self) -> bool:
        if self._order.epilog or any(not step.over for step in self.steps.values()):
            return False
        return self._batch_is_empty() and (self._group is None or self._group.is_empty())

    def _batch_is_empty(self) -> bool:
        return self._keeper is None or self._keeper.empty

    def _batch_left_nothing(self) -> None:
        if self._around is None and (self._batch is None or self._batch.ended is not None):
            self._give_keeper_back()
            self._end_if_nothing_left()

    def _give_keeper_back(self) -> None:
        if self._keeper is not None and self._keeper.empty:
            self.node.keepers.give_back(self._keeper)
            self._keeper = None

    def _ran_out_of_memory(self) -> bool:
        if self._group is not None:
            return self._group.ran_out_of_memory()
        kills = self.node.settings.container.oom_kills()
        grew, self._oom_seen = kills > self._oom_seen, kills
        return grew

    # --- steps ---------------------------------------------------------------------------------------------

    def launch_step(self, order: StartStep) -> bool:
        """False when the job is not in a state to run steps (any more)."""
        step = self.steps.get(order.step)
        if step is not None:
            step.confirm()
            return True
        if self.phase is not Phase.READY:
            return False
        step = StepRun(self.node, self._owner(order.step), order)
        self.steps[step.id] = step
        step.start()
        return True

    def _owner(self, step: int) -> StepOwner:
        return StepOwner(
            self.key,
            self.identity,
            self._keeper_gid,
            self._notice,
            self._wrappers(f"step_{step}"),
            self._boxes,
            self._ran_out_of_memory,
            self._step_over,
            self.unkillable_s,
            self._unkillable,
        )

    def _step_over(self) -> None:
        if self.phase is Phase.ENDING:
            self._end_if_nothing_left()

    # --- signals -------------------------------------------------------------------------------------------

    def send_signal(self, number: int, scope: str) -> None:
        """`batch`: the script's own process. `steps`: every process of every step. `all`: every process."""
        batch = self._batch
        if scope == "batch":
            if batch is not None and batch.ended is None:
                send_signal(batch.process, number)
            elif batch is None and self._keeper is not None:
                self._keeper.owe(number, frozenset())
        elif scope == "steps":
            signal_below(self._steps_keepers(), number)
        else:
            signal_below(self._keepers(), number)

    def suspend(self) -> None:
        if self.replica is not None:
            self.replica.suspend()
        self._boxes.suspend()
        signal_below(self._keepers(), signal.SIGSTOP)

    def resume(self) -> None:
        signal_below(self._keepers(), signal.SIGCONT)
        self._boxes.resume()
        if self.replica is not None:
            self.replica.resume()

    def _keepers(self) -> list[Keeper]:
        """The keepers of the script and of all steps, below which all of the job is."""
        return [*([] if self._keeper is None else [self._keeper]), *self._steps_keepers()]

    def _steps_keepers(self) -> list[Keeper]:
        return [keeper for step in self.steps.values() for keeper in step.keepers()]

    # --- the end -------------------------------------------------------------------------------------------

    def terminate(self, grace_s: float, cause: str = "") -> None:
        """Ends the job. The order again changes nothing, unless it now says: at once."""
        if self.phase in (Phase.LEAVING, Phase.CLEARED):
            return
        again = self._end_ordered
        self.phase = Phase.ENDING
        if self.replica is not None:
            self.replica.end()
        if self._script is not None:
            self._script.cancel()
            return
        if not again:
            self._announce_end(cause)
        elif grace_s > 0:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if grace_s > 0:
            self._told_to_end |= signal_below(self._keepers(), signal.SIGCONT, signal.SIGTERM)
            self._deadline = self.node.loop.call_later(grace_s, self._kill)
        else:
            self._kill()
        self._start_nothing_more(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        self._end_ordered = True
        self._end_if_nothing_left()

    def _start_nothing_more(self, number: int) -> None:
        """What still waits for its input is over too, as if it had got this signal."""
        if self._input is not None:
            self._input.cancel()
            self._input = None
            self._report_batch_end(ExitStatus(0, number), NO_USAGE, "")
        if self._around is not None and self._batch is None:
            self._around.cancel()  # which says when it is over
        if self._saving is not None:
            self._saving.cancel()
        for step in self.steps.values():
            step.start_nothing_more(number)

    def _kill(self) -> None:
        """Until nothing is left: what cannot be killed now (a process in the kernel) is tried again."""
        if self.phase is not Phase.ENDING:
            return
        self._deadline = self.node.loop.call_later(_KILL_AGAIN_S, self._kill)  # first: what follows may fail
        if self._group is not None:
            self._group.kill()
        if self._keeper is not None:
            self._keeper.kill(self.unkillable_s, self._unkillable)
        for step in self.steps.values():
            step.kill()
        self._end_if_nothing_left()

    @property
    def unkillable_s(self) -> float:
        return self._order.unkillable_s

    def _unkillable(self, left: set[ProcessIdentity], step: int | None = None) -> None:
        """Tells of processes that cannot be killed, as Slurm does: the node is drained, and the administrator's
        program, if there is one, may look at it."""
        self.node.unkillable(self.key, left, step)
        program = self._order.unkillable_program
        if program:
            env = {"SLURM_JOB_ID": str(self.key[0]), "SLURM_STEP_ID": step_label(BATCH_STEP if step is None else step)}
            env |= {"SLURMD_NODENAME": self.node.name, "PATH": _PROGRAM_PATH}
            done = self._unkillable_program_done
            ScriptRun(self.node.loop, [program], env, done, context="unkillable_step_program").run()

    def _unkillable_program_done(self, problem: str, _output: bytes) -> None:
        if problem:
            log.error("job %d.%d: UnkillableStepProgram: %s", *self.key, problem)

    def _end_if_nothing_left(self) -> None:
        if self.phase is not Phase.ENDING or self._script is not None or self._input is not None:
            return
        if self._around is not None or self._saving is not None:
            return
        if self._batch is not None and self._batch.ended is None:
            return
        if any(not step.over for step in self.steps.values()) or self._asked_the_rest_to_end():
            return
        if self._group is not None and not self._group.is_empty():  # it was killed already or will be: by `_kill`
            return
        if self._last_words is not None and not self._last_words.over:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.phase = Phase.LEAVING
        ScriptRun(
            self.node.loop,
            self._order.epilog,
            self._order.env,
            self._epilog_done,
            context="epilog_slurmd",
            timeout_s=self._order.script_timeout_s,
        ).run()

    def _asked_the_rest_to_end(self) -> bool:
        """Whether something of the script is left. What was born after the order to end is told of it too."""
        if self._batch_is_empty():
            return False
        assert self._keeper is not None
        left = self._keeper.living()
        signal_all(left - self._told_to_end, signal.SIGTERM)
        self._told_to_end |= left
        return True

    def _epilog_done(self, problem: str, _output: bytes) -> None:
        if problem:
            log.error("job %d.%d: epilog: %s", *self.key, problem)
        self.node.report(Cleared(*self.key, problem))
        self._clear()

    def _clear(self) -> None:
        self.phase = Phase.CLEARED
        self._give_keeper_back()
        if self._taken_script is not None:
            self.node.scripts.give_back(self.uid, self._taken_script)
        for step in self.steps.values():
            step.close()
        self._boxes.close()
        if self._group is not None:
            self._group.remove()
        self._on_cleared(self)

    def _announce_end(self, cause: str) -> None:
        """What Slurm writes into the job's stderr, and what people look for there."""
        if self._keeper is not None and (self._batch is None or self._batch.ended is None):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
            due = f" DUE TO {cause}" if cause else ""
            line = f"slurmstepd: error: *** JOB {self.key[0]} ON {self.node.name} CANCELLED AT {stamp}{due} ***\n"
            self._last_words = LastWords(self.node.loop, self._end_if_nothing_left)
            if self._batch_runs:
                self._last_words.say(line, self._stderr_path, self.identity)
            else:  # its files are not open yet, and would be emptied after it was said
                self._unsaid = line
        for step in self.steps.values():
            step.announce_end(cause)

    def say(self, text: str, at: float) -> None:
        """Writes a line into the script's stderr, or where there is no script into its steps'; that of a time once."""
        if (at, text) in self._said or len(self._said) >= _SAID_AT_MOST:
            return
        self._said.add((at, text))
        line = f"slurmstepd: warning: *** JOB {self.key[0]} ON {self.node.name}: {text} ***\n"
        if self._batch is not None and self._batch.ended is None and self._batch_runs:
            self._unsaid_notices.append(line)
            self._say_notices()
        elif self._batch is None:
            for step in self.steps.values():
                step.say(line)

    def _say_notices(self) -> None:
        """One child after the other: two at once would write in either order."""
        is_saying = self._notices is not None and not self._notices.over
        if self._unsaid_notices and not is_saying and self._batch is not None and self._batch.ended is None:
            lines = "".join(self._unsaid_notices)
            self._unsaid_notices.clear()
            self._notices = LastWords(self.node.loop, self._say_notices)
            self._notices.say(lines, self._stderr_path, self.identity)

    # --- usage ---------------------------------------------------------------------------------------------

    def tasks_by_step(self) -> Iterator[tuple[int, list[Task]]]:
        if self._batch is not None and self._batch.ended is None:
            yield BATCH_STEP, [self._batch]
        for step in self.steps.values():
            if tasks := step.living_tasks():
                yield step.id, tasks

    def sample(self, table: dict[int, ProcessEntry]) -> None:
        for step, tasks in list(self.tasks_by_step()):
            for task in tasks:
                task.sample(table)
            if self.node.settings.kill_over_memory:
                self._end_if_over_memory(step, sum(task.resident_kib for task in tasks))

    def _end_if_over_memory(self, step: int, used_kib: int) -> None:
        """What nothing confines and a sample finds above its memory is killed, and told why in Slurm's words."""
        allowed_kib = self._order.share.memory_mib << 10
        if allowed_kib <= 1024 or used_kib <= allowed_kib or step in self._over_memory:
            return
        self._over_memory.add(step)
        name = f"{self._order.label or self.key[0]}.{step_label(step)}"
        amounts = f"({used_kib << 10} > {allowed_kib << 10})"
        why = (
            f"slurmstepd: error: StepId={name} exceeded memory limit {amounts}, being killed\n"
            "slurmstepd: error: Exceeded job memory limit\n"
        )
        if step != BATCH_STEP:
            self.steps[step].end_over_memory(why)
        elif self._keeper is not None:
            self._last_words = LastWords(self.node.loop, self._end_if_nothing_left)
            self._last_words.say(why, self._stderr_path, self.identity)
            self._keeper.kill(self.unkillable_s, self._unkillable)

    def has_unsampled_tasks(self) -> bool:
        return any(not task.was_sampled for _, tasks in self.tasks_by_step() for task in tasks)

    def awaited(self) -> tuple[str, ...]:
        return self._boxes.awaited()

    def live_usage(self) -> dict[str, Usage]:
        return {
            step_label(step): merge_usage(task.live_usage(self.node.name) for task in tasks)
            for step, tasks in self.tasks_by_step()
        }


def _failed_prolog(code: int) -> list[str]:
    """A program in the place of a batch script: it says what Slurm says, and ends as the task prolog did."""
    return ["/bin/sh", "-c", f"echo 'slurmstepd: error: TaskProlog failed status={code}' >&2; exit {code}"]
