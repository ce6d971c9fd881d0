"""The supervisor: hears the daemon, keeps the table, starts the workers and adds up what they did.

No request passes through it. It holds the workers' listening sockets, so that connections that come while a worker is
being started again wait in the kernel, and the memory in which they see each other's counts (`board`). Workers that a
supervisor left behind which was killed are found and go on under this one (`succession`); when it is told to listen
elsewhere or otherwise, new workers are there before the old ones let go (`family`).

Invariants: what the daemon says is routed by, whether or not it can be written down (then that is tried again, and
said); `Took` is said when no worker goes by an older table; `Drained` only when, after that, nobody has a request on
the replica.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import msgspec

from bireme import __version__
from bireme.router import inner, listening, messages, succession, table_file
from bireme.router.board import BLOCK, Blocks, Board, NoRoomError, mapped, new_memory
from bireme.router.census import living
from bireme.router.control import Speaker, speaking_to
from bireme.router.family import ASK_S, Generation, Member
from bireme.router.listening import Certificate, ListeningError
from bireme.router.loads import Loads
from bireme.router.messages import AnyOrder, AnyTold, Replica, Service, Table
from bireme.router.premises import Premises, RouterError
from bireme.router.rules import tables
from bireme.router.settings import Settings, mistake
from bireme.router.succession import Orphan

log = logging.getLogger("bireme.router")

_GATHER_S = 0.05
"""All workers tell at the same moment: so long the last of them may take."""
_KILL_AFTER_S = 2.0
_WRITE_AGAIN_S = 2.0
"""After so long a table is written once more that could not be."""
_MOST_ROWS, _USUAL_WORKERS = 128, 16
"""Of the board: for two generations of as many workers as there may be; and of as many as anybody is likely to ask for,
while there are fewer: rows that nobody uses cost a descriptor each."""
_LOOK_S = 2.0
"""Between looks whether the folder is as it was left."""
_MEET_S, _MEET_AGAIN_S = 3.0, 0.1
"""So long workers that a supervisor left have to be found at their sockets, which they may have to make again."""


class Supervisor:
    """The router's first process: starts and replaces the workers, and hears what the daemon says."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home
        self._loop = asyncio.get_running_loop()
        self._epoch = secrets.token_hex(8)
        self._premises = Premises(settings.home)
        self._control: list[asyncio.Server] = []
        self._blocks = Blocks()
        self._cells: dict[str, int] = {}
        self._loads = Loads()
        self._table = Table(serial=0)
        self._table_path = os.path.join(settings.home, "table")
        self._writing_again: asyncio.TimerHandle | None = None
        self._ailments: dict[str, str] = {}
        """What is not well, though requests are answered, by what it is about."""
        self._daemon: Speaker | None = None
        self._took = 0
        self._told_drained: set[str] = set()
        self._woken: set[str] = set()
        """Services that a request waits for, as the daemon was told."""
        self._gathering: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._generations: list[Generation] = []
        """The newest last; those before it end when it serves."""
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._begin(settings, _orphans_of(settings.home))

    def _begin(self, settings: Settings, orphans: list[Orphan]) -> None:
        """With the workers that there are, or with new ones. Raises RouterError."""
        kept = table_file.read(self._table_path)
        for table in (kept, *(orphan.handed.table for orphan in orphans)):
            if table is not None and table.serial > self._table.serial and not tables.mistake(table):
                self._table = table
        if orphans:
            self._memory, self._kicks = orphans[0].memory, orphans[0].kicks
        else:
            rows = min(_MOST_ROWS, 2 * max(_USUAL_WORKERS, settings.worker_count, os.cpu_count() or 1))
            self._memory = new_memory(rows)
            self._kicks = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(rows))
        self._board = Board(mapped(self._memory, len(self._kicks)), len(self._kicks), None)
        if orphans:
            newest = max(orphans, key=lambda orphan: orphan.handed.table.serial)
            self._blocks.restore(newest.handed.cells, self._board)
        self._cells = self._blocks.give(inner.names_in(self._table), inner.keys_in(self._table))
        for service in self._table.services:
            if self._board.total(self._cells[inner.service_name(service.name)]) and not _is_ready(service):
                self._woken.add(service.name)
        try:
            self._adopt(settings, orphans)
        except (ListeningError, OSError) as error:
            raise RouterError(str(error)) from error

    async def run(self) -> None:
        await self._listen()
        self._loop.call_later(_LOOK_S, self._look_at_premises)
        self._loop.call_later(ASK_S, self._ask_workers)
        if numbers_port := self._newest.settings.numbers_port:
            await self._loop.create_server(speaking_to(self, is_local_socket=False), "127.0.0.1", numbers_port)
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self.end)
        await self.done
        for control in self._control:
            control.close()
        self._premises.leave()

    async def _listen(self) -> None:
        """For the daemon. Connections to a socket that was removed go on."""
        self._control.append(
            await self._loop.create_unix_server(speaking_to(self), sock=self._premises.listener(), start_serving=True)
        )

    def _look_at_premises(self) -> None:
        """Makes again what was removed of the folder: nobody could find the router, tell it anything, nor end it."""
        if self._is_ending:
            return
        if not self._premises.is_findable:
            self._regain_premises()
        if self._table.serial and not os.path.exists(self._table_path):
            self._write_down()
        self._loop.call_later(_LOOK_S, self._look_at_premises)

    def _regain_premises(self) -> None:
        if not self._premises.can_be_found and self._daemon is None:
            log.error("%s was removed, and there is no daemon: ending", os.path.dirname(self._home))
            self.end()
            return
        try:
            self._premises.regain()
        except RouterError as error:
            log.error("%s: ending", error)
            self.end()
        except OSError as error:
            self._ail("folder", f"nobody will find it again, for {self._home} cannot be made: {error.strerror}")
        else:
            log.warning("files of %s were removed, and are made again", self._home)
            self._ail("folder", "")
            self._loop.create_task(self._listen())

    @property
    def _newest(self) -> Generation:
        return self._generations[-1]

    @property
    def _serving(self) -> Generation:
        """The one that is reached: the newest that serves, or the first of all."""
        return next((each for each in reversed(self._generations) if each.serves), self._generations[0])

    @property
    def _members(self) -> list[Member]:
        return [member for generation in self._generations for member in generation.members]

    # --- what the daemon says ---

    def hear(self, order: AnyOrder, speaker: Speaker) -> None:
        if isinstance(order, messages.Hello):
            self._greet(speaker)
        elif isinstance(order, messages.Table):
            if speaker is self._daemon:
                self._take(order)
            else:
                speaker.say(messages.Refused(why="say hello first", serial=order.serial))
        elif isinstance(order, messages.Configure):
            if speaker is self._daemon:
                self._configure(order)
            else:
                speaker.say(messages.Refused(why="say hello first"))
        elif isinstance(order, messages.AskNumbers):
            speaker.say(messages.Numbers(text=self.numbers(), id=order.id))
        else:
            speaker.say(messages.Pong(id=order.id))

    def gone(self, speaker: Speaker) -> None:
        if speaker is self._daemon:
            self._daemon = None
            log.info("the daemon is gone; routing goes on with table %d", self._table.serial)

    def numbers(self) -> str:
        connections = [member.connections for member in self._members if member.channel is not None]
        return self._loads.numbers(self._table, self._board, self._cells, connections)

    def _tell(self, message: AnyTold) -> None:
        if self._daemon is not None:
            self._daemon.say(message)

    def _greet(self, speaker: Speaker) -> None:
        if self._daemon is not None and self._daemon is not speaker:
            self._daemon.close()
        self._daemon = speaker
        self._told_drained.clear()
        self._welcome()
        if self._ailments:
            self._tell(messages.Ails(why="; ".join(self._ailments.values())))
        self._tell_took(again=True)
        for name in sorted(self._woken):
            if self._board.total(self._cells[inner.service_name(name)]):
                self._tell(messages.Wake(service=name))
        self._emit()

    def _welcome(self) -> None:
        serving = self._serving
        self._tell(
            messages.Welcome(
                version=messages.VERSION,
                pid=os.getpid(),
                epoch=self._epoch,
                serial=self._table.serial,
                host=serving.settings.host,
                port=serving.port,
                tls=serving.certificate is not None,
                workers=serving.settings.worker_count,
                digest=serving.digest,
                speaker=__version__,
            )
        )

    def _take(self, table: Table) -> None:
        """A new table: it is gone by, or the one before is."""
        wrong = tables.mistake(table)
        if not wrong:
            try:
                cells = self._blocks.give(inner.names_in(table), inner.keys_in(table))
            except NoRoomError as error:
                wrong = str(error)
        if wrong:
            log.error("table %d is refused: %s", table.serial, wrong)
            self._tell(messages.Refused(why=wrong, serial=table.serial))
            return
        self._table, self._cells = table, cells
        draining = {replica.id for _, replica in self._draining()}
        self._told_drained &= draining
        ready = {each.name for each in table.services if _is_ready(each)}
        self._woken -= ready
        self._woken &= {each.name for each in table.services}
        self._tell_all()
        left_out = sum(name not in cells for name in inner.keys_in(table))
        self._ail("keys", f"it has no room for {left_out} keys: their limits hold in each worker" if left_out else "")
        self._write_down()
        self._gather()

    def _write_down(self) -> None:
        """The table that is gone by, for the next router of this home; again and again until it is on disk."""
        if self._writing_again is not None:
            self._writing_again.cancel()
            self._writing_again = None
        try:
            table_file.write(self._table_path, self._table)
        except OSError as error:
            self._ail("disk", f"its table cannot be written to {self._table_path}: {error.strerror}")
            self._writing_again = self._loop.call_later(_WRITE_AGAIN_S, self._write_down)
        else:
            self._ail("disk", "")

    def _ail(self, about: str, why: str) -> None:
        """Something is not well, or is again: said once, to the daemon and in the log."""
        if why == self._ailments.pop(about, ""):
            if why:
                self._ailments[about] = why
            return
        if why:
            self._ailments[about] = why
            log.error("requests are answered, but %s", why)
        else:
            log.info("all is well again with the %s", about)
        self._tell(messages.Ails(why="; ".join(self._ailments.values())))

    # --- what the workers say ---

    def heard(self, worker: Member, line: bytes) -> None:
        said = inner.from_worker.decode(line)
        worker.heard()
        if isinstance(said, inner.Did):
            self._loads.add(worker.row, said)
            worker.connections = said.connections
            self._gather()
        elif isinstance(said, inner.Applied):
            worker.applied, worker.has_applied = said.serial, True
            self._ail(f"worker {worker.row}", "")
            self._serve_newest()
            self._tell_took()
        elif isinstance(said, inner.Waits):
            if said.service not in self._woken and inner.service_name(said.service) in self._cells:
                self._woken.add(said.service)
                self._tell(messages.Wake(service=said.service))
        elif isinstance(said, inner.Broke):
            self._tell(messages.Trouble(service=said.service, replica=said.replica, why=said.why))
        elif isinstance(said, inner.Quiet):
            self._tell_drained()

    def _tell_took(self, *, again: bool = False) -> None:
        serial = self._table.serial
        if not serial or any(each.applied != serial for each in self._members if each.channel is not None):
            return
        if self._took != serial or again:
            self._took = serial
            self._tell(messages.Took(serial=serial))
            self._take_back()
        self._tell_drained()

    def _take_back(self) -> None:
        """Cells of what is in no table any more, and that nobody uses."""
        for name, cell in self._blocks.others(self._cells).items():
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

    # --- workers ---

    def _adopt(self, settings: Settings, orphans: list[Orphan]) -> None:
        """Goes on with the workers that are what is asked for; lets the others go, when new ones are there.

        Raises ListeningError or OSError.
        """
        suited: list[Orphan] = []
        others = [orphan for orphan in orphans if orphan.handed.is_draining or not orphan.listeners]
        serving = [orphan for orphan in orphans if orphan not in others]
        try:
            certificate = _certificate_of(settings)
            asked = (settings, certificate.digest if certificate is not None else "", __version__)
            suited = [orphan for orphan in serving if _asked_of(orphan) == asked]
            others += [orphan for orphan in serving if orphan not in suited]
            self._generations = [self._generation_of(those) for those in (others, suited) if those]
            if suited:
                self._complete(self._newest)
            else:
                self._new_generation(settings, certificate)
        except ListeningError as error:
            if not serving:
                raise
            log.error("it goes on as it was: %s", error)
            self._generations = self._generations or [self._generation_of(orphans)]
        for generation in self._generations[:-1] if suited else ():
            for member in generation.members:
                self._leave(member)
        self._tell_all()

    def _complete(self, generation: Generation) -> None:
        """Workers in the place of those that died without a supervisor, or that had no row when the others began.

        They accept where others do besides, or on new sockets. Raises ListeningError or OSError.
        """
        settings, kept = generation.settings, generation.listeners
        missing = settings.worker_count - len(generation.members)
        if missing <= 0:
            return
        shared = [listener for member in generation.members for listener in member.listeners[1:]][:missing]
        count = len(kept) + missing - len(shared)
        generation.listeners = listening.listeners(settings.host, settings.port, count, kept)
        self._add_members(generation, [*shared, *generation.listeners[len(kept) :]])

    def _generation_of(self, orphans: list[Orphan]) -> Generation:
        start = orphans[0].handed.start
        fds = orphans[0].certificate
        certificate = Certificate(fds[0], fds[1], start.digest) if fds else None
        made = Generation(start.settings, certificate, [each for orphan in orphans for each in orphan.listeners])
        for orphan in orphans:
            member = Member(made, orphan.handed.start.row, orphan.meeting, orphan.listeners)
            try:
                member.adopt(orphan)
            except ProcessLookupError:
                continue
            made.members.append(member)
            self._watch(member, orphan.connection, orphan.rest)
            log.info("worker %d, pid %d, goes on under this supervisor", member.row, member.pid)
        made.serves = True
        return made

    def _new_generation(self, settings: Settings, certificate: Certificate | None) -> None:
        """Workers with these settings, beside those that there are. Raises ListeningError or OSError."""
        kept = [
            listener
            for listener in (self._newest.listeners if self._generations else ())
            if listening.is_at(listener, settings.host, settings.port)
        ]
        made = Generation(settings, certificate, [])
        own = [listener for each in self._generations for listener in each.listeners if listener.fileno() >= 0]
        made.listeners = listening.listeners(settings.host, settings.port, settings.worker_count, kept, own)
        try:
            self._add_members(made, made.listeners)
        except (ListeningError, OSError):
            for listener in made.listeners:
                if listener not in kept:
                    listener.close()
            raise
        self._generations.append(made)

    def _add_members(self, generation: Generation, listeners: Sequence[socket.socket]) -> None:
        """One for each, as many as there are rows for. Raises ListeningError or OSError."""
        settings = generation.settings
        taken = {member.row for each in (*self._generations, generation) for member in each.members}
        rows = [row for row in range(len(self._kicks)) if row not in taken]
        missing = settings.worker_count - len(generation.members)
        count = min(len(rows), missing)
        fewer = f"{missing - count} of {settings.worker_count} workers wait until those of earlier settings have ended"
        if not count:
            raise ListeningError(fewer)
        self._ail("workers", fewer if count < missing else "")
        made = [
            Member(generation, row, succession.meeting_socket(self._home, row), list(listeners[number::count]))
            for number, row in enumerate(rows[:count])
        ]
        generation.members += made
        for member in made:
            self._board.empty(member.row)
            self._start(member)

    def _start(self, member: Member) -> None:
        self._watch(member, member.start(self._memory, self._kicks), b"")

    def _watch(self, member: Member, channel: socket.socket, rest: bytes) -> None:
        channel.setblocking(False)
        self._loop.add_reader(member.pidfd, self._fell, member, member.pidfd)
        self._loop.create_task(self._attach(member, channel, rest))

    async def _attach(self, member: Member, channel: socket.socket, rest: bytes) -> None:
        await self._loop.create_connection(lambda: _Channel(self, member, rest), sock=channel)

    def attached(self, member: Member, channel: asyncio.Transport) -> None:
        member.channel = channel
        member.tell(self._line())
        if member.is_leaving:
            self._leave(member)
        if self._is_ending:
            member.tell(inner.line(inner.Drain(self._newest.settings.drain_s)))

    def _line(self) -> bytes:
        """What workers are to go by."""
        rows = tuple(member.row for member in self._members if member.pid)
        return inner.line(inner.Apply(self._table, self._cells, rows))

    def _tell_all(self) -> None:
        self._board.look_at(member.row for member in self._members)
        line = self._line()
        for member in self._members:
            member.tell(line)

    def _fell(self, member: Member, pidfd: int) -> None:
        """The process ended."""
        self._loop.remove_reader(pidfd)
        how = member.fell()
        self._board.empty(member.row)
        self._loads.forget(member.row)
        if self._is_ending:
            if not any(each.pid for each in self._members):
                self._finish()
            return
        self._gather()
        if member.is_leaving:
            self._let_go(member)
        else:
            log.error("worker %d ended %s: another is started", member.row, how)
            self._loop.call_later(member.pause_s, self._start_again, member)
        self._tell_took()

    def _start_again(self, member: Member) -> None:
        if self._is_ending:
            return
        if member.is_leaving:
            self._let_go(member)
            return
        with suppress(OSError):  # the folder is away: the worker makes its place when it is there again
            member.meet_anew(self._home)
        self._start(member)

    def _ask_workers(self) -> None:
        """One that gives no sign of life holds its part of the connections, and every new table: it is replaced."""
        if self._is_ending:
            return
        for member in self._members:
            if not member.ask():
                self._ail(f"worker {member.row}", f"a worker (pid {member.pid}) hangs: another takes its place")
                member.kill()
        self._loop.call_later(ASK_S, self._ask_workers)

    def _let_go(self, member: Member) -> None:
        """It has ended, and there is a newer one."""
        member.forget(self._home)
        generation = member.generation
        generation.members.remove(member)
        if not generation.members and generation is not self._newest:
            self._generations.remove(generation)
        with suppress(ListeningError, OSError):  # the next that ends leaves a row too
            self._complete(self._newest)
        self._tell_all()

    # --- other settings ---

    def _configure(self, order: messages.Configure) -> None:
        """Listens as it is told to, or goes on as it is."""
        settings = msgspec.structs.replace(
            self._newest.settings,
            host=order.host,
            port=order.port,
            workers=order.workers,
            tls_certificate=order.tls_certificate,
            tls_key=order.tls_key,
        )
        try:
            if wrong := mistake(settings):
                raise ListeningError(wrong)
            certificate = _certificate_of(settings)
            digest = certificate.digest if certificate is not None else ""
            if (settings, digest) != _asked_of_generation(self._newest):
                self._new_generation(settings, certificate)
        except (ListeningError, OSError) as error:
            log.error("it goes on as it is: %s", error)
            self._tell(messages.Kept(why=str(error)))
            return
        self._tell_all()
        if self._newest.serves:
            self._welcome()

    def _serve_newest(self) -> None:
        """The newest workers answer: those before them take no more connections."""
        newest = self._newest
        if newest.serves or not all(member.has_applied for member in newest.members):
            return
        newest.serves = True
        if len(self._generations) == 1:
            return
        for generation in self._generations[:-1]:
            for listener in generation.listeners:
                if listener not in newest.listeners:
                    listener.close()
            for member in list(generation.members):
                self._leave(member)
        log.info("%d new workers answer at %s:%d", len(newest.members), newest.settings.host, newest.port)
        self._welcome()

    def _leave(self, member: Member) -> None:
        member.is_leaving = True
        member.tell(inner.line(inner.Drain()))

    # --- the end ---

    def end(self) -> None:
        """Requests in flight may end; nothing new is taken."""
        if self._is_ending:
            return
        self._is_ending = True
        for generation in self._generations:
            for listener in generation.listeners:
                listener.close()
        drain_s = self._newest.settings.drain_s
        for member in self._members:
            member.tell(inner.line(inner.Drain(drain_s)))
        self._loop.call_later(drain_s + _KILL_AFTER_S, self._kill)
        if not any(member.pid for member in self._members):
            self._finish()

    def _kill(self) -> None:
        for member in self._members:
            member.kill()

    def _finish(self) -> None:
        if not self.done.done():
            for member in self._members:
                member.forget(self._home)
            self.done.set_result(None)


