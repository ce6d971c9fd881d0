"""What pages ask for: the queue searched, every GPU in columns, what has changed, what an order would do."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.api.conftest import Running, ask_as

from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.jobs import JobSpec, Outcome, Owner
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.resources import Allocation, Device, GresPool, GresShare, NodeShare
from bireme.core.state.state import Verdict

CANCELLED = Outcome("CANCELLED")
ANN, BEN = Owner(uid=4001, gid=1, user="ann"), Owner(uid=4002, gid=1, user="ben")


def gpu_node(name: str) -> NodeConfig:
    pool = GresPool("gpu", "h100", 2, (Device(0, "h100"), Device(1, "h100")))
    return NodeConfig(name=name, cpus=8, cores_per_socket=8, memory_mib=1000, gres=(pool,))


@pytest.fixture
def busy(api: Running) -> Running:
    """Two nodes with two GPUs each; job 1 of ann's has one of them, 2 and 3 wait, 4 is over."""
    nodes = (gpu_node("g1"), gpu_node("g2"))
    config = ClusterConfig(name="tiny", nodes=nodes, partitions=(PartitionConfig(name="main", nodes=("g1", "g2")),))
    specs = {
        1: JobSpec(owner=ANN, name="train", account="physics", partitions=("main",)),
        2: JobSpec(owner=BEN, name="train big", account="maths", partitions=("main",), comment="for the Paper"),
        3: JobSpec(owner=ANN, name="eval", account="physics", partitions=("main",), qos="high"),
        4: JobSpec(owner=BEN, name="old", account="maths", partitions=("main",)),
    }
    share = NodeShare("g1", cpus=1, memory_mib=1, cpu_ids=(0,), gres=(GresShare("gpu", "h100", 1, (1,)),))
    api.happen(e.ClusterConfigured(config), *(e.NodeRegistered(node.name, 1000.0) for node in nodes))
    api.happen(*(e.JobSubmitted(number, spec, 1, 1000.0, ()) for number, spec in specs.items()))
    api.happen(e.JobAllocated(1, Allocation(1, 1, "main", (share,))), e.JobStarted(1, 1, 1000.0))
    api.happen(e.JobCancelled(4, CANCELLED))
    return api


def found(api: Running, **query: str) -> list[int]:
    return [job["job_id"] for job in api.transport.get("/v1/queue", query)["jobs"]]


@pytest.mark.parametrize(
    ("q", "jobs"),
    [
        ("", [1, 2, 3, 4]), ("train", [1, 2]), ("TRAIN", [1, 2]), ("train ann", [1]), ('"train big"', [2]),
        ("user:ben", [2, 4]), ("user:ben -state:cancelled", [2]), ("-train -old", [3]), ("node:g1", [1]),
        ("account:phys", [1, 3]), ("comment:paper", [2]), ("qos:high", [3]), ("job:3", [3]), ("12:30", []),
    ],
)  # fmt: skip
def test_words_are_found_wherever_a_job_has_them(busy: Running, q: str, jobs: list[int]) -> None:
    assert sorted(found(busy, q=q)) == jobs


def test_states_are_counted_before_one_is_chosen(busy: Running) -> None:
    told = busy.transport.get("/v1/queue", {"state": "pending", "fields": "job_id"})
    assert told["states"] == {"RUNNING": 1, "PENDING": 2, "CANCELLED": 1}
    assert (told["total"], [job["job_id"] for job in told["jobs"]]) == (2, [2, 3])
    assert found(busy, state="active") == [1, 2, 3]
    assert found(busy, sort="id", limit="2", offset="1") == [3, 2]


@pytest.mark.parametrize("query", [{"sort": "beauty"}, {"q": "a " * 30}, {"limit": "x"}])
def test_what_cannot_be_searched_is_said(busy: Running, query: dict[str, str]) -> None:
    with pytest.raises(Exception, match=r"sort=|at most 20 words|not a number"):
        busy.transport.get("/v1/queue", query)


