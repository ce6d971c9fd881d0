"""What travels over an agent's socket: JSON lines with the daemon, binary frames with `srun` and `sattach`.

Both sides import this module, `srun` among them, so it stays light: no asyncio, no dataclass machinery beyond
what a frame needs. It frames and splits; what a message means is decided by `server` and by the engine.

A connection's first line says who it is: `{"hello": "daemon", ...}` speaks lines from then on,
`{"hello": "stream", "job", "step", "key"}` speaks frames: 1 byte kind, 4 bytes task id, 4 bytes length, payload. With
`client` and `heard` in it the streams are carried, and may be resumed over another connection (`resumption`). The first
frame of an agent is ROOM: how much input of this client it has taken and has room behind; input waits for the next one,
so that what is no input is never behind input that no task reads.

Orders of the daemon are in `orders`, what agents tell is in `told`, a class for each kind of line. An order has a
number, `no`, counted by the daemon (`speaker` of its hello): `did` answers those that were carried out, an "error" with
`no` one that failed and is to be said again. All are idempotent but signals, whose numbers the agent remembers. Events
are said again after a reconnect until acknowledged. A connection begins with `welcome`; `recall` in a daemon's hello
has the agent say again what the newest jobs came to that it had forgotten.

Invariant: what `srun` needs of the protocol is here, and nothing that is slow to import. Lines are written and read by
`lines`; srun's only one, its hello, is plain JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

VERSION = 3
SAYS_WHAT_IT_DID = 2
"""The first version whose agents answer the number of an order."""
ASKS_REPLICAS = 3
"""The first version whose agents ask the replicas of services whether they are well."""
VOLUMES_VARIABLE = "BIREME_VOLUMES"
"""In a job: the folders that stay when its pods are gone. `srun` leaves output elsewhere to the nodes."""
ALL_TASKS = 0xFFFFFFFF
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024

# agent -> client
STDOUT = 1
STDERR = 2
TASK_EXITED = 3
TASKS_STARTED = 4
FENCE = 5
MESSAGE = 6
STEP_ENDED = 7
REFUSED = 8
ROOM = 9
PROGRESS = 10
"""An image is fetched for the step: `{"image", "doing", "done", "of", "line"}`; the last for who draws nothing."""
# client -> agent
STDIN = 16
SIGNAL = 17
WINDOW_SIZE = 18
FENCE_RESULT = 19
ATTACH_OPTIONS = 20
LEAVE = 21
# both ways, on carried streams
CONFIRM = 32

SMALL_FRAME_BYTES = 1 << 12
"""A client's frame, of any kind that is not among these:"""
CLIENT_FRAME_BYTES = {STDIN: 1 << 16, FENCE_RESULT: 1 << 24}
"""Any user's program may begin a frame and leave the agent to hold it. Input is cut into frames by the client; the
result of a fence is as large as what all ranks put in."""

_HEADER = struct.Struct(">BII")
HEADER_BYTES = _HEADER.size
_POSITION = struct.Struct(">Q")
_MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes on Linux

Message = dict[str, Any]

_encoder = json.JSONEncoder(separators=(",", ":"))


class ProtocolError(ValueError):
    """The other side sent something that is no message of this protocol."""


def whole_number(message: Message, name: str, default: int | None = None, most: int = 2**63 - 1) -> int:
    """An integer field of a message from anybody; nothing else that JSON calls a number. Raises ProtocolError."""
    value = message.get(name, default)
    if type(value) is not int or not -most <= value <= most:
        raise ProtocolError(f"{name} must be a whole number of at most {most}")
    return value


def encode_frame(kind: int, task: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, task, len(payload)) + payload


def encode_json_frame(kind: int, task: int, value: Any) -> bytes:
    return encode_frame(kind, task, _encoder.encode(value).encode("ascii"))


