"""Starting a process without waiting for it: one call, one pid at once, and a pipe that tells how the start went.

Called by `launching` for every task. It does not wait, track, read output or know jobs: `reaper`, `processes` and the
caller do.

All that can block is done by the child, as the user: opening the files of the streams, entering the directory, finding
and executing the program. A lease on a program, a FIFO nobody reads, a mount that hangs holds up its own task, and not
the agent that serves everybody.

Two paths, one meaning. *Exact*: `fork`, and set-up code in the child, for all that may be asked. *By shell*:
`posix_spawn` of an `sh` that does the same and then becomes the program: only for the agent's own user (that shell sees
the environment, and others may not), only for programs that are sure to start (a shell could not report their failure
in Slurm's words), and only where it passes all variables on (`dash` drops what is not a shell's name). Whatever it
fails at is begun again exactly, which also words the error. (A root agent could lend its real uid to a `posix_spawn`,
but would be open to signals from that user meanwhile; a spawn that shares the caller's memory until exec, which is
fastest, holds the caller as long as the exec takes: a keeper may wait so for its own user's programs, see `swift`.)

Measured with `python tests/unit/agent/bench_spawn.py 500` (2 cores, `bash -c true`, 4 at a time): by shell 1000 a
second, exact path 520, and 270 by an agent that holds 64 MiB more: keep agents small.

Invariant: the pid returned is the program's own (by shell, of the shell that is about to become it), and its report
ends with its exec or its end, whichever is first. It must be called from the only thread of its process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import NoReturn

import msgspec

from bireme.agent.boxes.blueprint import Blueprint, Entrance
from bireme.agent.boxes.building import build
from bireme.agent.boxes.entering import enter
from bireme.agent.system.descriptors import close_all_but, limit_of_tasks, restore_limit
from bireme.agent.system.forking import fork_deaf
from bireme.agent.system.identity import Identity, become
from bireme.agent.system.output import OpenFileError, OpenMode, open_stream

__all__ = ["Birth", "Identity", "SpawnError", "Spawned", "TaskFile", "close_on_exec_from_here", "spawn"]

OPENING = "open files"
SHORTAGES = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC))
"""What the node lacks for a while (processes, memory, descriptors, room on its disk): nothing of the job's making as
long as no process of it is there."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_FALLBACK_CWD = "/tmp"
SHELL = "/bin/sh"
ANSWER_FD = 4
"""Where a child that builds a box has the socket to tell of it."""
_SHELL_REPORT_FD = 9
"""The highest number that every shell can redirect to."""
_SHELL_STARTED = b"ok"
_LOOK_AGAIN_S = 0.02
# Python ignores the first two and an agent may ignore the others; an ignored signal would stay ignored
# in the task, where `kill`, a closed pipe or Ctrl-C then does nothing.
RESET_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTOU,
    signal.SIGTTIN,
    signal.SIGTSTP,
)


