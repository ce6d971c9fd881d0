"""salloc: gets an allocation, runs a program or a shell here while holding it, and gives it back.

The program runs where salloc was called, with the allocation's SLURM_ variables; `srun` inside it uses the nodes.
Interactive shells get the terminal, as a shell gives it to a job. Not here: the lease and the waiting (`allocation`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from bireme.cli.connection import make_transport
from bireme.cli.interactive.allocation import Allocation, Interrupted
from bireme.client.transport import Transport
from bireme.commands.sbatch import answered_at_once
from bireme.commands.submitting.caller import submit_context
from bireme.commands.submitting.submission import interactive_body, submit, tell_of_engine, tell_options
from bireme.commands.voice import CommandFailure, Voice, run_command
from bireme.daemon.paths import Paths
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.catalogue.words import SUBMISSION_FAILED
from bireme.slurm.options.interactive import AllocationSubmission, read_allocation
from bireme.slurm.options.layers import Options, peek

_FORWARDED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_USERS_OWN = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL})
"""A command ended by one of these was most likely ended by its user: no failure of the job."""


def main(argv: list[str]) -> int:
    return run_command("salloc", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    if answer := answered_at_once(Command.SALLOC, peek(Command.SALLOC, argv)):
        print(answer, end="")
        return 0
    asked = read_allocation(argv, submit_context(Command.SALLOC, argv))
    options = asked.options[0]
    voice = Voice("salloc", quiet=options.flag("quiet"), verbose=options.times("verbose"))
    for notice in asked.notices:
        voice.say(notice)
    tell_options(voice, options)
    _enter(options.text("chdir"))
    with make_transport() as transport:
        tell_of_engine(voice, transport, asked.options)
        return _allocate(transport, asked, voice)


def _enter(folder: str) -> None:
    """--chdir is where the program runs, here."""
    if not folder:
        return
    try:
        os.chdir(folder)
    except OSError as error:
        raise CommandFailure(f"chdir({folder}): {error.strerror}") from error


def _allocate(transport: Transport, asked: AllocationSubmission, voice: Voice) -> int:
    options = asked.options[0]
    job_id = submit(
        transport,
        interactive_body(transport, asked),
        SUBMISSION_FAILED[Command.SALLOC],
        voice,
    )
    allocation = Allocation(transport, job_id, voice)
    keeps = not options.flag("no-shell")
    try:
        if keeps:
            allocation.hold()
        _until_granted(allocation, options)
    except BaseException:
        allocation.release(1)
        raise
    voice.say(f"Granted job allocation {job_id}")
    if options.flag("bell"):
        sys.stderr.write("\a")
    if not keeps:
        return 0
    code = 1
    try:
        code = _run_program(allocation, asked)
    finally:
        if not allocation.ended.is_set():
            voice.say(f"Relinquishing job allocation {job_id}")
        allocation.release(code)
    return code


def _until_granted(allocation: Allocation, options: Options) -> None:
    try:
        allocation.await_start_or_signal(options.number("immediate"), announce_pending=True)
    except Interrupted:
        allocation.voice.say(f"Job allocation {allocation.job_id} has been revoked.")
        raise CommandFailure("salloc: Job aborted due to signal", bare=True) from None


def _run_program(allocation: Allocation, asked: AllocationSubmission) -> int:
    program = list(asked.program) or [_shell()]
    environment = program_environment(os.environ, allocation.variables())
    environment |= reaching(allocation.transport.paths, environment.get("PATH", os.defpath))
    path = shutil.which(program[0], path=environment.get("PATH"))
    if path is None:
        allocation.voice.error(f'_fork_command: Unable to find command "{program[0]}"')
        return 1
    is_shell_at_terminal = not asked.program and os.isatty(0)
    pid = _start(path, program, environment, owns_terminal=os.isatty(0))
    _watch_end(allocation, asked.options[0], pid, is_shell_at_terminal)
    return _await_program(pid, owns_terminal=os.isatty(0))


def program_environment(own: Mapping[str, str], allocated: Mapping[str, str]) -> dict[str, str]:
    """Our variables with the allocation's on top; those of a job we were called from do not leak into it."""
    inherited = {name: value for name, value in own.items() if not _names_another_job(name)}
    return {**inherited, **allocated}


def reaching(paths: Paths, path: str) -> dict[str, str]:
    """What makes srun and the rest, inside, those of this cluster."""
    folders = [paths.bin, *(folder for folder in path.split(":") if folder != paths.bin)]
    return {"BIREME_HOME": paths.home, "PATH": ":".join(folders)}


def _names_another_job(name: str) -> bool:
    return name.startswith(("SLURM_JOB_", "SLURM_STEP", "SLURM_NTASKS", "SLURM_NPROCS")) or name == "SLURM_JOBID"


def _shell() -> str:
    shell = os.environ.get("SHELL")
    if shell:
        return shell
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    return "/bin/sh"


def _start(path: str, program: Sequence[str], environment: Mapping[str, str], *, owns_terminal: bool) -> int:
    """The program as a child, at a terminal as its foreground group."""
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTTOU,)]
    pid = os.fork()
    if pid == 0:
        try:
            if owns_terminal:
                os.setpgid(0, 0)
                with suppress(OSError):
                    os.tcsetpgrp(0, os.getpid())
            for number in range(1, signal.NSIG):
                with suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.execve(path, list(program), dict(environment))
        except OSError as error:
            os.write(2, f"salloc: error: {program[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    if owns_terminal:
        with suppress(OSError):
            os.setpgid(pid, pid)
        with suppress(OSError):
            os.tcsetpgrp(0, pid)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN if owns_terminal else before[0])
    return pid


def _watch_end(allocation: Allocation, options: Options, pid: int, is_shell_at_terminal: bool) -> None:
    """When the job ends by other hands: say so, and signal the program if that was asked (a shell is hung up)."""
    kill_with = options.number("kill-command") if "kill-command" in options else None
    if kill_with is None and is_shell_at_terminal:
        kill_with = int(signal.SIGHUP)

    def revoked() -> None:
        allocation.voice.say(f"Job allocation {allocation.job_id} has been revoked.")
        if kill_with is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, kill_with) if os.getpgid(pid) == pid else os.kill(pid, kill_with)

    allocation.notify(revoked)


def _await_program(pid: int, *, owns_terminal: bool) -> int:
    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program too
    _, status = os.waitpid(pid, 0)
    if owns_terminal:
        with suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        return 0 if ended_by in _USERS_OWN else 1
    return os.waitstatus_to_exitcode(status)
