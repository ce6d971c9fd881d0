"""The files of a batch script: the script itself in the agent's keeping, and what it reads and writes.

Called by `jobs` when a batch script starts and when its job is cleared.

Invariant: the script is the submitter's to read and run, and nobody else's; the files it names are opened with the
submitter's rights.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from bireme.agent.identity import Identity
from bireme.agent.output import OpenMode, open_input, open_output
from bireme.agent.protocol import Message

SCRIPT_NAME = "slurm_script"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    stdin_fd: int
    stdout_fd: int
    stderr_fd: int

    def close(self) -> None:
        for fd in {self.stdin_fd, self.stdout_fd, self.stderr_fd}:
            os.close(fd)

    def close_but_stderr(self) -> int:
        """Keeps the one descriptor the agent may still have something to say on."""
        for fd in {self.stdin_fd, self.stdout_fd} - {self.stderr_fd}:
            os.close(fd)
        return self.stderr_fd


def open_files(batch: Message, identity: Identity | None) -> BatchFiles:
    """Raises OpenFileError, with nothing left open."""
    opened: list[int] = []
    mode: OpenMode = "append" if batch.get("append") else "truncate"
    umask = batch.get("umask")
    stdout, stderr = batch["stdout"], batch.get("stderr") or batch["stdout"]
    try:
        opened.append(open_input(batch.get("stdin") or os.devnull, identity))
        opened.append(open_output(stdout, mode, identity, stream="stdout", umask=umask))
        if stderr == stdout:
            return BatchFiles(opened[0], opened[1], opened[1])
        opened.append(open_output(stderr, mode, identity, stream="stderr", umask=umask))
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return BatchFiles(*opened)


def write_script(directory: str, text: str, uid: int) -> str:
    """The path of the script, ready to be executed by its owner."""
    path = f"{directory}/{SCRIPT_NAME}"
    try:
        os.mkdir(directory, 0o711)
    except FileExistsError:  # of an earlier start that was not tidied up
        remove_job_directory(directory)
        os.mkdir(directory, 0o711)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    try:
        data = memoryview(text.encode("utf-8", "surrogateescape"))
        while data:
            data = data[os.write(fd, data) :]
        if uid != os.geteuid():
            os.fchown(fd, uid, -1)
    finally:
        os.close(fd)
    return path


def remove_job_directory(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{directory}/{SCRIPT_NAME}")
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(directory)
