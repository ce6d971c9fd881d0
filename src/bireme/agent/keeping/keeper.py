"""A keeper: the small process above one batch script or one step, from which nothing of it can get away.

It is a child subreaper: a process that loses its parent, however often it forked, under whatever name, session,
namespace or environment, becomes the keeper's own child. So the kernel itself answers whether anything is left (a
process without children has none to wait for), and everything that is left can be found from here.

The agent forks it (`keepers`), has it start tasks, hears how they ended and when nothing is left, and tells it to
kill. It starts nothing by itself. When the agent goes (its end of the channel closes), the keeper kills what is below
it and ends: an agent that dies leaves nothing behind, whether or not another one follows.

One keeper serves many scripts and steps, one after the other: between two of them it has no child, which is the proof
that nothing of the last one is left. That is why tracking costs a message and not a fork.

What the two say to each other is in `keeper_words`.

Invariant: "empty" is only said when this process has no child, zombies and clones included.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from bireme.agent.keeping.keeper_words import (
    MAX_FDS,
    Begun,
    Emptied,
    Ended,
    NotBegun,
    Spawn,
    Told,
    ordered_birth,
    read_order,
)
from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.protocol import LineSplitter
from bireme.agent.starting.spawn import Birth, Spawned, SpawnError, spawn
from bireme.agent.starting.swift import spawn_into_box, spawn_swiftly
from bireme.agent.system.descriptors import close_all_but, receive_fds
from bireme.agent.system.processes import (
    ProcessEntry,
    ProcessIdentity,
    descendants,
    newest_pid,
    parent_of,
    process_table,
    send_signal,
)
from bireme.agent.system.reaper import become_subreaper, has_children, reap_all

CHANNEL_FD = 3
"""Where a keeper has its end of the channel."""
_READ_BYTES = 1 << 16
"""More would be mapped and unmapped for every order."""
_PR_SET_NAME = 15
_NAME = b"bireme-keeper"
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CHASE_S = 0.02
"""How long a round of killing looks at new pids alone: one that forks and ends faster than the process table can be
read is caught this way."""
_BETWEEN_ROUNDS_S = 0.005
_STUBBORN_S = 0.5
"""Between rounds when the last one met the same processes as the one before: they cannot be killed now."""
_MANY_PIDS = 4096


def run_keeper(channel: socket.socket, enter: Callable[[], None]) -> NoReturn:
    """In a fresh fork of the agent: becomes a keeper, and ends with it. `enter` moves it into its cgroup."""

    def live() -> None:
        _leave_the_agent(channel)
        enter()
        _serve(socket.socket(fileno=CHANNEL_FD))

    _end_after(live)


def serve_channel(channel: socket.socket) -> NoReturn:
    """A keeper for whoever is at the other end, until that one is gone and nothing is left."""
    _end_after(lambda: _serve(channel))


def _end_after(live: Callable[[], None]) -> NoReturn:
    """This process ends here, whatever happens, and its agent's log says what did."""
    code = 1
    try:
        live()
        code = 0
    except BaseException:
        with suppress(OSError):
            os.write(2, b"a keeper fails:\n" + traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def _serve(channel: socket.socket) -> None:
    os.set_inheritable(channel.fileno(), False)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()  # what is shared with the agent stays shared
    gc.disable()
    become_subreaper()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    _Keeper(channel).run()


def _leave_the_agent(channel: socket.socket) -> None:
    """Nothing of the agent is kept open: its lock, its connections, the channels of other keepers."""
    os.setsid()
    channel_fd = channel.detach()
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    if channel_fd != CHANNEL_FD:
        os.dup2(channel_fd, CHANNEL_FD)
    close_all_but(range(CHANNEL_FD + 1))
    signal.set_wakeup_fd(-1)


def _spawned(birth: Birth, *, by_shell: bool) -> Spawned:
    """By the swiftest way that this birth can be had."""
    pid = spawn_into_box(birth) if birth.entrance is not None else spawn_swiftly(birth)
    return Spawned(pid, -1) if pid is not None else spawn(birth, by_shell=by_shell)


class _Keeper:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._splitter = LineSplitter()
        self._fds: list[int] = []
        self._tasks: set[int] = set()
        """Started and not yet told of."""
        self._told_empty = True
        self._killing = False
        self._abandoned = False
        self._met: set[ProcessIdentity] = set()
        """Who was alive in the last round of killing."""
        self._wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        pause_s: float | None = None
        while not (self._abandoned and self._told_empty):
            for fd, _ in poll.poll(None if pause_s is None else pause_s * 1000):
                if fd == self._wake_fd:
                    os.read(fd, 4096)
                    self._collect()
                elif not self._hear():
                    poll.unregister(self._channel)
                    self._abandoned = self._killing = True
            pause_s = self._kill_round() if self._killing else None

    # --- orders --------------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """False when the agent is gone."""
        try:
            data, fds, flags = receive_fds(self._channel, _READ_BYTES, MAX_FDS)
        except OSError:
            return False
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "descriptors of an order were lost: it cannot be known of which")
        self._fds += fds
        for line in self._splitter.feed(data):
            order = read_order(line)
            if isinstance(order, Spawn):
                self._spawn(order)
            else:
                self._killing = not self._told_empty
        return bool(data)

    def _spawn(self, order: Spawn) -> None:
        # One read may bring the end of a long order together with the next one's beginning and descriptors.
        fds, self._fds = self._fds[: order.fds], self._fds[order.fds :]
        self._killing = False  # whoever starts something now wants it to run: the task epilog of a killed task
        birth = ordered_birth(order, fds)
        try:
            spawned = _spawned(birth, by_shell=order.by_shell)
        except SpawnError as error:
            self._tell(NotBegun(error.stage, error.errno, str(error)))
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._tasks.add(spawned.pid)
        self._told_empty = False
        answer = Begun(spawned.pid, spawned.by_shell, has_report=spawned.report_fd >= 0)
        if not answer.has_report:
            self._tell(answer)
            return
        with suppress(OSError):
            socket.send_fds(self._channel, [encode_typed(answer)], [spawned.report_fd])
        os.close(spawned.report_fd)

    def _tell(self, message: Told) -> None:
        with suppress(OSError):  # nobody listens any more: said in vain, and the channel's end is seen next
            self._channel.sendall(encode_typed(message))

    # --- ends ----------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        exited, some_left = reap_all()
        ended = [reaped for reaped in exited if reaped.pid in self._tasks]
        empty = not self._told_empty and not some_left
        for number, reaped in enumerate(ended, start=1):
            self._tasks.discard(reaped.pid)
            status = reaped.status.as_wait_status()
            self._tell(Ended(reaped.pid, status, reaped.usage, empty=empty and number == len(ended)))
        if empty:
            self._told_empty, self._killing = True, self._abandoned
            self._met.clear()
            if not ended:
                self._tell(Emptied())

    # --- killing -------------------------------------------------------------------------------------------

    def _kill_round(self) -> float | None:
        """Strikes at everything below this process; returns when to look again."""
        if self._told_empty:
            return None
        last = newest_pid()
        table = process_table()
        alive = self._strike(table)
        again_s = _STUBBORN_S if alive and alive <= self._met else _BETWEEN_ROUNDS_S
        self._met = alive
        if again_s == _BETWEEN_ROUNDS_S:
            self._chase(last)
        self._collect()
        return None if self._told_empty else again_s

    def _strike(self, table: dict[int, ProcessEntry]) -> set[ProcessIdentity]:
        """A child of ours keeps its pid and its group until we wait for it: those can be struck without another look.
        A group dies in one act, so that nothing in it forks meanwhile."""
        own, own_group = os.getpid(), os.getpgid(0)
        struck: set[ProcessIdentity] = set()
        for pid in descendants([own], table):
            entry = table[pid]
            struck.add(entry.identity)
            with suppress(ProcessLookupError, PermissionError):
                if entry.ppid != own:
                    send_signal(entry.identity, signal.SIGKILL)
                    continue
                if entry.group not in (own_group, 0):
                    os.killpg(entry.group, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        return struck

    def _chase(self, last: int) -> None:
        """Looks at pids that are given out from now on, and at nothing else."""
        until = time.monotonic() + _CHASE_S
        while time.monotonic() < until and has_children():
            newest = newest_pid()
            if not 0 < newest - last < _MANY_PIDS:
                if newest == last:
                    select.select([self._wake_fd], [], [], 0.0005)
                    self._collect()
                last = newest
                continue
            for pid in range(newest, last, -1):
                if self._is_below(pid):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            last = newest

    def _is_below(self, pid: int) -> bool:
        """Whether one of the few processes above it is this one; what lies deeper is found in the process table."""
        own = os.getpid()
        for _ in range(4):
            pid = parent_of(pid)
            if pid == own:
                return True
            if pid <= 1:
                return False
        return False
