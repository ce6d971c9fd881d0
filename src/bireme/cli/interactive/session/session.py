"""The loop of srun and sattach: frames of the nodes, our stdin, signals and timers, until every node is done.

It is given legs (one for each component of a heterogeneous step, usually one) that are connected already, and a
`Control` to end or signal the step through the daemon. It decides what Slurm's srun decides: what the first and the
second Ctrl-C do, --kill-on-bad-exit, --wait, and the exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bireme.agent.messages import protocol
from bireme.agent.stdio.stream_client import AWAY, BACK, LOST, Frame, StepStreams
from bireme.cli.interactive.session.outputs import Output
from bireme.cli.interactive.session.signals import SignalPipe
from bireme.cli.interactive.session.tally import Tally, TaskEnd, read_end, tasks_text
from bireme.cli.interactive.session.terminal import window_size
from bireme.commands.voice import Voice
from bireme.images.bar import Bar

_ABORT = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
_TELL_AFTER_S = 0.05
"""Ends are told this late, so that tasks which end together share a line."""
_INTERRUPT_WINDOW_S = 1.0
_NODE_FAILURE = TaskEnd(1, 0)
_STEP_CANCELLED_MARK = b" CANCELLED AT "


class Control(Protocol):
    """The step as the daemon knows it."""

    name: str
    """`42.0`"""

    def terminate(self, *, failed: bool = False) -> bool:
        """Ends the tasks: at once, or where one of them failed (`failed`) with a warning first.

        False: there is no daemon to do it.
        """

    def settings(self) -> Mapping[str, Any]:
        """The cluster's settings (kill_wait_s, kill_on_bad_exit). Asked for only when something goes wrong."""


@dataclass(slots=True)
class Leg:
    """One component's step: its connections, and where its tasks begin in the numbering of the whole srun."""

    streams: StepStreams
    control: Control
    first_task: int = 0


@dataclass(slots=True)
class Manners:
    """What the options say about the session."""

    stdin_fd: int | None = None
    """Where input for the tasks is read; None: they get end of file at once."""
    stdin_task: int = protocol.ALL_TASKS
    pty: bool = False
    kill_on_bad_exit: bool | None = False
    """None: as the cluster's KillOnBadExit says."""
    wait_s: int = 0
    disable_status: bool = False
    quit_on_interrupt: bool = False
    forward_signals: bool = True
    closes_input: bool = True
    """False for sattach: the end of its input is not the end of the step's."""
    tell_ends: bool = True


