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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.agent.processes import ProcessIdentity
from bireme.agent.protocol import Message, encode_line

JobKey = tuple[int, int]
"""(job id, generation)."""

_REWRITE_BYTES = 4 * 1024 * 1024


class NodeTakenError(Exception):
    """Another agent owns this node."""


@dataclass(slots=True)
class Leftover:
    """What the records say of one job that was not forgotten."""

    key: JobKey
    processes: list[ProcessIdentity] = field(default_factory=list)
    events: list[Message] = field(default_factory=list)


def take_node(directory: Path) -> int:
    """The node's lock, held until this process ends; NodeTakenError when another agent has it."""
    fd = os.open(directory / "agent.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        self._append(key, {"r": "job", "job": key[0], "gen": key[1]})

    def started(self, key: JobKey, process: ProcessIdentity) -> None:
        record = {"r": "pid", "job": key[0], "gen": key[1], "pid": process.pid, "start": process.start_ticks}
        self._append(key, record | {"boot": process.boot_id})

    def reported(self, event: Message) -> None:
        self._append((event["job"], event["gen"]), {"r": "ev", "event": event})

    def forget(self, key: JobKey, last_seq: int) -> None:
        """Everything about this generation is known elsewhere."""
        if self._kept.pop(key, None) is None:
            return
        self._write(encode_line({"r": "gone", "job": key[0], "gen": key[1]}))
        if self._bytes > _REWRITE_BYTES:
            self._rewrite(last_seq)

    def _append(self, key: JobKey, record: Message) -> None:
        line = encode_line(record)
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


def _lines_of(leftover: Leftover) -> list[bytes]:
    job, generation = leftover.key
    held: list[Message] = [{"r": "job", "job": job, "gen": generation}]
    held += [
        {"r": "pid", "job": job, "gen": generation, "pid": p.pid, "start": p.start_ticks, "boot": p.boot_id}
        for p in leftover.processes
    ]
    held += [{"r": "ev", "event": event} for event in leftover.events]
    return [encode_line(record) for record in held]


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
            record: dict[str, Any] = json.loads(line)
            kind = record["r"]
            if kind == "epoch":
                epoch, last_seq = record["epoch"], max(last_seq, record["seq"])
                continue
            about = record["event"] if kind == "ev" else record
            key = (about["job"], about["gen"])
            if kind == "gone":
                jobs.pop(key, None)
                continue
            leftover = jobs.setdefault(key, Leftover(key))
            if kind == "pid":
                leftover.processes.append(ProcessIdentity(record["pid"], record["start"], record["boot"]))
            elif kind == "ev":
                leftover.events.append(about)
                last_seq = max(last_seq, about["seq"])
        except (ValueError, KeyError, TypeError):
            continue
    return list(jobs.values()), epoch, last_seq
