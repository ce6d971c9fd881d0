"""Writes a page of HTML for the user who asked: what was private to them stays so.

Called by the commands with `--html FILE`. Invariant: a file that is made can be read by its user alone.
"""

from __future__ import annotations

import os
import sys

from bireme.commands.voice import CommandFailure


def write_page(text: str, path: str) -> None:
    """`-` is standard output."""
    data = text.encode("utf-8", "replace")
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandFailure(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}: open it in a browser", file=sys.stderr)
