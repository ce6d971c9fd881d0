"""What a process that works for a user takes from itself at its beginning: memory, CPU time, descriptors, turns.

Called by `bireme.evidence`, `bireme.evidence.checkpoints` and `bireme.images` when they run as the user's process.
Invariant: a limit that somebody has set lower stays.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress


def bind(*, memory_bytes: int, cpu_s: int, descriptors: int) -> None:
    """`memory_bytes`: of address space, all in all. No core is written."""
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, descriptors),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    with suppress(OSError):
        os.nice(10)
