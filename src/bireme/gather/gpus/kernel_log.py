"""Lines of the kernel's log that tell of faults: Xids with their pid, and what else ends jobs on a machine.

NVIDIA's driver says there of a GPU what NVML does not tell: the process, and a cause. The rest (memory used up,
crashes, PCIe, links, disks, file systems, hung tasks) is told in the kernel's own words, for a diagnosis. `watching`
reads new lines in every round, without waiting. Where the log may not be read (no right to it, a container) there are
none, and NVML's events are all that is known.

Invariants: only lines that are written after `KernelLog` was made are told, each once. What a program wrote into the
log (root may, and the kernel marks it) is not told: it could say anything.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable

from bireme.gather.gpus.source import GpuEvent

_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, (?:pid=(?P<pid>\d+|'<unknown>'|<unknown>)))?"
    r"(?:, name=(?P<name>[^,]*))?,? ?(?P<rest>.*)"
)
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+),? ?(?P<rest>.*)")
_FAULTS = re.compile(
    r"out of memory: kill|oom-kill:|: segfault at |general protection|trap invalid opcode|hardware error|machine check"
    r"|pcie bus error|aer: .*(?:error|fatal)|nvlink|fallen off the bus|rminitadapter failed|nvrm: .*(?:error|fail)"
    r"|link is down|link down|link is up|carrier lost|health compromised|nfs: server .* (?:not responding|ok)"
    r"|lustre.*(?:error|evict|lost)|i/o error|buffer i/o|ext4-fs error|xfs .*(?:corrupt|error|shutting down)"
    r"|remounting filesystem read-only|blocked for more than \d+ seconds|soft lockup|no space left",
    re.IGNORECASE,
)
"""What is worth telling; what it means, the rules of a diagnosis know."""
_OF_PROCESS = re.compile(r"(?:Kill(?:ed)? process |task=\S*,pid=|^\S+\[|INFO: task \S+:)(\d+)")
_LONGEST = 500
_FACILITY = 8
"""The number before a line is its level and, times eight, who wrote it; the kernel itself is 0."""
_RECORD_BYTES = 8192  # the kernel's own longest
_RECORDS_A_READ = 1000
_OTHERS_A_READ = 50
"""A port that corrects errors all day writes thousands of lines that say the same."""


class KernelLog:
    """New lines of /dev/kmsg about GPUs."""

    def __init__(
        self,
        path: str = "/dev/kmsg",
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the kernel's own, by which it dates its lines."""
        self._wall = wall
        self._clock = clock
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
            self.problem = ""
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def read(self) -> list[GpuEvent]:
        """What was told since the last time: of a thousand lines, and the first some of the machine's faults."""
        events: list[GpuEvent] = []
        others = 0
        for _ in range(_RECORDS_A_READ):
            record = self._next()
            if record is None:
                break
            line, age_s, is_kernels = _parts_of(record, self._clock())
            found = event_of(line, self._wall() - age_s) if is_kernels else None
            if found is None or (found.kind == "kernel" and others >= _OTHERS_A_READ):
                continue
            others += found.kind == "kernel"
            events.append(found)
        return events

    def wait(self, seconds: float) -> None:
        """Until there are new lines, or the time is over; where the log cannot be read, all of it."""
        file = self._file
        if file < 0:
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(1000.0 * seconds)

    def _next(self) -> bytes | None:
        """A record, empty for lines that were overwritten before they were read; None: no more for now."""
        if self._file < 0:
            return None
        try:
            return os.read(self._file, _RECORD_BYTES) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:  # overwritten: the next read goes on behind the gap
            return b""
        except OSError as error:
            self.problem = str(error.strerror)
            self.close()
            return None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _parts_of(record: bytes, now: float) -> tuple[str, float, bool]:
    """The line of a record `priority,number,microseconds,flags;line` (keys follow it), how long ago it was, and whether
    the kernel itself wrote it."""
    head, semicolon, rest = record.partition(b";")
    numbers = head.split(b",")
    told_at = int(numbers[2]) / 1e6 if semicolon and len(numbers) > 2 and numbers[2].isdigit() else now
    is_kernels = bool(semicolon) and numbers[0].isdigit() and int(numbers[0]) < _FACILITY
    line = (rest if semicolon else head).partition(b"\n")[0]
    return line.decode(errors="replace"), max(0.0, now - told_at), is_kernels


def event_of(line: str, at: float) -> GpuEvent | None:
    """An Xid, an SXid, or another fault in the kernel's words; None: a line about something else."""
    xid = _XID.search(line)
    if xid is not None:
        pid = xid["pid"] or ""
        words = [f"name={xid['name']}" if xid["name"] else "", xid["rest"].strip()]
        return GpuEvent(
            at=at,
            kind="xid",
            code=int(xid["code"]),
            pci_bus_id=bus_id(xid["bus"]),
            pid=int(pid) if pid.isdigit() else 0,
            text=", ".join(word for word in words if word),
        )
    sxid = _SXID.search(line)
    if sxid is not None:
        return GpuEvent(at, "sxid", int(sxid["code"]), pci_bus_id=bus_id(sxid["bus"]), text=sxid["rest"].strip())
    if _FAULTS.search(line) is not None:
        process = _OF_PROCESS.search(line)
        return GpuEvent(at, "kernel", pid=int(process[1]) if process is not None else 0, text=line[:_LONGEST])
    return None


def bus_id(text: str) -> str:
    """As everybody else writes it: four digits of the domain, and a function. The driver leaves that out."""
    text = text.lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")
