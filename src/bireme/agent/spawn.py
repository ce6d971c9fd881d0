"""Starting a process fast: one call, one pid, errors that name the step that failed.

Called by the agent for every task. It does not wait, track, read output or know jobs: `reaper`,
`processes` and the caller do.

Three paths, one meaning. *Fast*: `posix_spawn`, which shares the agent's memory until exec; working
directory, umask and CPU affinity are set on the agent itself around the call, because the child inherits
them. *By shell*: the same, through an `sh` that enters the cgroups, tells the pid and then becomes the
program; only for the agent's own user, whose environment that shell may see, and only where it passes all of
it on (`dash` drops what is not a shell's name, such as bash's exported functions). *Exact*: `fork` and
set-up code in the child, for all that cannot be lent: another user, limits, niceness, a controlling
terminal. (A root agent could lend its real uid too, but would be open to signals from that user meanwhile.)

Measured with `python tests/unit/agent/bench_spawn.py 500 [64]` (2 cores, 500 × `bash -c true`, 4 at a time;
a bare agent / one that holds 64 MiB more): fast path 1540 / 1240 a second, subprocess.Popen 1510 / 1480 (the
same vfork; the difference is noise), by shell 1000 / 980, exact path 520 / 270. So only the exact path pays
for the agent's memory: keep agents small. posix_spawn rather than Popen because it reports exec errors by
itself and keeps no object that waits for the child behind the reaper's back.

Invariant: the pid returned is the program's own (by shell, of the shell that is about to become it); when
`spawn` raises, no process is left behind. It must be called from the only thread of its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import signal
import struct
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NoReturn

from bireme.agent.identity import Identity, become

__all__ = ["Identity", "SpawnError", "close_on_exec_from_here", "spawn"]

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_FALLBACK_CWD = "/tmp"
_SHELL = "/bin/sh"
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Python ignores the first two and an agent may ignore the others; an ignored signal would stay ignored
# in the task, where `kill`, a closed pipe or Ctrl-C then does nothing.
_RESET_SIGNALS = (
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
_FAILURE = struct.Struct("=iB")  # what the exact path's child sends home: errno, index into _STAGES
_STAGES = ("join cgroup", "set up", "change user", "execve")


class SpawnError(Exception):
    """The process was not started.

    `exit_code` is what Slurm reports for a task whose program could not be executed: the errno.
    """

    def __init__(self, stage: str, error_number: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.errno = error_number

    @property
    def exit_code(self) -> int:
        return self.errno & 0xFF


@dataclass(frozen=True, slots=True)
class _Launch:
    """One call's arguments, after the descriptors were put out of each other's way."""

    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    fds: Mapping[int, int]  # the child's number -> ours
    identity: Identity | None
    umask: int | None
    rlimits: Mapping[int, tuple[int, int]]
    cpu_ids: frozenset[int] | None
    nice: int | None
    new_session: bool
    controlling_tty: bool
    join_files: Sequence[str]
    pid_variable: str

    def needs_exact_path(self) -> bool:
        return bool(self.identity is not None or self.rlimits or self.nice is not None or self.controlling_tty)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin_fd: int,
    stdout_fd: int,
    stderr_fd: int,
    cwd: str = "/",
    identity: Identity | None = None,
    umask: int | None = None,
    rlimits: Mapping[int, tuple[int, int]] | None = None,
    cpu_ids: Sequence[int] | frozenset[int] | None = None,
    nice: int | None = None,
    new_session: bool = True,
    controlling_tty: bool = False,
    extra_fds: Mapping[int, int] | None = None,
    join_files: Sequence[str] = (),
    pid_variable: str = "",
) -> int:
    """Start `argv` and return its pid.

    `argv[0]` without a slash is looked up in `env`'s PATH. A `cwd` that cannot be entered becomes /tmp, and
    a line on the task's stderr says so, as Slurm does. `rlimits` maps `resource.RLIMIT_*` to (soft, hard);
    hard limits are capped at what the agent may give. `extra_fds` maps the child's descriptor number to
    ours. `controlling_tty` makes stdin, a terminal, the child's controlling one. `join_files` are
    `cgroup.procs` files that the child enters before it drops its rights and runs anything. `pid_variable`
    names a variable that holds the child's own pid, which costs the shell's start (a third of a millisecond).
    """
    foreign = identity if identity is not None and not identity.is_own() else None
    with _separated({0: stdin_fd, 1: stdout_fd, 2: stderr_fd, **(extra_fds or {})}) as fds:
        launch = _Launch(
            argv=list(argv),
            env=env,
            cwd=cwd,
            fds=fds,
            identity=foreign,
            umask=umask,
            rlimits=_limits_that_differ(rlimits or {}),
            cpu_ids=frozenset(cpu_ids) if cpu_ids is not None else None,
            nice=nice,
            new_session=new_session or controlling_tty,
            controlling_tty=controlling_tty,
            join_files=join_files,
            pid_variable=pid_variable,
        )
        if launch.needs_exact_path():
            return _spawn_exactly(launch)
        if launch.join_files or launch.pid_variable:
            return _spawn_by_shell(launch)
        return _spawn_fast(launch)


def close_on_exec_from_here() -> None:
    """Keep descriptors the agent itself inherited away from tasks. Called once, when the agent starts."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:  # the directory's own descriptor, closed by now
                continue


