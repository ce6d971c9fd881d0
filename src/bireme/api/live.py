"""Events as they happen: server-sent events, and requests that wait for a job to change.

The runtime calls `publish` after each group is on disk, so what is told here can no longer be lost. A reader that is
too slow is cut off (it can come back with `after`); nobody makes the loop wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from bireme.core.model.events import Recorded
from bireme.core.model.serving.events import is_of_service
from bireme.store.plain import to_plain

Missed = Callable[[], Awaitable[Sequence[Recorded]]]
"""The next page of what a reader missed; empty when it has seen all."""

Key = int | str | None
"""What is waited for: a job, a service by its name, or anything."""

_QUEUE_AT_MOST = 10_000
_RECENT = 4_096
"""So many events back it is known what was about what."""
_HEARTBEAT_S = 15.0


def event_content(recorded: Recorded) -> dict[str, Any]:
    """An event as the API shows it. The key that opens a step's streams is nobody's business but srun's; the hash of a
    service's key is the router's."""
    data = to_plain(recorded.event)
    if isinstance(data.get("key"), dict):
        data["key"].pop("digest", None)
    if isinstance(data.get("spec"), dict):
        data["spec"].pop("io_key", None)
    return {
        "seq": recorded.seq,
        "at": recorded.at,
        "cause": recorded.cause,
        "kind": type(recorded.event).__name__,
        "job_id": getattr(recorded.event, "job_id", None),
        "data": data,
    }


class Live:
    """The hub between the runtime's commits and whoever listens."""

    def __init__(self) -> None:
        self._streams: set[asyncio.Queue[Recorded | None]] = set()
        self._waiting: defaultdict[Key, set[asyncio.Future[None]]] = defaultdict(set)
        self._one_reads = asyncio.Lock()
        self.recent: deque[Recorded] = deque(maxlen=_RECENT)
        """The latest events, the newest last."""
        self.closing = False

    def publish(self, group: Sequence[Recorded]) -> None:
        self.recent.extend(group)
        for queue in tuple(self._streams):
            self._feed(queue, group)
        if not self._waiting:
            return
        events = [recorded.event for recorded in group]
        touched: set[Key] = {getattr(event, "job_id", None) for event in events}
        touched |= {getattr(event, "array_job_id", None) for event in events}
        touched |= {event.name for event in events if is_of_service(event)}
        for key in touched & self._waiting.keys():
            self._wake(key)
        self._wake(None)

    def _feed(self, queue: asyncio.Queue[Recorded | None], group: Sequence[Recorded]) -> None:
        try:
            for recorded in group:
                queue.put_nowait(recorded)
        except asyncio.QueueFull:
            self._streams.discard(queue)

    def _wake(self, key: Key) -> None:
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """The daemon ends: all who wait get an answer now."""
        self.closing = True
        for queue in self._streams:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)
        for key in list(self._waiting):
            self._wake(key)

    async def changed(self, things: Sequence[int | str] | None, timeout_s: float) -> None:
        """Returns when one of these jobs, or of these services by name, changes (None: anything does), after
        `timeout_s`, or when the daemon ends."""
        if self.closing or timeout_s <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keys: list[Key] = [None] if things is None else list(things)
        for key in keys:
            self._waiting[key].add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            for key in keys:
                if key in self._waiting:
                    self._waiting[key].discard(future)
                    if not self._waiting[key]:
                        del self._waiting[key]

    @contextlib.contextmanager
    def _subscription(self) -> Iterator[asyncio.Queue[Recorded | None]]:
        queue: asyncio.Queue[Recorded | None] = asyncio.Queue(_QUEUE_AT_MOST)
        self._streams.add(queue)
        try:
            yield queue
        finally:
            self._streams.discard(queue)

    async def follow(
        self, wanted: Callable[[Recorded], bool], missed: Missed | None = None
    ) -> AsyncIterator[Recorded | None]:
        """Events that were missed, then those that happen. None now and then: nothing that is wanted.

        What was missed is read by pages, as fast as the reader takes them and for one reader at a time: many who want
        the whole journal hold a page each, and one who has left is noticed at the next.
        """
        last = 0
        while missed is not None and not self.closing and (page := await self._read(missed)):
            for recorded in page:
                if wanted(recorded):
                    yield recorded
            last = page[-1].seq
            yield None
        with self._subscription() as queue:
            while missed is not None and (page := await self._read(missed)):  # what happened since the last page
                for recorded in page:
                    if wanted(recorded):
                        yield recorded
                last = page[-1].seq
            while not self.closing and queue in self._streams:
                try:
                    async with asyncio.timeout(_HEARTBEAT_S):
                        new = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if new is None:
                    return
                if new.seq > last and wanted(new):
                    yield new

    async def _read(self, missed: Missed) -> Sequence[Recorded]:
        async with self._one_reads:
            return await missed()
