"""How replicas of services come into Slurm's queue: with the QOS of services where Slurm lets their owner have it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.refusals import Refusal, Why
from bireme.engines.slurm import replicas as module
from bireme.engines.slurm.commands import SlurmCommands
from bireme.engines.slurm.replicas import SlurmReplicas
from bireme.ports import ForeignQueue

OWNER = Owner(uid=1000, gid=1000, user="ann")


class Queue:
    """Takes what it is given, but for the QOS that it does not have."""

    def __init__(self, *qos: str) -> None:
        self.qos, self.asked = qos, list[str]()

    async def submit(self, specs: Sequence[JobSpec], key: str) -> int:
        self.asked.append(specs[0].qos)
        if specs[0].qos and specs[0].qos not in self.qos:
            raise Refusal(Why.INVALID_QOS)
        return len(self.asked)


async def answers(queue: Queue, *commands: c.SubmitReplica) -> list[o.Observation]:
    """What is reported of these, one after the other."""
    replicas = SlurmReplicas(cast(ForeignQueue, queue), cast(SlurmCommands, None))
    said: asyncio.Queue[o.Observation] = asyncio.Queue()
    replicas.report = lambda seen: [said.put_nowait(each) for each in seen] and None
    found = []
    for command in commands:
        replicas.obey(command)
        found.append(await said.get())
    return found


def replica(number: int = 1, *, qos: str = "", if_there: str = "service") -> c.SubmitReplica:
    return c.SubmitReplica("chat", number, JobSpec(owner=OWNER, qos=qos), f"chat/{number}", if_there)


def test_a_replica_has_the_qos_of_services_where_slurm_has_one() -> None:
    queue = Queue("service")
    (said,) = asyncio.run(answers(queue, replica()))
    assert (queue.asked, cast(o.ReplicaSubmitted, said).refused) == (["service"], "")


def test_without_such_a_qos_it_has_its_owners_and_slurm_is_not_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    said = asyncio.run(answers(queue, replica(1), replica(2)))
    assert queue.asked == ["service", "", ""]
    assert [cast(o.ReplicaSubmitted, each).job_id for each in said] == [2, 3]
    monkeypatch.setattr(module, "_ASK_FOR_QOS_AGAIN_S", 0.0)
    again = Queue()
    asyncio.run(answers(again, replica(1), replica(2)))
    assert again.asked == ["service", "", "service", ""], "after a while it is: somebody may have made it"


def test_a_qos_that_was_named_and_is_not_there_is_refused() -> None:
    queue = Queue()
    (said,) = asyncio.run(answers(queue, replica(qos="gold", if_there="")))
    assert queue.asked == ["gold"]
    assert "Invalid qos specification" in cast(o.ReplicaSubmitted, said).refused
