"""The streams of a batch script: files of the submitter's, opened by the child that becomes the script.

Called by `jobs` when a batch script starts. The script itself is in `script_pool`.
"""

from __future__ import annotations

import os

from bireme.agent.output import OpenFileError, OpenMode
from bireme.agent.protocol import Message
from bireme.agent.spawn import TaskFile

_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")


def batch_streams(batch: Message) -> tuple[TaskFile, TaskFile, TaskFile]:
    """Raises OpenFileError for what is `unopened`: a file that others had to open, and could not."""
    if "unopened" in batch:
        raise OpenFileError(*batch["unopened"])
    mode: OpenMode = "append" if batch.get("append") else "truncate"
    stdout, stderr = batch["stdout"], batch.get("stderr") or batch["stdout"]
    return (
        TaskFile("stdin", batch.get("stdin") or os.devnull, "read"),
        TaskFile("stdout", stdout, mode),
        TaskFile("stderr", stderr, mode),
    )


def is_sure_to_start(script: str) -> bool:
    """Whether its interpreter is one of the system's. Looks at no file that a user may have made hard to look at."""
    first = script.partition("\n")[0]
    words = first[2:].split(None, 1) if first.startswith("#!") else ()
    if not words or not words[0].startswith(_SYSTEM_FOLDERS) or ".." in words[0]:
        return False
    return os.access(words[0], os.X_OK)
