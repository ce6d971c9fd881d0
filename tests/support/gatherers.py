"""Gatherers of a test's home, found among all processes: one that has just begun has not taken its lock yet.

Invariant: only processes that were started for that home are named.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from bireme.daemon.paths import Paths


def gatherers_of(home: str) -> list[int]:
    folder = Paths(home).gatherer.encode()
    return [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/cmdline") if _gathers_in(file, folder)]


def end_gatherers_of(home: str) -> None:
    """They outlive a daemon that was not asked to end its jobs, for two minutes."""
    for pid in gatherers_of(home):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _gathers_in(file: Path, folder: bytes) -> bool:
    try:
        words = file.read_bytes().split(b"\0")
    except OSError:  # the process has ended
        return False
    return b"bireme.gather" in words and folder in words
