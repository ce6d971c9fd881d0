"""The fork of a process that catches signals: of agents for their tasks and keepers, of the daemon for what it ponders.

Invariant: no signal reaches a child while it still has its parent's handlers.
"""

from __future__ import annotations

import os
import signal


def fork_deaf() -> int:
    """As os.fork; in the child every signal is blocked, until the child has handlers of its own and lets them in."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
        return pid
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