def test_every_gpu_stands_in_its_column(busy: Running) -> None:
    busy.happen(e.NodeUpdated("g2", 0, drained=True))
    told = busy.transport.get("/v1/gpus")
    assert [node[:3] for node in told["nodes"]] == [["g1", "mixed", 2], ["g2", "drained", 2]]
    assert told["jobs"] == [[1, "1", "train", "ann", "physics", "main"]]
    assert told["job"] == [-1, 0, -1, -1]
    assert told["health"] == "..oo"
    assert "use" not in told, "nothing is measured here"


def changes(api: Running, **query: Any) -> dict[str, Any]:
    told: dict[str, Any] = api.transport.get("/v1/changes", {name: str(value) for name, value in query.items()})
    return told


def test_changes_are_told_by_topic_and_by_job(busy: Running) -> None:
    then = changes(busy)
    assert set(then["topics"]) == {"jobs", "nodes", "services", "faults", "plan", "book", "reservations"}
    asked = {"after": then["seq"], "planned_at": then["planned_at"], "jobs": "2,3", "timeout": 0}
    assert changes(busy, **asked)["topics"] == []
    busy.happen(e.JobCancelled(3, CANCELLED))
    assert changes(busy, **asked)["topics"] == ["jobs", "job:3"]
    busy.happen(e.NodeUpdated("g2", 0, drained=True))
    assert changes(busy, **asked)["topics"] == ["jobs", "nodes", "job:3"]


def test_who_waits_for_a_change_is_answered_when_it_comes(busy: Running) -> None:
    then = changes(busy)
    begun = time.monotonic()
    threading.Timer(0.05, lambda: busy.happen(e.JobCancelled(2, CANCELLED))).start()
    told = changes(busy, after=then["seq"], planned_at=then["planned_at"], timeout=60)
    assert told["topics"] == ["jobs"]
    assert time.monotonic() - begun < 30


def test_what_is_too_long_ago_to_know_is_everything(busy: Running) -> None:
    assert len(changes(busy, after=0, timeout=0)["topics"]) == 7
    assert len(changes(busy, after=10**9, timeout=0)["topics"]) == 7


def test_what_the_plan_says_of_a_job_is_told_by_a_number(busy: Running) -> None:
    verdicts = busy.cluster.state.verdicts
    verdicts[2] = Verdict((reason(ReasonKind.PRIORITY),), expected_start=3000.0)
    asked = {"jobs": "1,2,3", "timeout": 0}
    first = changes(busy, **asked)["verdicts"]
    assert set(first) == {"2"}, "of those that wait, and that the plan knows"
    verdicts[2] = Verdict((reason(ReasonKind.PRIORITY),), expected_start=3001.0)
    assert changes(busy, **asked)["verdicts"] == first
    verdicts[2] = Verdict((reason(ReasonKind.RESOURCES),), expected_start=3001.0)
    assert changes(busy, **asked)["verdicts"] != first
    assert changes(busy, timeout=0)["verdicts"] == {}


def test_what_an_operator_was_shown_is_not_shown_to_others(busy: Running) -> None:
    """An answer that is kept for all who see everything is for them alone."""
    config = busy.cluster.state.config
    busy.happen(e.ClusterConfigured(replace(config, raw={"PrivateData": "jobs"})))

    async def scene() -> None:
        for _ in range(2):
            for who, sees in ((0, [3, 2, 1]), (BEN.uid, [2]), (4999, [])):
                status, text = await ask_as(busy.app, "GET", "/v1/queue?sort=id&state=active&fields=job_id", who)
                told = json.loads(text)
                assert (status, [job["job_id"] for job in told["jobs"]]) == (200, sees)
                assert (told["total"], sum(told["states"].values())) == (len(sees), len(sees) + (who != 4999))
                _, text = await ask_as(busy.app, "GET", "/v1/changes?jobs=2,3", who)
                assert set(json.loads(text)["verdicts"]) == {str(job) for job in sees if job in (2, 3)}

    busy.cluster.state.verdicts |= {job: Verdict((reason(ReasonKind.PRIORITY),)) for job in (2, 3)}
    asyncio.run_coroutine_threadsafe(scene(), busy.loop).result()
