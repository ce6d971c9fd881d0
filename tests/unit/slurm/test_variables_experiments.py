"""Variables of experiment trackers: the same at every start, another's never, and the user's own before all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bireme.core.model.jobs import Job, JobKind, JobSpec, Owner, Pending, TrackedRun
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.core.model.serving.probes import Probes, ReplicaOf
from bireme.slurm.variables.experiments import (
    GIVEN,
    Trackers,
    chosen_experiment,
    experiment_variables,
    own_variables,
    run_key,
    takes_a_run,
    with_experiment,
)

URL = "http://mlflow.example.org:5000"
BOTH = Trackers(mlflow=URL, experiment="{cluster}/{account}/{user}", wandb=True, wandb_settings={"WANDB_PROJECT": "p"})
RUN = TrackedRun(URL, "3", "a" * 32)


def a_job(job_id: int = 7, **spec: object) -> Job:
    owner = Owner(uid=1001, gid=1001, user="alice")
    return Job(job_id, JobSpec(owner=owner, name="train", account="vision", **spec), 1000.5, Pending(since=1000.5))  # type: ignore[arg-type]


def holding(gpus: int = 1, partition: str = "main", generation: int = 1) -> Allocation:
    gres = (GresShare(name="gpu", type="", count=gpus, indices=tuple(range(gpus))),) if gpus else ()
    return Allocation(7, generation, partition, (NodeShare("n1", cpus=1, memory_mib=1, gres=gres),))


def given(trackers: Trackers = BOTH, job: Job | None = None, allocation: Allocation | None = None) -> dict[str, str]:
    return experiment_variables(trackers, "east", job or a_job(), allocation or holding())


def test_a_job_is_told_where_its_runs_are() -> None:
    found = given()
    assert found["MLFLOW_TRACKING_URI"] == URL
    assert found["MLFLOW_EXPERIMENT_NAME"] == "east/vision/alice"
    assert json.loads(found["MLFLOW_RUN_CONTEXT"])["bireme.job_id"] == "7"
    assert "MLFLOW_RUN_ID" not in found
    assert (found["WANDB_RESUME"], found["WANDB_PROJECT"]) == ("allow", "p")


def test_all_is_the_same_at_every_start() -> None:
    job = a_job()
    job.tracked = RUN
    first = given(job=job)
    job.restarts, job.generation = 3, 4
    assert given(job=job, allocation=holding(generation=4)) == first
    assert first["MLFLOW_RUN_ID"] == RUN.run_id


def test_a_run_of_another_server_is_not_told() -> None:
    job = a_job()
    job.tracked = replace(RUN, server="http://old.example.org")
    assert "MLFLOW_RUN_ID" not in given(job=job)


@pytest.mark.parametrize(
    ("cluster", "job_id", "submitted"), [("west", 7, 1000.5), ("east", 8, 1000.5), ("east", 7, 2000.0)]
)
def test_runs_have_names_of_their_own(cluster: str, job_id: int, submitted: float) -> None:
    assert run_key(cluster, job_id, submitted) != run_key("east", 7, 1000.5)


def test_a_runs_name_has_nothing_that_a_tracker_refuses() -> None:
    key = run_key("ea st/'`#?" * 20, 7, 1000.5)
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(key) <= 64


@pytest.mark.parametrize(
    ("trackers", "job", "allocation"),
    [
        (BOTH, a_job(), holding(gpus=0)),
        (replace(BOTH, partitions=("big",)), a_job(), holding()),
        (BOTH, a_job(kind=JobKind.PODS), holding()),
        (BOTH, a_job(replica=ReplicaOf(service="chat", revision=1, number=1, port=80, probes=Probes())), holding()),
        (Trackers(), a_job(), holding()),
    ],
    ids=["no GPUs", "another partition", "others' pods", "a replica", "no trackers"],
)
def test_who_is_told_nothing(trackers: Trackers, job: Job, allocation: Allocation) -> None:
    assert given(trackers, job, allocation) == {}


def test_jobs_without_gpus_are_told_where_the_settings_say_all() -> None:
    assert given(replace(BOTH, every_job=True), allocation=holding(gpus=0))


# -- the user's own ----------------------------------------------------------------------------------------------------


def test_what_the_user_set_stays_and_what_goes_with_ours_does_not_come() -> None:
    job = a_job()
    job.tracked = RUN
    found = with_experiment(
        {"MLFLOW_TRACKING_URI": "http://mine", "WANDB_RUN_ID": "mine", "HOME": "/h"}, given(job=job)
    )
    assert found["MLFLOW_TRACKING_URI"] == "http://mine"
    assert found["WANDB_RUN_ID"] == "mine"
    assert not {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_CONTEXT", "WANDB_RESUME"} & set(found)
    assert found["WANDB_PROJECT"] == "p"
    assert found["HOME"] == "/h"


def test_an_empty_variable_is_set_too() -> None:
    assert with_experiment({"WANDB_PROJECT": ""}, given())["WANDB_PROJECT"] == ""


def test_the_same_server_with_a_slash_is_the_same() -> None:
    assert takes_a_run({"MLFLOW_TRACKING_URI": URL + "/"}, given())


@pytest.mark.parametrize("own", [{"MLFLOW_RUN_ID": "x"}, {"MLFLOW_TRACKING_URI": "http://mine"}])
def test_no_run_is_made_for_who_has_another_in_mind(own: dict[str, str]) -> None:
    assert not takes_a_run(own, given())


def test_the_run_is_made_in_the_users_experiment() -> None:
    assert chosen_experiment({}, given()) == ("", "east/vision/alice")
    assert chosen_experiment({"MLFLOW_EXPERIMENT_NAME": "mine"}, given()) == ("", "mine")
    assert chosen_experiment({"MLFLOW_EXPERIMENT_ID": "5"}, given()) == ("5", "")
    assert "MLFLOW_EXPERIMENT_NAME" not in with_experiment({"MLFLOW_EXPERIMENT_ID": "5"}, given())


# -- from one job to another -------------------------------------------------------------------------------------------


def test_a_jobs_variables_do_not_come_along_into_another() -> None:
    parent, child = a_job(7), a_job(8)
    parent.tracked = RUN
    inside = with_experiment({"HOME": "/h", "WANDB_NOTES": "mine"}, given(job=parent))
    assert own_variables(inside) == {"HOME": "/h", "WANDB_NOTES": "mine"}
    found = with_experiment(inside, given(job=child))
    assert found["WANDB_RUN_ID"] == run_key("east", 8, 1000.5)
    assert "MLFLOW_RUN_ID" not in found
    assert with_experiment(inside, {}) == {"HOME": "/h", "WANDB_NOTES": "mine"}, "nor into one that is told nothing"


def test_what_a_script_changed_is_its_own() -> None:
    inside = with_experiment({}, given())
    changed = {**inside, "WANDB_RUN_ID": "chosen by the script"}
    found = with_experiment(changed, given())
    assert found["WANDB_RUN_ID"] == "chosen by the script"
    assert "WANDB_RESUME" not in found


def test_a_step_of_the_job_has_what_its_script_has() -> None:
    inside = with_experiment({"HOME": "/h"}, given())
    assert with_experiment(inside, given()) == inside
    assert GIVEN in inside


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"HOME": 3}', "[" * 100_000, "MLFLOW_RUN_ID=x", "\udcff"])
def test_whatever_stands_in_the_list_of_what_was_given_the_rest_stays(text: str) -> None:
    assert own_variables({"HOME": "/h", GIVEN: text}) == {"HOME": "/h"}


def test_a_name_that_is_no_text_is_handed_on_and_known_again() -> None:
    job = a_job()
    job.spec = replace(job.spec, name="run \udcff")
    found = with_experiment({}, given(replace(BOTH, experiment="{job}"), job))
    assert found["MLFLOW_EXPERIMENT_NAME"] == "run \udcff"
    assert found[GIVEN].isascii()
    assert own_variables(found) == {}
