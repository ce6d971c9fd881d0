"""The agent's side of its keepers: which there are, what they are told, what is heard from them.

`jobs` takes one for a batch script, `steps` one for each step, and gives it back when nothing is left below it; the
next script or step gets it. A keeper that is killed (by root, or by a job of the agent's own user) does not set its
processes free: the kernel hands them to the agent, a subreaper too, which then ends all of them.

Invariant: a keeper is given back, and what it holds is called over, only when nothing is left below it, in its cgroup,
or among what it left to the agent.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from bireme.agent.confining.tracking import Tracking, TrackingGroup
from bireme.agent.keeping.keeper import run_keeper
from bireme.agent.keeping.keeper_words import (
    MAX_FDS,
    Begun,
    Emptied,
    Ended,
    Kill,
    NotBegun,
    Order,
    Told,
    read_told,
    spawn_order,
)
from bireme.agent.keeping.regrouped import Regrouped, Regrouping, begin_regrouped
from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.protocol import LineSplitter
from bireme.agent.starting.spawn import Birth, Spawned, SpawnError
from bireme.agent.system.descriptors import receive_fds
from bireme.agent.system.forking import fork_deaf
from bireme.agent.system.loop import READ, WRITE, Loop, Timer
from bireme.agent.system.processes import (
    ProcessEntry,
    ProcessIdentity,
    is_alive,
    kill_tree,
    living_below,
    own_children,
    process_identity,
    read_process,
    send_signal,
    signal_all,
    signal_tree,
)
from bireme.agent.system.reaper import ExitStatus, ReapedChild
from bireme.agent.system.usage import TaskUsage

log = logging.getLogger("bireme.agent")

Exited = Callable[[ReapedChild], None]

_IDLE_KEPT = 16
_IDLE_S = 10.0
"""More than so many are kept idle for so long: a fork costs as much as the jobs that it would serve."""
_NOT_SAID = frozenset((errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOMEM, errno.ENOBUFS))
"""What the agent may lack when it says an order, which the keeper has nothing of then."""
_TAKES_S = 60.0
"""A keeper takes orders at once, or when a file of its user's lets it go on. One that takes none for so long was
stopped by somebody or will never go on, and is replaced."""
_HARDER_S = 0.5
_LOOK_AGAIN_S = 0.05
_STUBBORN_S = 0.5
"""Between looks at what cannot be killed."""
_REFUSED_S = 300.0
"""A group that could not be had is not asked for again before."""
_PATIENCE_AT_EXIT_S = 5.0


@dataclass(slots=True)
class _Order:
    """A start that a keeper was told of, and has not answered."""

    spawned: Callable[[Spawned], None]
    failed: Callable[[SpawnError], None]
    signals: list[tuple[int, Set[ProcessIdentity]]] = field(default_factory=list)
    """That came meanwhile, each with those who were there to get it."""

    def hand_over_signals(self, process: ProcessIdentity | None) -> None:
        for number, reached in self.signals:
            if process is not None and process not in reached:
                signal_tree([process], number)


def signal_below(keepers: Iterable[Keeper], *numbers: int) -> set[ProcessIdentity]:
    """Signals all that is alive below these keepers, and what is on its way there; returns the former.

    However many keepers and signals there are, the process table is read once.
    """
    busy = [keeper for keeper in keepers if not keeper.empty]
    living = living_below([keeper.pid for keeper in busy if keeper.alive])
    living = living.union(*(keeper.living() for keeper in busy if not keeper.alive))
    for number in numbers:
        signal_all(living, number)
        for keeper in busy:
            keeper.owe(number, living)
    return living


class Keeper:
    """One keeper process. Whoever has it sets `on_empty`, which is called each time that nothing is left."""

    def __init__(
        self,
        pool: KeeperPool,
        pid: int,
        channel: socket.socket,
        group: TrackingGroup | None,
        *,
        child: int | None = None,
        gid: int | None = None,
    ) -> None:
        """`child`: the agent's own child, where the keeper is below another (`regrouped`); `gid`: its group then."""
        self.pid = pid
        self.child = pid if child is None else child
        self.gid = os.getegid() if gid is None else gid
        self.process = process_identity(pid) or ProcessIdentity(pid, -1, "")
        self.group = group
        self.alive = True
        self.on_empty: Callable[[], None] = _nobody_asks
        self._pool = pool
        self._loop = pool.loop
        self.channel = channel
        self._splitter = LineSplitter()
        self._tasks: set[int] = set()
        self._said_empty = True
        self._awaited: deque[_Order] = deque()
        """Starts that were ordered and not answered."""
        self._first_ticks = 0
        """When the first task of its present use was started, in the kernel's clock."""
        self._others: set[ProcessIdentity] = set()
        """Children of the agent that it did not start, when this keeper still held all of its own."""
        self._met: set[ProcessIdentity] = set()
        """What it left to the agent and was alive at the last look."""
        self._report_fds: deque[int] = deque()
        """That came with answers, in their order."""
        self._timers: list[Timer] = []
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        """Orders that it did not take yet, with copies of their descriptors."""
        self._patience: Timer | None = None
        self._loop.watch(channel.fileno(), READ, self._ready)

    @property
    def empty(self) -> bool:
        """Whether nothing is left below it, and nothing that was ordered is about to be."""
        return self._said_empty and not self._awaited

    # --- starting ------------------------------------------------------------------------------------------

    def start(
        self,
        birth: Birth,
        spawned: Callable[[Spawned], None],
        failed: Callable[[SpawnError], None],
        *,
        by_shell: bool = True,
    ) -> None:
        """Orders a process below this keeper and returns; one of the two is called later, never within this call.

        The descriptors of `birth` may be closed at once. The process's end is told to `on_exit`'s callback.
        """
        if not self.alive:
            self._loop.call_later(0, lambda: failed(self._lost_answer()))
            return
        if self.empty:
            self._others = set()
            self._first_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self._awaited.append(_Order(spawned, failed))
        order, fds = spawn_order(birth, by_shell=by_shell)
        try:
            self._say(order, fds)
        except OSError as error:
            if error.errno in _NOT_SAID:
                self._loop.call_later(0, partial(self._not_said, self._awaited.pop(), error))
            else:
                self._give_up()

    def _not_said(self, order: _Order, error: OSError) -> None:
        """The agent lacks something: this start failed, and what the keeper holds goes on."""
        self._loop.guarded(order.failed, SpawnError("set up", error.errno or 0, error.strerror or str(error)))
        if self.empty:
            self._calm_down()
            self.on_empty()

    def _say(self, order: Order, fds: list[int]) -> None:
        """Says it, or keeps it until it is taken. Raises OSError."""
        line, sent = encode_typed(order), 0
        if not self._unsent:
            with suppress(BlockingIOError):
                sent = socket.send_fds(self.channel, [line], fds)
        if sent < len(line):
            self._unsent.append((line[sent:], [] if sent else _copies(fds)))
            self._loop.rewatch(self.channel.fileno(), READ | WRITE)
            self._patience = self._patience or self._loop.call_later(_TAKES_S, self._give_up)

    def _send_rest(self) -> None:
        while self._unsent:
            line, fds = self._unsent[0]
            sent = socket.send_fds(self.channel, [line], fds)
            for fd in fds:
                os.close(fd)
            if sent < len(line):
                self._unsent[0] = (line[sent:], [])
                return
            self._unsent.popleft()
        self._loop.rewatch(self.channel.fileno(), READ)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_exit(self, pid: int, callback: Exited) -> None:
        """Calls back when a task has ended, also when its keeper has died: it is then the agent's own child."""
        self._loop.on_exit(pid, lambda reaped: self._task_exited(pid, callback, reaped))

    def _task_exited(self, pid: int, callback: Exited, reaped: ReapedChild) -> None:
        self._tasks.discard(pid)
        callback(reaped)

    def _answered(self, answer: Begun | NotBegun) -> None:
        order = self._awaited.popleft()
        if isinstance(answer, NotBegun):
            order.failed(SpawnError(answer.stage, answer.errno, answer.text))
            return
        self._tasks.add(answer.pid)
        has_report = answer.has_report and self._report_fds  # else the agent had no descriptor left for it
        report_fd = self._report_fds.popleft() if has_report else -1
        # Without its report a shell that ran the program cannot be told from one that gave up: it is not begun again.
        order.spawned(Spawned(answer.pid, report_fd, answer.by_shell and report_fd >= 0))
        if order.signals:
            order.hand_over_signals(self.process_of(answer.pid))

    def _lost_answer(self) -> SpawnError:
        return SpawnError("set up", errno.EPIPE, f"the keeper of this task (pid {self.pid}) was killed or stopped")

    # --- hearing -------------------------------------------------------------------------------------------

    def _receive(self) -> list[Told]:
        data, fds, _ = receive_fds(self.channel, 1 << 16, MAX_FDS)
        self._report_fds.extend(fds)
        if not data:
            raise ConnectionResetError("the keeper is gone")
        return [read_told(line) for line in self._splitter.feed(data)]

    def _ready(self, events: int) -> None:
        if events & WRITE:
            try:
                self._send_rest()
            except BlockingIOError:
                pass
            except OSError:
                self._give_up()
                return
        if events & ~WRITE:
            self._readable()

    def _readable(self) -> bool:
        """Hears what it said; False when that was nothing."""
        try:
            messages = self._receive()
        except BlockingIOError:
            return False
        except OSError:
            self._give_up()
            return False
        for message in messages:
            if isinstance(message, Begun):
                self._said_empty = False
            elif isinstance(message, Emptied) or (isinstance(message, Ended) and message.empty):
                self._said_empty = True
        for message in messages:
            self._loop.guarded(self._understand, message)
        return True

    def _understand(self, message: Told) -> None:
        if isinstance(message, Begun | NotBegun):
            self._loop.guarded(self._answered, message)
        elif isinstance(message, Ended):
            self._loop.hand_over(ReapedChild(message.pid, ExitStatus.from_wait(message.status), message.usage))
        if self.empty:
            self._calm_down()
            self.on_empty()

    # --- ending --------------------------------------------------------------------------------------------

    def living(self) -> set[ProcessIdentity]:
        """What is alive below it now."""
        return set() if self.empty else living_below([self.pid]) if self.alive else self._strangers()

    def process_of(self, pid: int) -> ProcessIdentity | None:
        """The task with this pid, unless it ended: the keeper may have waited for it, and another have its pid."""
        entry = read_process(pid)
        parent = self.pid if self.alive else os.getpid()
        return entry.identity if entry is not None and entry.ppid == parent else None

    def owe(self, number: int, reached: Set[ProcessIdentity]) -> None:
        """Sends a signal to what it was ordered to start, once that is there; not to these, which have got it."""
        for order in self._awaited:
            order.signals.append((number, reached))

    def kill(self, unkillable_s: float, on_unkillable: Callable[[set[ProcessIdentity]], None]) -> None:
        """SIGKILLs everything below it until nothing is left; after so many seconds in vain that is told, once."""
        if self.empty:
            return
        with suppress(OSError):
            self._say(Kill(), [])
        if not self._timers:
            self._timers.append(self._loop.call_later(_HARDER_S, self._kill_harder))
            told = self._loop.call_later(unkillable_s, lambda: None if self.empty else on_unkillable(self.living()))
            self._timers.append(told)

    def _kill_harder(self) -> None:
        """The whole cgroup in one act, the keeper too: what is left then is the agent's own, and soon nobody's.

        Without a cgroup what is below it is struck from here, once: a keeper that starts a program goes on when that
        program, held up by a file of its user's, is dead.
        """
        if self.empty:
            return
        send_signal(self.process, signal.SIGCONT)  # somebody may have stopped it
        if self.group is not None and self.alive:
            self._note_others()
            self.group.kill()
        elif self.alive:
            signal_all(living_below([self.pid]), signal.SIGKILL)

    def _calm_down(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # --- losing it -----------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """Gives up a keeper that was killed or does not answer: what it held is the agent's now, and is ended."""
        if not self.alive:
            return
        self._note_others()
        self._hang_up()
        send_signal(self.process, signal.SIGKILL)
        if not self.empty:
            log.warning("keeper %d was killed: what it held is ended", self.pid)
        self._loop.call_later(0, self._end_strangers)

    def _note_others(self) -> None:
        """Daemons of a prolog, say. Only while it lives: what it held is the agent's from its end on."""
        others = {entry.identity for entry in self._unknown_children()}
        if is_alive(self.process):
            self._others = others

    def _end_strangers(self, look_again_s: float = _LOOK_AGAIN_S) -> None:
        if is_alive(self.process):
            self._loop.call_later(_LOOK_AGAIN_S, self._end_strangers)
            return
        left = set() if self.empty else self._strangers()
        in_group = self.group is not None and not self.group.kill()
        if left or in_group:
            if left <= self._met:  # they cannot be killed now
                signal_all(left, signal.SIGKILL)
                again_s = min(look_again_s * 2, _STUBBORN_S)
            else:
                kill_tree(left, sessions=False)
                again_s = _LOOK_AGAIN_S
            self._met = left
            self._loop.call_later(again_s, lambda: self._end_strangers(again_s))
            return
        for pid in list(self._tasks):  # its end was seen by the keeper alone
            self._loop.hand_over(ReapedChild(pid, ExitStatus(0, signal.SIGKILL), TaskUsage()))
        while self._awaited:
            self._loop.guarded(self._awaited.popleft().failed, self._lost_answer())
        was_empty, self._said_empty = self._said_empty, True
        if not was_empty:
            self._calm_down()
            self.on_empty()
        self._pool.lost(self)

    def _strangers(self) -> set[ProcessIdentity]:
        """Its tasks, and children of the agent that the agent did not start: orphans that only a keeper's death gives
        it. Older ones than the keeper's present use are of a prolog."""
        recent = {entry.identity for entry in self._unknown_children() if entry.start_ticks >= self._first_ticks}
        found = recent - self._others
        return found | living_below([process.pid for process in found])

    def _unknown_children(self) -> list[ProcessEntry]:
        """Living children of the agent that are none of its own, and the tasks of this keeper."""
        known = self._loop.children.keys() - self._tasks
        entries = (read_process(pid) for pid in own_children() - known)
        return [entry for entry in entries if entry is not None and not entry.is_dead]

    def heard_out(self) -> None:
        """Hears a keeper out whose process ended: what it said last may still lie in the channel."""
        while self._readable():
            pass
        self._give_up()  # also when a process on its way to its program still holds the other end open

    def dismiss(self) -> None:
        """Ends the keeper, and whatever is below it."""
        if self.alive:
            self._hang_up()

    def _hang_up(self) -> None:
        self.alive = False
        self._loop.unwatch(self.channel.fileno())
        self.channel.close()
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _copies(fds: list[int]) -> list[int]:
    """All of them or none. Raises OSError."""
    with ExitStack() as made:
        copies = []
        for fd in fds:
            copies.append(os.dup(fd))
            made.callback(os.close, copies[-1])
        made.pop_all()
        return copies


class Grouping:
    """Somebody waits for a keeper of another group, and is told once; never when it was cancelled before."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def cancel(self) -> None:
        self._done = _nobody_asks

    def over(self) -> None:
        done, self._done = self._done, _nobody_asks
        done()


class KeeperPool:
    """All keepers of one agent."""

    def __init__(self, loop: Loop, tracking: Tracking) -> None:
        self.loop = loop
        self.tracking = tracking
        self._idle: list[Keeper] = []
        """The one that was given back last is the last."""
        self._trimming: Timer | None = None
        self._fewest_idle = 0
        """Since the last look at how many there are."""
        self._all: dict[int, Keeper] = {}
        self._refused: dict[int, float] = {}
        """Groups that could not be had, until when they are not asked for again."""
        self._coming: dict[Grouping, Regrouping] = {}
        """Keepers of other groups that `sg` is asked for."""

    def prepare(self, gid: int, done: Callable[[], None]) -> Grouping | None:
        """Has a keeper of this group made, for who takes it when `done` is called, from the loop.

        None: there is nothing to wait for, since there is one, or none can be had. Raises OSError.
        """
        refused = time.monotonic() < self._refused.get(gid, 0.0)
        if gid == os.getegid() or refused or self._idle_of(gid) is not None:
            return None
        grouping = Grouping(done)
        return grouping if self._regroup(gid, grouping) else None

    def take(self, gid: int | None = None) -> Keeper:
        """A keeper with nothing below it. Raises OSError when none can be made.

        `gid`: the group that what it starts is to have, if it was prepared; `Keeper.gid` says which it is, where that
        cannot be had.
        """
        wanted = os.getegid() if gid is None else gid
        keeper = self._idle_of(wanted)
        if keeper is not None:
            self._idle.remove(keeper)
            self._fewest_idle = min(self._fewest_idle, len(self._idle))
            return keeper
        return self._fork() if wanted == os.getegid() else self.take()

    def _idle_of(self, gid: int) -> Keeper | None:
        return next((keeper for keeper in reversed(self._idle) if keeper.alive and keeper.gid == gid), None)

    def give_back(self, keeper: Keeper) -> None:
        assert keeper.empty, "a keeper is used again only when nothing is left below it"
        keeper.on_empty = _nobody_asks
        if not keeper.alive:
            return
        self._idle.append(keeper)
        if len(self._idle) > _IDLE_KEPT and self._trimming is None:
            self._fewest_idle = len(self._idle)
            self._trimming = self.loop.call_later(_IDLE_S, self._trim)

    def _trim(self) -> None:
        """Dismisses as many as were idle all the time."""
        self._trimming = None
        for _ in range(min(self._fewest_idle, len(self._idle) - _IDLE_KEPT)):
            self._idle.pop(0).dismiss()
        if len(self._idle) > _IDLE_KEPT:
            self._fewest_idle = len(self._idle)
            self._trimming = self.loop.call_later(_IDLE_S, self._trim)

    def lost(self, keeper: Keeper) -> None:
        """Forgets a keeper that has ended, when nothing is left of what it held."""
        self._all.pop(keeper.child, None)
        if keeper.group is not None:
            keeper.group.remove()

    def close(self) -> None:
        """Ends every keeper, and what is below them; returns when they are gone, or after a few seconds."""
        for coming in self._coming.values():
            coming.abandon()
        keepers = list(self._all.values())
        for keeper in keepers:
            keeper.dismiss()
        for keeper in keepers:
            _await_end(keeper.child)
            if keeper.group is not None:
                keeper.group.remove()
        self.tracking.close()

    def _fork(self) -> Keeper:
        group = self.tracking.make_group()
        with ExitStack() as undone:
            if group is not None:
                undone.callback(group.remove)
            ours, theirs = socket.socketpair()
            undone.callback(ours.close)
            with theirs:
                pid = fork_deaf()
                if pid == 0:
                    run_keeper(theirs, group.enter if group is not None else _nobody_asks)
            undone.pop_all()
        return self._welcome(Keeper(self, pid, ours, group))

    def _regroup(self, gid: int, grouping: Grouping) -> bool:
        """Whether it is on its way; if not, it cannot be had."""
        with ExitStack() as undone:
            group = self.tracking.make_group()
            if group is not None:
                undone.callback(group.remove)
            enter = group.enter if group is not None else _nobody_asks
            coming = begin_regrouped(
                self.loop, gid, enter, os.environ, lambda made: self._regrouped(gid, made, group, grouping)
            )
            if coming is not None:
                self._coming[grouping] = coming
                undone.pop_all()
        if coming is None:
            self._refused[gid] = time.monotonic() + _REFUSED_S
        return coming is not None

    def _regrouped(self, gid: int, made: Regrouped | None, group: TrackingGroup | None, grouping: Grouping) -> None:
        del self._coming[grouping]
        if made is not None:
            made_keeper = Keeper(self, made.keeper, made.channel, group, child=made.child, gid=gid)
            self._idle.append(self._welcome(made_keeper))
        else:
            self._refused[gid] = time.monotonic() + _REFUSED_S
            if group is not None:
                group.remove()
        grouping.over()

    def _welcome(self, keeper: Keeper) -> Keeper:
        keeper.channel.setblocking(False)
        self._all[keeper.child] = keeper
        self.loop.on_exit(keeper.child, lambda _reaped: self._ended(keeper))
        return keeper

    def _ended(self, keeper: Keeper) -> None:
        if keeper in self._idle:
            self._idle.remove(keeper)
        if not keeper.alive:  # dismissed, or already given up
            if keeper.empty:
                self.lost(keeper)
            return
        keeper.heard_out()


def _await_end(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([pidfd], [], [], _PATIENCE_AT_EXIT_S)
    finally:
        os.close(pidfd)


def _nobody_asks() -> None:
    """Nothing to do: an idle keeper has nobody to tell."""
