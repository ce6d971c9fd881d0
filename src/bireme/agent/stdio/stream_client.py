"""The client's side of a step's streams: what `srun` and `sattach` hold while tasks run.

    streams = StepStreams(job_id, step_id, io_key, {"n1": "unix:/.../agent.sock", "n2": ...}, Fences())
    streams.connect()
    streams.watch(sys.stdin.fileno(), "stdin")         # descriptors of the caller's own
    while not streams.finished:
        frames, ready = streams.poll(timeout_s=1.0)
        for frame in frames:                           # frame.node, frame.kind, frame.task, frame.payload
            ...                                        # protocol.STDOUT, STDERR, TASK_EXITED, ..., or LOST
        if "stdin" in ready: streams.send_stdin(os.read(0, 65536))   # b"" sends end of file

One thread, one selector, no asyncio: `srun` must start quickly. PMI fences between the nodes are carried inside
`poll`: the caller never sees them. Only the step's own `srun` carries them (`Fences`): every client hears of a fence,
and two answers would open the next one too.

Writing never blocks: what a node does not take yet waits here. `input_room` says whether the nodes have room for more
input, so that a caller stops reading its stdin when tasks do not read theirs; all else goes out whether they do or not.

Streams that are carried (`protocol.way_to`) break when their carrier goes, while the agent lives. They are made again
for as long as nobody says that the agent is gone, and go on where they broke off (`resumption`); what is sent meanwhile
waits here. A break that lasts is told by `AWAY`, and its end by `BACK`.

Invariant: every node yields exactly one last frame: `STEP_ENDED`, or `LOST` when its connection broke before that.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from bireme.agent.messages import protocol
from bireme.agent.stdio.resumption import Heard, Kept

LOST = 0
"""Kind of the frame that stands for a connection that broke or never came about; the payload says why."""
AWAY, BACK = -1, -2
"""Kinds of frames that stand for a node that cannot be reached for a while, and for its being there again."""
_TELL_AWAY_S = 10.0
_RETRY_S = 0.1
_MAX_RETRY_S = 2.0
_FOR_EVER_S = 3600.0
_INPUT_WINDOW = 1 << 18
"""So much input may be on its way to a node that has not said yet that it has room for more."""


class Frame(NamedTuple):
    node: str
    kind: int
    task: int
    payload: bytes

    def value(self) -> Any:
        """The payload of the kinds that carry JSON: TASK_EXITED {code, signal, oom}, TASKS_STARTED {task: pid},
        STEP_ENDED {code} of a step that failed after its tasks."""
        return json.loads(self.payload)


class StepStreams:
    """The connections to all nodes of one step."""

    def __init__(
        self, job_id: int, step_id: int, key: str, endpoints: Mapping[str, str], fences: Fences | None
    ) -> None:
        """`fences`: shared by the parts of a step that lies in several components of a heterogeneous job. None: of a
        bystander, who answers no fence."""
        self._hello = {"hello": "stream", "version": protocol.VERSION, "job": job_id, "step": step_id, "key": key}
        self._endpoints = dict(endpoints)
        self._selector = selectors.DefaultSelector()
        self._nodes: dict[str, _NodeConnection] = {}
        self._open = set(endpoints)
        self._early: list[Frame] = []
        self._name = os.urandom(8).hex()
        """Of this client, over all its connections."""
        self._input_sent = 0
        self._fences = fences
        if fences is not None:
            fences.join(self)

    @property
    def open_nodes(self) -> frozenset[str]:
        """Nodes of the step whose tasks may still say something."""
        return frozenset(self._open)

    @property
    def finished(self) -> bool:
        """No more frames will come from any node."""
        return not self._open and not self._early

    def connect(self, timeout_s: float = 10.0) -> None:
        """Reaches every node; one that cannot be reached yields a LOST frame at the next `poll`, if it is not carried.

        Of a carried one nobody can say that: its carrier may be away for a while.
        """
        for node, address in self._endpoints.items():
            endpoint, peer = protocol.way_to(address)
            held = _NodeConnection(node, endpoint, peer)
            self._nodes[node] = held
            try:
                self._open_connection(held, timeout_s)
            except OSError as error:
                self._lose(held, str(error), self._early)

    def _open_connection(self, held: _NodeConnection, timeout_s: float) -> None:
        """Raises OSError."""
        held.socket = connection = protocol.connect_endpoint(held.endpoint, timeout_s)
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, held)
        held.wanted = selectors.EVENT_READ
        held.splitter = protocol.FrameSplitter()
        hello = dict(self._hello)
        if held.way is not None:
            self._send(held, json.dumps({"peer": held.way.peer}).encode("ascii") + b"\n")
            hello |= {"client": self._name, "heard": held.way.heard.position}
        self._send(held, json.dumps(hello).encode("ascii") + b"\n")

    def watch(self, fd: int, tag: object) -> None:
        """Have `poll` also return `tag` when the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, tag)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout_s: float | None = None) -> tuple[list[Frame], list[object]]:
        """What came in, and which watched descriptors are readable; waits at most `timeout_s`."""
        frames, self._early = self._early, []
        ready: list[object] = []
        patience_s = self._go_on(frames, timeout_s)
        for key, events in self._selector.select(0 if frames else patience_s):
            if isinstance(key.data, _NodeConnection):
                self._serve(key.data, events, frames)
            else:
                ready.append(key.data)
        return frames, ready

    def send_stdin(self, data: bytes, task: int = protocol.ALL_TASKS) -> None:
        """To one task or to all; empty data is end of file."""
        self._input_sent += len(data)
        longest = protocol.CLIENT_FRAME_BYTES[protocol.STDIN]
        for at in range(0, len(data) or 1, longest):
            self._broadcast(protocol.encode_frame(protocol.STDIN, task, data[at : at + longest]))

    def send_signal(self, number: int, task: int = protocol.ALL_TASKS) -> None:
        self._broadcast(protocol.encode_json_frame(protocol.SIGNAL, task, {"signal": number}))

    def send_window_size(self, rows: int, columns: int) -> None:
        size = {"rows": rows, "columns": columns}
        self._broadcast(protocol.encode_json_frame(protocol.WINDOW_SIZE, protocol.ALL_TASKS, size))

    def input_room(self) -> bool:
        """Whether every node can take more input."""
        return all(held.input_on_its_way(self._input_sent) < _INPUT_WINDOW for held in self._nodes.values())

    def close(self) -> None:
        for held in list(self._nodes.values()):
            if held.way is not None:  # else it would be waited for
                self._send(held, protocol.encode_frame(protocol.LEAVE, protocol.ALL_TASKS))
            self._drop(held)
        self._selector.close()

    def __enter__(self) -> StepStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one node's connection -----------------------------------------------------------------------------

    def _serve(self, held: _NodeConnection, events: int, frames: list[Frame]) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(held, b"")
        if not events & selectors.EVENT_READ or held.socket is None:
            return
        try:
            data = held.socket.recv(1 << 18)
            received = held.splitter.feed(data) if data else []
            for kind, task, payload in received:
                if held.way is None or self._counts(held, held.way, kind, payload, frames):
                    self._take(Frame(held.node, kind, task, payload), held, frames)
        except BlockingIOError:
            return
        except (OSError, protocol.ProtocolError) as error:
            self._lose(held, str(error), frames)
            return
        if not data:
            self._lose(held, "the node's agent closed the connection", frames)

    def _take(self, frame: Frame, held: _NodeConnection, frames: list[Frame]) -> None:
        first, held.heard_of = not held.heard_of, True
        if frame.kind == protocol.ROOM:
            held.room = protocol.decode_position(frame.payload)
            return
        if first:
            held.room = None
        if frame.kind == protocol.FENCE:
            if self._fences is not None:
                self._fences.come(self, frame.node, frame.value())
            return
        frames.append(frame)
        if frame.kind == protocol.STEP_ENDED:
            self._open.discard(held.node)
            self._drop(held)
            self._one_less()

    def _lose(self, held: _NodeConnection, why: str, frames: list[Frame], *, for_good: bool = False) -> None:
        if held.way is not None and held.node in self._open and not for_good:
            self._disconnect(held)
            held.way.broke(time.monotonic())
            return
        self._drop(held)
        if held.node in self._open:
            self._open.discard(held.node)
            frames.append(Frame(held.node, LOST, protocol.ALL_TASKS, why.encode()))
            self._one_less()

    # --- connections that are carried ----------------------------------------------------------------------

    def _counts(self, held: _NodeConnection, way: _Way, kind: int, payload: bytes, frames: list[Frame]) -> bool:
        """Whether the frame is one of the streams' own. Raises ProtocolError."""
        if kind == protocol.REFUSED:
            self._lose(held, payload.decode("utf-8", "replace"), frames, for_good=True)
            return False
        if way.awaits_word:
            if kind != protocol.CONFIRM:
                raise protocol.ProtocolError("the agent does not say how far it has heard")
            if way.came_back():
                frames.append(Frame(held.node, BACK, protocol.ALL_TASKS, b""))
            self._send(held, way.kept.since(protocol.decode_position(payload)))
        elif kind == protocol.CONFIRM:
            way.kept.confirm(protocol.decode_position(payload))
        elif way.heard.take(payload) or kind == protocol.STEP_ENDED:
            self._send(held, way.heard.confirmation())
        return kind != protocol.CONFIRM

    def _go_on(self, frames: list[Frame], timeout_s: float | None) -> float | None:
        """Makes connections again that broke; how long to wait at most, until the next of them is due."""
        now = time.monotonic()
        dues = [] if timeout_s is None else [timeout_s]
        for held in self._nodes.values():
            way = held.way
            if way is None or not way.broken_at:
                continue
            if way.is_to_tell(now):
                frames.append(Frame(held.node, AWAY, protocol.ALL_TASKS, b""))
            dues.append(way.tell_in_s(now))
            if held.socket is None:
                if now >= way.retry_at:
                    self._try_again(held, way, now)
                dues.append(max(0.0, way.retry_at - now))
        return min(dues, default=None)

    def _try_again(self, held: _NodeConnection, way: _Way, now: float) -> None:
        way.try_again(now)
        try:
            self._open_connection(held, timeout_s=1.0)
        except OSError:
            self._disconnect(held)

    def _one_less(self) -> None:
        """A fence may have waited for nobody else."""
        if self._fences is not None:
            self._fences.complete()

    def _drop(self, held: _NodeConnection) -> None:
        if self._nodes.pop(held.node, None) is not None:
            self._disconnect(held)

    def _disconnect(self, held: _NodeConnection) -> None:
        if held.socket is not None:
            self._selector.unregister(held.socket)
            held.socket.close()
            held.socket = None
        held.outgoing.clear()

    def _broadcast(self, data: bytes) -> None:
        for held in list(self._nodes.values()):
            if held.way is not None:
                held.way.kept.add(data)
                if held.way.awaits_word:
                    continue
            self._send(held, data)

    def _send(self, held: _NodeConnection, data: bytes) -> None:
        if held.socket is None:
            return
        held.outgoing += data
        try:
            while held.outgoing:
                del held.outgoing[: held.socket.send(held.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            held.outgoing.clear()  # the read side reports the loss
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if held.outgoing else 0)
        if held.wanted != wanted:
            held.wanted = wanted
            self._selector.modify(held.socket, wanted, held)

    def open_fence(self, merged: dict[str, str]) -> None:
        """Tells the nodes what all of them put in before the fence."""
        self._broadcast(protocol.encode_json_frame(protocol.FENCE_RESULT, protocol.ALL_TASKS, merged))


class Fences:
    """Where all nodes of a step meet: what each of them put in is told to all when the last one has come."""

    def __init__(self) -> None:
        self._parts: list[StepStreams] = []
        self._came: dict[tuple[int, str], dict[str, str]] = {}

    def join(self, part: StepStreams) -> None:
        self._parts.append(part)

    def come(self, part: StepStreams, node: str, pairs: dict[str, str]) -> None:
        self._came[self._parts.index(part), node] = pairs
        self.complete()

    def complete(self) -> None:
        """Opens the fence when every node that is still there has come to it."""
        awaited = {(place, node) for place, part in enumerate(self._parts) for node in part.open_nodes}
        if not self._came or not awaited <= self._came.keys():
            return
        merged = {name: value for pairs in self._came.values() for name, value in pairs.items()}
        self._came.clear()
        for part in self._parts:
            part.open_fence(merged)


class _NodeConnection:
    __slots__ = ("endpoint", "heard_of", "node", "outgoing", "room", "socket", "splitter", "wanted", "way")

    def __init__(self, node: str, endpoint: str, peer: str) -> None:
        self.node = node
        self.endpoint = endpoint
        self.way = _Way(peer) if peer else None
        """None: the agent itself is at the other end."""
        self.socket: socket.socket | None = None
        self.splitter = protocol.FrameSplitter()
        self.outgoing = bytearray()
        self.wanted = selectors.EVENT_READ
        self.heard_of = False
        self.room: int | None = 0
        """So much input it has taken, with room for more behind. None: its first frame was another, of an agent from
        before there was this one."""

    def input_on_its_way(self, sent: int) -> int:
        if self.room is not None:
            return sent - self.room
        return len(self.way.kept) if self.way is not None else len(self.outgoing)


class _Way:
    """How a node is reached whose streams are carried, and how far they came."""

    __slots__ = ("_retry_s", "_told", "awaits_word", "broken_at", "heard", "kept", "peer", "retry_at")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.kept = Kept()
        self.heard = Heard()
        self.awaits_word = False
        """Of the agent, on how far it has heard; until then nothing is sent."""
        self.broken_at = 0.0
        """0: it is not broken."""
        self.retry_at = 0.0
        self._retry_s = _RETRY_S
        self._told = False

    def broke(self, now: float) -> None:
        self.awaits_word = True
        self.broken_at = self.broken_at or now
        self.retry_at = max(self.retry_at, now)

    def try_again(self, now: float) -> None:
        self.retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)

    def is_to_tell(self, now: float) -> bool:
        """Once, of a break that lasts."""
        due = not self._told and now - self.broken_at >= _TELL_AWAY_S
        self._told = self._told or due
        return due

    def tell_in_s(self, now: float) -> float:
        """How long until that is due; for ever, where it was told."""
        return _FOR_EVER_S if self._told else max(0.0, self.broken_at + _TELL_AWAY_S - now)

    def came_back(self) -> bool:
        """Whether anybody was told that it was away."""
        told, self._told = self._told, False
        self.awaits_word, self.broken_at, self._retry_s = False, 0.0, _RETRY_S
        return told
