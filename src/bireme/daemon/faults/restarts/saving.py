"""Looks for jobs' newest checkpoints every so often, and before they are started again; tells what is new.

The daemon makes it. Files are looked at by a process of the job's owner's (`evidence/checkpoints`), one for all jobs of
a user: a file system that hangs costs that process alone. What comes of what it says is the core's (`CheckpointSeen`).
Invariant: of a job whose owner this daemon cannot act for nothing is looked at, and nothing is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bireme.agent.system.identity import Identity
from bireme.api.owner_reading import UnreadError, ask_owner
from bireme.api.serving.turns import Slots
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.jobs import Ending, Job, JobKind, Running, Suspended
from bireme.core.telemetry.attribution import gpus_of
from bireme.daemon.cluster import Cluster
from bireme.slurm.records.paths import checkpoint_path

log = logging.getLogger("bireme.daemon")

PROGRAM = "bireme.evidence.checkpoints"
LIMIT_S = 20.0
"""Of one process; what it looks at is bounded to less."""
_SECONDS = 10
_SELDOM = 10
"""Jobs that named no path are looked at so many times less often."""
_MOST_JOBS = 100
"""In one process."""
_AT_ONCE, _EACH = 3, 1
"""Processes at a time, and of one user."""
_LONGEST = 4_096
_MOST_TOLD = 5

Ask = Callable[[Identity, str, Mapping[str, Any], float], Any]


class CheckpointKeeper:
    """`interval_s`: how often jobs that named a path are looked at; 0: never."""

    def __init__(self, cluster: Cluster, interval_s: Callable[[], float], ask: Ask = ask_owner) -> None:
        self._cluster, self._interval_s, self._ask = cluster, interval_s, ask
        self._looked: dict[int, float] = {}
        """By job: when it was last looked at."""
        self._slots = Slots(_AT_ONCE, _EACH)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        self._keep(self._run())

    async def close(self) -> None:
        self._leave()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="checkpoints")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        while True:
            interval = self._interval_s()
            try:
                if interval > 0:
                    await self.look(self._due(interval))
            except Exception:  # a bug must not end it for all jobs
                log.exception("the look for checkpoints failed, and is made again")
            await asyncio.sleep(min(5.0, interval / 2) if interval > 0 else 5.0)

    def _due(self, interval_s: float) -> list[Job]:
        state, now = self._cluster.state, self._cluster.clock.now()
        self._looked = {job_id: at for job_id, at in self._looked.items() if job_id in state.holding}
        return [
            job
            for job in state.holding.values()
            if isinstance(job.phase, Running | Suspended)
            and saves(job)
            and now - self._looked.get(job.id, job.phase.started_at)
            >= interval_s * (1 if job.spec.checkpoint_path else _SELDOM)
        ]

    async def look(self, jobs: Iterable[Job]) -> None:
        """Looks for the checkpoints of these jobs, and reports what was found."""
        by_owner: dict[tuple[int, int], list[Job]] = {}
        for job in jobs:
            self._looked[job.id] = self._cluster.clock.now()
            by_owner.setdefault((job.spec.owner.uid, job.spec.owner.gid), []).append(job)
        pieces = [
            (*owner, theirs[at : at + _MOST_JOBS])
            for owner, theirs in by_owner.items()
            for at in range(0, len(theirs), _MOST_JOBS)
        ]
        await asyncio.gather(*(self._of_owner(*piece) for piece in pieces))

    async def _of_owner(self, uid: int, gid: int, jobs: Sequence[Job]) -> None:
        starts = {job.id: job.generation for job in jobs}
        request = {"owner_uid": uid, "jobs": [wanted(job) for job in jobs], "seconds": _SECONDS}
        try:
            owner = await asyncio.to_thread(Identity.of_user, uid, gid)
            async with self._slots.held_by(uid):
                told = await self._ask(owner, PROGRAM, request, LIMIT_S)
        except KeyError:
            return  # this machine does not know them
        except UnreadError as error:
            log.info("checkpoints of uid %d are not looked for: %s", uid, error)
            return
        found = [(each, checkpoint_from(each)) for each in told.get("jobs") or () if isinstance(each, dict)]
        self._cluster.report(
            [
                o.CheckpointSeen(each["id"], starts[each["id"]], checkpoint, self._cluster.clock.now())
                for each, checkpoint in found
                if each.get("id") in starts and (checkpoint is not None or each.get("gone") is True)
            ]
        )

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        """One that is to be started again is looked at once more: what it saved last is where it goes on."""
        if self._interval_s() <= 0:
            return
        ending = {each.event.job_id for each in events if isinstance(each.event, e.JobEnding) and each.event.requeue}
        jobs = [job for job in map(self._cluster.state.jobs.get, sorted(ending)) if job is not None and saves(job)]
        if jobs:
            self._keep(self.look(jobs))


def saves(job: Job) -> bool:
    """Whether it is worth looking: it said where its checkpoints lie, that it is to be started again, or it trains."""
    if job.mirrored or job.spec.kind is not JobKind.BATCH or job.spec.replica is not None:
        return False
    if job.spec.checkpoint_path or job.spec.heal == "restart":
        return True
    held = job.phase.allocation if isinstance(job.phase, Running | Suspended | Ending) else None
    return held is not None and gpus_of(held) > 0


def wanted(job: Job) -> dict[str, Any]:
    """What the program is asked. Where no path is named, what is older than the job is another's."""
    path = checkpoint_path(job)
    since = 0.0 if path else job.submitted_at
    known = job.checkpoint.path if job.checkpoint is not None else ""
    return {"id": job.id, "folder": job.spec.work_dir, "path": path, "since": since, "known": known}


def checkpoint_from(told: Mapping[str, Any]) -> Checkpoint | None:
    """What a process of the owner's says, which is not believed beyond its form."""
    found, passed_over = told.get("found"), told.get("passed_over")
    if not isinstance(found, Mapping) or not isinstance(path := found.get("path"), str):
        return None
    saved_at, step, layout = found.get("saved_at"), found.get("step"), found.get("layout")
    if not isinstance(saved_at, int | float) or not 0 < saved_at < 1e12 or "\0" in path or len(path) > _LONGEST:
        return None
    texts = passed_over if isinstance(passed_over, list) else []
    return Checkpoint(
        path=path,
        saved_at=float(saved_at),
        step=step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 53 else None,
        layout=layout[:32] if isinstance(layout, str) else "",
        passed_over=tuple(text[:500] for text in texts if isinstance(text, str))[:_MOST_TOLD],
    )
