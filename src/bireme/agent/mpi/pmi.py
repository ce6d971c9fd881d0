"""The process-management server that MPI programs ask who and where they are (`srun --mpi=pmi2`).

One `PmiNode` serves the tasks of one step on one node. Each task inherits one end of a socket pair as
PMI_FD and speaks either wire protocol over it; the first line says which:
- PMI-1: lines of `name=value` words. What Debian's MPICH 4.0 speaks, also under Slurm's `--mpi=pmi2`.
- PMI-2: the same first line, then messages of `name=value;` pairs behind a six-digit length.

It does no IO: bytes in (`handle`), actions out. The agent moves the bytes, and carries a `Fence` to the
step's coordinator (`srun`), which merges the nodes' pairs and has `complete_fence` called everywhere.
Spawning further processes and publishing names are refused: a step has the size it was started with.

Invariants: a fence opens only when every task of every node has arrived, and what was put before it is
readable by all after it. What tasks leave here is bounded by how many of them there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

KVSNAME_MAX = 256
KEY_MAX = 64
VALUE_MAX = 1024
_MESSAGE_MAX = 1 << 20
_MOST_PAIRS, _MOST_PAIRS_A_RANK = 1 << 20, 1 << 14
"""So many bytes of keys and values may a step leave with a node, and so many more for each of its ranks: MPI libraries
put some addresses. A task that puts without end would have the node's memory."""
_MOST_WAITS_A_RANK = 64
_LENGTH_DIGITS = 6
_MAPPING_KEY = "PMI_process_mapping"


@dataclass(frozen=True, slots=True)
class PmiStep:
    """What a node must know of the step it serves."""

    job_id: str  # names the key space: the same on every node, different for every step
    size: int
    local_ranks: tuple[int, ...]
    mapping: str  # from `process_mapping`
    universe_size: int | None = None

    def environment(self, rank: int, fd: int) -> dict[str, str]:
        """The variables that lead the task to its end of the socket pair."""
        return {
            "PMI_FD": str(fd),
            "PMI_JOBID": self.job_id,
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(self.size),
        }


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the task's socket."""

    rank: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Fence:
    """Every local task has arrived; these are the pairs put here since the last fence."""

    pairs: dict[str, str]


@dataclass(frozen=True, slots=True)
class Abort:
    """The task asks for the whole step to end, or has broken the protocol."""

    rank: int
    exit_code: int
    message: str


PmiAction = Send | Fence | Abort
_Fields = dict[str, str]


@dataclass(slots=True)
class _Connection:
    buffer: bytes = b""
    version: int = 0  # 0 until the first line has come
    thread: str = ""  # PMI-2 clients with threads tell answers apart by this
    finalized: bool = False


@dataclass(slots=True)
class _AttributeWaiter:
    rank: int
    thread: str
    key: str


class _ProtocolError(Exception):
    pass


