"""The mirror's loop: it ends when it is told to, whatever comes at the same moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.jobs import Finished, JobSpec, Outcome, Owner
from bireme.engines.slurm.commands import Silent
from bireme.engines.slurm.mirror import Mirror


class Away:
    """A Slurm that does not answer."""

    def __getattr__(self, name: str) -> Any:
        async def asked(*_: Any) -> Any:
            raise Silent(f"no answer to {name}")

        return asked


@pytest.mark.parametrize("turns", range(5))
def test_an_engine_that_stops_while_something_is_asked_of_slurm_does_not_wait_for_ever(turns: int) -> None:
    """`turns` of the event loop lie between the two: a cancellation must not be taken for the end of a pause."""

    async def stopped() -> None:
        mirror = Mirror(Away())
        following = asyncio.create_task(mirror.follow())
        while not mirror.problem:
            await asyncio.sleep(0)
        mirror.hurry()
        for _ in range(turns):
            await asyncio.sleep(0)
        following.cancel()
        done, _ = await asyncio.wait([following], timeout=20)
        assert done
        assert following.cancelled()

    asyncio.run(stopped())


def test_who_asks_for_ended_jobs_does_not_wait_for_a_database_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.engines.slurm.mirror._CATCH_UP_MOST_S", 0.01)
    asked: list[int] = []

    class Hanging(Away):
        async def ended(self, since: float, job_ids: Sequence[int] = ()) -> None:
            asked.extend(job_ids)
            await asyncio.Event().wait()

    async def caught_up_twice() -> str:
        mirror = Mirror(Hanging())
        mirror.expect(7, JobSpec(name="a", owner=Owner(uid=1000, gid=1000, user="ada")), "tag7")
        memory = mirror._jobs[7]
        memory.seen = replace(memory.seen, phase=Finished(Outcome("COMPLETED"), time.time()))
        await mirror.catch_up()
        await mirror.catch_up([7])
        return mirror.problem

    assert "slurmdbd: no answer" in asyncio.run(caught_up_twice())
    assert asked == [7], "the second one is not sent after the first"


def test_a_job_that_was_just_submitted_stands_in_the_partition_that_it_will_have() -> None:
    mirror = Mirror(Away())
    partitions = (PartitionConfig(name="all", nodes=()), PartitionConfig(name="train", nodes=(), default=True))
    mirror._config = ClusterConfig(partitions=partitions)
    seen: list[o.Observation] = []
    mirror.report = seen.extend
    owner = Owner(uid=1000, gid=1000, user="ada")
    mirror.expect(7, JobSpec(name="a", owner=owner), "tag7")
    mirror.expect(8, JobSpec(name="b", owner=owner, partitions=("all",)), "tag8")
    assert [one.seen.spec.partitions for one in seen if isinstance(one, o.JobSeen)] == [("train",), ("all",)]
