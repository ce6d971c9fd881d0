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

Writing never blocks: what a node does not take yet waits here, and `backlog` says how much, so that a caller stops
reading its stdin when tasks do not read theirs.

Invariant: every node yields exactly one last frame: `STEP_ENDED`, or `LOST` when its connection broke before that.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from bireme.agent import protocol

LOST = 0
"""Kind of the frame that stands for a connection that broke or never came about; the payload says why."""


class Frame(NamedTuple):
    node: str
    kind: int
    task: int
    payload: bytes

    def value(self) -> Any:
        """The payload of the kinds that carry JSON: TASK_EXITED {code, signal, oom}, TASKS_STARTED {task: pid}."""
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
        self._fences = fences
        if fences is not None:
            fences.join(self)

    @property
    def open_nodes(self) -> frozenset[str]:
        """Those that may still say something."""
        return frozenset(self._open)

    @property
    def finished(self) -> bool:
        """No more frames will come from any node."""
        return not self._open and not self._early

    def connect(self, timeout_s: float = 10.0) -> None:
        """Reaches every node; one that cannot be reached yields a LOST frame at the next `poll`."""
        for node, address in self._endpoints.items():
            try:
                connection = protocol.connect_endpoint(address, timeout_s)
            except OSError as error:
                self._open.discard(node)
                self._early.append(Frame(node, LOST, protocol.ALL_TASKS, str(error).encode()))
                continue
            connection.setblocking(False)
            held = _NodeConnection(node, connection)
            self._nodes[node] = held
            self._selector.register(connection, selectors.EVENT_READ, held)
            self._write(held, json.dumps(self._hello).encode("ascii") + b"\n")

    def watch(self, fd: int, tag: object) -> None:
        """Have `poll` also return `tag` when the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, tag)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout_s: float | None = None) -> tuple[list[Frame], list[object]]:
        """What came in, and which watched descriptors are readable; waits at most `timeout_s`."""
        frames, self._early = self._early, []
        ready: list[object] = []
        for key, events in self._selector.select(0 if frames else timeout_s):
            if isinstance(key.data, _NodeConnection):
                self._serve(key.data, events, frames)
            else:
                ready.append(key.data)
        return frames, ready

    def send_stdin(self, data: bytes, task: int = protocol.ALL_TASKS) -> None:
        """To one task or to all; empty data is end of file."""
        self._broadcast(protocol.encode_frame(protocol.STDIN, task, data))

    def send_signal(self, number: int, task: int = protocol.ALL_TASKS) -> None:
        self._broadcast(protocol.encode_json_frame(protocol.SIGNAL, task, {"signal": number}))

    def send_window_size(self, rows: int, columns: int) -> None:
        size = {"rows": rows, "columns": columns}
        self._broadcast(protocol.encode_json_frame(protocol.WINDOW_SIZE, protocol.ALL_TASKS, size))

    def backlog(self) -> int:
        """Bytes that some node has not taken yet (the largest of all nodes)."""
        return max((len(held.outgoing) for held in self._nodes.values()), default=0)

    def close(self) -> None:
        for held in list(self._nodes.values()):
            self._drop(held)
        self._selector.close()

    def __enter__(self) -> StepStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one node's connection -----------------------------------------------------------------------------

    def _serve(self, held: _NodeConnection, events: int, frames: list[Frame]) -> None:
        if events & selectors.EVENT_WRITE:
            self._write(held, b"")
        if not events & selectors.EVENT_READ:
            return
        try:
            data = held.socket.recv(1 << 18)
            received = held.splitter.feed(data) if data else []
        except BlockingIOError:
            return
        except (OSError, protocol.ProtocolError) as error:
            self._lose(held, str(error), frames)
            return
        for kind, task, payload in received:
            self._take(Frame(held.node, kind, task, payload), held, frames)
        if not data:
            self._lose(held, "the node's agent closed the connection", frames)

    def _take(self, frame: Frame, held: _NodeConnection, frames: list[Frame]) -> None:
        if frame.kind == protocol.FENCE:
            if self._fences is not None:
                self._fences.come(self, frame.node, frame.value())
            return
        frames.append(frame)
        if frame.kind == protocol.STEP_ENDED:
            self._open.discard(held.node)
            self._drop(held)
            self._one_less()

    def _lose(self, held: _NodeConnection, why: str, frames: list[Frame]) -> None:
        self._drop(held)
        if held.node in self._open:
            self._open.discard(held.node)
            frames.append(Frame(held.node, LOST, protocol.ALL_TASKS, why.encode()))
            self._one_less()

    def _one_less(self) -> None:
        """A fence may have waited for nobody else."""
        if self._fences is not None:
            self._fences.complete()

    def _drop(self, held: _NodeConnection) -> None:
        if self._nodes.pop(held.node, None) is not None:
            self._selector.unregister(held.socket)
            held.socket.close()

    def _broadcast(self, data: bytes) -> None:
        for held in list(self._nodes.values()):
            self._write(held, data)

    def _write(self, held: _NodeConnection, data: bytes) -> None:
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
    __slots__ = ("node", "outgoing", "socket", "splitter", "wanted")

    def __init__(self, node: str, connection: socket.socket) -> None:
        self.node = node
        self.socket = connection
        self.splitter = protocol.FrameSplitter()
        self.outgoing = bytearray()
        self.wanted = selectors.EVENT_READ
