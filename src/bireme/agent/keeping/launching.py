"""A program's way from an order to a running process, told to whoever ordered it. The agent waits for none of it.

`jobs`, `steps` and `scripts` begin one for each process; `spawn` makes the process, called by its keeper or right here,
the loop says when its report or its end is there.

Invariant: nothing but `process` is called before `begin` returned. `started` is called exactly once, and `exited`
exactly once after it unless `started` told a failure. A process that is killed on its way to its program counts as
started.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.starting.spawn import Birth, Spawned, SpawnError, spawn
from bireme.agent.system.loop import READ, Loop
from bireme.agent.system.reaper import ReapedChild


class Launching:
    """`process`: told of the pid once there is one, and again when the start was begun anew as another process."""

    def __init__(
        self,
        loop: Loop,
        birth: Birth,
        *,
        process: Callable[[int], None],
        started: Callable[[SpawnError | None], None],
        exited: Callable[[ReapedChild], None],
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper`: below which it is to run; None: the agent itself, for what runs no program of a user's."""
        self._keeper = keeper
        self._loop = loop
        self._birth = birth
        self._process = process
        self._started = started
        self._exited = exited
        self._spawned: Spawned | None = None

    def begin(self, *, by_shell: bool = True) -> None:
        if self._keeper is not None:
            self._keeper.start(self._birth, self._has_process, self._started, by_shell=by_shell)
            return
        try:
            spawned = spawn(self._birth, by_shell=by_shell)
        except SpawnError as error:
            failure = error
            self._loop.call_later(0.0, lambda: self._started(failure))
            return
        self._has_process(spawned)

    def _has_process(self, spawned: Spawned) -> None:
        self._spawned = spawned
        on_exit = self._keeper.on_exit if self._keeper is not None else self._loop.on_exit
        on_exit(spawned.pid, self._ended)
        if spawned.report_fd >= 0:
            self._loop.watch(spawned.report_fd, READ, lambda _events: self._hear(spawned))
        self._process(spawned.pid)
        if spawned.report_fd < 0:  # how it went is not to be heard: its end will tell
            self._started(None)

    def _hear(self, spawned: Spawned) -> None:
        if not spawned.read_report():
            return
        self._close_report(spawned)
        # A failed child is about to end, and is spoken of when it has: then nothing of it is left.
        if spawned.failure() is None and not spawned.shell_gave_up:
            self._started(None)

    def _ended(self, reaped: ReapedChild) -> None:
        spawned = self._spawned
        assert spawned is not None
        assert spawned.pid == reaped.pid
        unheard = spawned.report_fd >= 0
        if unheard:  # the end was noticed before the report, which is complete by now
            spawned.read_report()
            self._close_report(spawned)
        failure = spawned.failure()
        if failure is not None:
            self._started(failure)
        elif spawned.shell_gave_up and not reaped.status.signal:
            self.begin(by_shell=False)
        else:
            if unheard or spawned.shell_gave_up:
                self._started(None)
            self._exited(reaped)

    def _close_report(self, spawned: Spawned) -> None:
        self._loop.unwatch(spawned.report_fd)
        os.close(spawned.report_fd)
        spawned.report_fd = -1
