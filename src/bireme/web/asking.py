"""Who looks at a page, and what is asked of the daemon for them; made once for all who ask the same within a moment.

Pages get an `Asking`. What one of a user's open pages has asked is good for their others for `SHARED_S`; and for others
where the daemon says with the answer that it is the same for all who have one view, and of them that they have it.
Invariant: any other answer is given only to the user it was made for; a token is one that the daemon knew at most
`ME_S` ago.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from bireme.web.upstream import RefusedError, Upstream, target_of

SHARED_S, ME_S = 0.5, 2.0
AT_ONCE_EACH = 12
_MOST_SHARED = 512


class NotLoggedInError(Exception):
    """There is no session, or it has ended."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whose page it is."""

    token: str
    user: str
    uid: int
    admin: bool
    session: str
    """Its id, which is no secret."""
    session_ends_at: float
    view: str = ""
    """Who have the same may know the same; empty: something is hidden from them, and nobody else has it."""


_EVERYBODY = -1


class Shared:
    """Answers of the daemon, each asked for once while it is fresh."""

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self.upstream, self._clock = upstream, clock
        self._made: OrderedDict[tuple[Any, ...], tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._slots: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        self._alike: set[str] = set()
        """Paths that the daemon has answered with the same for all who have one view."""

    async def visitor(self, token: str) -> Visitor:
        """Raises NotLoggedInError, AwayError."""
        if not token:
            raise NotLoggedInError
        try:
            me = await self._once(("me", token), ME_S, lambda: self.upstream.get(token, "/v1/web/me"))
        except RefusedError as error:
            if error.status == 401:
                raise NotLoggedInError from None
            raise
        if me["session"] is None:
            raise NotLoggedInError
        session = me["session"]
        return Visitor(token, me["user"], me["uid"], me["admin"], session["id"], session["ends_at"], me["view"])

    async def get(self, visitor: Visitor, path: str, params: Mapping[str, str] | None = None) -> Any:
        """As `Upstream.get`; what is answered is read by many, and changed by nobody."""
        target = target_of(path, params)
        if visitor.view and path in self._alike:
            with suppress(RefusedError, NotLoggedInError):  # it may be somebody else's session that has ended
                told, view = await self._read((_EVERYBODY, visitor.view, target), visitor, target)
                if view == visitor.view:
                    return told
        told, view = await self._read((visitor.uid, visitor.admin, target), visitor, target)
        if view:
            self._alike.add(path)
        return told

    async def _read(self, key: tuple[Any, ...], visitor: Visitor, target: str) -> tuple[Any, str]:
        try:
            read: tuple[Any, str] = await self._once(key, SHARED_S, lambda: self._in_turn(visitor, target))
        except RefusedError as error:
            if error.status == 401:
                self.forget_token(visitor.token)
                raise NotLoggedInError from None
            raise
        return read

    async def _in_turn(self, visitor: Visitor, target: str) -> tuple[Any, str]:
        """So many questions of one user at once: others' pages are drawn beside them."""
        async with self._slots.setdefault(visitor.uid, asyncio.Semaphore(AT_ONCE_EACH)):
            return await self.upstream.read(visitor.token, target)

    def forget(self, uid: int) -> None:
        """This user has changed something: what was asked before is old."""
        for key in [key for key in self._made if key[0] in (uid, _EVERYBODY)]:
            del self._made[key]

    def forget_token(self, token: str) -> None:
        self._made.pop(("me", token), None)

    async def _once(self, key: tuple[Any, ...], good_s: float, ask: Callable[[], Awaitable[Any]]) -> Any:
        made_at, task = self._made.get(key, (0.0, None))
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or failed or (task.done() and self._clock() - made_at > good_s):
            task = asyncio.ensure_future(ask())
            self._made[key] = (self._clock(), task)
            self._made.move_to_end(key)
            task.add_done_callback(lambda done: self._note(key, done))
        return await asyncio.shield(task)  # who leaves does not take the answer from the others

    def _note(self, key: tuple[Any, ...], done: asyncio.Task[Any]) -> None:
        """It is fresh from when it was there; what is old makes room."""
        if not done.cancelled():
            done.exception()  # whoever asked was told; nobody may be left
        if self._made.get(key, (0.0, None))[1] is done:
            self._made[key] = (self._clock(), done)
        while len(self._made) > _MOST_SHARED:
            self._made.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Asking:
    """One look at one page: by whom, with which words in its address, and what of it is wanted."""

    visitor: Visitor
    shared: Shared
    query: Mapping[str, str]
    path: Mapping[str, str]
    part: str = ""
    """Only this part of the page is wanted; empty: all of it."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """What the daemon answers to this visitor. Raises RefusedError, AwayError, NotLoggedInError."""
        return await self.shared.get(self.visitor, path, params)

    async def get_or(self, default: Any, path: str, params: Mapping[str, str] | None = None) -> Any:
        """As `get`, of what this cluster may not have or this visitor may not see."""
        try:
            return await self.get(path, params)
        except RefusedError:
            return default

    async def together(self, *asked: Awaitable[Any]) -> list[Any]:
        """All of these at once."""
        return list(await asyncio.gather(*asked))

    def wants(self, part: str) -> bool:
        """Whether this part is going to be shown: what is asked of the daemon for another one is for nothing."""
        return self.part in ("", part)