class SpawnError(Exception):
    """The program was not started.

    `exit_code` is what Slurm reports for a task whose program could not be executed: the errno.
    """

    def __init__(self, stage: str, error_number: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.errno = error_number

    @property
    def exit_code(self) -> int:
        return self.errno & 0xFF


class TaskFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that the child opens for one of its streams, with the user's rights. `stream` words the error."""

    stream: str
    path: str
    mode: OpenMode


Stream = int | TaskFile
"""What a task reads from or writes to: a descriptor of the agent's, or a file that the child is to open."""


class Birth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be started, and how. It travels to keepers (`keeper_words`).

    `argv[0]` without a slash is looked up in `env`'s PATH; an empty `argv` runs nothing and ends once the streams are
    open. A `cwd` that cannot be entered becomes /tmp, and a line on the task's stderr says so, as Slurm does.
    `rlimits` maps `resource.RLIMIT_*` to (soft, hard); hard limits are capped at what the agent may give. `extra_fds`
    maps the child's descriptor number to ours. `controlling_tty` makes stdin, a terminal, the child's controlling one.
    `join_files` are `cgroup.procs` files that the child enters before it drops its rights and runs anything.
    `pid_variable` names a variable that holds the child's own pid. `greeting` is written to its stdout before it runs,
    `notice` is a line for its stderr. `folder_patience_s`: how long others may take to make the folder of an output,
    before the child does. `sure`: the caller knows that `argv[0]` can be executed. `entrance`: the box that it runs in,
    entered when its streams are open. `blueprint`: a box that is to be built, instead of a program; what comes of that
    is told to the child's descriptor `ANSWER_FD`.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: Stream
    stdout: Stream
    stderr: Stream
    cwd: str = "/"
    identity: Identity | None = None
    umask: int | None = None
    rlimits: Mapping[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    cpu_ids: frozenset[int] | None = None
    nice: int | None = None
    new_session: bool = True
    controlling_tty: bool = False
    extra_fds: Mapping[int, int] = msgspec.field(default_factory=dict)
    join_files: Sequence[str] = ()
    pid_variable: str = ""
    greeting: bytes = b""
    notice: str = ""
    folder_patience_s: float = 0.0
    sure: bool = False
    entrance: Entrance | None = None
    blueprint: Blueprint | None = None

    @property
    def foreign(self) -> Identity | None:
        """Whom the child becomes; None when that is the agent itself."""
        return self.identity if self.identity is not None and not self.identity.is_own() else None

    @property
    def streams(self) -> tuple[Stream, Stream, Stream]:
        return self.stdin, self.stdout, self.stderr

    @property
    def is_of_box(self) -> bool:
        return self.entrance is not None or self.blueprint is not None

    def suits_a_shell(self) -> bool:
        """Whether an `sh` can do all of it: a batch script of the agent's own user."""
        asks_more = (
            self.is_of_box or self.rlimits or self.extra_fds or self.greeting or self.notice or self.controlling_tty
        )
        if asks_more or self.nice is not None or self.cpu_ids is not None or self.foreign is not None:
            return False
        if not self.sure or not self.new_session:
            return False
        plain = self.cwd.startswith("/") and "/.." not in self.cwd and not self.argv[0].startswith("-")
        to_files = all(isinstance(stream, TaskFile) for stream in self.streams)
        return plain and to_files and self.passes_a_shell()

    def passes_a_shell(self) -> bool:
        """Whether a shell hands all of the environment on: it drops what is no shell's name."""
        return all(map(str.isidentifier, self.env)) and all(map(str.isascii, self.env))


@dataclass(slots=True)
class Spawned:
    """A child on its way to its program. `report_fd` is read to its end, without blocking, and closed by the caller."""

    pid: int
    report_fd: int
    by_shell: bool = False
    _report: bytes = b""

    def read_report(self) -> bool:
        """Whether all has been said: the program runs, or the child has ended or is about to."""
        while True:
            try:
                data = os.read(self.report_fd, 65536)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._report += data

    def failure(self) -> SpawnError | None:
        """Why the program did not start, once all has been said; None when it did, or was killed before."""
        if self.by_shell or not self._report:
            return None
        told = json.loads(self._report)
        return SpawnError(told["stage"], told["errno"], told["text"])

    @property
    def shell_gave_up(self) -> bool:
        """Of a shell that has ended: it ran nothing. Unless it was killed, the exact path is to be taken."""
        return self.by_shell and not self._report.startswith(_SHELL_STARTED)


def spawn(birth: Birth, *, by_shell: bool = True) -> Spawned:
    """Starts `birth` and returns at once. Raises SpawnError when there is not even a process."""
    try:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _no_process(birth, error) from error
    os.set_blocking(write_fd, True)
    try:
        if by_shell and birth.suits_a_shell():
            with suppress(OSError, ValueError):
                return Spawned(_spawn_shell(birth, write_fd), read_fd, by_shell=True)
        with _separated(_descriptors(birth)) as fds:
            return Spawned(_fork(birth, fds, write_fd), read_fd)
    except OSError as error:
        os.close(read_fd)
        raise _no_process(birth, error) from error
    except SpawnError:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)


def _no_process(birth: Birth, error: OSError) -> SpawnError:
    return SpawnError("set up", error.errno or errno.EAGAIN, f"could not start {_name(birth)}: {error.strerror}")


def close_on_exec_from_here() -> None:
    """Keep descriptors the agent itself inherited away from tasks. Called once, when the agent starts."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:  # the directory's own descriptor, closed by now
                continue


# --- by shell ----------------------------------------------------------------------------------------------


def _spawn_shell(birth: Birth, report_fd: int) -> int:
    files = [stream for stream in birth.streams if isinstance(stream, TaskFile)]
    places = [birth.cwd, birth.env.get("PWD", ""), birth.env.get("OLDPWD", ""), *(file.path for file in files)]
    own_umask = os.umask(birth.umask) if birth.umask is not None else None
    null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    moved_fd = fcntl.fcntl(report_fd, fcntl.F_DUPFD_CLOEXEC, _SHELL_REPORT_FD + 1)
    try:
        with limit_of_tasks():
            return os.posix_spawn(
                SHELL,
                ["sh", "-c", _shell_script(birth, files), "sh", *places, *birth.join_files, *birth.argv],
                birth.env,
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, null_fd, number) for number in range(3)),
                    (os.POSIX_SPAWN_DUP2, moved_fd, _SHELL_REPORT_FD),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=RESET_SIGNALS,
            )
    finally:
        os.close(null_fd)
        os.close(moved_fd)
        if own_umask is not None:
            os.umask(own_umask)


def _shell_script(birth: Birth, files: Sequence[TaskFile]) -> str:
    """All words of others are arguments: $1 directory, $2 PWD, $3 OLDPWD, $4 to $6 files, cgroups, the program."""
    lines = [f'echo 0 >"${{{number}}}" || exit 1' for number in range(7, 7 + len(birth.join_files))]
    lines.append('cd -- "$1" || exit 1')
    # A shell tells its children where it went; the script is to find what its submitter had.
    lines += [
        f"{name}=${number}" if name in birth.env else f"unset {name}" for name, number in (("PWD", 2), ("OLDPWD", 3))
    ]
    lines.append('exec <"$4"')
    lines += _shell_output(files[1], "$5", "")
    lines += ["exec 2>&1"] if files[2].path == files[1].path else _shell_output(files[2], "$6", "2")
    if birth.pid_variable:
        lines.append(f"export {birth.pid_variable}=$$")
    said = _SHELL_STARTED.decode()
    lines += [f"shift {6 + len(birth.join_files)}", f"echo {said} >&{_SHELL_REPORT_FD}", f"exec {_SHELL_REPORT_FD}>&-"]
    return "\n".join([*lines, 'exec "$@"'])


def _shell_output(file: TaskFile, place: str, number: str) -> list[str]:
    """Emptied, then opened for appending; a FIFO is opened once, or its reader would see an end."""
    emptied = [f'[ -f "{place}" ] && : >"{place}"'] if file.mode == "truncate" else []
    return [*emptied, f'exec {number}>>"{place}"']


# --- the exact path ----------------------------------------------------------------------------------------


def _fork(birth: Birth, fds: Mapping[int, int], report_fd: int) -> int:
    # Above every number the child dup2s onto, or the report would be overwritten.
    safe_report_fd = fcntl.fcntl(report_fd, fcntl.F_DUPFD_CLOEXEC, max(fds) + 1)
    try:
        pid = fork_deaf()
        if pid == 0:
            _Child(birth, fds, safe_report_fd).run()
    finally:
        os.close(safe_report_fd)
    return pid


class _Child:
    """In the forked child: become what was asked for, then exec; on failure send home what went wrong."""

    def __init__(self, birth: Birth, fds: Mapping[int, int], report_fd: int) -> None:
        self._birth = birth
        self._fds = fds
        self._report_fd = report_fd
        self._stage = "set up"
        self._stderr_fd = -1
        """Where a failure is told to the user, once there is such a place."""

    def run(self) -> NoReturn:
        try:
            self._become_the_task()
        except SpawnError as error:
            self._fail(error)
        except OpenFileError as error:
            self._fail(SpawnError(OPENING, error.errno, str(error)))
        except OSError as error:
            number = error.errno or errno.EIO
            self._fail(SpawnError(self._stage, number, self._in_words(os.strerror(number))))
        except BaseException as error:
            self._fail(SpawnError(self._stage, errno.EINVAL, self._in_words(str(error))))
        finally:
            os._exit(127)

    def _become_the_task(self) -> None:
        birth = self._birth
        self._place_descriptors()
        _set_up_child(birth)
        self._stage = "join cgroup"
        for procs_file in birth.join_files:
            _join(procs_file)
        self._stage = "change user"
        if birth.foreign is not None:
            become(birth.foreign)
        # From here on it is the user's process: what waits here is ended as the program would be.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._stage = OPENING
        self._open_streams()
        if birth.notice:
            _write_all(2, f"slurmstepd: {birth.notice}\n".encode(errors="surrogateescape"))
        _write_all(1, birth.greeting)
        if birth.blueprint is not None:
            self._stage = "build a container"
            build(birth.blueprint, ANSWER_FD)
        if not birth.argv:
            os._exit(0)
        if birth.entrance is not None:
            self._stage = "enter its container"
            enter(birth.entrance)
        self._stage = "enter directory"
        _enter_directory(birth.cwd, 2)  # as the user: root may be kept out of their directories
        self._stage = "execve"
        own_pid = {birth.pid_variable: str(os.getpid())} if birth.pid_variable else {}
        program = find_program(birth.argv[0], birth.env)
        try:
            os.execve(program, list(birth.argv), {**birth.env, **own_pid})
        except OSError as error:
            raise _exec_failure(birth, program, error.errno or 0) from error

    def _place_descriptors(self) -> None:
        """What is the agent's, and others' streams among it, is closed: a child that waits must not hold it open."""
        for theirs, ours in self._fds.items():
            if theirs == ours:
                os.set_inheritable(ours, True)
            else:
                os.dup2(ours, theirs)
        close_all_but({*range(3), *self._fds, self._report_fd})
        if isinstance(self._birth.stderr, int):
            self._stderr_fd = 2

    def _open_streams(self) -> None:
        opened: dict[str, int] = {}
        deadline = time.monotonic() + self._birth.folder_patience_s
        for number, stream in enumerate(self._birth.streams):
            if isinstance(stream, int):
                continue
            if number == 0 or stream.path not in opened:
                fd = _open_patiently(stream, deadline)
                os.dup2(fd, number)
                os.close(fd)
                opened[stream.path] = number
            else:
                os.dup2(opened[stream.path], number)
        self._stderr_fd = 2

    def _fail(self, error: SpawnError) -> None:
        if self._stderr_fd >= 0 and error.stage != OPENING:
            with suppress(OSError):
                _write_all(self._stderr_fd, f"slurmstepd: error: {error}\n".encode(errors="surrogateescape"))
        told = {"stage": error.stage, "errno": error.errno, "text": str(error)}
        _write_all(self._report_fd, json.dumps(told).encode())

    def _in_words(self, why: str) -> str:
        if self._stage == "execve":
            return f"execve(): {_name(self._birth)!r}: {why}"
        return f"could not {self._stage} for {_name(self._birth)}: {why}"


def _open_patiently(stream: TaskFile, deadline: float) -> int:
    """The folder of an output is left to others until the deadline, and then made."""
    while True:
        patient = time.monotonic() < deadline
        try:
            return open_stream(stream.path, stream.mode, stream=stream.stream, make_folders=not patient)
        except OpenFileError as error:
            if error.errno != errno.ENOENT or not patient:
                raise
        time.sleep(_LOOK_AGAIN_S)


def _set_up_child(birth: Birth) -> None:
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if birth.new_session or birth.controlling_tty:
        os.setsid()
    if birth.controlling_tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if birth.umask is not None:
        os.umask(birth.umask)
    if birth.cpu_ids is not None:
        _set_affinity(birth.cpu_ids)
    if birth.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, birth.nice)
    restore_limit()
    for kind, (soft, hard) in birth.rlimits.items():
        _set_limit(kind, soft, hard)


def _join(procs_file: str) -> None:
    fd = os.open(procs_file, os.O_WRONLY)
    os.write(fd, b"0")
    os.close(fd)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    """As much of the limit as may be had: only root raises a hard limit, and a lower one is still useful."""
    _, own_hard = resource.getrlimit(kind)
    if os.geteuid() != 0:
        hard = _lower(hard, own_hard)
    resource.setrlimit(kind, (_lower(soft, hard), hard))


def _lower(limit: int, cap: int) -> int:
    if cap == resource.RLIM_INFINITY:
        return limit
    return cap if limit == resource.RLIM_INFINITY else min(limit, cap)


def _set_affinity(cpu_ids: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(0, cpu_ids)
    except OSError as error:
        listed = ",".join(map(str, sorted(cpu_ids)))
        message = f"could not bind to CPUs {listed}: {error.strerror}"
        raise SpawnError("set up", error.errno or 0, message) from error


def _enter_directory(cwd: str, stderr_fd: int) -> None:
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        there = _FALLBACK_CWD if os.path.isdir(_FALLBACK_CWD) else "/"  # not every image has one
        line = f"slurmstepd: error: couldn't chdir to `{cwd}': {why}: going to {there} instead\n"
        _write_all(stderr_fd, line.encode(errors="replace"))
        os.chdir(there)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The file to execute: searched in the task's PATH, not in the agent's."""
    if "/" in name:
        return name
    refused = errno.ENOENT
    for folder in env.get("PATH", _DEFAULT_PATH).split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK, effective_ids=True):
                return candidate
            refused = errno.EACCES
    raise SpawnError("execve", refused, f"execve(): {name}: {os.strerror(refused)}")


