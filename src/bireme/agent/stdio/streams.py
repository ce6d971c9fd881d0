"""A step's standard streams on this node: pipes of the tasks on one side, connected clients on the other.

`steps` feeds it pipes, `server` hands it connections. It moves bytes and counts them; what a signal or a fence
means is the step's business (`StepEvents`).

Input is let in by the room that there is: clients are told how much of theirs was taken (`ROOM`), and no more once
tasks leave theirs unread. So a signal, a window's size or a fence never waits behind input that nobody reads. A client
that sends on all the same is not listened to for a while.

Output from before the first client is kept. More than `_HIGH_WATER` bytes that nobody took stop the reading, the
pipe fills, and the task waits in its write: nothing is lost and nothing grows without bound. Once a client was
there and left, output without a reader is dropped, as Slurm does, and the task runs on.

Invariant: a client's last frame is STEP_ENDED, after everything the tasks wrote before they ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bireme.agent.messages import protocol
from bireme.agent.stdio.holdings import Holding
from bireme.agent.system.loop import READ, WRITE, Loop

log = logging.getLogger("bireme.agent")

_HIGH_WATER = 1 << 20
_ENOUGH_INPUT = 1 << 18
"""So much may a task leave unread before its clients are told of no more room."""
_MANY = 16
"""All tasks of a step may leave unread what so many may, and its clients too: a step may have thousands of tasks."""
_MOST_CLIENTS = 64
"""Of a step, those that are away and may come back among them: each is kept what it has not taken."""
_LATE_REMEMBERED = 1000
_CHUNK = 1 << 16
_TERMINAL_EOF = b"\x04"


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What a client may ask of the step itself."""

    signal: Callable[[int, int], None]
    """(signal number, task id or ALL_TASKS)."""
    fence_result: Callable[[dict[str, str]], None]


@dataclass(slots=True)
class _Source:
    """A pipe (or terminal) a task writes to."""

    fd: int
    kind: int
    task: int


@dataclass(slots=True)
class _Sink:
    """A pipe (or terminal) a task reads from."""

    fd: int
    terminal: bool
    pending: bytearray = field(default_factory=bytearray)
    ended: bool = False
    watched: bool = False