# --- the fast path -----------------------------------------------------------------------------------------


def _spawn_fast(launch: _Launch) -> int:
    with _lent(launch):
        program = _find_program(launch.argv[0], launch.env)
        try:
            return _posix_spawn(program, launch.argv, launch)
        except OSError as error:
            raise _exec_failure(launch, program, error.errno or 0) from error
        except ValueError as error:  # a NUL byte in an argument or variable
            raise SpawnError("execve", errno.EINVAL, f"execve(): {launch.argv[0]!r}: {error}") from error


def _spawn_by_shell(launch: _Launch) -> int:
    """Where exec is certain to work (a shell could not report its failure in Slurm's words) and loses no variable."""
    steps = [f'echo 0 >"${number}"' for number in range(1, len(launch.join_files) + 1)]
    if launch.pid_variable:
        steps.append(f"export {launch.pid_variable}=$$")
    script = " && ".join([*steps, f"shift {len(launch.join_files)}", 'exec "$@"'])
    with _lent(launch):
        program = _find_program(launch.argv[0], launch.env)
        safe = _surely_executable(program, launch) and all(map(_SHELL_NAME.fullmatch, launch.env))
        if safe and all(map(os.path.exists, launch.join_files)):
            with suppress(OSError, ValueError):
                return _posix_spawn(_SHELL, ["sh", "-c", script, "sh", *launch.join_files, *launch.argv], launch)
        return _spawn_exactly(replace(launch, cwd="."))  # the directory was entered and complained of already


def _posix_spawn(program: str, argv: list[str], launch: _Launch) -> int:
    return os.posix_spawn(
        program,
        argv,
        launch.env,
        file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in launch.fds.items()],
        setsid=launch.new_session,
        setsigmask=(),
        setsigdef=_RESET_SIGNALS,
    )


def _surely_executable(program: str, launch: _Launch) -> bool:
    if launch.argv[0].startswith("-") or not os.access(program, os.X_OK, effective_ids=True):
        return False
    try:
        with open(program, "rb") as file:
            first = file.read(256)
    except OSError:
        return False
    if first.startswith(b"#!"):
        words = first[2:].split(None, 1)
        return bool(words) and os.path.exists(words[0])
    return first.startswith(b"\x7fELF")


@contextmanager
def _lent(launch: _Launch) -> Iterator[None]:
    """The agent itself takes on what the child is to inherit, and lays it down again."""
    home = os.open(".", os.O_PATH | os.O_DIRECTORY)
    own_umask = os.umask(launch.umask) if launch.umask is not None else None
    own_cpus = os.sched_getaffinity(0) if launch.cpu_ids is not None else None
    try:
        if launch.cpu_ids is not None:
            _set_affinity(launch.cpu_ids)
        _enter_directory(launch.cwd, launch.fds[2])
        yield
    finally:
        os.fchdir(home)
        os.close(home)
        if own_cpus is not None:
            os.sched_setaffinity(0, own_cpus)
        if own_umask is not None:
            os.umask(own_umask)


# --- the exact path ----------------------------------------------------------------------------------------


