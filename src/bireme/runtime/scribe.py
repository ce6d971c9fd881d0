"""The thread that writes to the journal, one thing after another, and has the loop told when each is on disk.

`service` gives it every group. An executor does the same with two futures, three locks and one more turn of the loop;
here what follows the writing is called in the very turn in which the loop hears of it.

Invariant: things are written in the order in which they were given, and `written` is called once for each, on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

Written = Callable[[BaseException | None], None]
"""Told what the writing raised, if it did."""


class Scribe:
    """Begins with the first thing that is to be written, and ends with `close`."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[tuple[Callable[[], None], asyncio.AbstractEventLoop, Written] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, work: Callable[[], None], written: Written) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
            self._thread.start()
        self._orders.put((work, asyncio.get_running_loop(), written))

    def close(self) -> None:
        """Returns when everything that was given is written."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            work, loop, written = order
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it
                loop.call_soon_threadsafe(written, error)
            del order, work, written, error  # nothing of it is kept while there is nothing to do
