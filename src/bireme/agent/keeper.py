"""A keeper: the small process above one batch script or one step, from which nothing of it can get away.

It is a child subreaper: a process that loses its parent, however often it forked, under whatever name, session,
namespace or environment, becomes the keeper's own child. So the kernel itself answers whether anything is left (a
process without children has none to wait for), and everything that is left can be found from here.

The agent forks it (`keepers`), has it start tasks, hears how they ended and when nothing is left, and tells it to
kill. It starts nothing by itself. When the agent goes (its end of the channel closes), the keeper kills what is below
it and ends: an agent that dies leaves nothing behind, whether or not another one follows.

One keeper serves many scripts and steps, one after the other: between two of them it has no child, which is the proof
that nothing of the last one is left. That is why tracking costs a message and not a fork.

Lines of JSON, descriptors beside them. Orders: `spawn`, answered by `spawned` (with the descriptor of a report, where
it is not sure yet that the program runs) or `failed`; `kill`. Told by itself: `exited` {status usage empty}, `empty`.

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
from typing import Any, NoReturn

from bireme.agent.descriptors import close_all_but, receive_fds
from bireme.agent.identity import Identity
from bireme.agent.lines import decode_line, encode_line
from bireme.agent.processes import (
    ProcessEntry,
    ProcessIdentity,
    descendants,
    newest_pid,
    parent_of,
    process_table,
    send_signal,
)
from bireme.agent.protocol import LineSplitter, Message
from bireme.agent.reaper import ReapedChild, become_subreaper, has_children, reap_exited
from bireme.agent.spawn import Birth, Spawned, SpawnError, TaskFile, spawn
from bireme.agent.swift import spawn_swiftly
from bireme.agent.usage import TaskUsage

MAX_FDS = 16
"""Descriptors that travel with one order."""
CHANNEL_FD = 3
"""Where a keeper has its end of the channel."""
_READ_BYTES = 1 << 20
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
                elif not self._hear():
                    poll.unregister(self._channel)
                    self._abandoned = self._killing = True
            self._collect()
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
            order = decode_line(line)
            if order["op"] == "spawn":
                self._spawn(order)
            else:
                self._killing = not self._told_empty
        return bool(data)

    def _spawn(self, order: Message) -> None:
        # One read may bring the end of a long order together with the next one's beginning and descriptors.
        count = order["fds"]
        fds, self._fds = self._fds[:count], self._fds[count:]
        self._killing = False  # whoever starts something now wants it to run: the task epilog of a killed task
        birth = birth_from(order["birth"], fds)
        try:
            swift = spawn_swiftly(birth)
            spawned = Spawned(swift, -1) if swift is not None else spawn(birth, by_shell=order["by_shell"])
        except SpawnError as error:
            self._tell({"failed": [error.stage, error.errno, str(error)]})
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._tasks.add(spawned.pid)
        self._told_empty = False
        answer = {"spawned": spawned.pid, "by_shell": spawned.by_shell, "report": spawned.report_fd >= 0}
        if not answer["report"]:
            self._tell(answer)
            return
        with suppress(OSError):
            socket.send_fds(self._channel, [encode_line(answer)], [spawned.report_fd])
        os.close(spawned.report_fd)

    def _tell(self, message: Message) -> None:
        with suppress(OSError):  # nobody listens any more: said in vain, and the channel's end is seen next
            self._channel.sendall(encode_line(message))

    # --- ends ----------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        ended = [reaped for reaped in reap_exited() if reaped.pid in self._tasks]
        empty = not self._told_empty and not has_children()
        for number, reaped in enumerate(ended, start=1):
            self._tasks.discard(reaped.pid)
            self._tell(exit_message(reaped, empty=empty and number == len(ended)))
        if empty:
            self._told_empty, self._killing = True, self._abandoned
            self._met.clear()
            if not ended:
                self._tell({"empty": True})

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


# --- what travels ------------------------------------------------------------------------------------------


_PLAIN = (
    "cwd",
    "umask",
    "nice",
    "new_session",
    "controlling_tty",
    "join_files",
    "pid_variable",
    "notice",
    "folder_patience_s",
    "sure",
)
"""Fields of a `Birth` that travel as they are."""


def birth_message(birth: Birth) -> tuple[Message, list[int]]:
    """What is to be started as plain data, and the descriptors beside it: in the data they are numbers of that list."""
    fds: list[int] = []

    def number(fd: int) -> int:
        fds.append(fd)
        return len(fds) - 1

    streams = [number(each) if isinstance(each, int) else [each.stream, each.path, each.mode] for each in birth.streams]
    who = birth.identity
    message: Message = {name: getattr(birth, name) for name in _PLAIN}
    message |= {
        "argv": list(birth.argv),
        "env": birth.env,
        "streams": streams,
        "identity": [who.uid, who.gid, who.groups] if who is not None else None,
        "rlimits": [[kind, *pair] for kind, pair in birth.rlimits.items()],
        "cpu_ids": sorted(birth.cpu_ids) if birth.cpu_ids is not None else None,
        "extra_fds": [[theirs, number(ours)] for theirs, ours in birth.extra_fds.items()],
        "greeting": birth.greeting.decode("latin-1"),
    }
    assert len(fds) <= MAX_FDS
    return message, fds


def birth_from(message: Message, fds: list[int]) -> Birth:
    """The other way."""
    streams = [fds[each] if isinstance(each, int) else TaskFile(*each) for each in message["streams"]]
    who, cpus = message["identity"], message["cpu_ids"]
    return Birth(
        argv=message["argv"],
        env=message["env"],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        identity=Identity(who[0], who[1], tuple(who[2])) if who is not None else None,
        rlimits={kind: (soft, hard) for kind, soft, hard in message["rlimits"]},
        cpu_ids=frozenset(cpus) if cpus is not None else None,
        extra_fds={theirs: fds[ours] for theirs, ours in message["extra_fds"]},
        greeting=message["greeting"].encode("latin-1"),
        **{name: message[name] for name in _PLAIN},
    )


def exit_message(reaped: ReapedChild, *, empty: bool) -> Message:
    used = reaped.usage
    figures = [used.user_cpu_s, used.system_cpu_s, used.max_rss_kib, used.read_bytes, used.written_bytes]
    status = reaped.status.as_wait_status()
    return {"exited": reaped.pid, "status": status, "usage": [*figures, used.major_page_faults], "empty": empty}


def usage_from(figures: list[Any]) -> TaskUsage:
    user, system, rss, read, written, faults = figures
    return TaskUsage(
        user_cpu_s=user,
        system_cpu_s=system,
        max_rss_kib=rss,
        read_bytes=read,
        written_bytes=written,
        major_page_faults=faults,
    )
