"""Where commands run that the daemon answers: a few threads beside the loop, users in turn.

A command is written as one plain function that asks and prints; in a thread it may wait for its questions, which the
loop answers in the caller's turns like any request's (`api/commands.py`).

Invariant: nobody's command holds the loop: a thread gives way to it after one slice of time (`SLICE_S`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bireme.api.slices import SLICE_S
from bireme.api.turns import Slots

THREADS, THREADS_EACH = 8, 4
"""So many commands run at a time, and so many of one user."""

Result = TypeVar("Result")


class Errands:
    def __init__(self) -> None:
        self._slots = Slots(THREADS, THREADS_EACH)
        # Threads of their own: a question may need one of the others (`Context.in_thread`), which must not wait for it.
        self._threads = ThreadPoolExecutor(THREADS, "command")
        sys.setswitchinterval(SLICE_S)

    async def run(self, uid: int, work: Callable[[], Result]) -> Result:
        async with self._slots.held_by(uid):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
