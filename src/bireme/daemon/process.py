"""Starting, finding and stopping the daemon of a home, as `bireme up`, `down` and `status` do.

A lock decides who is the daemon: held means alive, whatever the pid file says, and the kernel drops it however the
process ends. It is on the home's own folder, which cannot be removed from under what is in it, and on a file in it
(where a network file system locks no folders, and for daemons of an earlier version).
Invariant: two daemons never serve one home; a pid is signalled only while its lock is held.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bireme.daemon.interpreter import own_environment
from bireme.daemon.paths import NO_CONF, Paths

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 90.0
"""A daemon ends within less (`ending.MOST_S`), or is stuck in the kernel."""
_KILLED_S = 10.0
_POLL_S = 0.02
_PATIENCE_S = 3.0
"""So long nothing is said of what the daemon's end waits for."""
_LOCK_ATTEMPTS = 5
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems answer that lock files only (NFS: what is locked must be open for writing)."""


class DaemonError(Exception):
    """The daemon could not be started or stopped. The text says why and where to look."""


_ADVICE = {
    errno.ENOSPC: "make room on the disk of {home} (df -h {home})",
    errno.EDQUOT: "make room in your quota on the disk of {home}",
    errno.EROFS: "the disk of {home} is read-only: name another BIREME_HOME",
    errno.EISDIR: "a folder is in the place of a file: move it away",
    errno.EACCES: "the daemon's user must be able to read and write it",
    errno.EMFILE: "let it open more files (ulimit -n 4096)",
    errno.ENFILE: "this machine has too many open files (sysctl fs.file-max)",
    errno.EAGAIN: "let it start more processes (ulimit -u)",
    errno.ENOMEM: "this machine is out of memory",
}


def in_words(error: OSError, home: str) -> str:
    """What kept a daemon of this home from starting: where, why, and what to do about it."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else home
    advice = _ADVICE.get(error.errno or 0, "").format(home=home)
    return f"{where}: {error.strerror or error}" + (f"; {advice}" if advice else "")


def start(home: str | None = None, conf: str = "", engine: str = "", *, timeout_s: float = START_TIMEOUT_S) -> int:
    """Starts the daemon in the background and returns its pid once its API answers. Raises DaemonError."""
    paths = Paths(home)
    try:
        paths.create()
    except OSError as error:
        raise DaemonError(f"cannot make {in_words(error, paths.home)}") from error
    running = running_pid(paths.home)
    if running:
        raise DaemonError(f"a daemon (pid {running}) already serves {paths.home}")
    try:
        return _started(_launched(paths, choice_words(conf, engine), timeout_s), paths)
    except OSError as error:
        raise DaemonError(f"cannot start a daemon: {in_words(error, paths.home)}") from error


def _launched(paths: Paths, choice: list[str], timeout_s: float) -> bytes | None:
    """What the new daemon says; None when it says nothing in time."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "bireme.daemon", "--home", paths.home, "--ready-fd", str(write_end)]
    command += choice
    try:
        with open(paths.log, "ab") as log:
            os.chmod(paths.log, 0o600)
            launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                cwd="/",
                env=own_environment(),
            )
        os.close(write_end)
        write_end = -1
        launcher.wait()  # it forks the daemon and ends at once
        return _await_line(read_end, timeout_s)
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def choice_words(conf: str, engine: str) -> list[str]:
    """How the daemon is told which slurm.conf and which engine; nothing where the caller did not say."""
    words = ["--conf", conf if conf == NO_CONF else os.path.abspath(conf)] if conf else []
    return [*words, "--engine", engine] if engine else words


def _await_line(pipe: int, timeout_s: float) -> bytes | None:
    """What was written before a newline or the end; None when nothing came in time."""
    deadline = time.monotonic() + timeout_s
    received = b""
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(pipe, 65536)
        if not piece:
            break
        received += piece
    return received


def _started(answer: bytes | None, paths: Paths) -> int:
    if answer is None:
        raise DaemonError(f"the daemon did not answer in time; see {paths.log}")
    if not answer:
        raise DaemonError(f"the daemon ended before it was ready; see {paths.log}")
    said = json.loads(answer)
    if "error" in said:
        raise DaemonError(said["error"])
    return int(said["pid"])


class Readiness:
    """The daemon's side of `start`: says once that it is ready (pid), or why it will not be (error)."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)

    def say(self, **said: Any) -> None:
        if self._fd is None:
            return
        # Whoever started it may have been killed meanwhile: that nobody hears is no reason to end.
        with suppress(BrokenPipeError), os.fdopen(self._fd, "wb") as pipe:
            self._fd = None
            pipe.write(json.dumps(said).encode() + b"\n")


