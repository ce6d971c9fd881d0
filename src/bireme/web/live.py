"""Pages that stay true without being loaded again: their parts, drawn anew when what they show has changed.

A page listens (server-sent events) and names its parts. All open pages of one user share one `_Feed`: one drawing of
what several of them show; a part that looks as before is not sent. A `Following` says what has changed, to all feeds of
users with one view. Each part is sent whole, so that a page that was away misses nothing: it says what it saw last
(Last-Event-ID) and gets what is newer.

Invariants: a part is drawn with the rights of who reads it; no more often than it says, few at a time for a user; a
reader that is slow gets the newest of each part, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bireme.web.asking import NotLoggedInError, Shared, Visitor
from bireme.web.following import AGAIN_S, PAUSE_S, Following
from bireme.web.guards import Place
from bireme.web.paging import JOB, SELDOM_S, VERDICT, Page, Part, Press
from bireme.web.upstream import AwayError, RefusedError

log = logging.getLogger("bireme.web")

MOST_READERS, MOST_READERS_EACH = 2048, 512
HEARTBEAT_S = 15.0
_UNDRAWN = '<p class="quiet">This part could not be drawn: it is a bug of Bireme\'s (log/web.log says more).</p>'
_AT_ONCE = 4
"""So many parts are drawn together for one user."""


@dataclass(eq=False, slots=True)
class _View:
    """One part of one page, as one user sees it."""

    page: Page
    part: str
    words: Mapping[str, str]
    query: Mapping[str, str]
    readers: set[_Reader] = field(default_factory=set)
    html: str = ""
    sum: int = -1
    """Of what was drawn last; -1: nothing was."""
    changed: int = 0
    """The number of the change that it was last sent with."""
    drawn_at: float = -1e9
    is_dirty: bool = True

    @property
    def way(self) -> Part:
        return self.page.parts[self.part]

    @property
    def topics(self) -> set[str]:
        """With the job that the page is about, where it is one of a job."""
        own = {JOB, VERDICT}
        return {f"{each}:{self.words['job']}" if each in own else each for each in self.way.on}

    def becomes_dirty(self, changed: Collection[str] | None) -> bool:
        """Notes what has changed (None: anything); whether it is to be drawn again."""
        is_old = time.monotonic() - self.drawn_at >= SELDOM_S
        topics = self.topics.union(self.way.seldom) if is_old else self.topics
        self.is_dirty = self.is_dirty or changed is None or not topics.isdisjoint(changed)
        return self.is_dirty


@dataclass(eq=False, slots=True)
class _Reader:
    """One open page."""

    visitor: Visitor
    pending: dict[str, _View | None] = field(default_factory=dict)
    """What it is to be told: parts, and words that are no part (`away`, `back`, `out`), which have no view."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, word: str, view: _View | None = None) -> None:
        self.pending.pop(word, None)
        self.pending[word] = view
        self.woken.set()


class Live:
    """All feeds. `pages`: those whose parts can be listened to."""

    def __init__(self, place: Place, press: Press, shared: Shared, pages: Sequence[Page]) -> None:
        self._place, self._press, self._shared, self._pages = place, press, shared, pages
        self._feeds: dict[tuple[int, bool, str], _Feed] = {}
        self._followings: dict[str, Following] = {}
        """The newest of each view that several may have."""

    async def answer(self, request: Request) -> Response:
        """`page`: its address below the prefix, with its query; `part`: each that it has."""
        visitor = await self._shared.visitor(request.cookies.get(self._place.cookie, ""))
        address = urlsplit(request.query_params.get("page", ""))
        found = ((page, words) for page in self._pages if (words := page.words_of(address.path)) is not None)
        page, words = next(found, (None, {}))
        parts = [part for part in dict.fromkeys(request.query_params.getlist("part")) if page and part in page.parts]
        if page is None or not parts:
            return JSONResponse({"error": {"message": "no page has such a part"}}, 404)
        feed = self._feed_of(visitor)
        own = len(feed.readers)
        if own >= MOST_READERS_EACH or sum(len(each.readers) for each in self._feeds.values()) >= MOST_READERS:
            return JSONResponse({"error": {"message": f"{own} pages of yours are open: close some"}}, 429)
        views = feed.views_of(page, parts, words, dict(parse_qsl(address.query, keep_blank_values=True)))
        events = self._events(feed, _Reader(visitor), views, request.headers.get("last-event-id", ""))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    def _feed_of(self, visitor: Visitor) -> _Feed:
        key = (visitor.uid, visitor.admin, visitor.view)
        feed = self._feeds.get(key)
        if feed is None:
            following = self._followings.get(visitor.view)
            if following is None or not visitor.view or not following.feeds or not following.has_room():
                following = self._followings[visitor.view] = Following(self._shared)
            feed = self._feeds[key] = _Feed(self._press, following)
        return feed

    def changed(self, uid: int) -> None:
        """This user did something on a page: what they see is drawn at once."""
        for feed in self._feeds.values():
            feed.dirty(None, at_once=uid)

    async def _events(self, feed: _Feed, reader: _Reader, views: Iterable[_View], last: str) -> AsyncIterator[bytes]:
        feed.join(reader, views, last)
        try:
            yield b"retry: 2000\n: bireme\n\n"
            while "out" not in reader.pending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await reader.woken.wait()
                if not reader.woken.is_set():
                    yield b": still here\n\n"
                    await self._look(reader)
                reader.woken.clear()
                while reader.pending and "out" not in reader.pending:
                    word = next(iter(reader.pending))
                    yield feed.message(word, reader.pending.pop(word))
            yield feed.message("out", None)
        finally:
            feed.leave(reader)
            if not feed.readers:
                self._feeds = {key: each for key, each in self._feeds.items() if each is not feed}
                feed.end()

    async def _look(self, reader: _Reader) -> None:
        """Whether its session still lasts."""
        try:
            await self._shared.visitor(reader.visitor.token)
        except NotLoggedInError:
            reader.tell("out")
        except (AwayError, RefusedError):
            pass  # the feed says so