class StreamHub:
    def __init__(self, loop: Loop, events: StepEvents) -> None:
        self.loop = loop
        self._events = events
        self._sources: dict[int, _Source] = {}
        self._sinks: dict[int, _Sink] = {}
        self._clients: list[StreamClient] = []
        self._kept = bytearray()
        self._had_client = False
        self._paused = False
        self.finished = False
        self._last_frame = protocol.encode_frame(protocol.STEP_ENDED, protocol.ALL_TASKS)
        self.late_clients: dict[str, None] = {}
        """Names of the last clients that were given up: they have missed something."""

    # --- the tasks' side -----------------------------------------------------------------------------------

    def add_source(self, fd: int, kind: int, task: int) -> None:
        os.set_blocking(fd, False)
        self._sources[fd] = _Source(fd, kind, task)
        if not self._paused:
            self.loop.watch(fd, READ, lambda _events: self._read(fd))

    def add_sink(self, fd: int, task: int, *, terminal: bool = False) -> None:
        os.set_blocking(fd, False)
        self._sinks[task] = _Sink(fd, terminal)

    def drain(self, task: int) -> None:
        """The task ended: take what it wrote. Whoever else holds the pipe may write on."""
        for source in [each for each in self._sources.values() if each.task == task]:
            self._read_what_waits(source)
        self._close_sink(task)

    def finish(self, code: int = 0) -> None:
        """No task is left: the last bytes, then the last frame, with the exit code that the step ends with at least."""
        for source in list(self._sources.values()):
            self._read_what_waits(source)
            self._close_source(source)
        for task in list(self._sinks):
            self._close_sink(task)
        self.finished = True
        if code:
            self._last_frame = protocol.encode_json_frame(protocol.STEP_ENDED, protocol.ALL_TASKS, {"code": code})
        self.broadcast(self._last_frame)
        for client in list(self._clients):
            client.close_when_sent()

    def close(self) -> None:
        """The job is gone; a client that did not come by now gets nothing."""
        self._kept.clear()
        for source in list(self._sources.values()):
            self._close_source(source)
        for task in list(self._sinks):
            self._close_sink(task)

    def resize(self, rows: int, columns: int) -> None:
        for source in self._sources.values():
            with contextlib.suppress(OSError):  # not every source is a terminal
                fcntl.ioctl(source.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # --- the clients' side ---------------------------------------------------------------------------------

    def attach(self, client: StreamClient) -> None:
        """The first client gets all that was kept; later ones what comes from now on."""
        self._clients.append(client)
        client.give_room()
        client.send(bytes(self._kept))
        self._kept.clear()
        if self.finished:
            if self._had_client:
                client.send(self._last_frame)
            client.close_when_sent()
        self._had_client = True
        self.balance()

    def has_room(self) -> bool:
        """Whether one more client may attach; who is away for the longest is waited for no longer, if that helps."""
        if len(self._clients) >= _MOST_CLIENTS:
            away = next((client for client in self._clients if client.is_away), None)
            if away is None:
                return False
            away.give_up()
        return True

    def came_too_late(self, name: str) -> None:
        self.late_clients[name] = None
        if len(self.late_clients) > _LATE_REMEMBERED:
            del self.late_clients[next(iter(self.late_clients))]

    def client_named(self, name: str) -> StreamClient | None:
        return next((client for client in self._clients if client.name == name), None)

    def detach(self, client: StreamClient) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self.balance()

    def show(self, frame: bytes) -> None:
        """For who is there now: what is true of this moment only."""
        for client in list(self._clients):
            client.send(frame)

    def broadcast(self, frame: bytes) -> None:
        for client in list(self._clients):
            client.send(frame)
        if not self._had_client:
            self._kept += frame

    def receive(self, kind: int, task: int, payload: bytes) -> None:
        """A frame from a client. One that cannot be understood is dropped: it harms only its sender."""
        if kind == protocol.STDIN:
            self._feed_stdin(task, payload)
            return
        try:
            value = json.loads(payload)
            if not isinstance(value, dict):
                raise protocol.ProtocolError("a message must be a JSON object")
            if kind == protocol.SIGNAL:
                self._events.signal(protocol.whole_number(value, "signal"), task)
            elif kind == protocol.WINDOW_SIZE:
                rows, columns = (protocol.whole_number(value, name, most=0xFFFF) for name in ("rows", "columns"))
                self.resize(max(0, rows), max(0, columns))
            elif kind == protocol.FENCE_RESULT:
                if not all(isinstance(each, str) for each in value.values()):
                    raise protocol.ProtocolError("a fence's values must be text")
                self._events.fence_result(value)
        except (ValueError, RecursionError) as error:
            log.warning("a stream client sent a bad frame of kind %d: %s", kind, error)

    def balance(self) -> None:
        """Stops or resumes reading the tasks' output, by how much of it is waiting to be taken."""
        paused = _much([client.waiting for client in self._clients] or [len(self._kept)]) > _HIGH_WATER
        if paused == self._paused:
            return
        self._paused = paused
        for fd in self._sources:
            if paused:
                self.loop.unwatch(fd)
            else:
                self.loop.watch(fd, READ, lambda _events, fd=fd: self._read(fd))  # type: ignore[misc]

    def stdin_is_full(self) -> bool:
        return self._unread() > _HIGH_WATER

    def _unread(self) -> int:
        return _much([len(sink.pending) for sink in self._sinks.values()])

    # --- moving bytes --------------------------------------------------------------------------------------

    def _read(self, fd: int) -> None:
        if fd in self._sources:
            self._read_once(self._sources[fd])
            self.balance()

    def _read_what_waits(self, source: _Source) -> None:
        """All that was written by now, which is no more than a pipe holds: whoever writes on without end is not
        followed."""
        bytes_left = _CHUNK
        with contextlib.suppress(OSError):  # a terminal has no such size
            bytes_left = max(bytes_left, fcntl.fcntl(source.fd, fcntl.F_GETPIPE_SZ))
        while bytes_left > 0 and source.fd in self._sources and (count := self._read_once(source)):
            bytes_left -= count

    def _read_once(self, source: _Source) -> int:
        """How many bytes came; none when there is nothing now, or nothing any more."""
        try:
            data = os.read(source.fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose last user is gone
            data = b""
        if not data:
            self._close_source(source)
            return 0
        self.broadcast(protocol.encode_frame(source.kind, source.task, data))
        return len(data)

    def _close_source(self, source: _Source) -> None:
        if self._sources.pop(source.fd, None) is not None:
            self.loop.unwatch(source.fd)
            os.close(source.fd)

    def _feed_stdin(self, task: int, data: bytes) -> None:
        for number in [task] if task != protocol.ALL_TASKS else list(self._sinks):
            sink = self._sinks.get(number)
            if sink is None or sink.ended:
                continue
            if data:
                sink.pending += data
            elif sink.terminal:
                sink.pending += _TERMINAL_EOF
            else:
                sink.ended = True
            self._push(number, sink)
        self._give_room()

    def _push_on(self, task: int, sink: _Sink) -> None:
        self._push(task, sink)
        self._give_room()

    def _push(self, task: int, sink: _Sink) -> None:
        try:
            while sink.pending:
                del sink.pending[: os.write(sink.fd, sink.pending)]
        except BlockingIOError:
            pass
        except OSError:  # the task closed its stdin or ended
            self._close_sink(task)
            return
        if sink.pending and not sink.watched:
            self.loop.watch(sink.fd, WRITE, lambda _events: self._push_on(task, sink))
            sink.watched = True
        elif not sink.pending:
            if sink.watched:
                self.loop.unwatch(sink.fd)
                sink.watched = False
            if sink.ended:
                self._close_sink(task)

    def _close_sink(self, task: int) -> None:
        sink = self._sinks.pop(task, None)
        if sink is not None:
            if sink.watched:
                self.loop.unwatch(sink.fd)
            os.close(sink.fd)
            self._give_room()

    def _give_room(self) -> None:
        unread = self._unread()
        for client in list(self._clients):
            if unread <= _ENOUGH_INPUT:
                client.give_room()
            if unread <= _HIGH_WATER:
                client.listen_again()


def _much(waiting: list[int]) -> int:
    """How much waits, measured by the one who has most; of many, by what all of them have."""
    return max(max(waiting, default=0), sum(waiting) // _MANY)


class Arrival(NamedTuple):
    """A client's connection whose hello was accepted. `early`: what came after it; `on_close` is called at its end."""

    connection: socket.socket
    early: bytes
    on_close: Callable[[], None]


class StreamClient:
    """One connection of an `srun` or `sattach`, once its hello was accepted. It is gone when the connection is."""

    name = ""
    """Of clients that outlive a connection (`carried_streams`)."""

    def __init__(self, hub: StreamHub, arrival: Arrival, holding: Holding) -> None:
        self._on_close = arrival.on_close
        self._loop = hub.loop
        self._socket = arrival.connection
        self._hub = hub
        self._splitter = protocol.FrameSplitter(protocol.CLIENT_FRAME_BYTES)
        self._holding = holding
        holding.cut_off = self._cut_off
        self._closing = False
        self._deaf = False
        self._input_taken = 0
        self._room_given: int | None = None
        self.outgoing = bytearray()
        hub.loop.watch(self._socket.fileno(), READ, self._ready)
        self._greet()
        hub.attach(self)
        if arrival.early:
            self._receive(arrival.early)

    @property
    def is_away(self) -> bool:
        """Whether it has no connection now and may come back."""
        return False

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken."""
        return len(self.outgoing)

    def send(self, data: bytes) -> None:
        self._send_now(data)

    def _send_now(self, data: bytes) -> None:
        if not data or self._socket.fileno() < 0:
            return
        idle = not self.outgoing
        self.outgoing += data
        if idle:
            self._flush()

    def close_when_sent(self) -> None:
        self._closing = True
        self._flush()

    def _greet(self) -> None:
        """Says what a new client hears before everything else."""

    def give_room(self) -> None:
        """There is room behind all of its input that was taken; said once, and again when that is worth a frame."""
        if self._room_given is None or self._input_taken - self._room_given >= _CHUNK:
            self._room_given = self._input_taken
            self.send(protocol.encode_position(protocol.ROOM, self._input_taken))

    def listen_again(self) -> None:
        if self._deaf and self._socket.fileno() >= 0:
            self._deaf = False
            self._watch()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & ~WRITE and self._socket.fileno() >= 0:
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        try:
            for kind, task, payload in self._splitter.feed(data):
                self._take(kind, task, payload)
        except protocol.ProtocolError as error:
            self._cut_off(str(error))
            return
        if self._socket.fileno() >= 0:
            self._holding.keep(self._splitter.unfinished)
        if self._hub.stdin_is_full() and not self._deaf and self._socket.fileno() >= 0:
            self._deaf = True
            self._watch()

    def _cut_off(self, why: str) -> None:
        log.warning("a stream client is cut off: %s", why)
        self._send_now(protocol.encode_frame(protocol.MESSAGE, protocol.ALL_TASKS, why.encode()))
        self._close()

    def give_up(self) -> None:
        """Lets go of a client that is gone for good."""
        self._close()

    def _take(self, kind: int, task: int, payload: bytes) -> None:
        if kind == protocol.STDIN:
            self._input_taken += len(payload)
        self._hub.receive(kind, task, payload)

    def _flush(self) -> None:
        if self._socket.fileno() < 0:
            return
        try:
            while self.outgoing:
                del self.outgoing[: self._socket.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        if self._closing and not self.outgoing:
            self._close()
            return
        self._watch()
        self._hub.balance()

    def _watch(self) -> None:
        wanted = (0 if self._deaf else READ) | (WRITE if self.outgoing else 0)
        self._loop.rewatch(self._socket.fileno(), wanted)

    def _close(self) -> None:
        if self._disconnect():
            self._hub.detach(self)

    def _disconnect(self) -> bool:
        """Whether there was a connection."""
        if self._socket.fileno() < 0:
            return False
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self.outgoing.clear()
        self._splitter = protocol.FrameSplitter(protocol.CLIENT_FRAME_BYTES)
        self._holding.keep(0)
        self._on_close()
        return True
