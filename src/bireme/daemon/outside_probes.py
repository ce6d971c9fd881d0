"""Probes from outside: where no agent stands beside a service's replica, the daemon asks it over the network.

Of replicas in the queue of an engine with a scheduler of its own (Slurm): the port of the job's first node is asked by
HTTP or TCP from this machine, and a probe that is a command is run in the job (`ports.AsksBeside`). What the answers
mean is `core/probing`, as in an agent; what follows from it `core/services`. Made by the daemon, on its event loop;
reports as an engine does.

Invariant: each running replica is asked by one task, which ends with it. A replica that a daemon before this one found
ready is ready until its probes say otherwise: a restart takes nobody out of service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, Running
from bireme.core.model.serving.probes import Probe
from bireme.core.model.serving.services import Replica
from bireme.core.probing.asking import Probing, answered, asked, begin, going_on
from bireme.core.probing.speaking_http import HUNG_UP, NO_STATUS, request_of, verdict
from bireme.daemon.service_news import ServiceNews
from bireme.runtime.service import Runtime

_HEARD_BYTES = 16 * 1024
Key = tuple[int, int]
"""A start of a job."""


class OutsideProbes:
    """Asks whoever of `runtime`'s replicas is nobody else's to ask."""

    def __init__(self, runtime: Runtime, news: ServiceNews) -> None:
        self._runtime, self._news = runtime, news
        self._asked: dict[str, dict[Key, asyncio.Task[None]]] = {}
        """By service: who asks which start."""
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        if self._runtime.engine.capabilities.queue is not None:
            self._leave = self._news.follow(lambda news: self._look(news.names))
            self._look(self._runtime.state.services)

    async def close(self) -> None:
        if self._leave is not None:
            self._leave()
        tasks = [task for asked in self._asked.values() for task in asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self, names: Iterable[str]) -> None:
        """Begins with replicas of these services that run now, and leaves those that do not any more."""
        for name in names:
            running = {(job.id, job.generation): (job, replica) for job, replica in self._outside(name)}
            asked = self._asked.get(name, {})
            for key in asked.keys() - running.keys():
                asked.pop(key).cancel()
            for key in running.keys() - asked.keys():
                asked[key] = asyncio.create_task(self._ask(*running[key]), name=f"probes of job {key[0]}")
            if asked:
                self._asked[name] = asked
            else:
                self._asked.pop(name, None)

    def _outside(self, name: str) -> Iterator[tuple[Job, Replica]]:
        """Replicas of the service that run in a queue of the engine's own, with their jobs."""
        state = self._runtime.state
        service = state.services.get(name)
        for replica in service.replicas.values() if service is not None and service.elsewhere else ():
            job = state.jobs.get(replica.job_id)
            if job is not None and isinstance(job.phase, Running) and job.spec.replica is not None:
                yield job, replica

    async def _ask(self, job: Job, replica: Replica) -> None:
        """Asks one replica until it is dead, or its task is cancelled."""
        assert job.spec.replica is not None
        probes, now = job.spec.replica.probes, time.time()
        probing = begin(probes, now) if replica.ready_at is None else going_on(probes, replica.health, now)
        while (next_at := probing.next_at) is not None:
            await asyncio.sleep(max(0.0, next_at - time.time()))
            for question in probing.due(time.time()):
                probing = asked(probing, question, time.time())
                problem = await self._answer(job, probing.probe(question))
                after = answered(probing, question, problem, time.time())
                self._tell_change(job, probing, after)
                probing = after
                if question not in probing.standings:
                    break

    def _tell_change(self, job: Job, before: Probing, after: Probing) -> None:
        if (before.health, before.why) != (after.health, after.why):
            seen = o.ReplicaProbed(
                job.id, job.generation, after.health, after.why, time.time(), address=self._address(job)
            )
            self._runtime.report([seen])

    async def _answer(self, job: Job, probe: Probe) -> str:
        """What is wrong; empty: nothing."""
        assert job.spec.replica is not None
        if probe.command:
            beside = self._runtime.engine.capabilities.beside
            assert beside is not None, "a queue of an engine's own comes with a way to run commands in its jobs"
            return await beside.ask_beside(job, probe.command, probe.timeout_s)
        try:
            async with asyncio.timeout(probe.timeout_s):
                return await _asked_over_port(self._address(job), job.spec.replica.port, probe.path)
        except TimeoutError:
            return f"no answer within {probe.timeout_s:g} s"
        except OSError as error:
            return error.strerror or str(error)

    def _address(self, job: Job) -> str:
        assert job.allocation is not None
        node = self._runtime.state.nodes.get(job.allocation.first_node)
        return node.config.address if node is not None and node.config.address else job.allocation.first_node


async def _asked_over_port(host: str, port: int, path: str) -> str:
    """What is wrong with what answers there: it takes no connection, or GET of the path not 200 to 399."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if not path:
            return ""
        writer.write(request_of(host, port, path))
        heard = b""
        while (said := verdict(heard)) is None:
            if len(heard) > _HEARD_BYTES:
                return NO_STATUS
            piece = await reader.read(_HEARD_BYTES)
            if not piece:
                return HUNG_UP
            heard += piece
        return said
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