def encode_position(kind: int, position: int) -> bytes:
    """A frame that says how far its sender has come: CONFIRM, ROOM."""
    return encode_frame(kind, ALL_TASKS, _POSITION.pack(position))


def decode_position(payload: bytes) -> int:
    """Raises ProtocolError."""
    try:
        (position,) = _POSITION.unpack(payload)
    except struct.error as error:
        raise ProtocolError(f"a position cannot be read: {error}") from error
    return int(position)


class LineSplitter:
    """Cuts a byte stream into lines."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The complete lines so far, without their newlines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ProtocolError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        return lines


class FrameSplitter:
    """Cuts a byte stream into (kind, task, payload)."""

    __slots__ = ("_bounds", "_buffer")

    def __init__(self, bounds: Mapping[int, int] | None = None) -> None:
        """`bounds`: of frames by kind, those of others are small. None: an agent's frames, which are trusted more."""
        self._bounds = bounds
        self._buffer = bytearray()

    @property
    def unfinished(self) -> int:
        """Bytes of a frame whose end has not come."""
        return len(self._buffer)

    def _longest(self, kind: int) -> int:
        return MAX_FRAME_BYTES if self._bounds is None else self._bounds.get(kind, SMALL_FRAME_BYTES)

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        at = 0
        while len(buffer) - at >= _HEADER.size:
            kind, task, length = _HEADER.unpack_from(buffer, at)
            if length > (longest := self._longest(kind)):
                raise ProtocolError(f"a frame of kind {kind} has {length} bytes: more than {longest}")
            end = at + _HEADER.size + length
            if len(buffer) < end:
                break
            frames.append((kind, task, bytes(buffer[at + _HEADER.size : end])))
            at = end
        if at:
            del buffer[:at]
        return frames


@contextmanager
def socket_path(path: str) -> Iterator[str]:
    """A name for a unix socket that fits into a socket address, however deep its directory lies."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def listen_at(path: str, backlog: int, *, for_everyone: bool) -> socket.socket:
    """A listening socket at `path`, private to its owner or not. Raises OSError.

    Whoever calls it holds the lock of what listens there: a file that is there already is a leftover.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        with socket_path(path) as short:
            listener.bind(short)
        os.chmod(path, 0o666 if for_everyone else 0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def place_of(path: str) -> tuple[int, int] | None:
    """Which file it is, by its device and inode: a socket that was removed may be there again, and not be ours."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


CROSSING = "crossing.sock"
"""In a folder of agents' sockets: where those agents are asked for that have no socket of their own there."""


def way_to(address: str) -> tuple[str, str]:
    """(endpoint, peer) of an agent: where to connect, and whom to ask for there.

    No peer: the agent itself answers. Else it is another machine's and its streams are carried: what is connected to
    may go away while the agent lives. Its name is asked for in a line of its own, before everything else.
    """
    scheme, _, path = address.partition(":")
    folder, name = os.path.split(path)
    crossing = os.path.join(folder, CROSSING)
    if scheme != "unix" or os.path.exists(path) or not os.path.exists(crossing):
        return address, ""
    return f"unix:{crossing}", name.removesuffix(".sock")


def connect_endpoint(address: str, timeout_s: float | None = None) -> socket.socket:
    """A connected socket to `unix:PATH` or `tcp:HOST:PORT`; OSError when nobody answers.

    A unix socket at which too many wait already is waited for in turn; with a timeout of 0 that is a BlockingIOError.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if timeout_s:  # a socket with a timeout of Python's would not wait in line
                seconds, fraction = divmod(timeout_s, 1)
                limit = struct.pack("ll", int(seconds), int(fraction * 1e6))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connection.setblocking(timeout_s != 0)
            with socket_path(rest) as path:
                connection.connect(path)
            connection.settimeout(timeout_s)
        except OSError:
            connection.close()
            raise
        return connection
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        return socket.create_connection((host, int(port)), timeout_s)
    raise ProtocolError(f"unknown kind of endpoint: {address!r}")
