"""A bell on the event loop: it is rung, and whoever waits for it goes on; or after a while without it.

`service` waits for two of them, at every turn. asyncio's Event inside its timeout does the same with six objects and
two timers for each wait, which every submission paid for.

Invariant: one waits at a time. A bell that was rung stays so until it is hushed.
"""

from __future__ import annotations

import asyncio


class Bell:
    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        _let_go(self._waiter)

    def hush(self) -> None:
        self._rung = False

    async def wait(self, at_most_s: float | None = None) -> bool:
        """Whether it was rung."""
        if self._rung:
            return True
        assert self._waiter is None
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if at_most_s is None else loop.call_later(at_most_s, _let_go, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._rung


def _let_go(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
