"""Records of many jobs at once: each is the record that its job has alone, whatever they share."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bireme.core.jobs import requests
from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.slurm.records.jobs import FIELDS, job_record
from bireme.slurm.records.many import Records
from bireme.testing.scenario import Scenario


@pytest.fixture(params=(True, False))
def world(request: pytest.FixtureRequest) -> Scenario:
    """A full cluster and a queue of all kinds: with slots of their own, and without."""
    world = Scenario("2x8", settings=Settings(policy=Policy(backfill=request.param)))
    world.submit("runs", cpus=8, time_s=3600)
    world.submit("fills", cpus=8, time_s=7200)
    world.settle()
    world.submit("booked", nodes=2, time_s=3600)
    for number in range(3):
        world.submit(f"behind{number}", cpus=4, time_s=10800)
    world.submit("large", nodes=2, time_s=3600, comment="another request")
    world.submit("held", hold=True)
    world.submit("array", array="0-3")
    world.submit_het("het", {"cpus": 4}, {"cpus": 8})
    world.submit("after", after="afterok:runs")
    world.submit("here", on="n2")
    world.submit("again", cpus=8)
    world.settle()
    world.submit("new")
    return world


def test_each_record_is_that_of_its_job_alone(world: Scenario) -> None:
    jobs = list(world.state.jobs.values())
    made = Records(tuple(FIELDS)).of(world.state, jobs, world.now)
    assert made == [job_record(world.state, job, world.now) for job in jobs]
    json.dumps(made)


def test_so_it_is_after_one_was_queued_again_and_one_is_held(world: Scenario) -> None:
    world.requeue("fills")
    world.ask(requests.hold, "behind1", user="root")
    world.settle()
    jobs = list(world.state.jobs.values())
    made = Records(tuple(FIELDS)).of(world.state, jobs, world.now + 60)
    assert made == [job_record(world.state, job, world.now + 60) for job in jobs]


def test_jobs_that_were_told_the_same_have_one_verdict() -> None:
    world = Scenario("1x8")
    for label in ("runs", "first", "behind", "behind too"):
        world.submit(label, cpus=8)
    world.settle()
    said = [world.state.verdicts[world.job(label).id] for label in ("first", "behind", "behind too")]
    assert said[1] is said[2]
    assert said[0] is not said[1]
    made = Records(("job_id", "name", "reason")).of(world.state, [world.job("behind"), world.job("behind too")], 0.0)
    assert [record["name"] for record in made] == ["behind", "behind too"]
    assert {record["reason"] for record in made} == {"Priority"}


def test_records_do_not_share_what_their_reader_adds(world: Scenario) -> None:
    one, other = Records(("job_id",)).of(world.state, [world.job("behind0"), world.job("behind1")], world.now)
    one["steps"] = []
    assert "steps" not in other


def test_names_that_are_no_fields_are_left_out(world: Scenario) -> None:
    (record,) = Records(("job_id", "nonsense")).of(world.state, [world.job("behind0")], world.now)
    assert record == {"job_id": world.job("behind0").id}


def test_a_job_that_differs_in_its_request_alone_has_its_own(world: Scenario) -> None:
    job = world.job("behind0")
    other = replace(job, spec=replace(job.spec, name="other", time_limit_s=7200))
    made = Records(tuple(FIELDS)).of(world.state, [job, other], world.now)
    assert made == [job_record(world.state, each, world.now) for each in (job, other)]
    assert (made[0]["name"], made[1]["name"]) == ("behind0", "other")
