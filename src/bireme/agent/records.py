"""What an agent writes down so that its successor knows what it left: `tasks.jsonl`.

Lines are appended before the thing they speak of can matter: that a job is held before its first process starts,
a pid as soon as there is one, an event before it is sent. They outlive the agent's process, not the machine (no
fsync: after a reboot no process is left, and the boot id says so).

Called by `server` and `jobs`; read once, by the next agent on this node. Not the daemon's journal: the daemon
decides what became of a job, this only keeps facts until the daemon has them, and of the newest jobs for some time
longer: a daemon whose journal lost its end asks for them (`recall`).

Each line ends with a tab and its own sum. One that is not what was written is left out and told; that there was a past
is then taken for granted, whatever is left of it.

Invariants: one agent per node: the file is only touched by the holder of the node's lock. On a disk without room it
holds what it held, and whole lines.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.messages.lines import encode_line
from bireme.agent.messages.protocol import Message
from bireme.agent.system.processes import ProcessIdentity, boot_id

log = logging.getLogger("bireme.agent")

JobKey = tuple[int, int]
"""(job id, generation)."""

_REWRITE_BYTES = 4 * 1024 * 1024
_PAST_JOBS = 500
"""Of so many that everybody knows the end of it is kept, for a daemon that lost it."""
_SUM = b"\t%08x\n"
_OWN = b'{"r":'
"""How lines begin that are no events."""


class NodeTakenError(Exception):
    """The refusal of an agent whose node another agent owns."""


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """A process that was started. `started` is when, in seconds since the machine's boot, as the agent saw it.

    The kernel's own start time would cost a read of /proc that waits for the fresh process's exec.
    """

    pid: int
    started: float
    boot: str


@dataclass(frozen=True, slots=True)
class RecordedKeeper:
    """A keeper that held something of a job. `group`: the name of its cgroup, if it had one."""

    process: ProcessIdentity
    group: str


@dataclass(slots=True)
class Leftover:
    """What the records say of one job that was not forgotten."""

    key: JobKey
    keepers: list[RecordedKeeper] = field(default_factory=list)
    processes: list[RecordedProcess] = field(default_factory=list)
    events: list[Message] = field(default_factory=list)


LOCK = "agent.pid"


def take_node(directory: Path) -> int:
    """The node's lock, held until this process ends; NodeTakenError when another agent has it.

    Its file is for the owner alone: whoever may open a file may lock it, and so keep the node down.
    """
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(fd, 0o600)  # an earlier version's was open to all
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise NodeTakenError(f"another agent runs in {directory}") from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


@dataclass(slots=True)
class Found:
    """What a file says."""

    jobs: dict[JobKey, Leftover] = field(default_factory=dict)
    past: dict[JobKey, list[Message]] = field(default_factory=dict)
    """What was said of jobs that were forgotten since, oldest first."""
    epoch: int = 0
    last_seq: int = 0
    damaged: list[int] = field(default_factory=list)
    """Lines, by number, that are not what was written."""


class TaskRecords:
    """The open file. Construct it only while holding the node's lock."""

    def __init__(self, path: Path, *, had_past: bool = False) -> None:
        """`had_past`: there was an agent before, whether or not its records are there."""
        self._path = path
        self.had_past = had_past
        found = read_records(path)
        self.leftovers = list(found.jobs.values())
        self.damaged = found.damaged
        self.epoch, self.last_seq = found.epoch + 1, found.last_seq
        self._fd = -1
        self._bytes = 0
        self._kept: dict[JobKey, list[bytes]] = {leftover.key: _lines_of(leftover) for leftover in self.leftovers}
        self._past = {key: [encode_line(event) for event in events] for key, events in found.past.items()}
        self._rewrite(self.last_seq)

    def held(self, key: JobKey) -> None:
        self._append(key, _held_line(key))

    def started(self, key: JobKey, pid: int) -> None:
        process = RecordedProcess(pid, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id())
        self._note(key, _process_line(key, process))

    def kept(self, key: JobKey, keeper: ProcessIdentity, group: str) -> None:
        """Writes down that this keeper holds something of the job from now on."""
        self._note(key, _keeper_line(key, RecordedKeeper(keeper, group)))

    def reported(self, key: JobKey, line: bytes) -> None:
        """`line` is the event as it is sent."""
        self._append(key, line)

    def forget(self, key: JobKey, last_seq: int) -> None:
        """Everything about this generation is known elsewhere."""
        lines = self._kept.pop(key, None)
        if lines is None:
            return
        self._past.pop(key, None)
        self._past[key] = [line for line in lines if not line.startswith(_OWN)]
        if len(self._past) > _PAST_JOBS:
            del self._past[next(iter(self._past))]
        self._write(_gone_line(key))
        if self._bytes > _REWRITE_BYTES:
            self._try_to_rewrite(last_seq)

    def past(self) -> list[JobKey]:
        """The newest starts that were forgotten, as far as they are remembered."""
        return list(self._past)

    def recall(self) -> list[Message]:
        """What was said of the newest jobs that were forgotten; they are to be forgotten anew."""
        past, self._past = self._past, {}
        for key, lines in past.items():
            self._kept.setdefault(key, []).extend(lines)
        return [json.loads(line) for lines in past.values() for line in lines]

    def _note(self, key: JobKey, line: bytes) -> None:
        """What runs goes on without it, on a full disk: a successor has its keeper's cgroup and the job's marker."""
        try:
            self._append(key, line)
        except OSError as error:
            log.error("job %d.%d: a process could not be written down: %s", *key, error)

    def _append(self, key: JobKey, line: bytes) -> None:
        self._kept.setdefault(key, []).append(line)
        self._write(line)

    def _write(self, line: bytes) -> None:
        _append_whole(self._fd, _summed(line))
        self._bytes += len(line)

    def _try_to_rewrite(self, last_seq: int) -> None:
        """Where it cannot be done, on a full disk say, the file goes on as it is, and is tried again when it has grown
        by as much."""
        try:
            self._rewrite(last_seq)
        except OSError as error:
            log.error("%s cannot be made shorter: %s", self._path, error)
            self._bytes = 0

    def _rewrite(self, last_seq: int) -> None:
        """Starts the file again with only what is still to be remembered. Raises OSError, and the file is as it was."""
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        head = encode_line({"r": "epoch", "epoch": self.epoch, "seq": last_seq})
        kept = [line for lines in self._kept.values() for line in lines]
        past = [line for key, lines in self._past.items() for line in (_held_line(key), *lines, _gone_line(key))]
        try:
            _append_whole(fd, b"".join(map(_summed, [head, *past, *kept])))
            os.fsync(fd)  # some file systems tell only now that there is no room
            os.replace(fresh, self._path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(fresh)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._bytes = fd, 0


def _held_line(key: JobKey) -> bytes:
    return b'{"r":"job","job":%d,"gen":%d}\n' % key


def _process_line(key: JobKey, process: RecordedProcess) -> bytes:
    about = (*key, process.pid, process.started, process.boot.encode())
    return b'{"r":"pid","job":%d,"gen":%d,"pid":%d,"started":%.2f,"boot":"%s"}\n' % about


def _keeper_line(key: JobKey, keeper: RecordedKeeper) -> bytes:
    who = keeper.process
    about = (*key, who.pid, who.start_ticks, who.boot_id.encode(), keeper.group.encode())
    return b'{"r":"keeper","job":%d,"gen":%d,"pid":%d,"ticks":%d,"boot":"%s","group":"%s"}\n' % about


def _lines_of(leftover: Leftover) -> list[bytes]:
    keepers = [_keeper_line(leftover.key, keeper) for keeper in leftover.keepers]
    processes = [_process_line(leftover.key, process) for process in leftover.processes]
    return [_held_line(leftover.key), *keepers, *processes, *(encode_line(event) for event in leftover.events)]


def _gone_line(key: JobKey) -> bytes:
    return b'{"r":"gone","job":%d,"gen":%d}\n' % key


def _append_whole(fd: int, data: bytes) -> None:
    """All of it or nothing: half a line would spoil the next one too. Raises OSError."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        if len(rest) < len(data):
            os.ftruncate(fd, os.fstat(fd).st_size - (len(data) - len(rest)))
        raise


def _summed(line: bytes) -> bytes:
    text = line.removesuffix(b"\n")
    return text + _SUM % zlib.crc32(text)


def read_records(path: Path) -> Found:
    """What the predecessor left. A torn last line is what a crash leaves, and no damage."""
    found = Found()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return found
    lines = content.split(b"\n")
    # An earlier version wrote no sums.
    summed = any(line[-9:-8] == b"\t" for line in lines)
    for number, line in enumerate(lines[:-1], 1):
        try:
            _fold(found, _record(line, summed))
        except (ValueError, KeyError, TypeError, AttributeError):
            found.damaged.append(number)
    if not summed:
        found.damaged.clear()
    elif lines[-1] and not lines[-1].startswith(b"{"):
        found.damaged.append(len(lines))
    if content and not found.epoch:
        found.damaged.append(1)
    return found


def _record(line: bytes, summed: bool) -> Message:
    if summed:
        text, mark, total = line[:-9], line[-9:-8], line[-8:]
        if mark != b"\t" or _SUM % zlib.crc32(text) != b"\t" + total + b"\n":
            raise ValueError("not what was written")
        line = text
    record: Message = json.loads(line)
    return record


def _fold(found: Found, record: Message) -> None:
    if record.get("r") == "epoch":
        found.epoch, found.last_seq = record["epoch"], max(found.last_seq, record["seq"])
        return
    found.last_seq = max(found.last_seq, record.get("seq", 0))
    key, kind = (record["job"], record["gen"]), record.get("r", "event")
    if kind == "gone":
        gone = found.jobs.pop(key, None)
        if gone is not None:
            found.past.pop(key, None)
            found.past[key] = gone.events
            if len(found.past) > _PAST_JOBS:
                del found.past[next(iter(found.past))]
        return
    leftover = found.jobs.setdefault(key, Leftover(key))
    if kind == "pid":
        leftover.processes.append(RecordedProcess(record["pid"], record["started"], record["boot"]))
    elif kind == "keeper":
        process = ProcessIdentity(record["pid"], record["ticks"], record["boot"])
        leftover.keepers.append(RecordedKeeper(process, record["group"]))
    elif kind == "event":
        leftover.events.append(record)
