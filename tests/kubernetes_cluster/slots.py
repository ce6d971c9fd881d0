"""A place for one test cluster on this machine: a folder, addresses and names that no other cluster uses meanwhile.

Sixteen clusters fit side by side (several test runs on one machine). A slot is held by a lock that the kernel gives
back when its owner dies; whoever takes it next sweeps what the one before left: folder, bridge, control groups.
Other processes, mounts and namespaces need no sweep, because they end with their keeper (`keeper.py`); daemons of
Bireme, which have left their parents, do.
The addresses are from 198.18.0.0/15, set aside for tests of networks, so that no real one is hidden.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

COUNT = 16
NODES_MAX = 16
_CGROUPS = Path("/sys/fs/cgroup")
_OF_CONTAINERD = "k8s.io"
"""Where containerd puts the control groups of containers, of one hierarchy (v2) or of every controller (v1)."""


@dataclass(frozen=True, slots=True)
class Slot:
    number: int
    folder: Path
    lock: IO[str]

    @property
    def name(self) -> str:
        """Of the bridge; the cables' names begin with it."""
        return f"bireme-test{self.number}"

    @property
    def host_address(self) -> str:
        """This machine's on the bridge: where nodes and pods reach the API server and a test's own servers."""
        return f"198.18.{self.number}.1"

    def node_address(self, index: int) -> str:
        return f"198.18.{self.number}.{10 + index}"

    def pod_range(self, index: int) -> str:
        return f"198.19.{self.number * NODES_MAX + index}.0/24"

    def release(self) -> None:
        """Removes everything that bears the slot's name and lets another cluster have it."""
        sweep(self)
        self.lock.close()


def take() -> Slot:
    base = _base()
    for number in range(COUNT):
        lock = open(base / f"{number}.lock", "w")  # noqa: SIM115 (held for the cluster's life)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        slot = Slot(number, base / str(number), lock)
        sweep(slot)
        slot.folder.mkdir(mode=0o700)
        return slot
    raise RuntimeError(f"{COUNT} test clusters run on this machine already")


def sweep(slot: Slot) -> None:
    _end_daemons(slot.folder)
    if os.geteuid() == 0:
        for group in control_groups(slot.folder):
            _remove_group(group)
        for parent in _parents():
            with suppress(OSError):  # somebody else's containers are in it
                parent.rmdir()
        if Path(f"/sys/class/net/{slot.name}").exists():
            subprocess.run(["ip", "link", "delete", slot.name], check=False)
    shutil.rmtree(slot.folder, ignore_errors=True)


def _end_daemons(folder: Path) -> None:
    """Bireme's, of homes below it: they leave their parents, so that a test run that was killed does not end them."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"bireme.daemon" in words and any(word.startswith(f"{folder}/".encode()) for word in words):
                os.kill(int(process.name), signal.SIGKILL)


def control_groups(folder: Path) -> list[Path]:
    """Of the containers that nodes under this folder ran: containerd keeps a folder by each one's id."""
    ids = {one.name for one in folder.glob("node*/containerd/io.containerd.grpc.v1.cri/*/*")}
    return [parent / one for parent in _parents() for one in ids if (parent / one).is_dir()]


def _parents() -> list[Path]:
    return [parent for parent in (_CGROUPS / _OF_CONTAINERD, *_CGROUPS.glob(f"*/{_OF_CONTAINERD}")) if parent.is_dir()]


def _remove_group(group: Path) -> None:
    """Deepest first. What still runs in it is a leftover of ours."""
    for folder, _, _ in os.walk(group, topdown=False):
        for attempt in range(100):
            try:
                os.rmdir(folder)
                break
            except OSError:
                _kill_members(Path(folder))
                time.sleep(0.01 * min(attempt, 10))


def _kill_members(group: Path) -> None:
    try:
        members = (group / "cgroup.procs").read_text().split()
    except OSError:
        return
    for pid in members:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _base() -> Path:
    base = Path(tempfile.gettempdir()) / f"bireme-kubernetes-for-tests-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o077:
        raise RuntimeError(f"{base} is not a private folder of ours")
    return base
