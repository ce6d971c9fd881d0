"""Asking the machine's own programs, and what the tests of this folder call a report."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

Report = Callable[[str, object], None]
"""`report(title, text)` adds to what is printed after the tests."""


def answer(*argv: str) -> str:
    """What a program prints; empty when it is not there or fails."""
    program = shutil.which(argv[0])
    if program is None:
        return ""
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
