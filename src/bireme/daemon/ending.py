"""The end of the daemon, step by step: each step is named while it is waited for, and none is waited for without limit.

`app` takes the steps; `bireme down` reads which one is being taken (`process.stop`) and says it. Not here: what they
are. Invariant: the process is gone within the time that the ending was begun with. What still stands in the way then is
written to the log, with the stack of every thread, and left behind: the journal is whole at any moment.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
from collections.abc import Awaitable
from contextlib import suppress

log = logging.getLogger("bireme.daemon")

MOST_S = 75.0
"""For the whole end, jobs aside: a router without services has 45 s for its last requests."""


class Ending:
    """Begins the end of this process. `path`: where the step that is being taken is written; `log_path`: the log."""

    def __init__(self, path: str, log_path: str, within_s: float = MOST_S) -> None:
        self._path = path
        faulthandler.dump_traceback_later(within_s, exit=True, file=_opened(log_path))

    async def step(self, what: str, work: Awaitable[None], within_s: float) -> None:
        """Waits for `work`, so long at most; what goes wrong in it is logged, for the next step has to be taken."""
        self.say(what)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(within_s):
                await work
        except TimeoutError:
            took_s = asyncio.get_running_loop().time() - began
            log.error("the daemon ends without %s, which it has waited for %.0f s", what, took_s)
        except Exception:
            log.exception("the daemon ends, though this failed: %s", what)

    def say(self, what: str) -> None:
        """Notes what the end waits for from now on."""
        # A full disk, or a home that was removed, must not keep it from ending.
        with suppress(OSError), open(self._path, "w") as file:
            file.write(f"{os.getpid()} {what}\n")


def _opened(log_path: str) -> int:
    """For as long as the process lives: it may be needed to the last."""
    try:
        return os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the home was removed
        return 2
