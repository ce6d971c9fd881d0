"""Figures that have to be asked for: metrics of ready replicas, and Prometheus. Beside the loop's work, one at a time.

Who makes it: the load keeper, for a service whose policy has such targets. Every answer goes into its `Seen`; every
failure too, in words (`trouble`), which `bireme service show` tells.
Invariants: one service's slow replicas delay nobody else's figures, and at most `AT_ONCE` of them are asked at a time;
what replicas say is anybody's, so one page is read at a time for one metric, others have their turns between them, and
one service's pages take at most one part of `_REST` of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlencode

from bireme.core.model.serving.scaling import Measure, ScalingTarget
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.targets import polled
from bireme.daemon.scaling.fetching import Unanswered, fetch
from bireme.daemon.scaling.figures import NoFigure, metric_total, query_value

METRICS_EVERY_S = 2.0
QUERY_EVERY_S = 5.0
LIMIT_S = 2.0
QUERY_LIMIT_S = 5.0
MOST_BYTES = 2 * 1024 * 1024
MOST_BYTES_OF_ALL = 16 * 1024 * 1024
"""Of the pages of all replicas of a service, each time; of each replica's `LEAST_BYTES` in any case."""
LEAST_BYTES = 128 * 1024
AT_ONCE = 16
_REST = 50

Addresses = Callable[[], Sequence[str]]
"""HOST:PORT of the ready replicas, now."""


class Polls:
    """The figures of one service."""

    def __init__(
        self, seen: Seen, addresses: Addresses, prometheus: Callable[[], str], now: Callable[[], float]
    ) -> None:
        self._seen, self._addresses, self._prometheus, self._now = seen, addresses, prometheus, now
        self._tasks: list[asyncio.Task[None]] = []
        self.told: Callable[[], None] = lambda: None
        """Called when a figure came."""

    def begin(self) -> None:
        targets = polled(self._seen.windows)
        metrics = [target for target in targets if target.measure is Measure.METRIC]
        loop = asyncio.get_running_loop()
        if metrics:
            self._tasks.append(loop.create_task(self._repeat(METRICS_EVERY_S, lambda: self._ask_replicas(metrics))))
        for target in targets:
            if target.measure is Measure.QUERY:
                self._tasks.append(loop.create_task(self._repeat(QUERY_EVERY_S, self._asker(target))))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _asker(self, target: ScalingTarget) -> Callable[[], Awaitable[float]]:
        return lambda: self._ask_prometheus(target)

    async def _repeat(self, every_s: float, ask: Callable[[], Awaitable[float]]) -> None:
        """`ask` says for how long others had to wait for it."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            held_s = await ask()
            self.told()
            await asyncio.sleep(max(every_s - (loop.time() - began), every_s / 2, _REST * held_s))

    # -- replicas ------------------------------------------------------------------------------------------------------

    async def _ask_replicas(self, targets: Sequence[ScalingTarget]) -> float:
        """One page of each ready replica, for all metrics. Without ready replicas nothing is known."""
        addresses, turns = list(self._addresses()), asyncio.Semaphore(AT_ONCE)
        if not addresses:
            return 0.0
        most = min(MOST_BYTES, max(LEAST_BYTES, MOST_BYTES_OF_ALL // len(addresses)))

        async def page(address: str) -> bytes | str:
            async with turns:
                try:
                    return await fetch(f"http://{address}/metrics", limit_s=LIMIT_S, limit_bytes=most)
                except Unanswered as error:
                    return f"{address}: {error}"

        pages = await asyncio.gather(*map(page, addresses))
        return sum([await self._take(target, addresses, pages) for target in targets])

    async def _take(self, target: ScalingTarget, addresses: Sequence[str], pages: Sequence[bytes | str]) -> float:
        """Returns for how long others had to wait for it, in all."""
        totals, failures, held_s = list[float](), list[str](), 0.0
        for address, page in zip(addresses, pages, strict=True):
            if isinstance(page, str):
                failures.append(page)
                continue
            began = time.monotonic()
            try:
                totals.append(metric_total(page, target.name))
            except NoFigure as error:
                failures.append(f"{address}: {error}")
            held_s += time.monotonic() - began
            await asyncio.sleep(0)  # others first
        if totals:
            self._seen.figure(target, self._now(), sum(totals))
        if failures:
            self._seen.trouble(target, f"{len(failures)} of {len(pages)} replicas did not tell it: {failures[0]}")
        return held_s

    # -- Prometheus ----------------------------------------------------------------------------------------------------

    async def _ask_prometheus(self, target: ScalingTarget) -> float:
        base = self._prometheus().rstrip("/")
        if not base:
            self._seen.trouble(target, "the setting services.prometheus names no Prometheus to ask")
            return 0.0
        url = f"{base}/api/v1/query?{urlencode({'query': target.name, 'timeout': f'{QUERY_LIMIT_S:g}s'})}"
        try:
            body = await fetch(url, limit_s=QUERY_LIMIT_S, limit_bytes=MOST_BYTES)
            self._seen.figure(target, self._now(), query_value(body))
        except Unanswered as error:
            self._seen.trouble(target, f"Prometheus at {base}: {error}")
        except NoFigure as error:
            self._seen.trouble(target, str(error))
        return 0.0  # it is the administrator's, and believed
