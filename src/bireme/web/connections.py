"""Who may keep a connection to the pages: nobody who sends no request, and in all no more than descriptors are there.

Anybody who reaches the port can open connections, before any login. uvicorn speaks HTTP on them; here is how long a
head may take and who gives way when there are too many: the oldest whose request has not come yet, as browsers send
theirs at once. Invariant: the process never runs out of descriptors by connections that were accepted.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("bireme.web")

HEAD_S = 10.0
MOST = max(64, min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
_SAID_EVERY_S = 60.0


class Crowd:
    """All connections, and those whose request is yet to come, the oldest first."""

    def __init__(self) -> None:
        self.all: set[Pages] = set()
        self.silent: dict[Pages, None] = {}

    def has_room_for(self, new: Pages) -> bool:
        """Makes it, where somebody can be sent away for it."""
        if len(self.all) >= MOST:
            oldest = next(iter(self.silent), None)
            if oldest is None:
                return False
            oldest.send_away()
        self.all.add(new)
        self.silent[new] = None
        return True


_crowd = Crowd()


class Pages(HttpToolsProtocol):
    """One connection."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if _crowd.has_room_for(self):
            self._late = self.loop.call_later(HEAD_S, self.send_away)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None and self in _crowd.all:  # the next one on a connection that was kept
            _crowd.silent[self] = None
            self._late = self.loop.call_later(HEAD_S, self.send_away)

    def on_headers_complete(self) -> None:
        self._in_time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        _crowd.silent.pop(self, None)
        super().on_message_complete()

    def send_away(self) -> None:
        self._forget()
        self.transport.abort()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _forget(self) -> None:
        self._in_time()
        _crowd.all.discard(self)
        _crowd.silent.pop(self, None)


class Said:
    """What goes wrong on the loop, each kind of it once a minute: a thousand times a second it would fill the disk."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def __call__(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        what, now = str(context.get("message", "")), time.monotonic()
        if now - self._at.get(what, -_SAID_EVERY_S) >= _SAID_EVERY_S:
            self._at = {each: at for each, at in self._at.items() if now - at < _SAID_EVERY_S} | {what: now}
            log.error("%s", what, exc_info=context.get("exception"))
