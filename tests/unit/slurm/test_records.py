"""Records: every field documented, every phase readable, Slurm's words in them."""

from __future__ import annotations

import json

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.applying import finished_phase
from bireme.core.model import events as e
from bireme.core.model.cluster import NodeConfig, Settings
from bireme.core.model.jobs import Ending, Finished, JobKind, Outcome
from bireme.core.model.resources import Device, ExitStatus, GresPool
from bireme.slurm import records
from bireme.slurm.records.jobs import FIELDS, job_record
from bireme.slurm.records.nodes import gres_text, node_record, node_recorder
from bireme.slurm.records.partitions import PARTITION_FIELDS, config_record, partition_record
from bireme.slurm.records.steps import batch_step_record, history_rows, step_record
from bireme.testing.scenario import Scenario


def record_of(world: Scenario, label: str, *fields: str) -> dict[str, object]:
    return job_record(world.state, world.job(label), world.now, fields or None)


def test_every_field_is_documented() -> None:
    world = Scenario("1x8:h100")
    world.submit("job")
    world.settle()
    step = world.step("job")
    job, node = world.job("job"), world.state.nodes["n1"]
    partition = partition_record(world.state, world.state.partitions["main"])
    assert FIELDS.keys() == records.JOB_FIELDS.keys()
    assert step_record(world.state, job, step, world.now).keys() == records.STEP_FIELDS.keys()
    assert (batch_step_record(world.state, job, world.now) or {}).keys() == records.STEP_FIELDS.keys()
    assert node_record(world.state, node, world.now).keys() == records.NODE_FIELDS.keys()
    assert partition.keys() == {*PARTITION_FIELDS, *records.PARTITION_EXTRA_FIELDS}
    assert config_record(world.state).keys() == records.CONFIG_FIELDS.keys()


def test_only_the_asked_fields_are_read() -> None:
    world = Scenario("1x8")
    world.submit("job")
    assert record_of(world, "job", "job_id", "nonsense", "state") == {"job_id": 1, "state": "PENDING"}


def test_every_phase_gives_json() -> None:
    world = Scenario("1x8")
    world.submit("job", signal="B:USR1@60")
    job = world.job("job")

    def check(state: str) -> None:
        record = job_record(world.state, job, world.now)
        json.dumps(record)
        assert record["state"] == state

    check("PENDING")
    world.settle()
    check("RUNNING")
    world.suspend("job")
    check("SUSPENDED")
    world.resume("job")
    world.engine.obeys = False
    world.cancel("job")
    check("COMPLETING")
    assert record_of(world, "job", "base_state") == {"base_state": "CANCELLED"}
    world.engine.obeys = True
    world.engine.send(world.engine.commands[-1:])
    world.deliver()
    check("CANCELLED")
    json.dumps([*node_recorder(world.state, world.now)(list(world.state.nodes.values())), config_record(world.state)])
    json.dumps(partition_record(world.state, world.state.partitions["main"]))


def test_a_waiting_job_shows_the_slot_that_it_is_to_get() -> None:
    world = Scenario("4x8", now=1000.0)
    world.submit("block", nodes=3, tasks=24, time_s=600)
    world.submit("next", tasks=20)
    world.settle()
    assert record_of(world, "next", "node_count", "planned_nodes") == {"node_count": 3, "planned_nodes": "n[1-3]"}
    assert record_of(world, "next", "last_sched_time") == {"last_sched_time": 1000.0}


def test_a_job_cancelled_while_it_waits_says_what_for() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.settle()
    world.cancel("job")
    assert record_of(world, "job", "state", "reason") == {"state": "CANCELLED", "reason": "JobHeldUser"}


