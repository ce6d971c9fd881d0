"""The supervisor: hears the daemon, keeps the table, starts the workers and adds up what they did.

No request passes through it. It holds the workers' listening sockets, so that connections that come while a worker is
being started again wait in the kernel, and the memory in which they see each other's counts (`board`).

Invariants: what the daemon says is routed by, whether or not it can be written down (then that is tried again, and
said); `Took` is said when no worker goes by an older table; `Drained` only when, after that, nobody has a request on
the replica.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import cast

import msgspec

from bireme.agent.messages.protocol import listen_at
from bireme.router import inner, messages, table_file
from bireme.router.board import BLOCK, Blocks, Board, NoRoomError, mapped, new_memory
from bireme.router.control import Speaker, speaking_to
from bireme.router.loads import Loads
from bireme.router.messages import AnyOrder, AnyTold, Replica, Table
from bireme.router.rules import tables
from bireme.router.settings import Settings
from bireme.router.worker import Start, tls

log = logging.getLogger("bireme.router")

_BACKLOG = 4096
_GATHER_S = 0.05
"""All workers tell at the same moment: so long the last of them may take."""
_SOON_S = 1.0
"""A worker that ended sooner than this after its start is started again later and later."""
_LATEST_S = 5.0
_KILL_AFTER_S = 2.0
_WRITE_AGAIN_S = 2.0
"""After so long a table is written once more that could not be."""


class RouterError(Exception):
    """The router cannot start. The text says why and what to do."""


class _Worker:
    """A worker process, as the supervisor has it."""

    def __init__(self, row: int, listener: socket.socket) -> None:
        self.row = row
        self.listener = listener
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: asyncio.Transport | None = None
        self.applied = 0
        self.connections = 0
        self.started = 0.0
        self.falls = 0

    def tell(self, line: bytes) -> None:
        if self.channel is not None:
            self.channel.write(line)


class Supervisor:
    """Everything of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._epoch = secrets.token_hex(8)
        self._lock = _locked(settings.home)
        try:
            tls(settings)
        except OSError as error:
            raise RouterError(f"{settings.tls_certificate}, {settings.tls_key}: {error.strerror or error}") from error
        self._listeners = _listeners(settings)
        count = settings.worker_count
        self.port: int = self._listeners[0].getsockname()[1]
        self._memory = new_memory(count)
        self._board = Board(mapped(self._memory, count), count, None)
        self._kicks = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(count))
        self._workers = [_Worker(row, listener) for row, listener in enumerate(self._listeners)]
        self._blocks = Blocks()
        self._cells: dict[str, int] = {}
        self._loads = Loads()
        self._table = Table(serial=0)
        self._table_path = os.path.join(settings.home, "table")
        self._writing_again: asyncio.TimerHandle | None = None
        self._ails = ""
        """What is not well, though requests are answered."""
        self._daemon: Speaker | None = None
        self._took = 0
        self._told_drained: set[str] = set()
        self._woken: set[str] = set()
        """Services that a request waits for, as the daemon was told."""
        self._gathering: asyncio.TimerHandle | None = None
        self._is_ending = False
        self.done: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        path = os.path.join(self._settings.home, messages.SOCKET)
        control = await self._loop.create_unix_server(
            speaking_to(self), sock=listen_at(path, 16, for_everyone=False), start_serving=True
        )
        if self._settings.numbers_port:
            await self._loop.create_server(
                speaking_to(self, is_local_socket=False), "127.0.0.1", self._settings.numbers_port
            )
        kept = table_file.read(self._table_path)
        if kept is not None and not tables.mistake(kept):
            self._table = kept
        self._cells = self._blocks.give(inner.names_in(self._table))
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self.end)
        for worker in self._workers:
            self._start(worker)
        await self.done
        control.close()
        os.unlink(path)

    # --- what the daemon says ---

    def hear(self, order: AnyOrder, speaker: Speaker) -> None:
        if isinstance(order, messages.Hello):
            self._greet(speaker)
        elif isinstance(order, messages.Table):
            if speaker is self._daemon:
                self._take(order)
            else:
                speaker.say(messages.Refused(why="say hello first", serial=order.serial))
        elif isinstance(order, messages.AskNumbers):
            speaker.say(messages.Numbers(text=self.numbers(), id=order.id))
        else:
            speaker.say(messages.Pong(id=order.id))

    def gone(self, speaker: Speaker) -> None:
        if speaker is self._daemon:
            self._daemon = None
            log.info("the daemon is gone; routing goes on with table %d", self._table.serial)

    def numbers(self) -> str:
        connections = [worker.connections for worker in self._workers if worker.channel is not None]
        return self._loads.numbers(self._table, self._board, self._cells, connections)

    def _tell(self, message: AnyTold) -> None:
        if self._daemon is not None:
            self._daemon.say(message)

    def _greet(self, speaker: Speaker) -> None:
        if self._daemon is not None and self._daemon is not speaker:
            self._daemon.close()
        self._daemon = speaker
        self._told_drained.clear()
        self._tell(
            messages.Welcome(
                version=messages.VERSION,
                pid=os.getpid(),
                epoch=self._epoch,
                serial=self._table.serial,
                host=self._settings.host,
                port=self.port,
                tls=bool(self._settings.tls_certificate),
            )
        )
        if self._ails:
            self._tell(messages.Ails(why=self._ails))
        self._tell_took(again=True)
        for name in sorted(self._woken):
            if self._board.total(self._cells[inner.service_name(name)]):
                self._tell(messages.Wake(service=name))
        self._emit()

    def _take(self, table: Table) -> None:
        """A new table: it is gone by, or the one before is."""
        wrong = tables.mistake(table)
        if not wrong:
            try:
                cells = self._blocks.give(inner.names_in(table))
            except NoRoomError as error:
                wrong = str(error)
        if wrong:
            log.error("table %d is refused: %s", table.serial, wrong)
            self._tell(messages.Refused(why=wrong, serial=table.serial))
            return
        self._table, self._cells = table, cells
        draining = {replica.id for _, replica in self._draining()}
        self._told_drained &= draining
        ready = {each.name for each in table.services if any(one.state == "ready" for one in each.replicas)}
        self._woken -= ready
        self._woken &= {each.name for each in table.services}
        line = inner.line(inner.Apply(table, cells))
        for worker in self._workers:
            worker.tell(line)
        self._write_down()
        self._gather()

    def _write_down(self) -> None:
        """The table that is gone by, for the next router of this home; again and again until it is on disk."""
        if self._writing_again is not None:
            self._writing_again.cancel()
            self._writing_again = None
        ails = ""
        try:
            table_file.write(self._table_path, self._table)
        except OSError as error:
            ails = f"its table cannot be written to {self._table_path}: {error.strerror}"
            self._writing_again = self._loop.call_later(_WRITE_AGAIN_S, self._write_down)
        if ails != self._ails:
            self._ails = ails
            if ails:
                log.error("%s; routing goes on, a router that is started now would not know of what changed", ails)
            else:
                log.info("the table is on disk again")
            self._tell(messages.Ails(why=ails))

    # --- what the workers say ---

    def heard(self, worker: _Worker, line: bytes) -> None:
        said = inner.from_worker.decode(line)
        if isinstance(said, inner.Did):
            self._loads.add(worker.row, said)
            worker.connections = said.connections
            self._gather()
        elif isinstance(said, inner.Applied):
            worker.applied = said.serial
            self._tell_took()
        elif isinstance(said, inner.Waits):
            if said.service not in self._woken and inner.service_name(said.service) in self._cells:
                self._woken.add(said.service)
                self._tell(messages.Wake(service=said.service))
        elif isinstance(said, inner.Broke):
            self._tell(messages.Trouble(service=said.service, replica=said.replica, why=said.why))
        else:
            self._tell_drained()

    def _tell_took(self, *, again: bool = False) -> None:
        serial = self._table.serial
        if not serial or any(worker.applied != serial for worker in self._workers if worker.channel is not None):
            return
        if self._took != serial or again:
            self._took = serial
            self._tell(messages.Took(serial=serial))
            self._take_back()
        self._tell_drained()

    def _take_back(self) -> None:
        """Cells of what is in no table any more, and that nobody uses."""
        for name, cell in self._blocks.others(inner.names_in(self._table)).items():
            if not self._board.total(cell):
                self._board.clear(cell, BLOCK)
                self._blocks.take_back(name)

    def _draining(self) -> list[tuple[str, Replica]]:
        return [
            (service.name, replica)
            for service in self._table.services
            for replica in service.replicas
            if replica.state == "draining"
        ]

    def _tell_drained(self) -> None:
        if self._took != self._table.serial:
            return
        for service, replica in self._draining():
            if replica.id in self._told_drained or self._board.total(self._cells[inner.replica_name(replica.id)]):
                continue
            self._told_drained.add(replica.id)
            self._tell(messages.Drained(service=service, replica=replica.id))

    def _gather(self) -> None:
        """A Load soon, when all workers have told."""
        if self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._emit)

    def _emit(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._tell(self._loads.load(self._table, self._board, self._cells, time.time()))

    # --- processes ---

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        worker.applied = 0
        worker.started = time.monotonic()
        start = Start(
            self._settings,
            worker.row,
            len(self._workers),
            worker.listener.fileno(),
            theirs.fileno(),
            self._memory,
            self._kicks,
        )
        command = [sys.executable, "-m", "bireme.router", "--worker", msgspec.json.encode(start).decode()]
        passed = (worker.listener.fileno(), theirs.fileno(), self._memory, *self._kicks)
        worker.process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        theirs.close()
        pidfd = os.pidfd_open(worker.process.pid)
        self._loop.add_reader(pidfd, self._fell, worker, pidfd)
        self._loop.create_task(self._attach(worker, ours))

    async def _attach(self, worker: _Worker, channel: socket.socket) -> None:
        await self._loop.create_connection(lambda: _Channel(self, worker), sock=channel)

    def attached(self, worker: _Worker, channel: asyncio.Transport) -> None:
        worker.channel = channel
        worker.tell(inner.line(inner.Apply(self._table, self._cells)))

    def _fell(self, worker: _Worker, pidfd: int) -> None:
        """The process ended."""
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        assert worker.process is not None
        code = worker.process.wait()
        worker.process = None
        if worker.channel is not None:
            worker.channel.abort()
            worker.channel = None
        self._board.empty(worker.row)
        self._loads.forget(worker.row)
        if self._is_ending:
            if all(each.process is None for each in self._workers):
                self._finish()
            return
        self._gather()
        worker.falls = worker.falls + 1 if time.monotonic() - worker.started < _SOON_S else 0
        delay = min(_LATEST_S, 0.1 * 2**worker.falls) if worker.falls else 0.0
        log.error("worker %d ended with %d: another is started", worker.row, code)
        self._loop.call_later(delay, self._start_again, worker)
        self._tell_took()

    def _start_again(self, worker: _Worker) -> None:
        if not self._is_ending:
            self._start(worker)

    def end(self) -> None:
        """Requests in flight may end; nothing new is taken."""
        if self._is_ending:
            return
        self._is_ending = True
        for listener in self._listeners:
            listener.close()
        for worker in self._workers:
            worker.tell(inner.line(inner.Drain()))
        self._loop.call_later(self._settings.drain_s + _KILL_AFTER_S, self._kill)
        if all(worker.process is None for worker in self._workers):
            self._finish()

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Channel(asyncio.Protocol):
    """The supervisor's end of what it shares with a worker."""

    def __init__(self, supervisor: Supervisor, worker: _Worker) -> None:
        self._supervisor = supervisor
        self._worker = worker
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._supervisor.attached(self._worker, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._supervisor.heard(self._worker, line)


def _locked(home: str) -> int:
    """The home's lock, held while this process lives. Raises RouterError."""
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(home, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RouterError(f"another router serves {home}") from error
    except OSError as error:
        raise RouterError(f"{error.filename or home}: {error.strerror}") from error
    return lock


def _listeners(settings: Settings) -> list[socket.socket]:
    """One for each worker, all at the same port. Raises RouterError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found: list[socket.socket] = []
    port = settings.port
    try:
        with socket.socket(family, socket.SOCK_STREAM) as alone:  # shared it would be with whoever shares it already
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((settings.host, port))
            port = alone.getsockname()[1]
        for _ in range(settings.worker_count):
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((settings.host, port))
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in found:
            listener.close()
        raise RouterError(_cannot_listen(settings, error)) from error
    return found


def _cannot_listen(settings: Settings, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program: name another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.host} is no address of this machine: name another --host"
    if error.errno == errno.EACCES:
        return f"{where} is not for this user: name a --port above 1023"
    return f"cannot listen at {where}: {error.strerror}"
