"""Keeps the pages where they are to be: a process that serves them while they are on, and another when it has died.

Made by the composition root; the API asks it through `api.cluster.Pages`. Whether they were switched on is remembered,
and so is their port: a link that somebody kept is good after the next start.
Invariants: at most one process serves; what keeps them from being served is `problem`, and costs nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from bireme.api.cluster import PagesError
from bireme.daemon.files import DamagedFileError, read_sealed, write_sealed
from bireme.daemon.settings import SettingsError
from bireme.daemon.web import process
from bireme.daemon.web.plan import WebPlan
from bireme.daemon.web.process import WebProcess
from bireme.identity.sessions import Sessions

log = logging.getLogger("bireme.daemon")

_LOOK_S, _MOST_PAUSE_S = 1.0, 30.0


class WebKeeper:
    """`plan`: what the pages are to be by the settings in force; `folder`: where is remembered what they were."""

    def __init__(self, plan: Callable[[], WebPlan], folder: str, api: str, log_path: str, sessions: Sessions) -> None:
        self._plan, self._folder, self._api, self._log = plan, folder, api, log_path
        self._sessions = sessions
        self._served: WebPlan | None = None
        """By which they are served, or are to be as soon as that can be."""
        self._socket: socket.socket | None = None
        self._process: WebProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.problem = ""
        """Why they are not served though they should be; empty: all is well."""

    # -- what the API asks -------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        if self._socket is None or self._served is None:
            return ""
        return self._served.url_at(self._socket.getsockname()[1])

    @property
    def is_off(self) -> bool:
        return self._plan().mode == "off" or self._remembered("switched") == "off"

    async def open(self) -> str:
        if self._plan().mode == "off":
            raise PagesError("the pages are switched off by the settings: web.pages in bireme.toml")
        self._remember("switched", "on")
        await self._serve()
        if self.problem:
            raise PagesError(self.problem)
        return self.url

    async def close(self) -> None:
        self._remember("switched", "off")
        await self._leave()

    # -- what the composition root asks ------------------------------------------------------------------------------

    async def begin(self) -> None:
        if self._wanted():
            await self._serve()
        self._keeping = asyncio.create_task(self._keep(), name="pages")

    async def end(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self._leave()

    async def reconsider(self) -> None:
        """The settings may be others now."""
        if self._served is not None and (not self._wanted() or self._served != self._plan()):
            await self._leave()
        if self._wanted():
            await self._serve()

    def _wanted(self) -> bool:
        mode, switched = self._plan().mode, self._remembered("switched")
        if "off" in (mode, switched):
            return False
        return mode == "on" or switched == "on"

    # -- serving -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        plan = self._served = self._plan()
        try:
            plan.check_certificate()
            if self._socket is None:
                self._socket = process.listener(plan, self._port())
                self._remember("port", str(self._socket.getsockname()[1]))
                log.info("the pages are served at %s", self.url)
            self._start(plan)
        except (PagesError, SettingsError, OSError) as error:
            if str(error) != self.problem:
                log.error("%s", error)
            self.problem = str(error)
        else:
            self.problem = ""

    def _start(self, plan: WebPlan) -> None:
        """Unless one serves. Raises OSError."""
        assert self._socket is not None
        if self._process is not None and not self._process.has_ended:
            return
        if self._process is not None:
            log.warning("what served the pages ended with %s: it is started again", self._process.child.returncode)
            self._process.end()
        self._process = process.start(plan, self._socket, self._api, self._log)

    async def _leave(self) -> None:
        ended, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
        self._served, self._socket, self.problem = None, None, ""
        if ended is not None:
            await asyncio.to_thread(ended.end)

    async def _keep(self) -> None:
        pause_s = _LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            if self._served is None or (self._process is not None and not self._process.has_ended):
                pause_s = _LOOK_S
            else:
                await self._serve()
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            with suppress(OSError):  # said when a session begins or ends
                self._sessions.note_use()

    # -- what is remembered ------------------------------------------------------------------------------------------

    def _port(self) -> int:
        text = self._remembered("port")
        return int(text) if text.isdigit() else 0

    def _remembered(self, what: str) -> str:
        """Empty where nothing is, or it is damaged: then it is as at the first start."""
        try:
            return read_sealed(os.path.join(self._folder, what)) or ""
        except DamagedFileError:
            return ""

    def _remember(self, what: str, text: str) -> None:
        if self._remembered(what) != text:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_sealed(os.path.join(self._folder, what), text)
