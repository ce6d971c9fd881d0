"""What an agent writes down so that its successor knows what it left: `tasks.jsonl`.

Lines are appended before the thing they speak of can matter: that a job is held before its first process starts,
a pid as soon as there is one, an event before it is sent. They outlive the agent's process, not the machine (no
fsync: after a reboot no process is left, and the boot id says so).

Called by `server` and `jobs`; read once, by the next agent on this node. Not the daemon's journal: the daemon
decides what became of a job, this only keeps facts until the daemon has them.

Invariant: one agent per node. The file is only touched by the holder of the node's lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bireme.agent.lines import encode_line
from bireme.agent.protocol import Message

JobKey = tuple[int, int]
"""(job id, generation)."""

_REWRITE_BYTES = 4 * 1024 * 1024


class NodeTakenError(Exception):
    """Another agent owns this node."""


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """A process that was started. `started` is when, in seconds since the machine's boot, as the agent saw it.

    The kernel's own start time would cost a read of /proc that waits for the fresh process's exec.
    """

    pid: int
    started: float
    boot: str


@dataclass(slots=True)
class Leftover:
    """What the records say of one job that was not forgotten."""

    key: JobKey
    processes: list[RecordedProcess] = field(default_factory=list)
    events: list[Message] = field(default_factory=list)


def take_node(directory: Path) -> int:
    """The node's lock, held until this process ends; NodeTakenError when another agent has it.

    Its file is for the owner alone: whoever may open a file may lock it, and so keep the node down.
    """
    fd = os.open(directory / "agent.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(fd, 0o600)  # an earlier version's was open to all
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise NodeTakenError(f"another agent runs in {directory}") from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


class TaskRecords:
    """The open file. Construct it only while holding the node's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.leftovers, self.epoch, self.last_seq = _read(path)
        self.epoch += 1
        self._fd = -1
        self._bytes = 0
        self._kept: dict[JobKey, list[bytes]] = {leftover.key: _lines_of(leftover) for leftover in self.leftovers}
        self._rewrite(self.last_seq)

    def held(self, key: JobKey) -> None:
        self._append(key, _held_line(key))

    def started(self, key: JobKey, pid: int) -> None:
        process = RecordedProcess(pid, time.clock_gettime(time.CLOCK_BOOTTIME), _boot_id())
        self._append(key, _process_line(key, process))

    def reported(self, key: JobKey, line: bytes) -> None:
        """`line` is the event as it is sent."""
        self._append(key, line)

    def forget(self, key: JobKey, last_seq: int) -> None:
        """Everything about this generation is known elsewhere."""
        if self._kept.pop(key, None) is None:
            return
        self._write(encode_line({"r": "gone", "job": key[0], "gen": key[1]}))
        if self._bytes > _REWRITE_BYTES:
            self._rewrite(last_seq)

    def _append(self, key: JobKey, line: bytes) -> None:
        self._kept.setdefault(key, []).append(line)
        self._write(line)

    def _write(self, line: bytes) -> None:
        os.write(self._fd, line)
        self._bytes += len(line)

    def _rewrite(self, last_seq: int) -> None:
        """Starts the file again with only what is still to be remembered."""
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        head = encode_line({"r": "epoch", "epoch": self.epoch, "seq": last_seq})
        content = b"".join([head, *(line for lines in self._kept.values() for line in lines)])
        os.write(fd, content)
        os.replace(fresh, self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._bytes = fd, 0


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _held_line(key: JobKey) -> bytes:
    return b'{"r":"job","job":%d,"gen":%d}\n' % key


def _process_line(key: JobKey, process: RecordedProcess) -> bytes:
    about = (*key, process.pid, process.started, process.boot.encode())
    return b'{"r":"pid","job":%d,"gen":%d,"pid":%d,"started":%.2f,"boot":"%s"}\n' % about


def _lines_of(leftover: Leftover) -> list[bytes]:
    processes = [_process_line(leftover.key, process) for process in leftover.processes]
    return [_held_line(leftover.key), *processes, *(encode_line(event) for event in leftover.events)]


def _read(path: Path) -> tuple[list[Leftover], int, int]:
    """What the predecessor left, its epoch and the last seq it used. A torn last line is what a crash leaves."""
    jobs: dict[JobKey, Leftover] = {}
    epoch = last_seq = 0
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return [], 0, 0
    for line in text.splitlines():
        try:
            record: Message = json.loads(line)
            if record.get("r") == "epoch":
                epoch, last_seq = record["epoch"], max(last_seq, record["seq"])
            else:
                last_seq = max(last_seq, record.get("seq", 0))
                _fold(jobs, record)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return list(jobs.values()), epoch, last_seq


def _fold(jobs: dict[JobKey, Leftover], record: Message) -> None:
    key, kind = (record["job"], record["gen"]), record.get("r", "event")
    if kind == "gone":
        jobs.pop(key, None)
        return
    leftover = jobs.setdefault(key, Leftover(key))
    if kind == "pid":
        leftover.processes.append(RecordedProcess(record["pid"], record["started"], record["boot"]))
    elif kind == "event":
        leftover.events.append(record)
