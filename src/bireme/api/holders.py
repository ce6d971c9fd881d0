"""Who holds interactive jobs: an allocation of srun or salloc lives as long as its holder stays connected.

A holder opens a lease (`routes/jobs.hold_open`) as soon as it knows its job, and again after the daemon was away; when
the lease breaks, the job is given back at once. Here is noticed what no lease can tell: a job whose holder was gone
before it had one (it was interrupted while it submitted), or ended while no daemon was there.
Invariant: a job that asked for a holder has one, or is given `GRACE_S` for it, or is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bireme.api.cluster import Cluster
from bireme.api.live import Live
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model.events import JobSubmitted, Recorded
from bireme.core.model.jobs import Ending, Finished, Job
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import ExitStatus
from bireme.ports import JournalError

log = logging.getLogger("bireme.api")

GRACE_S = 20.0
"""How long a holder may take: after its job was submitted, or after the daemon serves again."""


class Holders:
    """The leases that are open now, and the jobs that have none yet."""

    def __init__(self, cluster: Cluster, live: Live, grace_s: float = GRACE_S) -> None:
        self._cluster = cluster
        self._live = live
        self.grace_s = grace_s
        self._leases: Counter[int] = Counter()
        self._ending: set[asyncio.Task[None]] = set()
        cluster.subscribe(self._hear)

    def begin(self) -> None:
        """When the daemon serves: whoever held a job before may come back."""
        for job in list(self._cluster.state.jobs.values()):
            if _asks_for_a_holder(job) and not isinstance(job.phase, Finished):
                self._look_later(job.id)

    @contextmanager
    def holding(self, job_id: int) -> Iterator[None]:
        """While somebody stays connected for this job, or for the heterogeneous one that it leads."""
        self._leases[job_id] += 1
        try:
            yield
        finally:
            self._leases[job_id] -= 1
            if not self._leases[job_id]:
                del self._leases[job_id]

    async def give_back(self, caller: Caller, target: Target, cause: str) -> None:
        """Ends a job that nobody holds, as Slurm does when srun was killed; one that is over is left alone."""
        status = ExitStatus(0, requests.KILL)
        try:
            await self._cluster.do(cause, lambda state, _: requests.complete(state, caller, target, status))
        except Refusal:
            pass  # it is forgotten by now
        except JournalError as error:
            log.error("job %d, which nobody holds, could not be ended: %s", target.job_id, error)
            self._look_later(target.job_id)

    def _hear(self, group: Sequence[Recorded]) -> None:
        for recorded in group:
            event = recorded.event
            job = self._cluster.state.jobs.get(event.job_id) if isinstance(event, JobSubmitted) else None
            if job is not None and _asks_for_a_holder(job):
                self._look_later(job.id)

    def _look_later(self, job_id: int) -> None:
        asyncio.get_running_loop().call_later(self.grace_s, self._look, job_id)

    def _look(self, job_id: int) -> None:
        job = self._cluster.state.jobs.get(job_id)
        if self._live.closing or self._leases[job_id] or job is None or isinstance(job.phase, Finished | Ending):
            return  # when the daemon ends, that nobody holds a job any more is its own doing
        log.warning("nobody has held the interactive job %d for %g s: it is ended", job_id, self.grace_s)
        owner = job.spec.owner
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user)
        task = asyncio.get_running_loop().create_task(self.give_back(caller, Target(job_id), "nobody holds it"))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _asks_for_a_holder(job: Job) -> bool:
    """Whether a job needs a holder; of a heterogeneous one its leader does."""
    return job.spec.held_open and not job.mirrored and job.het_job_id in (None, job.id)