class _Feed:
    """What all open pages of one user show. Ended when the last of them has left."""

    def __init__(self, press: Press, following: Following) -> None:
        self._press = press
        self.readers: set[_Reader] = set()
        self._views: dict[tuple[object, ...], _View] = {}
        self._name = secrets.token_hex(4)
        self._changes = 0
        self._work = asyncio.Event()
        self._following = following
        following.feeds.add(self)
        self._task = asyncio.create_task(self._draw_all())

    def end(self) -> None:
        self._following.leave(self)
        self._task.cancel()

    def views_of(
        self, page: Page, parts: Iterable[str], words: Mapping[str, str], query: Mapping[str, str]
    ) -> list[_View]:
        found = []
        for part in parts:
            key = (page.path, part, *sorted(words.items()), "?", *sorted(query.items()))
            found.append(self._views.setdefault(key, _View(page, part, words, query)))
        return found

    def join(self, reader: _Reader, views: Iterable[_View], last: str) -> None:
        """`last`: the number of the change that the page saw last."""
        name, _, number = last.partition(".")
        seen = int(number) if name == self._name and number.isdigit() else -1
        self.readers.add(reader)
        for view in views:
            view.readers.add(reader)
            if view.sum != -1 and view.changed > seen:
                reader.tell(view.part, view)
        if self._following.away:
            reader.tell("away")
        self._work.set()

    def leave(self, reader: _Reader) -> None:
        self.readers.discard(reader)
        for view in self._views.values():
            view.readers.discard(reader)
        self._views = {key: view for key, view in self._views.items() if view.readers}

    def message(self, word: str, view: _View | None) -> bytes:
        if view is None:
            return f"event: {word}\ndata: {json.dumps(self._following.away)}\n\n".encode()
        told = json.dumps({"part": word, "html": view.html})
        return f"id: {self._name}.{view.changed}\nevent: part\ndata: {told}\n\n".encode()

    def dirty(self, topics: Iterable[str] | None, at_once: int | None = None) -> None:
        """These topics have changed (None: anything). `at_once`: a user who waits for it."""
        changed = None if topics is None else set(topics)
        for view in self._views.values():
            if view.becomes_dirty(changed) and any(reader.visitor.uid == at_once for reader in view.readers):
                view.drawn_at = -1e9
        self._work.set()

    # -- what its question for changes is told, and tells it (`following`) -------------------------------------------

    def visitors(self) -> Iterable[Visitor]:
        return (reader.visitor for reader in self.readers)

    def jobs(self) -> Iterable[str]:
        return (view.words["job"] for view in self._views.values() if JOB in view.way.on)

    def tell_out(self, visitor: Visitor) -> None:
        for reader in self.readers:
            if reader.visitor.token == visitor.token:
                reader.tell("out")

    def set_away(self, why: str) -> None:
        for reader in self.readers:
            reader.tell("away" if why else "back")

    # -- drawing -----------------------------------------------------------------------------------------------------

    async def _draw_all(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while waiting := [view for view in self._views.values() if view.is_dirty and view.readers]:
                now = time.monotonic()
                due = [view for view in waiting if now - view.drawn_at >= view.way.every_s]
                if not due or self._following.away:
                    soonest = min(view.drawn_at + view.way.every_s for view in waiting) - now
                    await asyncio.sleep(max(PAUSE_S, min(soonest, AGAIN_S)))
                elif due:
                    due.sort(key=lambda view: view.drawn_at + view.way.every_s)  # who has waited longest, first
                    await asyncio.gather(*map(self._draw, due[:_AT_ONCE]))

    async def _draw(self, view: _View) -> None:
        view.is_dirty, view.drawn_at = False, time.monotonic()
        reader = next(iter(view.readers), None)
        if reader is None:
            return
        try:
            html = await self._press.part(view.page, view.part, reader.visitor, view.words, view.query)
        except NotLoggedInError:
            self.tell_out(reader.visitor)
            view.is_dirty = True
            return
        except (AwayError, RefusedError):
            view.is_dirty = True  # a job that is gone, a daemon that is away: what was shown stays, and says its age
            return
        except Exception:
            log.exception("the part %s of %s could not be drawn", view.part, view.page.path)
            html = _UNDRAWN
        found = zlib.crc32(html.encode())
        if found != view.sum:
            self._changes += 1
            view.html, view.sum, view.changed = html, found, self._changes
            for each in view.readers:
                each.tell(view.part, view)
