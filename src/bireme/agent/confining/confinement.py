"""Holding a job to its memory, CPUs and devices with cgroups, v2 or v1, as far as the kernel lets us.

The agent opens one `Confinement` for its node when it starts and makes a group for each job and step; tasks
enter it through `spawn(join_files=...)`. What cannot be enforced is not an error: `refusals` says why in one
sentence, and groups simply do without it.

Each of the three kinds finds its own hierarchy, since machines mix them: memory on v1 beside devices on v2
is possible. Groups are made below the agent's own place in the hierarchy, so that limits set on the agent
(a container's, a service's) keep holding for the jobs.

cgroup v2 allows processes in leaves only: put tasks into `job_42/step_0`, limits on `job_42`.

Invariant: whatever happens in here, only directories below the agent's own are made, changed or removed.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from bireme.agent.confining.device_filter import DeviceId, deny_devices
from bireme.agent.confining.hierarchy import Hierarchy, find_v1, find_v2, write
from bireme.agent.system.capability import Capability

Kind = Literal["memory", "cpus", "devices"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CONTROLLERS: dict[Kind, str] = {"memory": "memory", "cpus": "cpuset", "devices": "devices"}
_KILL_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group is held to; None and () mean: not held."""

    memory_bytes: int | None = None
    swap_bytes: int | None = None  # on top of the memory; applies only together with it
    cpu_ids: tuple[int, ...] | None = None
    denied_devices: tuple[DeviceId, ...] = ()


@dataclass(slots=True)
class Confinement:
    """The part of the cgroup tree that belongs to one agent."""

    name: str
    hierarchies: dict[Kind, Hierarchy]
    refusals: dict[Kind, str] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str) -> Confinement:
        """Find out what can be enforced and take possession of it. `name` is one path component."""
        confinement = cls(name, {})
        for kind in KINDS:
            found = find_v2(CONTROLLERS[kind]) or find_v1(CONTROLLERS[kind])
            if found is None:
                confinement.refusals[kind] = f"no cgroup hierarchy with the {CONTROLLERS[kind]} controller is mounted"
            elif refusal := _claim(found, kind, name):
                confinement.refusals[kind] = refusal
            else:
                confinement.hierarchies[kind] = found
        return confinement

    @property
    def enforced(self) -> frozenset[Kind]:
        return frozenset(self.hierarchies)

    def create(self, group: str, limits: Limits) -> Group:
        """Make the group (`job_42` or `job_42/step_0`) with its limits; of one that exists, set them again.

        OSError when the kernel refuses a limit, for instance memory below what the group already uses.
        """
        made = self.group(group)
        for hierarchy, path in made.places():
            hierarchy.make(path, below=self._base(hierarchy))
        for kind, hierarchy in self.hierarchies.items():
            _APPLY[kind, hierarchy.version](made.paths[kind], limits)
        return made

    def group(self, group: str) -> Group:
        """The group by its name, whether or not it exists."""
        paths = {kind: self._base(hierarchy) / group for kind, hierarchy in self.hierarchies.items()}
        return Group(group, paths, self.hierarchies)

    def existing(self) -> list[str]:
        """The top-level groups that are there, such as an earlier agent left."""
        names: set[str] = set()
        for hierarchy in self.hierarchies.values():
            with suppress(OSError):
                names |= {entry.name for entry in os.scandir(self._base(hierarchy)) if entry.is_dir()}
        return sorted(names)

    def close(self) -> None:
        """Remove the agent's own directories; groups that are still there keep them."""
        for hierarchy in self.hierarchies.values():
            with suppress(OSError):
                self._base(hierarchy).rmdir()

    def _base(self, hierarchy: Hierarchy) -> Path:
        return hierarchy.home / self.name


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one job or step, wherever the kinds keep them."""

    name: str
    paths: dict[Kind, Path]
    hierarchies: dict[Kind, Hierarchy]

    @property
    def join_files(self) -> tuple[str, ...]:
        """The files a process enters the group through, for `spawn`."""
        return tuple(str(path / "cgroup.procs") for _, path in self.places())

    def pids(self) -> set[int]:
        """All processes in the group and in the groups below it."""
        found: set[int] = set()
        for _, top in self.places():
            for folder in _with_children(top):
                with suppress(OSError):
                    found |= set(map(int, (folder / "cgroup.procs").read_text().split()))
        return found - {0}  # stands for a process of another pid namespace; kill(0) would be ourselves

    def oom_kills(self) -> int:
        """How often the kernel killed one of the group's processes for memory. Read before `remove`."""
        if "memory" not in self.paths:
            return 0
        top = self.paths["memory"]
        if self.hierarchies["memory"].version == 2:
            return read_counter(top / "memory.events", "oom_kill")  # counts the groups below as well
        return sum(read_counter(folder / "memory.oom_control", "oom_kill") for folder in _with_children(top))

    def memory_peak_bytes(self) -> int | None:
        """The most memory ever held at once, page cache included; None when the kernel does not tell."""
        if "memory" not in self.paths:
            return None
        file = "memory.peak" if self.hierarchies["memory"].version == 2 else "memory.max_usage_in_bytes"
        try:
            return int((self.paths["memory"] / file).read_text())
        except (OSError, ValueError):
            return None

    def signal(self, number: int) -> int:
        """Signal every process once; returns how many were reached."""
        reached = 0
        for pid in self.pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                reached += 1
        return reached

    def kill(self) -> bool:
        """SIGKILL all of it, those that fork meanwhile too. True when only zombies can be left."""
        for hierarchy, path in self.places():
            if hierarchy.version == 2:
                with suppress(OSError):  # a kernel before 5.14 has no such file
                    write(path / "cgroup.kill", "1")
        for _ in range(_KILL_ROUNDS):
            if not self.signal(signal.SIGKILL):
                return True
        return not self.pids()

    def remove(self) -> bool:
        """Take the group away; False while a process, or a zombie nobody waited for, is still in it."""
        gone = True
        for _, top in self.places():
            for folder in sorted(_with_children(top), reverse=True):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    gone = False
        return gone

    def places(self) -> Iterator[tuple[Hierarchy, Path]]:
        """Each directory once, though on v2 all three kinds share it."""
        seen: set[Path] = set()
        for kind, path in self.paths.items():
            if path not in seen:
                seen.add(path)
                yield self.hierarchies[kind], path