class Lock:
    """Held by the daemon for as long as it lives, and by whoever writes to a home without one."""

    def __init__(self, paths: Paths) -> None:
        self._home = paths.home
        self._held: list[int] = []
        """Descriptors: of the home's folder, then of the file in it."""
        try:
            self._take(paths)
        except BaseException:
            self.release()
            raise

    def _take(self, paths: Paths) -> None:
        # For the owner alone: whoever may open a file or a folder may lock it, and so keep the daemon from starting.
        self._held.append(os.open(paths.home, _FOLDER))
        file = os.open(paths.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held.append(file)
        os.fchmod(file, 0o600)
        if not all(map(_taken, self._held)):
            raise DaemonError(f"a daemon (pid {_holder(paths) or 'unknown'}) already serves {paths.home}")
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        with open(paths.pid_file, "w") as pid_file:
            pid_file.write(f"{os.getpid()}\n")

    def is_in_place(self) -> bool:
        """Whether the folder at the home's path is the one that is locked: not gone, and no other one put there."""
        try:
            return os.path.samestat(os.fstat(self._held[0]), os.stat(self._home))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # nobody can say so: a network file system that is away

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())


def _taken(fd: int) -> bool:
    """Tried more than once: somebody who looks whether a daemon runs (`running_pid`) holds it for an instant."""
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S if attempt < _LOCK_ATTEMPTS - 1 else 0.0)
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCKS or not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise
            return True  # the file's lock is the one that counts there
        else:
            return True
    return False


def running_pid(home: str | None = None) -> int | None:
    """The pid of the daemon that holds the lock of this home, or None."""
    paths = Paths(home)
    held = _is_held(paths.home, _FOLDER) or _is_held(paths.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    return _holder(paths) if held else None


def _is_held(path: str, how: int) -> bool:
    try:
        lock = os.open(path, how)
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


def _holder(paths: Paths) -> int | None:
    """Who holds the lock: as the files in `run` say, or, where they were removed or put back, as the kernel does."""
    said = [pid for file in (paths.lock_file, paths.pid_file) if (pid := _pid_in(file))]
    for pid in said:
        if _has_locked(pid, paths.home):
            return pid
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _has_locked(int(name), paths.home):
            return int(name)
    return said[0] if said else None


def _pid_in(path: str) -> int | None:
    try:
        with open(path) as file:
            text = file.read(20).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def _has_locked(pid: int, home: str) -> bool:
    """Whether this process has the folder locked (its descriptors say which locks are held through them)."""
    try:
        ours = os.stat(home)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), ours):
                with open(f"/proc/{pid}/fdinfo/{fd}") as about:
                    if any(line.startswith("lock:") and "WRITE" in line for line in about):
                        return True
    except OSError:
        pass  # it ended, closed that descriptor, or is another user's
    return False


def _is_anothers(home: str | None) -> bool:
    """Whether a home is there and closed to us: if a daemon holds its lock we cannot know, and need not."""
    path = Paths(home).home
    return os.path.exists(path) and not os.access(path, os.R_OK)


def stop(
    home: str | None = None,
    *,
    ask: Callable[[], int] | None = None,
    timeout_s: float = STOP_TIMEOUT_S,
    waits_for: Callable[[str], None] = lambda _: None,
) -> bool:
    """Ends the daemon and returns True, or False when none runs. `ask` asks it through the API; else SIGTERM does.

    `ask` returns the pid of who answered. Asking can do more than the signal (end the jobs too); a daemon that does not
    answer, or in whose place another one does, still gets the signal; one that was stopped is told to go on, and one
    that has not ended by then is killed. `waits_for` is told what its end waits for, where it takes a while.
    """
    if _is_anothers(home):
        raise DaemonError(f"the cluster at {Paths(home).home} belongs to another user")
    pid = running_pid(home)
    if pid is None:
        return False
    _signal_if_running(home, pid, signal.SIGCONT)
    if not _has_heard(ask, pid):
        _signal_if_running(home, pid, signal.SIGTERM)
    left = _left_of(home, pid, timeout_s, waits_for)
    if left is not None:
        waits_for(f"nothing more: it has not ended in {timeout_s:g} s{left}, and is killed")
        _signal_if_running(home, pid, signal.SIGKILL)
        if _left_of(home, pid, _KILLED_S, lambda _: None) is not None:
            raise DaemonError(f"the daemon (pid {pid}) does not end, not even killed{left}; see {Paths(home).log}")
    return True


def _has_heard(ask: Callable[[], int] | None, pid: int) -> bool:
    """Whether the daemon was asked and has answered itself."""
    try:
        return ask is not None and ask() == pid
    except Exception:
        return False


def _left_of(home: str | None, pid: int, timeout_s: float, waits_for: Callable[[str], None]) -> str | None:
    """None: it has ended in time; else what it still waited for, in words that may be none."""
    began, said = time.monotonic(), ""
    while running_pid(home) == pid:
        passed_s, now = time.monotonic() - began, _waits_for(Paths(home).ending, pid)
        if passed_s > timeout_s:
            return f" (it waited for {now})" if now else ""
        if passed_s > _PATIENCE_S and now and now != said:
            said = now
            waits_for(now)
        time.sleep(_POLL_S)
    return None


def _waits_for(path: str, pid: int) -> str:
    """What the end of this daemon waits for; empty: it has not begun to end, or does not say."""
    try:
        with open(path) as file:
            said, _, what = file.read(200).strip().partition(" ")
    except (OSError, ValueError):
        return ""
    return what if said == str(pid) else ""


def _signal_if_running(home: str | None, pid: int, number: int) -> None:
    if running_pid(home) == pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise DaemonError(f"the daemon (pid {pid}) belongs to another user") from error
