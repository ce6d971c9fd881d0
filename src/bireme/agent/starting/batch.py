"""The streams of a batch script: files of the submitter's, opened by the child that becomes the script.

Called by `jobs` when a batch script starts. The script itself is in `script_pool`.
"""

from __future__ import annotations

import os

from bireme.agent.messages.orders import Batch
from bireme.agent.starting.spawn import TaskFile
from bireme.agent.system.output import OpenMode

_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")


def batch_streams(batch: Batch) -> tuple[TaskFile, TaskFile, TaskFile]:
    """Raises OpenFileError for what is `unopened`: a file that others had to open, and could not."""
    if batch.unopened is not None:
        raise batch.unopened.failure()
    mode: OpenMode = "append" if batch.append else "truncate"
    return (
        TaskFile("stdin", batch.stdin or os.devnull, "read"),
        TaskFile("stdout", batch.stdout, mode),
        TaskFile("stderr", batch.stderr or batch.stdout, mode),
    )


def is_sure_to_start(script: str) -> bool:
    """Whether its interpreter is one of the system's. Looks at no file that a user may have made hard to look at."""
    path = interpreter_of(script)
    if not path.startswith(_SYSTEM_FOLDERS) or ".." in path:
        return False
    return os.access(path, os.X_OK)


def interpreter_of(script: str) -> str:
    """What its first line names; empty where that names none."""
    first = script.partition("\n")[0]
    words = first[2:].split(None, 1) if first.startswith("#!") else ()
    return words[0] if words else ""
