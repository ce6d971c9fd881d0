"""The files a batch script reads and writes. The script itself is in `script_pool`.

Called by `jobs` when a batch script starts. Invariant: they are opened with the submitter's rights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bireme.agent.identity import Identity
from bireme.agent.output import OpenFileError, OpenMode, open_input, open_output
from bireme.agent.protocol import Message


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


def open_files(batch: Message, identity: Identity | None, *, make_folders: bool) -> BatchFiles:
    """Raises OpenFileError, with nothing left open. `unopened`: of a file that others had to open, and could not."""
    if "unopened" in batch:
        raise OpenFileError(*batch["unopened"])
    opened: list[int] = []
    mode: OpenMode = "append" if batch.get("append") else "truncate"
    umask = batch.get("umask")
    stdout, stderr = batch["stdout"], batch.get("stderr") or batch["stdout"]
    try:
        opened.append(open_input(batch.get("stdin") or os.devnull, identity))
        opened.append(open_output(stdout, mode, identity, stream="stdout", umask=umask, make_folders=make_folders))
        if stderr == stdout:
            return BatchFiles(opened[0], opened[1], opened[1])
        opened.append(open_output(stderr, mode, identity, stream="stderr", umask=umask, make_folders=make_folders))
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return BatchFiles(*opened)
