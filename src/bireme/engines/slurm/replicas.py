"""Replicas of services in Slurm's queue: submitted, ended, and asked by a command whether they are well.

The engine hands the commands about replicas on to here. Nobody waits for them: what Slurm said to a submission is
reported (`ReplicaSubmitted`); the end of a job is seen by the mirror as any job's is. While Slurm does not answer, each
is tried again, ever less often. Not here: which replicas there are to be (`core/services`), and questions that go over
a port (`daemon/outside_probes`).
Invariant: of each replica at most one submission and one end are under way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, JobSpec
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.engines.slurm.commands import Silent, SlurmCommands, UnsureRefusal, last_line
from bireme.ports import ForeignQueue, LostBlobError, Order, Report
from bireme.slurm.variables.allocation import Variables, replica_variables

log = logging.getLogger("bireme.engines.slurm")

_FIRST_PAUSE_S, _MOST_PAUSE_S = 2.0, 60.0
_ASK_FOR_QOS_AGAIN_S = 600.0
"""Whoever was refused the QOS of services is not asked for with it again so soon."""
_OVER = frozenset({Why.ALREADY_DONE, Why.INVALID_JOB_ID})
"""What Slurm says of a job that cannot be ended because it has ended."""


class SlurmReplicas:
    """Made by the engine, whose queue it uses; `report` is set when the engine starts."""

    def __init__(self, queue: ForeignQueue, commands: SlurmCommands) -> None:
        self._queue, self._commands = queue, commands
        self.report: Report = lambda _: None
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._without_qos: dict[tuple[int, str], float] = {}
        """(uid, QOS) that Slurm refused -> until when it is not tried."""

    def obey(self, command: c.SubmitReplica | c.EndReplica) -> None:
        """Said twice it is done once."""
        if isinstance(command, c.SubmitReplica):
            self._begin(("submit", command.key), self._submit(command))
        else:
            self._begin(("end", str(command.job_id)), self._end(command))

    def stop(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def _begin(self, what: tuple[str, str], work: Coroutine[Any, Any, None]) -> None:
        if what in self._under_way:
            work.close()
            return
        task = self._under_way[what] = asyncio.create_task(work, name=" ".join(what))
        task.add_done_callback(lambda _: self._under_way.pop(what, None))

    async def _submit(self, command: c.SubmitReplica) -> None:
        job_id, refused, pause_s = 0, "", _FIRST_PAUSE_S
        while not (job_id or refused):
            try:
                job_id = await self._submitted(command)
            except UnsureRefusal as silence:
                log.warning("replica %d of %s is not submitted yet: %s", command.replica, command.service, silence)
                pause_s = await _paused(pause_s)
            except Refusal as refusal:
                refused = "; ".join(filter(None, (refusal.message, refusal.hint)))
            except LostBlobError as error:
                refused = str(error)
        self.report([o.ReplicaSubmitted(command.service, command.replica, time.time(), job_id, refused)])

    async def _submitted(self, command: c.SubmitReplica) -> int:
        """The job's number. Whether there is a QOS of services, and for whom, only Slurm can say: it is asked with it
        first, so that batch makes way for the replica by Slurm's own rules."""
        spec = command.spec
        theirs = (spec.owner.uid, command.qos_if_there)
        if command.qos_if_there and self._without_qos.get(theirs, 0.0) <= time.monotonic():
            try:
                return await self._queue.submit([spec.revised(qos=command.qos_if_there)], command.key)
            except Refusal as refusal:
                if refusal.why is not Why.INVALID_QOS:
                    raise
                self._without_qos[theirs] = time.monotonic() + _ASK_FOR_QOS_AGAIN_S
        return await self._queue.submit([spec], command.key)

    async def _end(self, command: c.EndReplica) -> None:
        owner, pause_s = command.owner, _FIRST_PAUSE_S
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user, group=owner.group, groups=owner.groups)
        while True:
            try:
                await self._queue.obey(caller, Order(verb="cancel", target=str(command.job_id)))
                return
            except Refusal as refusal:
                if refusal.why in _OVER:
                    return
                log.warning("job %d of %s is not ended yet: %s", command.job_id, command.service, refusal)
                pause_s = await _paused(pause_s)

    async def ask_beside(self, job: Job, command: Sequence[str], timeout_s: float) -> str:
        """What is wrong with a replica by a command that is run on its node, in its job; empty: it exited with 0."""
        assert job.allocation is not None, "who is asked runs"
        where = (f"--jobid={job.id}", f"--nodelist={job.allocation.first_node}", f"--chdir={job.spec.work_dir}")
        step = ("srun", *where, "--overlap", "--nodes=1", "--ntasks=1", "--quiet")
        try:
            async with asyncio.timeout(timeout_s):
                done = await self._commands.run(*step, *command, identity=job.spec.owner)
        except TimeoutError:
            return f"did not end within {timeout_s:g} s"
        except Silent as error:
            return str(error)
        if not done.returncode:
            return ""
        said = last_line(done.err) or last_line(done.out.decode(errors="replace"))
        return f"exit code {done.returncode}: {said}" if said else f"exit code {done.returncode}"


async def _paused(pause_s: float) -> float:
    """Waits; how long the next time."""
    await asyncio.sleep(pause_s)
    return min(_MOST_PAUSE_S, pause_s * 2)


def own_variables(spec: JobSpec) -> Variables:
    """What a replica's job is submitted with besides its environment; nothing where it is no replica."""
    return replica_variables(spec.replica) if spec.replica is not None else {}
