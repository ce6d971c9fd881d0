"""What has changed, asked of the daemon once for all open pages of those who may know the same.

Pages of one user are a feed (`live`). Feeds whose users the daemon says have one view (`Visitor.view`) share one
question that waits for changes; whom something is hidden from asks alone. Invariant: a question is put with the
session of somebody who follows it, so that nothing is told of a job that none of them may know of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from bireme.web.asking import Shared, Visitor
from bireme.web.paging import JOB, MEASURED, VERDICT
from bireme.web.upstream import AwayError, RefusedError

MEASURED_S = 10.0
MOST_READERS = 512
"""Of one question: the jobs that their pages are about are named in it."""
WAIT_S = 5
"""So long the daemon lets a question for changes wait: a pass over the queue that changed no job is noticed then."""
PAUSE_S, AGAIN_S = 0.2, 1.0


class Feed(Protocol):
    """Who follows."""

    def visitors(self) -> Iterable[Visitor]: ...

    def jobs(self) -> Iterable[str]:
        """What its pages are about."""

    def dirty(self, topics: Iterable[str] | None) -> None: ...

    def tell_out(self, visitor: Visitor) -> None: ...

    def set_away(self, why: str) -> None: ...


class Following:
    """One question for changes, put again and again. Ended when nobody follows any more."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.feeds: set[Feed] = set()
        self.away = ""
        """Why the daemon does not answer."""
        self._verdicts: Mapping[str, int] = {}
        self._measured_at = time.monotonic()
        self._task = asyncio.create_task(self._follow())

    def has_room(self) -> bool:
        return sum(1 for feed in self.feeds for _ in feed.visitors()) < MOST_READERS

    def leave(self, feed: Feed) -> None:
        self.feeds.discard(feed)
        if not self.feeds:
            self._task.cancel()

    async def _follow(self) -> None:
        params: dict[str, str] = {}
        asked: set[str] = set()
        while True:
            visitor = next((each for feed in self.feeds for each in feed.visitors()), None)
            if visitor is None:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                told = await self._shared.upstream.get(visitor.token, "/v1/changes", params)
            except RefusedError as error:
                if error.status == 401:
                    self._shared.forget_token(visitor.token)
                    for feed in tuple(self.feeds):
                        feed.tell_out(visitor)
                await asyncio.sleep(AGAIN_S)
                continue
            except AwayError as error:
                self._set_away(str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            jobs = {job for feed in self.feeds for job in feed.jobs()}
            self._pass_on(told, jobs - asked)
            asked, after, planned_at = jobs, str(told["seq"]), str(told["planned_at"])
            params = {"after": after, "planned_at": planned_at, "jobs": ",".join(sorted(jobs)), "timeout": str(WAIT_S)}
            await asyncio.sleep(PAUSE_S)  # what else comes with it

    def _pass_on(self, told: Mapping[str, Any], unasked: Iterable[str]) -> None:
        """`unasked`: jobs of pages that were opened while the question waited, of which nothing is told."""
        was_away = bool(self.away)
        if was_away:
            self._set_away("")
        before, self._verdicts = self._verdicts, told["verdicts"]
        topics = [*told["topics"]]
        topics += [f"{VERDICT}:{job}" for job, verdict in self._verdicts.items() if verdict != before.get(job)]
        topics += [f"{JOB}:{job}" for job in unasked]
        if time.monotonic() - self._measured_at >= MEASURED_S:
            self._measured_at = time.monotonic()
            topics.append(MEASURED)
        for feed in tuple(self.feeds):
            feed.dirty(None if was_away else topics)

    def _set_away(self, why: str) -> None:
        self.away = why
        for feed in tuple(self.feeds):
            feed.set_away(why)