def test_times_of_a_life() -> None:
    world = Scenario("1x8", now=1000.0)
    world.submit("job", begin_at=1060.0, time_s=600)
    world.settle()
    assert record_of(world, "job", "eligible_time", "start_time", "elapsed_s") == {
        "eligible_time": None, "start_time": None, "elapsed_s": 0,
    }  # fmt: skip
    world.wait(90)
    wanted = {"eligible_time": 1060.0, "start_time": 1060.0, "end_time": 1660.0, "elapsed_s": 30, "time_limit_s": 600}
    assert record_of(world, "job", *wanted) == wanted
    world.suspend("job")
    world.wait(100)
    wanted = {"elapsed_s": 30, "suspended_s": 100, "end_time": 1760.0}
    assert record_of(world, "job", *wanted) == wanted
    world.resume("job")
    world.wait(10)
    world.finish("job", code=3)
    wanted = {"end_time": 1200.0, "elapsed_s": 40, "exit_code": 3, "reason": "NonZeroExitCode", "eligible_time": 1060.0}
    assert record_of(world, "job", *wanted) == wanted


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        ({}, "/home/a/slurm-1.out", "/home/a/slurm-1.out"),
        ({"std_out": "logs/%x-%j.out"}, "/home/a/logs/job-1.out", "/home/a/logs/job-1.out"),
        ({"std_err": "/var/log/%u.err"}, "/home/a/slurm-1.out", "/var/log/alice.err"),
        ({"std_out": "%N.out"}, "/home/a/n1.out", "/home/a/n1.out"),
        ({"kind": JobKind.INTERACTIVE}, "", ""),
    ],
)
def test_streams_are_expanded(options: dict[str, object], out: str, err: str) -> None:
    world = Scenario("1x8")
    world.submit("job", work_dir="/home/a", **options)
    world.settle()
    assert record_of(world, "job", "std_out", "std_err") == {"std_out": out, "std_err": err}


def test_arrays() -> None:
    world = Scenario("1x8")
    array = world.submit("a", array="0-9%2", work_dir="/w")
    world.settle()
    waiting = job_record(world.state, world.state.jobs[array], world.now)
    assert (waiting["array_job_id"], waiting["array_task_id"]) == (array, None)
    assert (waiting["array_tasks"], waiting["array_throttle"]) == ("2-9%2", 2)
    wanted = {"array_job_id": array, "array_task_id": 1, "array_tasks": "", "std_out": f"/w/slurm-{array}_1.out"}
    assert record_of(world, "a_1", *wanted) == wanted


def test_dependencies_show_what_is_not_met() -> None:
    world = Scenario("1x8")
    world.submit("one")
    world.submit("many", array="0-1")
    world.submit("job", after="afterok:one,afterany:many")
    world.settle()
    assert record_of(world, "job", "dependency") == {"dependency": "afterok:1(unfulfilled),afterany:2_*(unfulfilled)"}
    world.finish("one", code=1)
    assert record_of(world, "job", "dependency") == {"dependency": "afterok:1(failed),afterany:2_*(unfulfilled)"}


def test_a_held_job_has_priority_zero() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.settle()
    wanted = {"priority": 0, "held_by": "user", "reason": "JobHeldUser"}
    assert record_of(world, "job", *wanted) == wanted
    assert record_of(world, "job", "reasons")["reasons"] == [
        {"kind": "JobHeldUser", "facts": {}, "text": "Its owner holds it: scontrol release."}
    ]


def test_resources_before_and_after_the_start() -> None:
    world = Scenario("2x8:h100", memory_mib=8000)
    world.submit("job", nodes=2, gpus_per_node="h100:2", cpus=2, mem=1000, hold=True)
    wanted: dict[str, object] = {
        "node_count": 2,
        "node_list": "",
        "num_cpus": 4,
        "num_tasks": 2,
        "memory_mib": 1000,
        "memory_per": "node",
        "gres_requested": "gpu:h100:2",
        "tres_requested": {"cpu": 4, "mem": 2000, "node": 2, "billing": 4, "gres/gpu": 4, "gres/gpu:h100": 4},
        "tres_allocated": {},
    }
    assert record_of(world, "job", *wanted) == wanted
    world.release("job")
    world.settle()
    wanted |= {"node_list": "n[1-2]", "tres_allocated": wanted["tres_requested"]}
    assert record_of(world, "job", *wanted) == wanted
    shares = record_of(world, "job", "shares")["shares"]
    assert isinstance(shares, list)
    assert shares[0]["gres"] == [{"name": "gpu", "type": "h100", "count": 2, "indices": [0, 1]}]


@pytest.mark.parametrize(("nodes", "options"), [(3, {"tasks": 6, "ntasks_per_node": 2}), (2, {"nodes": 3, "tasks": 2})])
def test_the_nodes_a_waiting_job_needs(nodes: int, options: dict[str, int]) -> None:
    world = Scenario("4x8")
    world.submit("job", hold=True, **options)
    assert record_of(world, "job", "node_count") == {"node_count": nodes}


