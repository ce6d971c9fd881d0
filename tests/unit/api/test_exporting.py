"""The daemon's page for Prometheus: what it counts, what it leaves out for whom, how many series it can have."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.conftest import SmallCluster

from bireme.api.cluster import Service
from bireme.api.exporting import exporter, writing
from bireme.api.exporting.exporter import NOBODY, Exporter
from bireme.core.model import events as e
from bireme.core.model.jobs import ArraySpec, JobSpec, Outcome, Owner
from bireme.core.model.refusals import Caller
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.telemetry.exported import GpuFigures, Measured, NodeFigures
from bireme.core.telemetry.subjects import Subject
from bireme.ports import NewestRound
from bireme.runtime.work import Work
from bireme.store.journal import SqliteStore

ANNA, BOB = Owner(uid=4001, gid=4001, user="anna"), Owner(uid=4002, gid=4002, user="bob")
ADMIN = Caller(uid=0, gid=0, user="root", admin=True)


class Telemetry:
    """A GPU that job 1 has, on n1; and what the tasks of job 1 do."""

    problem = ""

    @property
    def series(self) -> Telemetry:
        return self

    def newest_rounds(self) -> list[NewestRound]:
        return [NewestRound("n1", 990.5, is_late=False), NewestRound("n2", None, is_late=True)]

    async def measured(self) -> Measured:
        gpu = GpuFigures("n1", "GPU-a", 0, {"gpu_util": 97.0}, job_ids=(1,))
        return Measured([gpu, GpuFigures("n1", "GPU-b", 1, {"gpu_util": 0.0})], [NodeFigures("n1", {"node_load": 0.5})])

    def latest(self, about: str) -> list[Any]:
        figures = {"cpu_user": 0.5, "cpu_system": 0.25, "memory": 2.0}
        return [(Subject("task", "n1", "1.1.0.0"), 1000.0, figures)] if about == "task" else []


class World:
    """Job 1 of anna runs; job 2 of anna and an array of 30 of bob's wait; bob has a service."""

    def __init__(self, store: SqliteStore) -> None:
        self.cluster = SmallCluster(store)
        self.router = "bireme_router_workers 2\n"
        self.exporter = self._exporter()
        blob = store.put(b"{}")
        spec = JobSpec(
            owner=ANNA, name='of "anna"', account="physics", partitions=("main",), script=blob, environment=blob
        )
        other = replace(spec, owner=BOB, name="secret", account="chemistry", partitions=("small",))
        array = replace(other, array=ArraySpec(tuple(range(30))))
        for job_id, each in ((1, spec), (2, spec), (3, array)):
            self.record(e.JobSubmitted(job_id, each, 1, 1000.0, ()))
        share = NodeShare("n1", cpus=3, memory_mib=10, cpu_ids=(0, 1, 2))
        self.record(e.JobAllocated(1, Allocation(1, 1, "main", (share,))), e.JobStarted(1, 1, 1000.0))
        service = ServiceSpec(name="chat", job=replace(other, name="chat"))
        self.record(e.ServiceDeployed("chat", 1, service, BOB, (), "bob"), e.ServiceScaled("chat", 2, "for a test"))

    def _exporter(self) -> Exporter:
        async def router_page() -> str:
            return self.router

        service = Service(
            version="1", pid=1, up_since=900.0, owner_uid=0, telemetry=lambda: Telemetry(), router_page=router_page,
            work=lambda: Work(passes=3, passing_s=0.5),
        )  # fmt: skip
        return Exporter(self.cluster, service)  # type: ignore[arg-type]

    def record(self, *events: e.Event) -> None:
        self.cluster.record("test", events)

    def private(self, words: str) -> None:
        self.record(e.ClusterConfigured(replace(self.cluster.state.config, raw={"PrivateData": words})))

    def page(self, caller: Caller = NOBODY) -> list[str]:
        return asyncio.run(self.exporter.page(caller)).splitlines()

    def of(self, family: str, caller: Caller = NOBODY) -> list[str]:
        return [line for line in self.page(caller) if line.startswith((f"{family}{{", f"{family} "))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = SqliteStore(str(tmp_path / "journal.db"))
    yield World(store)
    store.close()


def test_jobs_are_counted_by_state_and_partition_and_tasks_that_wait_each(world: World) -> None:
    assert world.of("bireme_jobs") == [
        'bireme_jobs{state="PENDING",partition="main"} 1',
        'bireme_jobs{state="PENDING",partition="small"} 30',
        'bireme_jobs{state="RUNNING",partition="main"} 1',
    ]


def test_a_job_that_runs_has_its_handful(world: World) -> None:
    lines = [line for line in world.page() if line.startswith("bireme_job_")]
    assert lines == [
        'bireme_job_info{job_id="1",user="anna",account="physics",name="of \\"anna\\"",partition="main"} 1',
        'bireme_job_start_time_seconds{job_id="1"} 1000',
        'bireme_job_cpus{job_id="1"} 3',
        'bireme_job_gpus{job_id="1"} 0',
        'bireme_job_cpus_busy{job_id="1"} 0.75',
        'bireme_job_memory_bytes{job_id="1"} 2097152',
    ]


def test_a_gpu_has_one_series_that_names_its_job_and_one_that_nobody_has_none(world: World) -> None:
    assert world.of("bireme_gpu_job") == [
        'bireme_gpu_job{uuid="GPU-a",UUID="GPU-a",gpu="0",Hostname="n1",job_id="1",user="anna",account="physics"} 1'
    ]
    assert all("job" not in line for line in world.of("DCGM_FI_DEV_GPU_UTIL"))


def test_nodes_services_users_and_the_scheduler_are_told(world: World) -> None:
    page = world.page()
    assert {
        'bireme_nodes{state="IDLE"} 1', 'bireme_nodes{state="MIXED"} 1', 'bireme_node_up{node="n1"} 1',
        'bireme_node_cpus_allocated{node="n1"} 3', 'bireme_cpus_allocated 3', 'bireme_node_load1{node="n1"} 0.5',
        'bireme_service_replicas_wanted{service="chat"} 2', 'bireme_service_replicas_ready{service="chat"} 0',
        'bireme_user_jobs{user="bob",account="chemistry",state="PENDING"} 30',
        'bireme_user_cpus{user="anna",account="physics"} 3', "bireme_scheduler_passes_total 3",
        "bireme_scheduler_pass_seconds_total 0.5", "bireme_jobs_submitted_total 3", "bireme_router_workers 2",
        'bireme_problem{part="journal"} 0',
    } <= set(page)  # fmt: skip


def test_the_time_of_each_machines_newest_round_is_told(world: World) -> None:
    assert world.of("bireme_latest_round_timestamp_seconds") == [
        'bireme_latest_round_timestamp_seconds{node="n1"} 990.5'
    ]


def test_starts_and_ends_are_counted(world: World) -> None:
    world.record(e.JobEnding(1, 1, Outcome("TIMEOUT")), e.JobCancelled(2, 0))
    assert world.of("bireme_jobs_started_total") == ["bireme_jobs_started_total 1"]
    ended = world.of("bireme_jobs_ended_total")
    assert [line for line in ended if not line.endswith(" 0")] == [
        'bireme_jobs_ended_total{state="CANCELLED"} 1',
        'bireme_jobs_ended_total{state="TIMEOUT"} 1',
    ]
    assert 'bireme_jobs_ended_total{state="NODE_FAIL"} 0' in ended, "so that the first one is seen as a growth"


def test_without_telemetry_nothing_measured_is_there(world: World, tmp_path: Path) -> None:
    service = Service(version="1", pid=1, up_since=900.0, owner_uid=0)
    page = asyncio.run(Exporter(world.cluster, service).page(NOBODY))  # type: ignore[arg-type]
    assert "bireme_job_cpus{" in page
    assert not [word for word in ("DCGM", "bireme_gpu_job", "memory_bytes", "cpus_busy", "node_load") if word in page]


# --- who sees what ----------------------------------------------------------------------------------------------------


def test_nobody_in_particular_learns_no_name_where_jobs_are_private(world: World) -> None:
    world.private("jobs")
    text = "\n".join(world.page())
    assert not [
        name for name in ("anna", "bob", "secret", "physics", "chemistry", "chat", "bireme_router") if name in text
    ]
    assert 'bireme_jobs{state="PENDING",partition="small"} 30' in text
    assert 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1"} 97' in text


def test_where_jobs_are_private_their_owner_sees_his_own(world: World) -> None:
    world.private("jobs")
    page = "\n".join(world.page(Caller(uid=4001, gid=4001, user="anna")))
    assert 'bireme_gpu_job{uuid="GPU-a"' in page
    assert 'bireme_user_jobs{user="anna"' in page
    assert "bob" not in page


@pytest.mark.parametrize("word", ["users", "usage", "accounts"])
def test_where_users_are_private_they_are_not_added_up(world: World, word: str) -> None:
    world.private(word)
    assert not world.of("bireme_user_jobs")
    assert not world.of("bireme_user_cpus")


def test_where_nodes_are_private_they_are_counted_and_not_named(world: World) -> None:
    world.private("nodes")
    text = "\n".join(world.page())
    assert "bireme_nodes{" in text
    assert not [word for word in ('"n1"', "GPU-a", "DCGM") if word in text]


def test_where_partitions_are_private_they_are_not_named(world: World) -> None:
    world.private("partitions")
    assert world.of("bireme_jobs") == ['bireme_jobs{state="PENDING"} 31', 'bireme_jobs{state="RUNNING"} 1']


def test_administrators_see_everything_whatever_is_private(world: World) -> None:
    world.private("jobs,nodes,users,partitions")
    text = "\n".join(world.page(ADMIN))
    assert all(word in text for word in ("anna", "bob", "chat", "GPU-a", '"small"', "bireme_router_workers"))


# --- how much ---------------------------------------------------------------------------------------------------------


def test_pending_jobs_make_no_series_of_their_own(world: World) -> None:
    before = len(world.page())
    spec = replace(world.cluster.state.jobs[2].spec, name="one more")
    for job_id in range(10, 60):
        world.record(e.JobSubmitted(job_id, spec, 1, 1000.0, ()))
    assert len(World.page(_again(world))) == before


def test_of_too_many_jobs_and_users_the_rest_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_JOBS", 0)
    monkeypatch.setattr(writing, "MOST_USERS", 1)
    assert world.of("bireme_jobs_unlisted") == ["bireme_jobs_unlisted 1"]
    assert not world.of("bireme_job_info")
    assert world.of("bireme_user_cpus") == ['bireme_user_cpus{user="anna",account="physics"} 3'], "who has most"
    assert world.of("bireme_users_unlisted") == ["bireme_users_unlisted 1"]


def _again(world: World) -> World:
    """With an exporter that has no page yet."""
    world.exporter = world._exporter()
    return world


def test_who_asks_within_a_second_gets_the_same_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SHARED_S", math.inf)
    first = world.page()
    world.record(e.JobCancelled(2, 0))
    assert world.page() == first
    assert world.page(Caller(uid=4002, gid=4002, user="bob")) == first, "he sees the same of it"
    assert World.page(_again(world)) != first