class _Channel(asyncio.Protocol):
    """The supervisor's end of what it shares with a worker."""

    def __init__(self, supervisor: Supervisor, member: Member, rest: bytes) -> None:
        self._supervisor = supervisor
        self._member = member
        self._rest = rest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._supervisor.attached(self._member, cast(asyncio.Transport, transport))
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._supervisor.heard(self._member, line)


def _is_ready(service: Service) -> bool:
    return any(replica.state == "ready" for replica in service.replicas)


def _certificate_of(settings: Settings) -> Certificate | None:
    """Raises ListeningError."""
    if not settings.tls_certificate:
        return None
    return listening.read_certificate(settings.tls_certificate, settings.tls_key)


def _asked_of(orphan: Orphan) -> tuple[Settings, str, str]:
    start = orphan.handed.start
    return start.settings, start.digest, start.release


def _asked_of_generation(generation: Generation) -> tuple[Settings, str]:
    return generation.settings, generation.digest


def _orphans_of(home: str) -> list[Orphan]:
    """The workers that a supervisor of this folder left. One that does not come to its socket hangs, and is killed: it
    would keep its part of the connections. For who holds the lock."""
    found, deadline = succession.orphans_in(home), time.monotonic() + _MEET_S
    while missing := set(living(home).workers) - {orphan.handed.pid for orphan in found}:
        if time.monotonic() > deadline:
            log.error("workers %s do not answer, and are killed", sorted(missing))
            for pid in missing:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(_MEET_AGAIN_S)
        found += succession.orphans_in(home, {orphan.handed.start.row for orphan in found})
    return found