@dataclass(slots=True)
class Session:
    legs: list[Leg]
    tally: Tally
    stdout: Output
    stderr: Output
    voice: Voice
    manners: Manners
    clock: Callable[[], float] = time.monotonic
    _signals: SignalPipe | None = None
    _stdin_open: bool = False
    _stdin_watched: bool = False
    _first_untold: float | None = None
    _first_end: float | None = None
    _last_interrupt: float | None = None
    _terminated: bool = False
    _told_abort: bool = False
    _said_abort: bool = False
    _lost: list[str] = field(default_factory=list)
    _bar: Bar | None = None
    """Drawn while an image is fetched for the step."""

    def run(self) -> int:
        """Until all nodes are done; returns the step's exit code."""
        caught = [signal.SIGINT, signal.SIGWINCH, *_ABORT, *_FORWARDED]
        self._signals = SignalPipe(caught)
        lead = self.legs[0].streams
        lead.watch(self._signals.fileno(), "signal")
        self._begin_input()
        try:
            while not all(leg.streams.finished for leg in self.legs):
                for leg in self.legs:
                    self._serve(leg)
                self._timers()
            self._tell_ends()
            self._tell_killed()
        finally:
            self._clear_bar()
            self.stdout.finish_all()
            self.stderr.finish_all()
            self._signals.close()
        code = self.tally.exit_code()
        return max(code, 1) if self._lost else code

    # --- frames --------------------------------------------------------------------------------------------

    def _serve(self, leg: Leg) -> None:
        if leg.streams.finished:
            return
        frames, ready = leg.streams.poll(self._patience())
        for frame in frames:
            self._take(leg, frame)
        if "signal" in ready:
            assert self._signals is not None
            for number in self._signals.take():
                self._signalled(number)
        if "stdin" in ready:
            self._read_input()
        self._pace_input()

    def _patience(self) -> float | None:
        """How long to wait for the next frame: until a timer is due, for ever when none is."""
        if len(self.legs) > 1:
            return 0.02  # several selectors: each in turn
        dues = []
        if self._first_untold is not None:
            dues.append(self._first_untold + _TELL_AFTER_S)
        if self.manners.wait_s and self._first_end is not None and not self._terminated:
            dues.append(self._first_end + self.manners.wait_s)
        if self._stdin_open and not self._stdin_watched:
            dues.append(self.clock() + 0.02)
        return max(0.0, min(dues) - self.clock()) if dues else None

    def _take(self, leg: Leg, frame: Frame) -> None:
        if frame.kind == protocol.PROGRESS:
            self._show_progress(frame.value())
            return
        self._clear_bar()
        if frame.kind in (protocol.STDOUT, protocol.STDERR):
            self._take_output(leg, frame)
        elif frame.kind == protocol.TASK_EXITED:
            self._take_end(leg.first_task + frame.task, read_end(frame.value()))
        elif frame.kind == protocol.TASKS_STARTED:
            tasks = [leg.first_task + int(task) for task in frame.value()]
            self.tally.start(tasks)
            self.voice.detail(f"Node {frame.node}, {len(tasks)} tasks started")
        elif frame.kind == protocol.STEP_ENDED and frame.payload:
            self.tally.fail(int(frame.value()["code"]))
        elif frame.kind == protocol.MESSAGE:
            self.stderr.write_through(_whole_lines(frame.payload))
        elif frame.kind == LOST:
            self._lose(frame)
        elif frame.kind == AWAY:
            self.voice.say(f"Node {frame.node} cannot be reached for now; its tasks run on and their output is kept")
        elif frame.kind == BACK:
            self.voice.say(f"Node {frame.node} is reached again")

    def _show_progress(self, told: Mapping[str, Any]) -> None:
        if self._bar is None:
            self._bar = Bar(str(told["image"]))
        if self._bar.can_be_seen:
            self._bar.show(str(told["doing"]), int(told["done"]), int(told["of"]))
        elif told["line"] and self.manners.tell_ends:
            self.stderr.write_through(str(told["line"]).encode())

    def _clear_bar(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def _take_output(self, leg: Leg, frame: Frame) -> None:
        output = self.stdout if frame.kind == protocol.STDOUT else self.stderr
        if frame.task != protocol.ALL_TASKS:
            output.write(leg.first_task + frame.task, frame.payload)
            return
        if _STEP_CANCELLED_MARK in frame.payload:
            self._tell_abort()
        if self.manners.tell_ends:
            output.write_through(frame.payload)

    def _take_end(self, task: int, how: TaskEnd) -> None:
        self.stdout.finish(task)
        self.stderr.finish(task)
        if not self.tally.end(task, how):
            return
        now = self.clock()
        self._first_end = self._first_end if self._first_end is not None else now
        self._first_untold = self._first_untold if self._first_untold is not None else now
        if not how.ok and not self._terminated and not self.tally.all_ended and self._kills_on_bad_exit():
            self._tell_ends()
            self._told_abort = True  # Slurm says only that it terminates the step
            self._terminate(failed=True)

    def _kills_on_bad_exit(self) -> bool:
        if self.manners.kill_on_bad_exit is None:
            self.manners.kill_on_bad_exit = bool(self.legs[0].control.settings().get("kill_on_bad_exit"))
        return self.manners.kill_on_bad_exit

    def _lose(self, frame: Frame) -> None:
        reason = frame.payload.decode("utf-8", "replace")
        self._lost.append(frame.node)
        lost = self.tally.lose_node(frame.node, _NODE_FAILURE)
        if not self._terminated or lost:
            self.voice.error(f"Node failure on {frame.node}: {reason}")
        if lost:
            self._terminate(failed=True)

    # --- telling -------------------------------------------------------------------------------------------

    def _timers(self) -> None:
        now = self.clock()
        if self._first_untold is not None and now >= self._first_untold + _TELL_AFTER_S:
            self._tell_ends()
        wait_s = self.manners.wait_s
        if wait_s and self._first_end is not None and now >= self._first_end + wait_s and not self._terminated:
            self.voice.say(f"First task exited {wait_s}s ago")
            self._tell_states()
            self._terminate(said=True)

    def _tell_ends(self) -> None:
        self._first_untold = None
        for node, tasks, how in self.tally.take_untold():
            if how.ok:
                self.voice.detail(f"{node}: {tasks_text(tasks)}: Completed")
            elif self.manners.tell_ends:
                self.voice.error(f"{node}: {tasks_text(tasks)}: {how.words()}")

    def _tell_states(self) -> None:
        for line in self.tally.state_lines(self.legs[0].control.name):
            self.voice.say(line)

    def _tell_abort(self) -> None:
        if not self._told_abort:
            self._told_abort = self._said_abort = True
            seconds = int(self.legs[0].control.settings().get("kill_wait_s", 30)) + 2
            self.voice.say(f"Job step aborted: Waiting up to {seconds} seconds for job step to finish.")

    def _tell_killed(self) -> None:
        """Slurm's closing words on a step whose tasks somebody ended without asking srun."""
        if self.manners.tell_ends and not self._said_abort and self.tally.any_killed:
            for leg in self.legs:
                self.voice.say(f"Force Terminated StepId={leg.control.name}")

    # --- signals -------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        self._clear_bar()
        if number == signal.SIGWINCH:
            size = window_size(0) if self.manners.pty else None
            if size is not None:
                self.legs[0].streams.send_window_size(*size)
        elif not self.manners.forward_signals:
            raise KeyboardInterrupt
        elif number == signal.SIGINT:
            self._interrupted()
        elif number in _ABORT:
            self._force()
        else:
            self._send(number)

    def _interrupted(self) -> None:
        now = self.clock()
        again = self._last_interrupt is not None and now - self._last_interrupt <= _INTERRUPT_WINDOW_S
        self._last_interrupt = now
        if self._terminated:
            raise KeyboardInterrupt  # a third time: leave, the daemon goes on ending the step
        if self.manners.quit_on_interrupt:
            self._force()
        elif again or self.manners.disable_status:
            self.voice.say(f"sending Ctrl-C to StepId={self.legs[0].control.name}")
            self._send(signal.SIGINT)
            if again:
                self._force()
        else:
            self.voice.say("interrupt (one more within 1 sec to abort)")
            self._tell_states()

    def _send(self, number: int) -> None:
        for leg in self.legs:
            leg.streams.send_signal(number)

    def _force(self) -> None:
        self.voice.say("forcing job termination")
        self._tell_abort()
        self._terminate()

    def _terminate(self, *, failed: bool = False, said: bool = False) -> None:
        if self._terminated:
            return
        self._terminated = True
        for leg in self.legs:
            if (failed or said) and self.manners.forward_signals:
                self.voice.say(f"Terminating StepId={leg.control.name}")
            if not leg.control.terminate(failed=failed):
                leg.streams.send_signal(signal.SIGTERM if failed else signal.SIGKILL)

    def reader_gone(self) -> None:
        """Nobody reads our output any more (`srun ... | head`): the tasks are to end too, without a word."""
        self.voice.quiet = self._told_abort = True
        self.manners.tell_ends = False
        self._terminate()

    # --- input ---------------------------------------------------------------------------------------------

    def _begin_input(self) -> None:
        if self.manners.stdin_fd is None:
            for leg in self.legs:
                leg.streams.send_stdin(b"")
            return
        if self.manners.stdin_task != protocol.ALL_TASKS and self.manners.closes_input:
            self._end_input_of_others()
        self._stdin_open = True
        self._pace_input()

    def _end_input_of_others(self) -> None:
        for leg in self.legs:
            for task in self._tasks_of(leg):
                if task != self.manners.stdin_task:
                    leg.streams.send_stdin(b"", task - leg.first_task)

    def _tasks_of(self, leg: Leg) -> range:
        """In the numbering of the whole srun."""
        after = [other.first_task for other in self.legs if other.first_task > leg.first_task]
        return range(leg.first_task, min(after, default=len(self.tally.node_of)))

    def _pace_input(self) -> None:
        """Reads on only while the nodes take what was read before."""
        fd = self.manners.stdin_fd
        wanted = self._stdin_open and all(leg.streams.input_room() for leg in self.legs)
        if fd is None or wanted == self._stdin_watched:
            return
        lead = self.legs[0].streams
        if wanted:
            try:
                lead.watch(fd, "stdin")
            except PermissionError:  # epoll refuses plain files: they are always readable
                self._read_file(fd)
                return
        else:
            with contextlib.suppress(KeyError, ValueError, OSError):
                lead.unwatch(fd)
        self._stdin_watched = wanted

    def _read_file(self, fd: int) -> None:
        """One piece of a plain file; the next one comes when the nodes took this one."""
        self._forward_input(os.read(fd, 1 << 16))

    def _read_input(self) -> None:
        assert self.manners.stdin_fd is not None
        try:
            data = os.read(self.manners.stdin_fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # our terminal went away
            data = b""
        self._forward_input(data)

    def _forward_input(self, data: bytes) -> None:
        task = self.manners.stdin_task
        for leg in self.legs if data or self.manners.closes_input else ():
            if task == protocol.ALL_TASKS:
                leg.streams.send_stdin(data)
            elif task in self._tasks_of(leg):
                leg.streams.send_stdin(data, task - leg.first_task)
        if not data:
            self._stdin_open = False
            if self._stdin_watched and self.manners.stdin_fd is not None:
                self.legs[0].streams.unwatch(self.manners.stdin_fd)
                self._stdin_watched = False


def _whole_lines(payload: bytes) -> bytes:
    return payload if payload.endswith(b"\n") else payload + b"\n"