def probe() -> list[Capability]:
    """For each kind whether it can be enforced here; made and removed again for real."""
    confinement = Confinement.open(f"bireme-probe-{os.getpid()}")
    capabilities = []
    for kind in KINDS:
        if kind in confinement.refusals:
            capabilities.append(Capability(f"confine {kind}", False, confinement.refusals[kind]))
            continue
        refusal = _try_entering(confinement, kind)
        how = f"cgroup v{confinement.hierarchies[kind].version}"
        capabilities.append(Capability(f"confine {kind}", not refusal, refusal or how))
    confinement.close()
    return capabilities


# --- claiming ----------------------------------------------------------------------------------------------


def _claim(hierarchy: Hierarchy, kind: Kind, name: str) -> str:
    """Make our directory in the hierarchy; returns why that is not possible, or nothing."""
    controller = CONTROLLERS[kind]
    try:
        hierarchy.make(hierarchy.home / name, below=hierarchy.home)
        if hierarchy.version == 2 and kind == "devices":
            _try_device_filter(hierarchy.home / name)
        elif hierarchy.version == 2:
            hierarchy.enable(hierarchy.home / name, controller)
    except OSError as error:
        return _in_words(error, controller, hierarchy)
    return ""


def _try_device_filter(parent: Path) -> None:
    trial = parent / f"trial-{os.getpid()}"
    trial.mkdir()
    try:
        deny_devices(str(trial), ())
    finally:
        trial.rmdir()


def _try_entering(confinement: Confinement, kind: Kind) -> str:
    """A child enters a group of this kind; returns what went wrong, or nothing."""
    alone = Confinement(confinement.name, {kind: confinement.hierarchies[kind]})
    try:
        group = alone.create("trial", Limits())
    except OSError as error:
        return _in_words(error, CONTROLLERS[kind], confinement.hierarchies[kind])
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            for file in group.join_files:
                write(Path(file), "0")
        except OSError as error:
            code = error.errno or 1
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    group.remove()
    if code == 0:
        return ""
    return _in_words(OSError(code, os.strerror(code)), CONTROLLERS[kind], confinement.hierarchies[kind])


def _in_words(error: OSError, controller: str, hierarchy: Hierarchy) -> str:
    where = f"cgroup v{hierarchy.version} at {hierarchy.home}"
    if error.errno == errno.EROFS:
        return f"{where} is mounted read-only, as in most containers"
    if error.errno in (errno.EACCES, errno.EPERM):
        needs = "needs root" if os.geteuid() != 0 else "is not delegated to this container or service"
        return f"the {controller} controller of {where} {needs}"
    return f"the {controller} controller of {where} cannot be used: {error.strerror}"


# --- setting limits ----------------------------------------------------------------------------------------


def _memory_v1(group: Path, limits: Limits) -> None:
    if limits.memory_bytes is None:
        return
    swap_file = group / "memory.memsw.limit_in_bytes"  # memory and swap together; not on every kernel
    if limits.swap_bytes is not None and swap_file.exists():
        write(swap_file, "-1")  # or it would stand in the way of a larger memory limit
    write(group / "memory.limit_in_bytes", str(limits.memory_bytes))
    if limits.swap_bytes is not None and swap_file.exists():
        write(swap_file, str(limits.memory_bytes + limits.swap_bytes))


def _memory_v2(group: Path, limits: Limits) -> None:
    if limits.memory_bytes is None:
        return
    write(group / "memory.max", str(limits.memory_bytes))
    if limits.swap_bytes is not None and (group / "memory.swap.max").exists():
        write(group / "memory.swap.max", str(limits.swap_bytes))


def _cpus(group: Path, limits: Limits) -> None:
    if limits.cpu_ids is not None:
        write(group / "cpuset.cpus", ",".join(map(str, limits.cpu_ids)))


def _devices_v1(group: Path, limits: Limits) -> None:
    for device in limits.denied_devices:
        write(group / "devices.deny", f"{device} rwm")


def _devices_v2(group: Path, limits: Limits) -> None:
    if limits.denied_devices:
        deny_devices(str(group), limits.denied_devices)


_APPLY: dict[tuple[Kind, int], Callable[[Path, Limits], None]] = {
    ("memory", 1): _memory_v1,
    ("memory", 2): _memory_v2,
    ("cpus", 1): _cpus,
    ("cpus", 2): _cpus,
    ("devices", 1): _devices_v1,
    ("devices", 2): _devices_v2,
}


# --- files -------------------------------------------------------------------------------------------------


def _with_children(top: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(top)]


def read_counter(file: Path, name: str) -> int:
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return next((int(row[1]) for row in rows if row[0] == name), 0)
    except OSError:
        return 0
