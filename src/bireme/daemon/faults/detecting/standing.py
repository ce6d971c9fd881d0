"""Looks where the programs of a job stand that hangs, before it is told: when it is ended they stand nowhere any more.

`keeper` hands over what the detector sees; a process of the job's owner's looks (`evidence/standing`), and what it says
becomes evidence of the finding. Where nobody can look (another machine, a user whom the daemon cannot act for) the
finding is told without. Invariants: a hang is told `LIMIT_S` after it was seen at the latest, and once; a job that gets
on meanwhile does not hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bireme.agent.system.identity import Identity
from bireme.api.owner_reading import UnreadError, ask_owner
from bireme.core.faults.detection.hang import with_stacks
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Trouble
from bireme.core.model.jobs import Job
from bireme.daemon.cluster import Cluster
from bireme.evidence.wire import line_from

log = logging.getLogger("bireme.daemon")

PROGRAM = "bireme.evidence.standing"
LIMIT_S = 8.0
_AT_ONCE = 4
_MOST_LINES = 1_000

Ask = Callable[[Identity, str, Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]


class StandingKeeper:
    """`is_here`: whether jobs' programs run on the daemon's machine."""

    def __init__(self, cluster: Cluster, is_here: Callable[[], bool], ask: Ask = ask_owner) -> None:
        self._cluster, self._is_here, self._ask = cluster, is_here, ask
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        """By start of a job."""

    def tell(self, seen: o.TroubleSeen) -> None:
        """Once: while it is looked at it may be seen again."""
        place = seen.trouble.place
        start = place.job_id, place.generation
        job = self._cluster.state.jobs.get(place.job_id)
        if job is None or start in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._told(job, seen), name=f"stacks of {job.label}")
        self._tasks[start] = task
        task.add_done_callback(lambda _: self._tasks.pop(start, None))

    def gets_on(self, start: tuple[int, int]) -> None:
        """It does not hang: what was to be told is not true any more."""
        if (task := self._tasks.get(start)) is not None:
            task.cancel()

    async def close(self) -> None:
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _told(self, job: Job, seen: o.TroubleSeen) -> None:
        trouble = seen.trouble
        try:
            async with asyncio.timeout(LIMIT_S), self._slots:
                trouble = await self._looked(job, seen)
        except TimeoutError:
            trouble = with_stacks(
                trouble, (), (f"where its programs stand was not found out in {LIMIT_S:g} s",), seen.at
            )
        except Exception:  # a bug here must not keep anybody from hearing that it hangs
            log.exception("where the programs of job %s stand could not be asked", job.label)
        self._cluster.report([replace(seen, trouble=trouble)])

    async def _looked(self, job: Job, seen: o.TroubleSeen) -> Trouble:
        if not self._is_here():
            return seen.trouble
        user = job.spec.owner
        try:
            owner = await asyncio.to_thread(Identity.of_user, user.uid, user.gid)
            request = {"owner_uid": user.uid, "job_id": job.id}
            told = await self._ask(owner, PROGRAM, request, LIMIT_S)
        except KeyError:
            return with_stacks(seen.trouble, (), ("this machine does not know its owner",), seen.at)
        except UnreadError as error:
            return with_stacks(seen.trouble, (), (str(error),), seen.at)
        found = (line_from(each, ("trace",)) for each in _items(told.get("lines")))
        problems = [text for text in _items(told.get("problems")) if isinstance(text, str)]
        return with_stacks(seen.trouble, [line for line in found if line is not None], problems, seen.at)


def _items(value: Any) -> list[Any]:
    """Of a list in an answer that is not believed."""
    return value[:_MOST_LINES] if isinstance(value, list) else []
