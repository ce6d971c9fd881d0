"""Xid lines of the kernel's log: what NVIDIA's driver says there of a GPU, a pid and a cause that NVML does not tell.

`watching` reads new lines in every round, without waiting. Where the log may not be read (no right to it, a container)
there are none, and NVML's events are all that is known.

Invariant: only lines that are written after `KernelLog` was made are told, each once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from bireme.gather.gpus.source import GpuEvent

_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, (?:pid=(?P<pid>\d+|'<unknown>'|<unknown>)))?"
    r"(?:, name=(?P<name>[^,]*))?,? ?(?P<rest>.*)"
)
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+),? ?(?P<rest>.*)")
_RECORD_BYTES = 8192  # the kernel's own longest
_RECORDS_A_READ = 1000


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
        """What was told since the last time; not more than a thousand lines at once."""
        events = []
        for _ in range(_RECORDS_A_READ):
            record = self._next()
            if record is None:
                break
            line, age_s = _parts_of(record, self._clock())
            found = event_of(line, self._wall() - age_s)
            if found is not None:
                events.append(found)
        return events

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


def _parts_of(record: bytes, now: float) -> tuple[str, float]:
    """The line of a record `priority,number,microseconds,flags;line` (keys follow it), and how long ago it was."""
    head, semicolon, rest = record.partition(b";")
    numbers = head.split(b",")
    told_at = int(numbers[2]) / 1e6 if semicolon and len(numbers) > 2 and numbers[2].isdigit() else now
    line = (rest if semicolon else head).partition(b"\n")[0]
    return line.decode(errors="replace"), max(0.0, now - told_at)


def event_of(line: str, at: float) -> GpuEvent | None:
    """An Xid or SXid; None: a line about something else."""
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
    return None


def bus_id(text: str) -> str:
    """As everybody else writes it: four digits of the domain, and a function. The driver leaves that out."""
    text = text.lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")
