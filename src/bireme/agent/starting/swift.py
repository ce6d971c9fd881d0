"""The swift way to start a program: `posix_spawn`, which shares the caller's memory until the program runs.

It is a third of the price of a fork. The caller is held up as long as the program's file, its directory and the files
of its streams take: so only a keeper uses it, which is there for this one script or step, and only for programs of its
own user. What may go wrong is looked at before (unless the caller is sure of it): whatever does, or cannot be asked for
this way, is left to `spawn`, which words the error. So there is nothing to report afterwards: who has a pid has a
program that runs.

Between the two stands another one where the program is to know its pid, which nobody else knows before: a program of a
few instructions (`own_pid`), or a shell of a few lines where that cannot run.

Invariant: a start that is refused here has left nothing behind but an output file that was emptied or made, as `spawn`
does first.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import NamedTuple

import msgspec

from bireme.agent.starting.own_box import NAMESPACE_FDS, own_box_program
from bireme.agent.starting.own_pid import ROOM, own_pid_program
from bireme.agent.starting.spawn import RESET_SIGNALS, SHELL, Birth, SpawnError, find_program
from bireme.agent.system.descriptors import limit_of_tasks
from bireme.agent.system.output import OpenFileError, open_stream

log = logging.getLogger("bireme.agent")

_SCRIPT = """\
export {pid}=$$
{PWD}
{OLDPWD}
shift 2
exec "$@"
"""
_ELF = b"\x7fELF"
_HEAD_BYTES = 256
_NESTED = 4
"""So many interpreters of interpreters the kernel follows."""


class _UnsuitableError(Exception):
    """A birth that cannot be had the swift way: it takes the exact one."""


def spawn_swiftly(birth: Birth) -> int | None:
    """The pid of the program; None: it was not started, and is to be started by `spawn`."""
    if birth.is_of_box or not _suits(birth):
        return None
    pid = None
    try:
        with _lent(birth), _opened(birth) as fds:
            program = find_program(birth.argv[0], birth.env)
            if not birth.sure:
                _check_program(program)
            command = _command(birth, program)
            pid = os.posix_spawn(
                command.program,
                command.argv,
                command.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in fds.items()],
                setsid=True,
                setsigmask=(),
                setsigdef=RESET_SIGNALS,
            )
    except (OSError, ValueError, OpenFileError, SpawnError, _UnsuitableError) as error:
        if pid is not None:  # it runs, and is not to be started twice
            log.error("a keeper could not lay down what it lent to process %d: %s", pid, error)
    return pid


def spawn_into_box(birth: Birth) -> int | None:
    """The pid of a task on its way into its box, which says itself that its program is not there; None: it was not
    started, and is to be started by `spawn`."""
    entrance = birth.entrance
    if entrance is None or entrance.fds != NAMESPACE_FDS or not birth.pid_variable or not _suits(birth):
        return None
    between = own_box_program(remap_root=entrance.remap_root)
    if between is None:
        return None
    others = {name: value for name, value in birth.env.items() if name != birth.pid_variable}
    missing = f"slurmstepd: error: execve(): {birth.argv[0]}: {os.strerror(errno.ENOENT)}\n"
    try:
        with _lent(msgspec.structs.replace(birth, cwd="/")), _opened(birth) as fds:
            return os.posix_spawn(
                between,
                [between, birth.cwd, missing, *_places(birth), "", *birth.argv],
                {birth.pid_variable: ROOM, **others},
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in fds.items()],
                setsid=True,
                setsigmask=(),
                setsigdef=RESET_SIGNALS,
            )
    except (OSError, ValueError, OpenFileError, _UnsuitableError):
        return None


def _places(birth: Birth) -> list[str]:
    """Where its program may be, in the box."""
    name = birth.argv[0]
    return [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in birth.env.get("PATH", "").split(":")]


def _suits(birth: Birth) -> bool:
    if not birth.argv or birth.blueprint is not None or birth.foreign is not None or birth.join_files:
        return False
    if birth.rlimits or birth.nice is not None or birth.controlling_tty or not birth.new_session:
        return False
    if birth.greeting or birth.notice or not birth.cwd.startswith("/"):
        return False
    return birth.entrance is not None or _needs_no_shell(birth) or _suits_a_shell(birth)


def _needs_no_shell(birth: Birth) -> bool:
    return not birth.pid_variable or own_pid_program() is not None


def _suits_a_shell(birth: Birth) -> bool:
    # Where there is no PATH a shell looks for programs in one of its own.
    return not birth.argv[0].startswith("-") and "PATH" in birth.env and birth.passes_a_shell()


class _Command(NamedTuple):
    program: str
    argv: list[str]
    env: Mapping[str, str]


def _command(birth: Birth, program: str) -> _Command:
    if not birth.pid_variable:
        return _Command(program, list(birth.argv), birth.env)
    between = own_pid_program()
    if between is None:
        return _by_shell(birth)
    others = {name: value for name, value in birth.env.items() if name != birth.pid_variable}
    return _Command(between, [between, program, *birth.argv], {birth.pid_variable: ROOM, **others})


def _by_shell(birth: Birth) -> _Command:
    # A shell tells its children where it is; the program is to find what its submitter had.
    places = {
        name: f"{name}=${number}" if name in birth.env else f"unset {name}"
        for number, name in enumerate(("PWD", "OLDPWD"), start=1)
    }
    script = _SCRIPT.format(pid=birth.pid_variable, **places)
    argv = ["sh", "-c", script, "sh", birth.env.get("PWD", ""), birth.env.get("OLDPWD", ""), *birth.argv]
    return _Command(SHELL, argv, birth.env)


# --- what is lent ------------------------------------------------------------------------------------------


@contextmanager
def _lent(birth: Birth) -> Iterator[None]:
    """This process takes on what the program is to inherit, and lays it down again. Raises OSError."""
    with ExitStack() as laid_down:  # each of them, whatever becomes of the others
        home = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        laid_down.callback(os.close, home)
        if birth.umask is not None:
            laid_down.callback(os.umask, os.umask(birth.umask))
        if birth.cpu_ids is not None:
            laid_down.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, birth.cpu_ids)
        laid_down.callback(os.fchdir, home)
        os.chdir(birth.cwd)
        laid_down.enter_context(limit_of_tasks())
        yield


@contextmanager
def _opened(birth: Birth) -> Iterator[dict[int, int]]:
    """The program's numbers -> ours; files are opened for it. Raises OpenFileError, or _UnsuitableError."""
    fds: dict[int, int] = dict(birth.extra_fds)
    files: dict[str, int] = {}
    try:
        for number, stream in enumerate(birth.streams):
            if isinstance(stream, int):
                fds[number] = stream
                continue
            if number == 0 or stream.path not in files:
                # Others may be about to make the folder: the exact way waits for them.
                make_folders = not birth.folder_patience_s
                fd = open_stream(stream.path, stream.mode, stream=stream.stream, make_folders=make_folders, wait=False)
                files[f"{number}<" if number == 0 else stream.path] = fd
                if number == 0 and stat.S_ISFIFO(os.fstat(fd).st_mode):
                    raise _UnsuitableError  # its reader is to wait for a writer
            else:
                fd = files[stream.path]
            fds[number] = fd
        if any(ours in fds and ours != theirs for theirs, ours in fds.items()):
            raise _UnsuitableError  # one would overwrite another
        yield fds
    finally:
        for fd in files.values():
            os.close(fd)


# --- the program -------------------------------------------------------------------------------------------


def _check_program(program: str, nested: int = 0) -> None:
    """Raises _UnsuitableError or OSError unless it is sure that the kernel executes it."""
    if not os.access(program, os.X_OK, effective_ids=True):
        raise _UnsuitableError
    fd = os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # which refuses what a lease or a FIFO would hold
    try:
        first = os.read(fd, _HEAD_BYTES)
    finally:
        os.close(fd)
    if first.startswith(b"#!") and nested < _NESTED:
        words = first[2:].partition(b"\n")[0].split(None, 1)
        if not words or not words[0].startswith(b"/"):
            raise _UnsuitableError
        _check_program(os.fsdecode(words[0]), nested + 1)
    elif not first.startswith(_ELF) or _kind(first) != _own_kind():
        raise _UnsuitableError


def _kind(elf: bytes) -> tuple[bytes, bytes]:
    """Word size and byte order, and the machine that it is for."""
    return elf[4:6], elf[18:20]


@cache
def _own_kind() -> tuple[bytes, bytes]:
    with open("/proc/self/exe", "rb") as file:
        return _kind(file.read(20))
