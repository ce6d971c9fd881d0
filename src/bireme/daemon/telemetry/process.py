"""The gatherer of this machine as a process: whether one gathers for a home, starting it, ending it.

It is started as a session of its own, so that it outlives the daemon, and found again by the lock that it holds: the
kernel says whose that is. What is said to it is in `door`.
Invariant: a pid is signalled only while the kernel says that it holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from bireme.daemon.interpreter import own_environment
from bireme.daemon.paths import Paths
from bireme.gather.rehearsal.scene import NodeGpus, Scene

LOCK = "lock"
_FLOCK = struct.Struct("hhqqi")
"""The kernel's struct flock: type, whence, start, length, pid."""
_END_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class GathererPlan:
    """What a gatherer is started with. `machine`: what its figures of the whole machine are called; `played`: the GPUs
    of a rehearsal's nodes, None where the machine itself is looked at."""

    folder: str
    agents: str
    socket: str
    log: str
    machine: str
    rehearsal: str
    played: tuple[NodeGpus, ...] | None = None

    @classmethod
    def of(cls, paths: Paths, machine: str, played: tuple[NodeGpus, ...] | None = None) -> GathererPlan:
        files = paths.gatherer, paths.agents, paths.telemetry_socket, paths.gatherer_log
        return cls(*files, machine, paths.rehearsal, played)

    def command(self) -> list[str]:
        words = ["--folder", self.folder, "--agents", self.agents, "--daemon", self.socket]
        words += ["--rehearsal", self.rehearsal] if self.played is not None else []
        return [sys.executable, "-m", "bireme.gather", *words, "--machine", self.machine, "--log", self.log]


def start(plan: GathererPlan) -> subprocess.Popen[bytes]:
    """Starts one and returns at once. Raises OSError."""
    if plan.played is not None:
        Scene(plan.rehearsal).set_up(plan.played)
    return subprocess.Popen(
        plan.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=_environment(),
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Without any variable of a job that the daemon may have been started in."""
    return {name: value for name, value in own_environment().items() if not name.startswith(("BIREME_JOB", "SLURM"))}


def pid_of(folder: str) -> int | None:
    """Who gathers for this folder: the holder of its lock."""
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(lock)
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else None


def end(folder: str, *, patience_s: float = _END_S) -> int | None:
    """Ends the gatherer of this folder and waits until it is gone; its pid, or None where none runs."""
    pid = pid_of(folder)
    if pid is None:
        return None
    _signal(folder, pid, signal.SIGTERM)
    _signal(folder, pid, signal.SIGCONT)  # one that was stopped hears nothing before it goes on
    deadline = time.monotonic() + patience_s
    while pid_of(folder) == pid:
        if time.monotonic() > deadline:
            _signal(folder, pid, signal.SIGKILL)
            break
        time.sleep(_POLL_S)
    return pid


def end_new(started: subprocess.Popen[bytes]) -> None:
    """Ends one that `start` gave, whether or not it has taken its lock by now."""
    started.terminate()
    try:
        started.wait(_END_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()


def _signal(folder: str, pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        if pid_of(folder) == pid:
            os.kill(pid, number)
