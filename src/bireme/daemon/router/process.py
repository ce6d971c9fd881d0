"""The router as a process: whether one serves a home, starting it, ending it.

It is started as a session of its own, so that it outlives the daemon, and found again by what it holds: the lock in its
folder says that it lives, its socket who it is. What is said to it is in `link`.
Invariant: a pid is signalled only when the router's own socket named it, or the process table, as this home's.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from bireme.agent.messages.protocol import connect_endpoint
from bireme.daemon.interpreter import own_environment
from bireme.daemon.paths import Paths
from bireme.daemon.settings import Settings, SettingsError, address_in
from bireme.router import messages
from bireme.router.census import living
from bireme.router.succession import end_orphans

LOCK = "lock"
CONFIGURABLE = 2
"""From this version on a router can be told to listen elsewhere; one before has to be ended for it."""
_END_S = 45.0
"""A router that was told to end gives requests in flight half a minute."""
_DRAIN_S = 30.0
_TAIL_BYTES = 16 * 1024
_SAID = b"bireme router: "
"""With what a router begins that says why it does not start."""


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """What a router is started with."""

    folder: str
    log: str
    host: str
    port: int
    """0: one that the kernel chooses."""
    workers: int = 0
    tls_certificate: str = ""
    tls_key: str = ""

    @classmethod
    def of(cls, paths: Paths, settings: Settings) -> RouterPlan:
        """Raises SettingsError."""
        host, port = address_in("router.address", settings.router_address, "127.0.0.1:8600")
        tls = (settings.router_tls_certificate, settings.router_tls_key)
        if bool(tls[0]) != bool(tls[1]):
            raise SettingsError("router.tls_certificate and router.tls_key are given together, or neither is")
        return cls(paths.router, paths.router_log, host, port, settings.router_workers, *tls)

    def command(self) -> list[str]:
        words = ["--home", self.folder, "--host", self.host, "--port", str(self.port), "--workers", str(self.workers)]
        if self.tls_certificate:
            words += ["--tls-certificate", self.tls_certificate, "--tls-key", self.tls_key]
        return [sys.executable, "-m", "bireme.router", *words]

    @property
    def socket(self) -> str:
        return os.path.join(self.folder, messages.SOCKET)

    def suits(self, found: messages.Welcome) -> bool:
        """Whether a router that runs is what this asks for."""
        return (
            found.host == self.host
            and self.port in (0, found.port)
            and found.tls == bool(self.tls_certificate)
            and (not found.tls or found.version < CONFIGURABLE or found.digest == self._digest())
            and (not self.workers or found.workers in (0, self.workers))
        )

    def _digest(self) -> str:
        """Of the certificate's files as they are now; what cannot be read is the router's to say."""
        try:
            with open(self.tls_certificate, "rb") as certificate, open(self.tls_key, "rb") as key:
                return messages.certificate_digest(certificate.read(), key.read())
        except OSError:
            return ""

    def order(self) -> messages.Configure:
        """What a router that runs is told to become so."""
        return messages.Configure(
            host=self.host,
            port=self.port,
            workers=self.workers,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
        )


@dataclass(slots=True)
class StartedRouter:
    """A router that this process started and has to wait for."""

    process: subprocess.Popen[bytes]
    log: str
    begins_at: int
    """Where in the log its words begin."""
    served: bool = False
    """It answered: what it says later is not why it did not start."""

    def why_ended(self) -> str:
        """Why it did not start, in its own words if it said any."""
        with suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(self.begins_at, os.path.getsize(self.log) - _TAIL_BYTES))
            lines = [line for line in file.read().splitlines() if line.strip()]
            own = [line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)]
            if own or lines:
                return (own or lines)[-1].decode(errors="replace")[:500]
        return f"it ended with {self.process.returncode}"


def start(plan: RouterPlan) -> StartedRouter:
    """Starts one and returns at once. Raises OSError."""
    os.makedirs(plan.folder, mode=0o700, exist_ok=True)
    os.chmod(plan.folder, 0o700)
    with open(plan.log, "ab", opener=_private) as log:
        begins_at = log.tell()
        process = subprocess.Popen(
            plan.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
    return StartedRouter(process, plan.log, begins_at)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _environment() -> dict[str, str]:
    """Without any variable of a job that the daemon may have been started in."""
    return {name: value for name, value in own_environment().items() if not name.startswith(("BIREME_JOB", "SLURM"))}


def is_running(folder: str) -> bool:
    """Whether a router holds this folder."""
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def pid_of(folder: str) -> int | None:
    """The router that listens in this folder: the kernel knows who made its socket. Where that is gone, the process
    table says who serves the folder."""
    try:
        connection = connect_endpoint(f"unix:{os.path.join(folder, messages.SOCKET)}", 1.0)
    except OSError:
        return next(iter(living(folder).supervisors), None)
    with connection:
        return peer_pid(connection) or None


def peer_pid(connection: socket.socket) -> int:
    """Who made the socket at the other end; 0: nobody in this process's namespace."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    pid: int = form.unpack(credentials)[0]
    return pid


def kill(pid: int) -> None:
    """Kills a router's process that does not answer; 0 is nobody."""
    with suppress(ProcessLookupError):
        if pid > 0:
            os.kill(pid, signal.SIGKILL)


def end(folder: str, *, patience_s: float = _END_S) -> int | None:
    """Ends the router of this folder and waits until it is gone; its pid, or None where none runs.

    Workers whose supervisor was killed are ended too, and whatever of it only the process table knows.
    """
    found = living(folder)
    named = {*found.supervisors, pid_of(folder) or 0} - {0}
    _end_supervisors(named, patience_s)
    left = end_orphans(folder, min(_DRAIN_S, patience_s))
    for pid in living(folder).pids:
        kill(pid)
    return next(iter([*sorted(named), *left, *found.workers]), None)


def _end_supervisors(pids: Iterable[int], patience_s: float) -> None:
    """Each lets its workers finish; those that have not ended in time are killed with them."""
    watched: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            watched[pid] = os.pidfd_open(pid)
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # one that was stopped hears it too
    deadline = time.monotonic() + patience_s
    for pid, fd in watched.items():
        has_ended, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(fd)
        if not has_ended:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # it was started as a session of its own: its workers are in it