def _exec_failure(birth: Birth, program: str, number: int) -> SpawnError:
    """Slurm's wording; a script whose interpreter is missing must not read as if the script were."""
    if number == errno.ENOENT and (interpreter := _interpreter_of(program)):
        name_shown = f"bad interpreter({interpreter})"
    else:
        name = birth.argv[0]
        name_shown = name if "/" not in name else os.path.join(birth.cwd, name)
    return SpawnError("execve", number, f"execve(): {name_shown}: {os.strerror(number)}")


def _interpreter_of(program: str) -> str | None:
    try:
        with open(PurePath(program), "rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    return first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


# --- descriptors -------------------------------------------------------------------------------------------


def _descriptors(birth: Birth) -> dict[int, int]:
    """The child's number -> ours. A stream that the child will open has none of ours."""
    standard = {number: stream for number, stream in enumerate(birth.streams) if isinstance(stream, int)}
    return {**standard, **birth.extra_fds} or {0: 0}


@contextmanager
def _separated(fds: dict[int, int]) -> Iterator[dict[int, int]]:
    """Copy away any of our descriptors that another one's dup2 would overwrite before it is used."""
    ceiling = max(max(fds), 2) + 1
    copies: list[int] = []
    separated = dict(fds)
    try:
        for theirs, ours in fds.items():
            if ours != theirs and ours in fds:
                separated[theirs] = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, ceiling)
                copies.append(separated[theirs])
        yield separated
    finally:
        for fd in copies:
            os.close(fd)


def _name(birth: Birth) -> str:
    return birth.argv[0] if birth.argv else "a message"
