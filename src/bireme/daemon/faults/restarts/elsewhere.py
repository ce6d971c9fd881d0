"""Has another scheduler start jobs again that failed in its queue, where that was decided or approved.

The daemon makes one where there is such a queue. Why a job ended is found out as for its own jobs; what comes of it
`core/faults/restarts/elsewhere` decides. What is approved is said in that scheduler's words: queue it again, held;
leave out the node that the evidence names; let it go.
Invariant: what could not be said is a healing that failed, with that scheduler's own reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.faults.restarts.elsewhere import is_looked_into
from bireme.core.model import events as e
from bireme.core.model.healing.healings import Healing, HealingAct, HealingLife
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Caller, Refusal
from bireme.daemon.faults.restarts.inquests import LIMIT_S, Diagnose, seen_from
from bireme.ports import Order
from bireme.runtime.service import Runtime

log = logging.getLogger("bireme.daemon")

_AT_ONCE = 4


class ForeignRestarts:
    def __init__(self, cluster: Runtime, diagnose: Diagnose) -> None:
        self._cluster, self._diagnose = cluster, diagnose
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        if self._cluster.engine.capabilities.queue is not None:
            self._leave = self._cluster.subscribe(self._committed)
            self._carry_out()

    async def close(self) -> None:
        self._leave()
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobMirrored):
                job = self._cluster.state.jobs.get(event.job_id)
                if job is not None and is_looked_into(self._cluster.state, job):
                    self._keep(f"end {job.id}.{job.generation}", self._look_into(job))
        if any(isinstance(recorded.event, e.HealingProposed | e.HealingApproved) for recorded in events):
            self._carry_out()

    def _keep(self, name: str, work: Any) -> None:
        if name in self._tasks:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _look_into(self, job: Job) -> None:
        told: Any = {}
        try:
            async with self._slots, asyncio.timeout(LIMIT_S):
                told = await self._diagnose(job.label, LIMIT_S)
        except Exception as error:  # what cannot be read is not known, and the rules say what then
            log.warning("why job %s ended could not be found out: %s", job.label, error or type(error).__name__)
        self._cluster.report([seen_from(told, job, job.generation, self._cluster.clock.now())])

    def _carry_out(self) -> None:
        state = self._cluster.state
        for healing in HEALINGS.of(state).values():
            proposal = healing.proposal
            job = state.jobs.get(proposal.place.job_id)
            is_due = healing.phase is HealingLife.APPROVED and proposal.act is HealingAct.RESTART_JOB
            if is_due and job is not None and job.mirrored:
                self._keep(f"healing {healing.id}", self._start_again(healing, job))

    async def _start_again(self, healing: Healing, job: Job) -> None:
        place, said = healing.proposal.place, "it was started again meanwhile"
        became: e.Event = e.HealingFailed(healing.id, said)
        if job.generation == place.generation:
            try:
                await self._ask(job, place.node)
                became = e.HealingDone(healing.id, "Slurm has it in its queue again")
            except (Refusal, OSError, TimeoutError) as error:
                became = e.HealingFailed(healing.id, str(error) or type(error).__name__)
        await self._cluster.do("healing", lambda state, now: [became], own=True)

    async def _ask(self, job: Job, without: str) -> None:
        """Held meanwhile, or it would start before it is kept from the node."""
        await self._order("requeue", job, held=bool(without))
        if without:
            exclude = tuple(sorted({*job.spec.resources.exclude, without}))
            await self._order("update", job, changes={"exclude": exclude})
            await self._order("release", job)

    async def _order(self, verb: str, job: Job, **more: Any) -> None:
        queue = self._cluster.engine.capabilities.queue
        assert queue is not None
        me = Caller(os.geteuid(), os.getegid(), "root" if os.geteuid() == 0 else job.spec.owner.user, admin=True)
        await queue.obey(me, Order(verb=verb, target=job.label, **more))
