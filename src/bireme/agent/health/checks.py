"""The checks of a machine, one function each: what they look at, and what to do about what they find.

Run by `running`, each in a process of its own: any of them may hang in the kernel for ever. They only look; the one
file that is written is removed again.
Invariant: what cannot be looked at (no driver, no right) is no failure, and is said.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bireme.agent.confining import confinement
from bireme.agent.devices import gpus

Status = Literal["PASS", "WARN", "FAIL"]
NETWORK_FILES = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "wekafs", "panfs", "afs", "9p")
_NO_SPACE, _LITTLE_SPACE = 50 << 20, 1 << 30
_FEW_INODES = 0.01
_LITTLE_MEMORY = 0.02
_STA_UNSYNC, _ROOM = 0x40, 4096
_UNLIKELY_BEFORE = 1_700_000_000
_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")
_MOST_MOUNTS = 32


@dataclass(frozen=True, slots=True)
class Check:
    """One line. `advice`: what to do; empty where nothing is to be done."""

    name: str
    status: Status
    why: str
    advice: str = ""
    looked: bool = True
    """False: it came to nothing, for a reason that is not the machine's part that it is about."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the configuration says of this machine; 0: nothing, or nobody was asked."""

    gpus: int = 0
    memory_mib: int = 0


def driver(expected: Expected) -> Iterator[Check]:
    """Whether a driver answers, and shows as many GPUs as the configuration has."""
    loaded = os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/kfd")
    found = gpus.discover()
    if not found.gpus:
        if loaded:
            advice = "run nvidia-smi (or rocm-smi) and dmesg on it: reset or restart, then look at power and seating"
            yield Check("driver", "FAIL", f"a driver is loaded and shows no GPU: {found.reason}", advice)
        else:
            yield Check("driver", "PASS", "no driver of GPUs is loaded here")
        return
    yield Check("driver", "PASS", f"it shows {len(found.gpus)} GPUs")
    if expected.gpus > len(found.gpus):
        why = f"{len(found.gpus)} of {expected.gpus} that the configuration has"
        yield Check("gpus", "FAIL", why, "dmesg says which fell off the bus; restart the node, then reseat the card")
    elif expected.gpus and expected.gpus < len(found.gpus):
        why = f"{len(found.gpus)}, and the configuration has {expected.gpus}"
        yield Check("gpus", "WARN", why, "the others are given to nobody: gres.conf")
    elif expected.gpus:
        yield Check("gpus", "PASS", f"{len(found.gpus)}, as the configuration has")


def pcie(expected: Expected, devices: str = "/sys/bus/pci/devices") -> Iterator[Check]:
    """Whether links of GPUs are as wide as they could be. An idle link may be slower, it is not narrower."""
    seen, narrow = 0, []
    for folder in sorted(Path(devices).glob("*")):
        if _read(folder / "vendor") not in (_NVIDIA, _AMD) or _read(folder / "class")[:6] not in _DISPLAYS:
            continue
        now, most = _read(folder / "current_link_width"), _read(folder / "max_link_width")
        if now.isdigit() and most.isdigit() and int(now):
            seen += 1
            if int(now) < int(most):
                narrow.append(f"{folder.name} has {now} of {most} lanes")
    if narrow:
        yield Check("pcie", "WARN", "; ".join(narrow), "reseat the card or its riser, where the slot has more lanes")
    elif seen:
        yield Check("pcie", "PASS", f"all lanes of {seen} GPUs are in use")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def disk(expected: Expected) -> Iterator[Check]:
    """Whether the local file systems that jobs need can be written, and have room."""
    for folder in dict.fromkeys(("/", tempfile.gettempdir(), "/dev/shm")):
        yield from _room(folder)
    yield _writing(tempfile.gettempdir())


def _room(folder: str) -> Iterator[Check]:
    try:
        about = os.statvfs(folder)
    except OSError as error:
        yield Check(f"disk {folder}", "WARN", str(error.strerror))
        return
    free = about.f_bavail * about.f_frsize
    words = f"{free / (1 << 30):.1f} GiB free"
    if free < _NO_SPACE and folder != "/dev/shm":
        yield Check(f"disk {folder}", "FAIL", words, "make room: du -xh / | sort -h | tail")
    elif free < _LITTLE_SPACE and folder != "/dev/shm":
        yield Check(f"disk {folder}", "WARN", words, "make room before jobs fail for it")
    elif about.f_files and about.f_favail < _FEW_INODES * about.f_files:
        yield Check(
            f"disk {folder}", "WARN", f"{about.f_favail} more files can be made", "remove files that nobody needs"
        )
    else:
        yield Check(f"disk {folder}", "PASS", words)


