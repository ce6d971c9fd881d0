"""The memory of this process, given back to the machine after a peak. For an agent's stream
clients (`stdio.holdings`) and for the commands that a daemon runs (`api/errands.py`).

The C library keeps what is freed for the next time, and these processes live for months beside the jobs that the memory
is for. Invariant: where the C library cannot do it, nothing happens.
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Takes some milliseconds: for after a peak, not for every turn."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
