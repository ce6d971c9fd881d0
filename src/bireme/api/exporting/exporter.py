"""Makes the daemon's page for Prometheus: takes on the loop, writes beside it, once a second for all who see the same.

One for each application: `/metrics` on the API's socket asks it for its caller, the metrics port for nobody in
particular (`NOBODY`), who sees what PrivateData leaves to strangers. It counts jobs that start and end as they are
committed.
Invariant: only one page is made at a time, whoever asks.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable, Sequence

from bireme.api.cluster import Cluster, Service
from bireme.api.exporting.taken import Ended, take
from bireme.api.exporting.writing import Figures, write
from bireme.api.privacy import WORDS, Viewer
from bireme.core.jobs.states import FINAL_STATES
from bireme.core.model import events as e
from bireme.core.model.refusals import Caller
from bireme.core.telemetry.exported import Measured, sums_by_job
from bireme.ports import Series, SeriesError

NOBODY = Caller(uid=-1, gid=-1, user="")
"""Who asks on a port: anybody who can reach it."""
SHARED_S = 1.0
_PAGES = 64
"""Of callers who see each something else."""
_OF_TASKS = ("cpu_user", "cpu_system", "memory")


class Exporter:
    """Makes the pages that Prometheus reads of one cluster, and counts for them the jobs that end."""

    def __init__(self, cluster: Cluster, service: Service) -> None:
        self._cluster, self._service = cluster, service
        self._started = 0
        self._ended: Counter[str] = Counter(dict.fromkeys(FINAL_STATES, 0))
        self._making = asyncio.Lock()
        self._made: dict[Hashable, tuple[float, asyncio.Task[str]]] = {}
        cluster.subscribe(self._count)

    def _count(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            match recorded.event:
                case e.JobStarted():
                    self._started += 1
                case e.JobEnding(outcome=outcome):
                    self._ended[outcome.state] += 1
                case e.JobCancelled():
                    self._ended["CANCELLED"] += 1
                case _:
                    pass

    async def page(self, caller: Caller) -> str:
        """For this caller."""
        viewer = Viewer(self._cluster.state, caller)
        private = tuple(self._cluster.state.config.words("PrivateData"))
        key = (private, caller.uid) if viewer.hidden(*WORDS) else None  # what is private may be something else by now
        now = time.monotonic()
        self._made = {each: made for each, made in self._made.items() if not made[1].done() or now - made[0] < SHARED_S}
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= _PAGES:
                return await self._make(viewer)
            found = self._made[key] = (now, asyncio.ensure_future(self._make(viewer)))
        return await asyncio.shield(found[1])

    async def _make(self, viewer: Viewer) -> str:
        async with self._making:
            return await self._made_now(viewer)

    async def _made_now(self, viewer: Viewer) -> str:
        telemetry = self._service.telemetry()
        measured = await telemetry.measured() if telemetry is not None else Measured()
        router = "" if viewer.hidden("jobs") else await self._service.router_page()
        ended = Ended(self._started, dict(self._ended))
        taken = take(self._cluster, self._service, viewer, ended, measured, router)
        series = telemetry.series if telemetry is not None else None
        return await asyncio.to_thread(write, taken, lambda: _of_jobs(series))


def _of_jobs(series: Series | None) -> Figures:
    try:
        return sums_by_job(series.latest("task"), _OF_TASKS) if series is not None else {}
    except SeriesError:
        return {}  # it is told as a problem; the rest of the page is as good as ever