def _writing(folder: str) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM))
            file.flush()
    except OSError as error:
        advice = "look at the disk (dmesg, smartctl), and check the file system before it is mounted again"
        return Check(f"writing {folder}", "FAIL", f"nothing can be written: {error.strerror}", advice)
    return Check(f"writing {folder}", "PASS", "a file was written and removed")


def memory(
    expected: Expected, info: str = "/proc/meminfo", edac: str = "/sys/devices/system/edac/mc"
) -> Iterator[Check]:
    """Whether there is as much as the configuration says, some of it is free, and none of it is broken."""
    said = dict(line.split(":", 1) for line in Path(info).read_text().splitlines() if ":" in line)
    total, free = (int(said[name].split()[0]) // 1024 for name in ("MemTotal", "MemAvailable"))
    if free < _LITTLE_MEMORY * total:
        yield Check(
            "memory", "WARN", f"{free} of {total} MiB are available", "see who has it: ps -eo rss,pid,user,comm"
        )
    elif total < expected.memory_mib:
        why = f"{total} MiB, and the configuration has {expected.memory_mib}"
        yield Check("memory", "WARN", why, "a module may have failed (dmidecode -t memory); else mend RealMemory")
    else:
        yield Check("memory", "PASS", f"{free} of {total} MiB are available")
    errors = sum(int(count) for path in Path(edac).glob("mc*/ue_count") if (count := _read(path)).isdigit())
    if errors:
        advice = "replace the module that dmesg or edac-util names"
        yield Check("memory errors", "FAIL", f"{errors} errors that could not be corrected since it started", advice)


def clock(expected: Expected) -> Iterator[Check]:
    """Whether the machine has the time, and something keeps it right."""
    now = time.time()
    if now < _UNLIKELY_BEFORE:
        yield Check("clock", "FAIL", f"it says {time.ctime(now)}", "set the clock, and start chronyd")
        return
    buffer = ctypes.create_string_buffer(512)  # a struct timex, with all modes 0: it is only asked
    try:
        ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        yield Check("clock", "PASS", "it has a likely time; whether it is kept right cannot be asked here")
        return
    status = ctypes.c_int.from_buffer(buffer, _STATUS_AT).value
    if status & _STA_UNSYNC:
        yield Check("clock", "WARN", "nothing keeps it right (adjtimex: unsynchronised)", "start chronyd or ntpd")
    else:
        yield Check("clock", "PASS", "it is kept right")


_STATUS_AT = 5 * ctypes.sizeof(ctypes.c_long)
"""`status` comes after modes (padded), offset, freq, maxerror and esterror."""


def cgroup(expected: Expected) -> Iterator[Check]:
    """Whether jobs can be held to their memory, CPUs and devices."""
    found = confinement.probe()
    unable = [each for each in found if not each.ok]
    if unable:
        why = "; ".join(f"{each.name}: {each.why}" for each in unable)
        yield Check("cgroup", "WARN", why, "jobs run, and are not held to these: bireme doctor says more")
    else:
        yield Check("cgroup", "PASS", "jobs can be held to memory, CPUs and devices")


Look = Callable[[Expected], Iterator[Check]]


def all_checks(mounts: str = "/proc/self/mounts", table: str = "/etc/fstab") -> dict[str, Look]:
    """By name; each network mount is one of its own, for each may hang by itself."""
    found: dict[str, Look] = {
        "driver": driver, "pcie": pcie, "disk": disk, "memory": memory, "clock": clock, "cgroup": cgroup,
    }  # fmt: skip
    mounted = _network_mounts(mounts)
    for place in mounted[:_MOST_MOUNTS]:
        found[f"mount {place}"] = _mount(place)
    missing = [place for place in _network_mounts(table, wanted=True) if place not in mounted]
    if missing:
        found["mounts"] = _missing(missing)
    return found


def _network_mounts(table: str, *, wanted: bool = False) -> list[str]:
    """Their places. `wanted`: of a table of what should be mounted, without what is to be mounted by hand."""
    try:
        lines = [line.split() for line in Path(table).read_text().splitlines()]
    except OSError:
        return []
    rows = [words for words in lines if len(words) >= 4 and not words[0].startswith("#")]
    places = [words[1] for words in rows if words[2] in NETWORK_FILES and not (wanted and "noauto" in words[3])]
    return [place.replace("\\040", " ") for place in dict.fromkeys(places)]


def _mount(place: str) -> Look:
    def look(expected: Expected) -> Iterator[Check]:
        os.listdir(place)  # what the kernel has in memory it would tell without its server
        about = os.statvfs(place)
        yield Check(f"mount {place}", "PASS", f"it answers, {about.f_bavail * about.f_frsize / (1 << 30):.0f} GiB free")

    return look


def _missing(places: list[str]) -> Look:
    def look(expected: Expected) -> Iterator[Check]:
        for place in places:
            yield Check(f"mount {place}", "FAIL", "it is in /etc/fstab and not mounted", f"mount {place}")

    return look
