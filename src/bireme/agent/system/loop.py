"""The agent's event loop: descriptors, timers, ended children. One thread, epoll, nothing else.

`asyncio` would do the same with a task switch and several objects for each event; an agent that starts thousands
of processes a minute feels that. Callbacks here are plain functions that never wait.

Invariant: a callback that raises is logged and the loop goes on; nobody's mistake ends the agent and with it the
jobs of others.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import signal
import time
from collections.abc import Callable

from bireme.agent.system.reaper import ReapedChild, reap_exited

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

log = logging.getLogger("bireme.agent")


class Timer:
    """A call that will be made later, unless cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._on_ready: dict[int, Callable[[int], None]] = {}
        self._fresh: set[int] = set()
        """Watched since the kernel was last asked: what it said of such a number was about another descriptor."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_numbers = itertools.count()
        self._children: dict[int, Callable[[ReapedChild], None]] = {}
        self._running = False
        self.before_wait: list[Callable[[], None]] = []
        """Called once per turn, after all events and before waiting: where writes are flushed together."""
        self.on_stop: Callable[[], None] | None = None
        """Called on SIGTERM."""
        self._wake_fd = self._catch_signals()

    # --- descriptors ---------------------------------------------------------------------------------------

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._on_ready[fd] = callback
        self._fresh.add(fd)
        self._epoll.register(fd, events)

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        if self._on_ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # --- time ----------------------------------------------------------------------------------------------

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_numbers), timer))
        return timer

    # --- children ------------------------------------------------------------------------------------------

    @property
    def children(self) -> dict[int, Callable[[ReapedChild], None]]:
        """The processes this agent started and has not collected yet."""
        return self._children

    def on_exit(self, pid: int, callback: Callable[[ReapedChild], None]) -> None:
        self._children[pid] = callback

    def hand_over(self, reaped: ReapedChild) -> None:
        """Tells of the end of a process that somebody else waited for; once, whoever tells it first."""
        callback = self._children.pop(reaped.pid, None)
        if callback is not None:
            self.guarded(callback, reaped)

    # --- running -------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._running = True
        while self._running:
            for hook in self.before_wait:
                self.guarded(hook)
            ready = self._epoll.poll(self._patience())
            self._fresh.clear()
            for fd, events in ready:
                callback = self._on_ready.get(fd)
                if callback is not None and fd not in self._fresh:
                    self.guarded(callback, events)
            self._run_due_timers()
        for hook in self.before_wait:
            self.guarded(hook)

    def stop(self) -> None:
        self._running = False

    def _patience(self) -> float:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._running:
            return 0
        if not self._timers:
            return -1
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _run_due_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self.guarded(callback)

    def _catch_signals(self) -> int:
        """SIGCHLD and SIGTERM wake the loop through a pipe; nothing is done in the middle of anything."""
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.watch(read_fd, READ, self._on_signal)
        return read_fd

    def _on_signal(self, _events: int) -> None:
        numbers = os.read(self._wake_fd, 4096)
        self._collect_children()
        if signal.SIGTERM in numbers and self.on_stop is not None:
            self.on_stop()

    def _collect_children(self) -> None:
        for reaped in reap_exited():  # what nobody asked for is an orphan that a keeper's death or a prolog left
            self.hand_over(reaped)

    @staticmethod
    def guarded(callback: Callable[..., None], *arguments: object) -> None:
        """Calls it; what it raises is logged, and keeps nobody from the next thing to do."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("a callback failed; the agent goes on")
