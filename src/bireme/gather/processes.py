"""Reads what one process uses, from /proc: a few small files, each as bytes, nothing remembered.

Called for every process of a job in every round, so it reads no more than it needs, and makes tuples: frozen
dataclasses take several times as long to make. `tasks` adds them up.
Invariant: a process that is gone, or may not be looked into, is None or lacks that figure; nothing is raised.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_BYTES = 4096
_IO_ROWS = [b"rchar:", b"wchar:", b"syscr:", b"syscw:", b"read_bytes:", b"write_bytes:"]
"""As every kernel writes them that tells of IO."""


class Process(NamedTuple):
    """One process. Its own times and faults, and apart from them those of children that it has waited for."""

    pid: int
    parent: int
    started: int
    """Ticks after the boot: with the pid it names the process for all time."""
    state: str
    threads: int
    user_s: float
    system_s: float
    major_faults: int
    children_user_s: float
    children_system_s: float
    children_major_faults: int
    resident_bytes: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def started_s(self) -> float:
        """Seconds after the boot."""
        return self.started / _TICKS_PER_S


class Io(NamedTuple):
    """Bytes read and written by a process and by children that it has waited for: through system calls, and of block
    devices."""

    read: int
    written: int
    disk_read: int
    disk_written: int


def look(pid: int, proc: str = "/proc") -> Process | None:
    """The process as it is now; None: there is none, or it is dead and waits to be collected."""
    text = _read(f"{proc}/{pid}/stat")
    end = text.rfind(b")")  # its name may hold anything, parentheses too
    if end < 0:
        return None
    fields = text[end + 2 :].split()
    threads = int(fields[17])
    if fields[0] in (b"Z", b"X") and threads <= 1:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        state=fields[0].decode(),
        threads=threads,
        user_s=int(fields[11]) / _TICKS_PER_S,
        system_s=int(fields[12]) / _TICKS_PER_S,
        major_faults=int(fields[9]),
        children_user_s=int(fields[13]) / _TICKS_PER_S,
        children_system_s=int(fields[14]) / _TICKS_PER_S,
        children_major_faults=int(fields[10]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def everybody(proc: str = "/proc") -> dict[int, Process]:
    """Every process that lives, by its pid."""
    found = (look(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def io_of(pid: int, proc: str = "/proc") -> Io | None:
    """What it read and wrote; None where the kernel does not say it to us."""
    words = _read(f"{proc}/{pid}/io").split()
    if words[::2][:6] != _IO_ROWS:
        return None
    return Io(int(words[1]), int(words[3]), int(words[9]), int(words[11]))


def switches_of(pid: int, proc: str = "/proc") -> int | None:
    """Context switches of its first thread, voluntary and not: the last two of some sixty rows, which are not read."""
    _, found, rest = _read(f"{proc}/{pid}/status").partition(b"\nvoluntary_ctxt_switches:")
    words = rest.split()
    if not found or words[1:2] != [b"nonvoluntary_ctxt_switches:"]:
        return None
    return int(words[0]) + int(words[2])


def output_positions(pid: int, proc: str = "/proc") -> tuple[int | None, int | None]:
    """How far its standard output and its standard error have come in their files, as the kernel counts it.

    The files themselves are not touched: a file system that hangs costs nothing. None: it is no file, or may not be
    known; of the standard error also where it goes the same way as the output.
    """
    places = [_link(f"{proc}/{pid}/fd/{number}") for number in (1, 2)]
    out = _position(f"{proc}/{pid}/fdinfo/1") if _is_file(places[0]) else None
    err = _position(f"{proc}/{pid}/fdinfo/2") if _is_file(places[1]) and places[1] != places[0] else None
    return out, err


def _is_file(place: str) -> bool:
    return place.startswith("/") and not place.startswith(("/dev/", "/proc/", "/memfd:"))


def _position(path: str) -> int | None:
    text = _rows(_read(path)).get(b"pos", b"")
    return int(text) if text.isdigit() else None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _rows(text: bytes) -> dict[bytes, bytes]:
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in text.splitlines())}


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:  # it ended between the two calls
        return b""
    finally:
        os.close(descriptor)