def test_default_memory_is_shown_as_asked() -> None:
    settings = Settings(default_memory_per_cpu_mib=500)
    world = Scenario("1x8", memory_mib=8000, settings=settings)
    world.submit("job", cpus=2)
    assert record_of(world, "job", "memory_mib", "memory_per") == {"memory_mib": 500, "memory_per": "cpu"}


def test_exit_codes_as_slurm_shows_them() -> None:
    world = Scenario("1x8")
    for label in ("timed", "cancelled", "oom"):
        world.submit(label, time_s=60)
    world.settle()
    world.finish("oom", signal=9, out_of_memory=True)
    world.cancel("cancelled")
    world.wait(60)

    def shown(label: str) -> tuple[object, ...]:
        job = record_of(world, label)
        batch = batch_step_record(world.state, world.job(label), world.now)
        assert batch is not None
        return (job["state"], job["exit_code"], job["exit_signal"], batch["state"], batch["exit_signal"])

    assert shown("timed") == ("TIMEOUT", 0, 15, "CANCELLED", 15)
    assert shown("cancelled") == ("CANCELLED", 0, 15, "CANCELLED", 15)
    assert shown("oom") == ("OUT_OF_MEMORY", 0, 125, "OUT_OF_MEMORY", 125)
    assert record_of(world, "cancelled", "cancelled_by") == {"cancelled_by": 1001}


def test_history_has_the_job_its_script_and_its_steps() -> None:
    world = Scenario("1x8")
    world.submit("job", tasks=2)
    world.settle()
    world.step("job", name="one", ntasks=2)
    world.finish_step("job", 0, 2)
    world.step("job", name="cut", ntasks=2)
    job = world.job("job")
    phase = Finished(Outcome("FAILED", ExitStatus(1)), world.now + 5, world.now, job.allocation)
    rows = history_rows(world.state, job, phase, world.now)
    assert [(row.step_id, row.whole["state"]) for row in rows] == [
        (None, "FAILED"), (-5, "FAILED"), (0, "FAILED"), (1, "CANCELLED"),
    ]  # fmt: skip
    assert rows[0].record["derived_exit_code"] == 2
    assert rows[1].record["step_id"] == "batch"
    assert world.described() == {"job": "runs n1"}, "building the rows changes nothing"


def test_runs_that_are_alike_share_a_record_and_each_is_whole_all_the_same() -> None:
    world = Scenario("2x8")
    world.submit("alone", cpus=2)
    world.submit("array", cpus=1, array="0-3")
    world.settle()
    rows = []
    for job in list(world.state.holding.values()):
        phase = Finished(Outcome("COMPLETED"), world.now + job.id, world.now, job.allocation)
        row = history_rows(world.state, job, phase, world.now)[0]
        assert row.whole == job_record(world.state, job, world.now, phase=phase)
        rows.append(row)
    assert len(rows) == 5
    assert all(row.like is not None for row in rows)
    assert len({id(row.like) for row in rows}) == 2


def test_a_requeued_run_has_a_row_of_its_own() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.engine.obeys = False
    world.requeue("job")
    job = world.job("job")
    assert isinstance(job.phase, Ending)
    ended = e.JobEnded(job.id, job.generation, world.now)
    row = history_rows(world.state, job, finished_phase(job.phase, ended), world.now)[0]
    assert (row.whole["state"], row.restarts) == ("REQUEUED", 0)


def test_a_job_that_never_started_has_no_batch_line() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.cancel("job")
    assert batch_step_record(world.state, world.job("job"), world.now) is None


def test_nodes() -> None:
    world = Scenario("1x8:h100", memory_mib=1000)
    node = world.state.nodes["n1"]
    idle = node_record(world.state, node, world.now)
    assert (idle["state"], idle["gres"], idle["gres_used"]) == ("IDLE", "gpu:h100:8", "gpu:h100:0(IDX:N/A)")
    assert idle["tres"] == {"cpu": 8, "mem": 1000, "gres/gpu": 8, "gres/gpu:h100": 8, "billing": 8}
    world.submit("job", gpus=3, cpus=3, mem=100)
    world.settle()
    world.node("n1", "DRAIN", "fan")
    busy = node_record(world.state, node, world.now)
    assert (busy["state"], busy["flags"], busy["reason"]) == ("MIXED", ["DRAIN"], "fan")
    assert (busy["gres_used"], busy["jobs"], busy["partitions"]) == ("gpu:h100:3(IDX:0-2)", [1], ["main"])
    assert busy["tres_allocated"] == {"cpu": 3, "mem": 100, "gres/gpu": 3, "gres/gpu:h100": 3}


