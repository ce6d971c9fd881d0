"""Job ids as people write them: what they mean, and that a filter's ranges are never counted out."""

from __future__ import annotations

from collections import deque

import pytest
from tests.unit.api.conftest import Running

from bireme.api.listing import Filter, candidates, matching
from bireme.api.targets import MOST_RANGES, MOST_STRIDES, MOST_TARGETS, named_jobs, one_target, targets_of
from bireme.core.jobs.requests import Target
from bireme.core.model.jobs import ArrayTask, ArrayWaiting, Job, JobSpec, Owner, Pending
from bireme.core.model.refusals import Refusal

SPEC = JobSpec(owner=Owner(uid=1, gid=1, user="ann"))


def plain(number: int) -> Job:
    return Job(number, SPEC, 0.0, Pending(since=0.0))


def waiting(number: int, *tasks: int) -> Job:
    return Job(number, SPEC, 0.0, Pending(since=0.0), array=ArrayWaiting(deque(tasks)))


def task(number: int, array: int, task_id: int) -> Job:
    return Job(number, SPEC, 0.0, Pending(since=0.0), array=ArrayTask(array, task_id))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("42", Target(42)),
        (" 42 ", Target(42)),
        ("42_7", Target(42, task_id=7)),
        ("42_[7]", Target(42, task_id=7)),
        ("42+1", Target(42, het_offset=1)),
        ("42_7.3", Target(42, task_id=7, step_id=3)),
    ],
)
def test_one_job(text: str, target: Target) -> None:
    assert one_target(text) == target


@pytest.mark.parametrize(
    "text", ["", "x", "1,2", "1_[0-4000000]", "1_[3-1]", "1_[0-5:0]", "1_[", "1_[0-99999999]", "١"]
)
def test_not_one_job(text: str) -> None:
    with pytest.raises(Refusal, match="Invalid job id"):
        one_target(text)


def test_several_jobs() -> None:
    found = list(targets_of("1,2_[1-3,9],3+1,"))
    assert found == [Target(1), *(Target(2, task_id=number) for number in (1, 2, 3, 9)), Target(3, het_offset=1)]


def test_an_order_names_so_many_tasks_and_no_more() -> None:
    assert len(list(targets_of(f"1_[1-{MOST_TARGETS}]"))) == MOST_TARGETS
    with pytest.raises(Refusal) as refused:
        targets_of(f"1_[0-{MOST_TARGETS}]")
    assert f"at most {MOST_TARGETS}" in refused.value.hint


def test_a_filter_knows_whom_it_means() -> None:
    named = named_jobs("1,2_[4-6,10-20:5],3_9")
    assert named is not None
    meant = [plain(1), task(8, 2, 4), task(9, 2, 15), waiting(2, 0, 6), task(7, 3, 9), waiting(1, 5)]
    others = [plain(4), task(8, 2, 7), task(8, 2, 16), waiting(2, 0, 7), task(7, 3, 8), plain(2)]
    assert [job for job in meant if not named.mean(job)] == []
    assert [job for job in others if named.mean(job)] == []


def test_ranges_of_a_filter_are_joined_and_not_counted_out() -> None:
    named = named_jobs("1_[0-4000000]," * 500 + "1_[5-9,7-12]")
    assert named is not None
    assert named.tasks == {1: [range(4_000_001)]}


@pytest.mark.parametrize(
    "text",
    [
        f"1_[{','.join(str(2 * number) for number in range(MOST_RANGES + 1))}]",
        f"1_[{','.join(f'{number}-9999:7' for number in range(MOST_STRIDES + 1))}]",
    ],
    ids=["ranges", "steps"],
)
def test_a_filter_has_so_many_ranges_and_no_more(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        named_jobs(text)
    assert "ask for the whole array" in refused.value.hint


def test_named_jobs_are_looked_up_and_nobody_else_is_looked_at(api: Running) -> None:
    """What is looked up is what a look at all of them finds, for every way to name a job."""
    post = api.transport.post
    for _ in range(3):
        post("/v1/jobs", {"spec": {}, "script": "#!/bin/sh\n"})
    array = post("/v1/jobs", {"spec": {"array": {"task_ids": [1, 2, 5]}}, "script": "#!/bin/sh\n"})["job_id"]
    post(f"/v1/jobs/{array}_2/hold")  # which gives it a record of its own
    het = post("/v1/jobs", {"het": [{"spec": {}}, {"spec": {}}], "script": "#!/bin/sh\n"})["job_id"]
    state = api.cluster.state
    words = ["1", "1,3", f"{array}", f"{array}_2", f"{array}_[1-2],2", f"{array}_9", f"{het}", f"{het}+1", f"{het + 1}"]
    for text in (*words, "999", f"999,{array}_[0-4000000]"):
        wanted = Filter(jobs=named_jobs(text))
        everybody = matching(state, wanted, sorted(state.jobs.values(), key=lambda job: job.id))
        assert matching(state, wanted) == everybody, text
        assert len(candidates(state, wanted)) <= 4
    assert len(matching(state, Filter(jobs=named_jobs(f"{array}")))) > 1
    assert len(matching(state, Filter(jobs=named_jobs(f"{het}")))) == 2
