"""What the kernel gives an agent to hold a job's processes with: a cgroup where one can be made, else keepers alone.

Every batch script and every step runs below a keeper (`keeper`), a child subreaper: whatever its processes do, they
stay below it. Where the kernel lets the agent make cgroups, each keeper also lives in one of its own, which a process
cannot leave either, and which is still there when agent and keeper are both killed. This is about tracking alone:
what jobs are held to is `confinement`'s, with or without this.

v2 goes first, in any tree that is mounted: it kills a whole group in one act and needs no controller for it. v1's
freezer comes next: a frozen group does not fork while it is killed.

`server` opens one `Tracking` per agent, `keepers` makes groups in it, `bireme doctor` asks `probe`.
Invariant: only directories below the agent's own group are made, changed or removed.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bireme.agent.confining.hierarchy import Hierarchy, find_v1, own_group_v2, write
from bireme.agent.system.capability import Capability

CGROUP, LINUXPROC, PGID = "proctrack/cgroup", "proctrack/linuxproc", "proctrack/pgid"
_KILL_ROUNDS = 100
_FREEZING_LOOKS = 10
_FREEZING_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class TrackingGroup:
    """The cgroup of one keeper and of everything that runs below it."""

    path: Path
    version: Literal[1, 2]

    def enter(self) -> None:
        """Moves the calling process in; its children are born here."""
        write(self.path / "cgroup.procs", "0")

    def pids(self) -> set[int]:
        """Every process in it and in groups that a job made below it."""
        found: set[int] = set()
        for folder, _, _ in os.walk(self.path):
            with suppress(OSError):
                found |= set(map(int, Path(folder, "cgroup.procs").read_text().split()))
        return found - {0}  # stands for a process of another pid namespace; kill(0) would be ourselves

    def kill(self) -> bool:
        """SIGKILLs all of it, its keeper too; True when nothing is left."""
        if self.version == 2:
            try:
                write(self.path / "cgroup.kill", "1")
            except OSError:  # a kernel before 5.14 has no such file
                self._kill_one_by_one()
        else:
            with self._frozen():
                self._kill_one_by_one()
        return not self.pids()

    def remove(self) -> bool:
        """False while a process is in it."""
        gone = True
        for folder, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone

    def _kill_one_by_one(self) -> None:
        for _ in range(_KILL_ROUNDS):
            doomed = self.pids()
            for pid in doomed:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not doomed or self.version == 1:  # frozen ones die when they thaw
                return

    def _frozen(self) -> _Frozen:
        return _Frozen(self.path / "freezer.state")


@dataclass(frozen=True, slots=True)
class _Frozen:
    """Within the block the group stands still: nothing in it forks, nothing enters it by a fork."""

    state: Path

    def __enter__(self) -> None:
        with suppress(OSError):
            write(self.state, "FROZEN")
            for _ in range(_FREEZING_LOOKS):  # one that sleeps in the kernel may keep it FREEZING for long
                if self.state.read_text().strip() == "FROZEN":
                    return
                time.sleep(_FREEZING_PAUSE_S)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            write(self.state, "THAWED")


@dataclass(slots=True)
class Tracking:
    """How one agent tracks: `base` holds a group for each keeper; None: keepers alone."""

    base: Path | None
    version: Literal[1, 2]
    how: str
    """In words, for people."""
    shortfall: str = ""
    """Why it is not what was asked for, or not the best there is; empty when it is."""
    made: int = 0

    @classmethod
    def open(cls, name: str, wished: str = "") -> Tracking:
        """Finds the best way that ProctrackType (`wished`) allows, and tries it out. `name` is one path component."""
        if wished.lower() in (LINUXPROC, PGID):
            weaker = " (proctrack/pgid would lose whatever leaves its process group)" if wished.lower() == PGID else ""
            return cls(None, 2, f"a child subreaper above each script and step, as ProctrackType asks{weaker}")
        refusals = []
        for find in (_find_v2, _find_v1):
            place, refusal = find()
            refusal = refusal or (_try(place, name) if place is not None else "")
            if place is None or refusal:
                refusals.append(refusal)
                continue
            how = f"cgroup v{place.version} at {place.home}, and a child subreaper above each script and step"
            return cls(place.home / name, place.version, how)
        asked = "ProctrackType=proctrack/cgroup cannot be had: " if wished else ""
        return cls(None, 2, "a child subreaper above each script and step", asked + "; ".join(refusals))

    def make_group(self) -> TrackingGroup | None:
        """A fresh group; None where there are none."""
        if self.base is None:
            return None
        self.made += 1
        group = TrackingGroup(self.base / f"kept_{os.getpid()}_{self.made}", self.version)
        group.path.mkdir(parents=True, exist_ok=True)
        return group

    def group_named(self, name: str) -> TrackingGroup | None:
        return TrackingGroup(self.base / name, self.version) if self.base is not None and name else None

    def leftovers(self) -> list[TrackingGroup]:
        """Groups that an earlier agent made."""
        if self.base is None or not self.base.is_dir():
            return []
        folders = (Path(entry.path) for entry in os.scandir(self.base) if entry.is_dir())
        return [TrackingGroup(folder, self.version) for folder in folders]

    def close(self) -> None:
        if self.base is not None:
            with suppress(OSError):
                self.base.rmdir()


def tracking_name(home: str, node: str) -> str:
    """The folder of one node of one cluster: of another cluster's node of that name it is another."""
    return f"bireme-{zlib.crc32(os.fsencode(home)):08x}-{node}-kept"


def probe() -> list[Capability]:
    """How a job's processes would be tracked here, tried for real."""
    found = Tracking.open(f"bireme-probe-{os.getpid()}")
    found.close()
    return [Capability("tracking", True, _in_words(found))]


def _in_words(found: Tracking) -> str:
    return f"{found.how}; no cgroup beside it: {found.shortfall}" if found.shortfall else found.how


# --- finding a place ---------------------------------------------------------------------------------------


def _find_v2() -> tuple[Hierarchy | None, str]:
    place = own_group_v2()
    return place, "" if place is not None else "no cgroup v2 tree is mounted"


def _find_v1() -> tuple[Hierarchy | None, str]:
    place = find_v1("freezer")
    return place, "" if place is not None else "no cgroup v1 tree with the freezer is mounted"


def _try(place: Hierarchy, name: str) -> str:
    """A child enters a group there; returns what went wrong, or nothing."""
    group = TrackingGroup(place.home / name / f"trial_{os.getpid()}", place.version)
    try:
        group.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        with suppress(OSError):
            group.path.parent.rmdir()
        return _refusal(place, error)
    problem = _in_child(group.enter)
    group.remove()
    if problem:
        with suppress(OSError):
            group.path.parent.rmdir()
        return _refusal(place, OSError(problem, os.strerror(problem)))
    return ""


def _in_child(action: Callable[[], None]) -> int:
    """The errno that the action fails with in a forked child; 0 when it does not."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            action()
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _refusal(place: Hierarchy, error: OSError) -> str:
    return f"cgroup v{place.version} at {place.home} refuses a group: {error.strerror}"