def test_an_idle_node_that_is_booked_for_a_waiting_job_is_planned() -> None:
    world = Scenario("2x8")
    world.submit("running", cpus=8, nodes=1, time_s=600)
    world.settle()
    world.submit("gang", cpus=8, nodes=2, time_s=600)
    world.settle()
    flags = {name: node_record(world.state, node, world.now)["flags"] for name, node in world.state.nodes.items()}
    assert sorted(flags.values()) == [[], ["PLANNED"]]


def test_sockets_are_told_where_every_device_has_cores() -> None:
    node = NodeConfig(name="n", cpus=8, sockets=2, cores_per_socket=4)
    near = GresPool("gpu", "h100", 2, (Device(0, cores=(0, 1)), Device(1, cores=(4,))))
    unsure = GresPool("gpu", "h100", 2, (Device(0, cores=(0, 1)), Device(1)))
    assert gres_text(near, node) == "gpu:h100:2(S:0-1)"
    assert gres_text(unsure, node) == "gpu:h100:2"
    assert gres_text(GresPool("bandwidth", None, 100), node) == "bandwidth:100"


def test_partitions() -> None:
    world = Scenario("4x8", partitions={"main": {"nodes": "n[2-4]", "max_time_s": 60}})
    record = partition_record(world.state, world.state.partitions["main"])
    wanted = {
        "name": "main",
        "node_list": "n[2-4]",
        "total_nodes": 3,
        "total_cpus": 24,
        "state": "UP",
        "max_time_s": 60,
    }
    assert {key: record[key] for key in wanted} == wanted


def test_a_job_whose_partition_is_gone_still_has_a_record() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    del world.state.partitions["main"]
    job_record(world.state, world.job("job"), world.now)


def test_a_heterogeneous_component_knows_its_place() -> None:
    world = Scenario("2x8")
    leader = world.submit_het("het", {}, {})
    wanted = {"het_job_id": leader, "het_offset": 1, "het_job_id_set": f"{leader}-{leader + 1}"}
    assert record_of(world, "het+1", *wanted) == wanted
    assert requests.find(world.state, requests.Target(leader, het_offset=1))[0].id == leader + 1


def test_nodes_that_are_away_are_told_as_slurm_tells_them() -> None:
    world = Scenario("2x8")
    world.node("n2", "DRAIN")
    world.submit("both", nodes=2)
    world.submit("named", on="n2")
    world.settle()
    away = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
    assert record_of(world, "both", "reason") == {"reason": away}
    assert record_of(world, "named", "reason") == {"reason": "ReqNodeNotAvail,_UnavailableNodes:n2"}


def test_a_node_without_gpus_uses_none_of_them() -> None:
    world = Scenario("1x8+1x8:h100", settings=Settings(gres_types=("gpu",), memory_is_consumable=False))
    used = [node_record(world.state, node, world.now)["gres_used"] for node in world.state.nodes.values()]
    assert used == ["gpu:0", "gpu:h100:0(IDX:N/A)"]


def test_a_script_that_a_signal_ended_is_a_cancelled_step_of_a_failed_job() -> None:
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    world.finish("job", signal=9)
    batch = batch_step_record(world.state, world.job("job"), world.now)
    assert batch is not None
    assert (batch["state"], batch["exit_signal"], batch["submit_line"]) == ("CANCELLED", 9, "")
    assert record_of(world, "job", "state") == {"state": "FAILED"}


@pytest.mark.parametrize(("asked", "shown"), [(None, 300), (600, 300), (120, 120)])
def test_switches_are_waited_for_as_long_as_the_cluster_allows(asked: int | None, shown: int) -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    world.update("job", switches=1, switches_wait_s=asked)
    record = job_record(world.state, world.job("job"), world.now)
    assert (record["switches"], record["switches_wait_s"]) == (1, shown)
