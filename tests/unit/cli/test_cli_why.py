"""bireme why, snapshot and plan: data in, lines of 80 columns out; files that are only the owner's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.main import main
from bireme.cli.why import text_of
from bireme.core.why.ended import ended_text
from bireme.core.why.running import explain_running
from bireme.core.why.sooner import find_sooner
from bireme.core.why.waiting import explain_waiting
from bireme.store.codec import all_fields
from bireme.testing.plans import save
from bireme.testing.scenario import Scenario, caller_named

HOUR = 3600


def crowded() -> Scenario:
    world = Scenario("4x8:h100", leaves=["n[1-2]", "n[3-4]"], partitions={"main": {}, "other": {"nodes": "n4"}})
    for number in range(12):
        world.submit(f"small{number}", gpus_per_node=4, time_s=HOUR * (1 + number % 3))
    world.submit("a job with a very long name that goes on and on", nodes=4, gpus_per_node=8, time_s=5 * HOUR)
    world.submit("endless", gpus=1, user="bob")
    world.submit("array", array="1-40%2", gpus=1, time_s=HOUR)
    world.submit("held", hold=True)
    world.submit("after", after="afterok:endless")
    world.submit_het("het", {"cpus": 1, "gpus": 8}, {"nodes": 2, "gpus_per_node": 8})
    world.settle()
    return world


def told(world: Scenario, job_id: int) -> dict[str, Any]:
    """As the daemon tells it."""
    job = world.state.jobs[job_id]
    answer: dict[str, Any] = {"job": job.label, "job_id": job.id, "name": job.spec.name, "user": "alice", "state": "X"}
    if job_id not in world.state.pending:
        return {**answer, "running": all_fields(explain_running(world.state, job))}
    waiting, trial = explain_waiting(world.state, job, world.now)
    found = find_sooner(world.state, job, caller_named("alice"), trial, world.now)
    return {
        **answer,
        "waiting": all_fields(waiting),
        "suggestions": [all_fields(each) for each in found if each is not None],
        "all_tried": True,
    }


def test_every_answer_is_readable_in_80_columns() -> None:
    world = crowded()
    for job_id in world.state.jobs:
        lines = list(
            text_of({"jobs": [told(world, job_id)], "now": world.now, "left_out": 0}, lambda at: f"{at:019.0f}")
        )
        assert len(lines) > 3
        wide = [line for line in lines if len(line) > 80 and "scontrol" not in line]
        assert not wide, wide


@pytest.mark.parametrize(
    ("network", "nodes", "words"),
    [
        ({"leaves": ["n[1-2]", "n[3-4]"]}, 2, "under 1 switch (leaf1); the fewest possible"),
        ({"leaves": ["n[1-2]", "n[3-4]"]}, 3, "under 2 switches (leaf[1-2]); the fewest possible"),
        ({"leaves": ["n[1,3]", "n[2,4]"], "busy": "n[1-2]"}, 2, "under 2 switches (leaf[1-2]); 1 would be the fewest"),
        ({"blocks": ["n[1-2]", "n[3-4]"]}, 3, "in 2 blocks (block[1-2]); the fewest possible"),
    ],
)
def test_a_running_job_says_how_tight_its_place_in_the_network_is(
    network: dict[str, Any], nodes: int, words: str
) -> None:
    busy = network.pop("busy", "")
    world = Scenario("4x8", **network)
    if busy:
        world.submit("busy", on=busy, nodes=2, cpus=8)
    world.submit("gang", nodes=nodes, cpus=8)
    world.settle()
    answer = {"jobs": [told(world, world.job("gang").id)], "now": world.now, "left_out": 0}
    text = " ".join(" ".join(text_of(answer, str)).split())
    assert words in text


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (("COMPLETED", 0, 0), "exit code 0"),
        (("FAILED", 1, 0), "exit code 1."),
        (("FAILED", 127, 0), "did not find a command"),
        (("FAILED", 137, 0), "signal 9 (KILL) ended a command"),
        (("FAILED", 0, 11), "Signal 11 (SEGV) ended it"),
        (("TIMEOUT", 0, 0), "--time"),
        (("OUT_OF_MEMORY", 0, 125), "--mem"),
        (("NODE_FAIL", 0, 0), "node"),
        (("CANCELLED", 0, 15, 1001), "cancelled by uid 1001."),
        (("CANCELLED", 0, 0, None, False), "before it ran"),
    ],
)
def test_ends_are_put_into_words(ended: tuple[Any, ...], words: str) -> None:
    assert words in ended_text(*ended)


def test_why_of_an_ended_job(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    ended = {
        "text": "It reached its time limit.", "exit_code": 0, "exit_signal": 0, "start_time": 1000.0,
        "end_time": 1060.0, "elapsed_s": 60, "time_limit_s": 60, "node_list": "n1", "std_out": "/w/slurm-7.out",
        "std_err": "/w/slurm-7.out", "reasons": [{"kind": "TimeLimit", "facts": {}, "text": "It ran into its limit."}],
    }  # fmt: skip
    job = {"job": "7", "job_id": 7, "name": "train", "user": "alice", "state": "TIMEOUT", "ended": ended}
    daemon.routes["GET /v1/jobs/7/why"] = (200, {"jobs": [job], "left_out": 0, "now": 2000.0})
    assert main(["why", "7"]) == 0
    text = capsys.readouterr().out
    assert 'Job 7 "train" of alice: TIMEOUT' in text
    assert "00:01:00 of 00:01:00 allowed, on n1" in text
    assert "/w/slurm-7.out" in text
    assert "(00:15:40 ago)" in text
    for now in (1060.0, 1060.4, 1059.6):  # ends are told when they have been, however lately
        daemon.routes["GET /v1/jobs/7/why"] = (200, {"jobs": [job], "left_out": 0, "now": now})
        assert main(["why", "7"]) == 0
        assert "(00:00:00 ago)" in capsys.readouterr().out
    assert main(["why", "--json", "7"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["ended"]["elapsed_s"] == 60


def test_why_of_an_unknown_job(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("GET /v1/jobs/9/why", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    assert main(["why", "9"]) == 1
    assert "there is no job 9" in capfd.readouterr().err


def test_plan_prints_what_is_decided_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Scenario("1x8")
    world.submit("first", cpus=8, time_s=HOUR)
    world.submit("second", cpus=8, time_s=HOUR)
    save(world, tmp_path / "a.snapshot")
    assert main(["plan", "--check", str(tmp_path / "a.snapshot")]) == 0
    text = capsys.readouterr().out
    assert "1 first                  starts on n1 in main: cpu=8" in text
    assert "2 second                 waits (Resources), starts 1970-01-12T" in text
    assert main(["plan", "--json", str(tmp_path / "a.snapshot")]) == 0
    assert [each["job_id"] for each in json.loads(capsys.readouterr().out)["starts"]] == [1]


def test_plan_tells_what_differs_and_records_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = Scenario("1x8")
    world.submit("begins", cpus=8, begin_at=world.now + HOUR)
    path = tmp_path / "a.snapshot"
    save(world, path)
    later = ["plan", "--now", str(world.now + 2 * HOUR), str(path)]
    assert main([*later, "--check"]) == 1
    assert "waits: job 1: recorded" in capfd.readouterr().err
    assert main([*later, "--update"]) == 0
    assert main([*later, "--check"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_plan_of_something_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("hello")
    assert main(["plan", str(tmp_path / "x")]) == 1
    assert "not made by `bireme snapshot`" in capfd.readouterr().err
    assert main(["plan", str(tmp_path / "missing")]) == 1
    assert "cannot read" in capfd.readouterr().err
    save(Scenario("1x8"), tmp_path / "a")
    assert main(["plan", "--now", "nonsense", str(tmp_path / "a")]) == 1
    assert "--now=nonsense: not a time" in capfd.readouterr().err