def _spawn_exactly(launch: _Launch) -> int:
    report_fd, child_report_fd = os.pipe()
    # Above every number the child dup2s onto, or the report would be overwritten.
    safe_report_fd = fcntl.fcntl(child_report_fd, fcntl.F_DUPFD_CLOEXEC, max(launch.fds) + 1)
    os.close(child_report_fd)
    # No signal may reach the child while it still runs the agent's handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(launch, safe_report_fd)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(safe_report_fd)
    report = os.read(report_fd, _FAILURE.size)
    os.close(report_fd)
    if not report:  # closed by exec
        return pid
    os.waitpid(pid, 0)
    number, stage = _FAILURE.unpack(report)
    if _STAGES[stage] == "execve":
        raise _exec_failure(launch, launch.argv[0], number)
    what = f"could not {_STAGES[stage]} for {launch.argv[0]}: {os.strerror(number)}"
    raise SpawnError(_STAGES[stage], number, what)


def _run_child(launch: _Launch, report_fd: int) -> NoReturn:
    """In the forked child: become what was asked for, then exec; on failure send errno and stage home."""
    stage = 0
    try:
        for procs_file in launch.join_files:
            _join(procs_file)
        stage = 1
        _set_up_child(launch)
        stage = 2
        if launch.identity is not None:
            become(launch.identity)
        _enter_directory(launch.cwd, 2)  # as the user: root may be kept out of their directories
        stage = 3
        program = _find_program(launch.argv[0], launch.env)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        own_pid = {launch.pid_variable: str(os.getpid())} if launch.pid_variable else {}
        os.execve(program, launch.argv, {**launch.env, **own_pid})
    except OSError as error:
        os.write(report_fd, _FAILURE.pack(error.errno or errno.EIO, stage))
    except SpawnError as error:
        os.write(report_fd, _FAILURE.pack(error.errno, stage))
    except BaseException:
        os.write(report_fd, _FAILURE.pack(errno.EINVAL, stage))
    finally:
        os._exit(127)


def _set_up_child(launch: _Launch) -> None:
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if launch.new_session:
        os.setsid()
    for theirs, ours in launch.fds.items():
        if theirs == ours:
            os.set_inheritable(ours, True)
        else:
            os.dup2(ours, theirs)
    if launch.controlling_tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if launch.umask is not None:
        os.umask(launch.umask)
    if launch.cpu_ids is not None:
        _set_affinity(launch.cpu_ids)
    if launch.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, launch.nice)
    for kind, (soft, hard) in launch.rlimits.items():
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


def _limits_that_differ(rlimits: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Limits propagated from the submitting shell mostly equal the agent's own; those cost nothing."""
    return {kind: pair for kind, pair in rlimits.items() if resource.getrlimit(kind) != tuple(pair)}


# --- both paths --------------------------------------------------------------------------------------------


@contextmanager
def _separated(fds: dict[int, int]) -> Iterator[dict[int, int]]:
    """Copy away any of our descriptors that another one's dup2 would overwrite before it is used."""
    ceiling = max(fds) + 1
    copies: list[int] = []
    separated = dict(fds)
    try:
        for theirs, ours in fds.items():
            if ours != theirs and ours in fds:
                separated[theirs] = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, ceiling)
                copies.append(separated[theirs])
        yield separated
    except OSError as error:
        raise SpawnError("set up", error.errno or 0, f"could not pass a descriptor: {error.strerror}") from error
    finally:
        for fd in copies:
            os.close(fd)


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
        os.write(stderr_fd, line.encode(errors="replace"))
        os.chdir(there)


def _find_program(name: str, env: Mapping[str, str]) -> str:
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


def _exec_failure(launch: _Launch, program: str, number: int) -> SpawnError:
    """Slurm's wording; a script whose interpreter is missing must not read as if the script were."""
    if number == errno.ENOENT and (interpreter := _interpreter_of(program)):
        name_shown = f"bad interpreter({interpreter})"
    else:
        name = launch.argv[0]
        entered = not os.path.isabs(launch.cwd)  # the directory was entered before, under a name we no longer have
        name_shown = name if entered or "/" not in name else os.path.join(launch.cwd, name)
    return SpawnError("execve", number, f"execve(): {name_shown}: {os.strerror(number)}")


def _interpreter_of(program: str) -> str | None:
    try:
        with open(PurePath(program), "rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    return first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else None