@dataclass(slots=True)
class PmiNode:
    """The server for one step on one node. Feed it with `handle`, carry out what it returns, in order."""

    step: PmiStep
    _connections: dict[int, _Connection] = field(init=False)
    _common: dict[str, str] = field(init=False)  # fenced: known on every node
    _fresh: dict[str, str] = field(default_factory=dict, init=False)  # put here since the last fence
    _arrived: set[int] = field(default_factory=set, init=False)
    _attributes: dict[str, str] = field(default_factory=dict, init=False)  # this node's own
    _waiters: list[_AttributeWaiter] = field(default_factory=list, init=False)
    _held: int = field(default=0, init=False)  # bytes of all pairs

    def __post_init__(self) -> None:
        self._connections = {rank: _Connection() for rank in self.step.local_ranks}
        self._common = {_MAPPING_KEY: self.step.mapping}

    def handle(self, rank: int, data: bytes) -> list[PmiAction]:
        """Bytes that came from a local task, cut anywhere; what to do about them."""
        connection = self._connections[rank]
        connection.buffer += data
        actions: list[PmiAction] = []
        try:
            while (message := _next_message(connection)) is not None:
                actions += self._answer(rank, connection, message)
        except _ProtocolError as error:
            connection.buffer = b""
            actions.append(Abort(rank, 1, f"PMI protocol error: {error}"))
        return actions

    def complete_fence(self, merged: Mapping[str, str]) -> list[PmiAction]:
        """Open the fence: every node has arrived, and these are the pairs of all of them."""
        if len(self._arrived) != len(self.step.local_ranks):
            raise ValueError("the fence was opened before every local task had arrived")
        self._common.update(merged)
        self._fresh = {}
        held = (self._common, self._attributes)
        self._held = sum(len(key) + len(value) for pairs in held for key, value in pairs.items())
        if self._held > self._most_held:
            return [Abort(self.step.local_ranks[0], 1, f"PMI: the step has put more than {self._most_held} bytes")]
        waiting, self._arrived = sorted(self._arrived), set()
        return [self._fence_opened(rank, self._connections[rank]) for rank in waiting]

    # --- dispatch ------------------------------------------------------------------------------------------

    def _answer(self, rank: int, connection: _Connection, message: str) -> list[PmiAction]:
        if connection.version == 2:
            fields = _parse_pairs(message)
            connection.thread = fields.get("thrid", "")
            table = _PMI2_COMMANDS
        else:
            fields = _parse_words(message)
            table = _PMI1_COMMANDS
        command = fields.get("cmd", "")
        handler = table.get(command)
        if handler is None:
            return [_reply(rank, connection, command, {"rc": "-1", _error_field(connection): "not_supported"})]
        return handler(self, rank, connection, fields)

    def _init(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        version = fields.get("pmi_version", "")
        supported = version in ("1", "2")
        answer = {
            "pmi_version": version if supported else "2",
            "pmi_subversion": "1" if version == "1" else "0",
            "rc": "0" if supported else "-1",
        }
        # The answer to the first line is a line in either protocol.
        line = _format_words("response_to_init", answer)
        connection.version = int(version) if supported else 0
        return [Send(rank, line)]

    def _full_init(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        answer = {
            "rc": "0",
            "pmi-version": "2",
            "pmi-subversion": "0",
            "rank": str(rank),
            "size": str(self.step.size),
            "appnum": "0",
            "debugged": "FALSE",
            "pmiverbose": "FALSE",
        }
        return [_reply(rank, connection, "fullinit", answer)]

    # --- what a task may ask -------------------------------------------------------------------------------

    def _maxes(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        maxes = {"kvsname_max": str(KVSNAME_MAX), "keylen_max": str(KEY_MAX), "vallen_max": str(VALUE_MAX)}
        return [_reply(rank, connection, "maxes", {"rc": "0", **maxes})]

    def _appnum(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        return [_reply(rank, connection, "appnum", {"rc": "0", "appnum": "0"})]

    def _kvsname(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        return [_reply(rank, connection, "my_kvsname", {"rc": "0", "kvsname": self.step.job_id})]

    def _universe_size(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        return [_reply(rank, connection, "universe_size", {"rc": "0", "size": self._universe()})]

    def _job_id(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        return [_reply(rank, connection, "job-getid", {"rc": "0", "jobid": self.step.job_id})]

    def _job_attribute(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        known = {_MAPPING_KEY: self.step.mapping, "universeSize": self._universe()}
        return [_found(rank, connection, "info-getjobattr", known.get(fields.get("key", "")))]

    def _universe(self) -> str:
        return str(self.step.universe_size or self.step.size)

    @property
    def _most_held(self) -> int:
        return _MOST_PAIRS + self.step.size * _MOST_PAIRS_A_RANK

    def _keep(self, pairs: dict[str, str], key: str, value: str) -> bool:
        """Whether there was room for it."""
        more = len(value) - len(pairs[key]) if key in pairs else len(key) + len(value)
        if self._held + more > self._most_held:
            return False
        self._held += more
        pairs[key] = value
        return True

    # --- pairs and fences ----------------------------------------------------------------------------------

    def _put(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        key, value = fields.get("key", ""), fields.get("value", "")
        name = "kvs-put" if connection.version == 2 else "put_result"
        if not key or len(key) > KEY_MAX or len(value) > VALUE_MAX:
            return [_reply(rank, connection, name, {"rc": "-1", _error_field(connection): "too_long"})]
        if not self._keep(self._fresh, key, value):
            return [_reply(rank, connection, name, {"rc": "-1", _error_field(connection): "no_room"})]
        return [_reply(rank, connection, name, {"rc": "0"})]

    def _get(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        key = fields.get("key", "")
        value = self._fresh.get(key, self._common.get(key))
        if connection.version == 2:
            return [_found(rank, connection, "kvs-get", value)]
        if value is None:
            return [_reply(rank, connection, "get_result", {"rc": "-1", "msg": "key_not_found"})]
        return [_reply(rank, connection, "get_result", {"rc": "0", "value": value})]

    def _arrive(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        if rank in self._arrived:
            raise _ProtocolError(f"rank {rank} entered a fence twice")
        self._arrived.add(rank)
        if len(self._arrived) < len(self.step.local_ranks):
            return []
        return [Fence(dict(self._fresh))]

    def _fence_opened(self, rank: int, connection: _Connection) -> Send:
        return _reply(rank, connection, "kvs-fence" if connection.version == 2 else "barrier_out", {"rc": "0"})

    # --- attributes of the node (PMI-2) --------------------------------------------------------------------

    def _put_attribute(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        key, value = fields.get("key", ""), fields.get("value", "")
        if not self._keep(self._attributes, key, value):
            return [_reply(rank, connection, "info-putnodeattr", {"rc": "-1", _error_field(connection): "no_room"})]
        actions: list[PmiAction] = [_reply(rank, connection, "info-putnodeattr", {"rc": "0"})]
        for waiter in [w for w in self._waiters if w.key == key]:
            self._waiters.remove(waiter)
            theirs = self._connections[waiter.rank]
            theirs.thread = waiter.thread
            actions.append(_found(waiter.rank, theirs, "info-getnodeattr", value))
        return actions

    def _get_attribute(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        key = fields.get("key", "")
        if key not in self._attributes and fields.get("wait", "").upper() == "TRUE":
            if len(self._waiters) >= _MOST_WAITS_A_RANK * len(self.step.local_ranks):
                raise _ProtocolError("too many attributes are waited for")
            self._waiters.append(_AttributeWaiter(rank, connection.thread, key))
            return []
        return [_found(rank, connection, "info-getnodeattr", self._attributes.get(key))]

    # --- endings -------------------------------------------------------------------------------------------

    def _finalize(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        connection.finalized = True
        name = "finalize" if connection.version == 2 else "finalize_ack"
        return [_reply(rank, connection, name, {"rc": "0"})]

    def _abort(self, rank: int, connection: _Connection, fields: _Fields) -> list[PmiAction]:
        message = fields.get("msg") or fields.get("error_msg") or f"rank {rank} called abort"
        code = fields.get("exitcode", "1")
        return [Abort(rank, int(code) & 0xFF if re.fullmatch("-?[0-9]{1,18}", code) else 1, message)]


_Handler = Callable[[PmiNode, int, _Connection, _Fields], list[PmiAction]]

_PMI1_COMMANDS: dict[str, _Handler] = {
    "init": PmiNode._init,
    "get_maxes": PmiNode._maxes,
    "get_appnum": PmiNode._appnum,
    "get_my_kvsname": PmiNode._kvsname,
    "get_universe_size": PmiNode._universe_size,
    "put": PmiNode._put,
    "get": PmiNode._get,
    "barrier_in": PmiNode._arrive,
    "finalize": PmiNode._finalize,
    "abort": PmiNode._abort,
}
_PMI2_COMMANDS: dict[str, _Handler] = {
    "fullinit": PmiNode._full_init,
    "job-getid": PmiNode._job_id,
    "info-getjobattr": PmiNode._job_attribute,
    "job-getinfo": PmiNode._job_attribute,
    "info-putnodeattr": PmiNode._put_attribute,
    "info-getnodeattr": PmiNode._get_attribute,
    "kvs-put": PmiNode._put,
    "kvs-get": PmiNode._get,
    "kvs-fence": PmiNode._arrive,
    "finalize": PmiNode._finalize,
    "abort": PmiNode._abort,
}


def process_mapping(node_of_rank: Sequence[int]) -> str:
    """Which rank is on which node (nodes counted from 0), in the form MPI libraries read.

    A block (first node, nodes, tasks on each) deals out ranks in order; the list of blocks starts over until
    all ranks are dealt, so that a cyclic distribution stays one block however long it is.
    """
    blocks: list[tuple[int, int, int]] = []
    for node, run in groupby(node_of_rank):
        tasks = len(list(run))
        if blocks and blocks[-1][2] == tasks and node == blocks[-1][0] + blocks[-1][1]:
            first, nodes, _ = blocks.pop()
            blocks.append((first, nodes + 1, tasks))
        else:
            blocks.append((node, 1, tasks))
    period = next((p for p in range(1, len(blocks)) if _repeats(blocks, p)), len(blocks))
    return "(vector," + ",".join(f"({a},{b},{c})" for a, b, c in blocks[:period]) + ")"


def _repeats(blocks: list[tuple[int, int, int]], period: int) -> bool:
    return all(block == blocks[index % period] for index, block in enumerate(blocks))


# --- the wire ----------------------------------------------------------------------------------------------


def _next_message(connection: _Connection) -> str | None:
    """Take one whole message off the buffer; None when the rest is still to come."""
    if connection.version == 2:
        return _next_framed(connection)
    line, newline, rest = connection.buffer.partition(b"\n")
    if not newline:
        if len(line) > _MESSAGE_MAX:
            raise _ProtocolError("a line that does not end")
        return None
    connection.buffer = rest
    return line.decode(errors="replace")


def _next_framed(connection: _Connection) -> str | None:
    head = connection.buffer[:_LENGTH_DIGITS]
    if len(head) < _LENGTH_DIGITS:
        return None
    if not head.strip().isdigit():
        raise _ProtocolError(f"{head!r} is not a message length")
    end = _LENGTH_DIGITS + int(head)
    if len(connection.buffer) < end:
        return None
    body, connection.buffer = connection.buffer[_LENGTH_DIGITS:end], connection.buffer[end:]
    return body.decode(errors="replace")


def _parse_words(line: str) -> _Fields:
    """`cmd=put key=a value=b`; a word without `=` says nothing."""
    pairs = (word.partition("=") for word in line.split())
    fields = {name: value for name, equals, value in pairs if equals}
    # Spawning is asked for in several lines behind `mcmd=`; it is refused by the name of the request.
    return {"cmd": fields["mcmd"], **fields} if "mcmd" in fields else fields


def _parse_pairs(message: str) -> _Fields:
    """`cmd=kvs-put;key=a;value=b;` where a semicolon within a value is written twice."""
    fields: _Fields = {}
    for part in message.replace(";;", "\0").split(";"):
        name, equals, value = part.partition("=")
        if equals:
            fields[name.strip()] = value.replace("\0", ";")
    return fields


def _format_words(command: str, fields: Mapping[str, str]) -> bytes:
    words = [f"cmd={command}", *(f"{name}={value}" for name, value in fields.items())]
    return (" ".join(words) + "\n").encode()


def _reply(rank: int, connection: _Connection, command: str, fields: Mapping[str, str]) -> Send:
    if connection.version != 2:
        return Send(rank, _format_words(command, fields))
    named = {"thrid": connection.thread, **fields} if connection.thread else fields
    pairs = "".join(f"{name}={value.replace(';', ';;')};" for name, value in named.items())
    body = f"cmd={command}-response;{pairs}".encode()
    return Send(rank, f"{len(body):6d}".encode() + body)


def _found(rank: int, connection: _Connection, command: str, value: str | None) -> Send:
    if value is None:
        return _reply(rank, connection, command, {"rc": "0", "found": "FALSE"})
    return _reply(rank, connection, command, {"rc": "0", "found": "TRUE", "value": value})


def _error_field(connection: _Connection) -> str:
    return "errmsg" if connection.version == 2 else "msg"
