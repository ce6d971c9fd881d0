"""What is asked of many jobs at once: one commit, each decided as it would be alone, refusals told one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.api.conftest import Running
from tests.unit.api.test_api_routes import refused, start, submit

from bireme.core.jobs.requests import split_events
from bireme.core.model.jobs import Finished, Pending


def waiting_array(api: Running, tasks: str = "0-9", **fields: Any) -> int:
    first, _, last = tasks.partition("-")
    ids = list(range(int(first), int(last) + 1))
    return submit(api, array={"task_ids": ids, "text": tasks}, **fields)


def start_task(api: Running, array: int, task: int) -> None:
    events, job_id = split_events(api.cluster.state, api.cluster.state.jobs[array], task)
    api.happen(*events)
    start(api, job_id)


def kinds(api: Running, since: int) -> list[str]:
    return [type(each.event).__name__ for each in api.cluster.store.events_after(since, 1000)]


def errors(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["job"], each["error"]["slurm_errno"]) for each in answer["errors"]]


def test_a_range_of_waiting_tasks_is_one_event_and_the_rest_waits(api: Running) -> None:
    array = waiting_array(api)
    since = api.cluster.state.seq
    answer = api.transport.post("/v1/cancel", {"jobs": [f"{array}_[2-5,8]"]})
    assert answer == {"cancelled": [f"{array}_[2-5,8]"], "errors": []}
    assert kinds(api, since) == ["ArrayPartSplit", "JobCancelled"]
    shown = {job["array_tasks"]: job["state"] for job in api.transport.get(f"/v1/jobs/{array}")["jobs"]}
    assert shown == {"0-1,6-7,9": "PENDING", "2-5,8": "CANCELLED"}
    (found,) = api.transport.get(f"/v1/jobs/{array}_4")["jobs"]
    assert (found["state"], found["array_job_id"]) == ("CANCELLED", array)
    listed = api.transport.get("/v1/jobs", {"fields": "array_job_id"})["jobs"]
    assert {each["array_job_id"] for each in listed} == {array}
    story = api.transport.get(f"/v1/jobs/{array}_4/story")["events"]
    assert [each["kind"] for each in story] == ["JobSubmitted", "ArrayPartSplit", "JobCancelled"]


def test_tasks_that_are_not_there_are_told_of_and_the_others_are_cancelled(api: Running) -> None:
    array = waiting_array(api)
    answer = api.transport.post("/v1/cancel", {"jobs": [f"{array}_[8-4000000]", f"{array}_[20-22]", f"{array}_[0-1]"]})
    assert answer["cancelled"] == [f"{array}_[0-1]"]
    assert errors(answer) == [(f"{array}_[8-4000000]", 2017), (f"{array}_[20-22]", 2017)]
    waiting = [
        job["array_tasks"] for job in api.transport.get(f"/v1/jobs/{array}")["jobs"] if job["state"] == "PENDING"
    ]
    assert waiting == ["2-7"]


def test_a_filter_on_the_state_leaves_the_tasks_that_run(api: Running) -> None:
    array, single = waiting_array(api), submit(api)
    start_task(api, array, 0)
    since = api.cluster.state.seq
    answer = api.transport.post("/v1/cancel", {"state": "PENDING"})
    assert sorted(answer["cancelled"]) == sorted([f"{array}_[1-9]", str(single)])
    assert kinds(api, since) == ["JobCancelled", "JobCancelled"]
    running = [job["array_task_id"] for job in api.transport.get("/v1/jobs", {"state": "RUNNING"})["jobs"]]
    assert running == [0]
    assert api.transport.post("/v1/cancel", {"user": ["0"]})["cancelled"] == [f"{array}_0"]


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ({"name": ["a", "c"]}, ["a", "c"]),
        ({"partition": ["small"]}, ["b"]),
        ({"account": ["red"], "name": "a"}, ["a"]),
        ({"wckey": ["k"]}, ["c"]),
        ({"nodes": ["n1"]}, ["c"]),
        ({"state": ["RUNNING", "CONFIGURING"]}, ["c"]),
        ({"user": ["nobody"]}, []),
        ({"cluster": ["tiny"]}, ["a", "b", "c"]),
        ({"cluster": ["other"]}, []),
        ({"reservation": ["r"]}, []),
    ],
)
def test_each_filter_chooses(api: Running, filters: dict[str, Any], chosen: list[str]) -> None:
    named = {
        "a": submit(api, name="a", account="red"),
        "b": submit(api, name="b", partitions=["small"]),
        "c": submit(api, name="c", wckey="k"),
    }
    start(api, named["c"])
    answer = api.transport.post("/v1/cancel", filters)
    assert answer == {"cancelled": [str(named[name]) for name in chosen], "errors": []}


def test_names_and_filters_together(api: Running) -> None:
    array, other = waiting_array(api, name="a"), submit(api, name="b")
    answer = api.transport.post("/v1/cancel", {"name": "a", "jobs": [f"{array}_[0-3]", other, "99"]})
    assert answer["cancelled"] == [f"{array}_[0-3]"]
    assert [(each["job"], each["unknown"]) for each in answer["errors"]] == [("99", True)]
    assert isinstance(api.cluster.state.jobs[other].phase, Pending)


def test_a_job_that_is_named_twice_is_told_the_second_time(api: Running) -> None:
    job_id = submit(api)
    answer = api.transport.post("/v1/cancel", {"jobs": [job_id, job_id]})
    assert (answer["cancelled"], errors(answer)) == ([str(job_id)], [(str(job_id), 2021)])


@pytest.mark.parametrize(
    ("verb", "words", "kinds_of_one"),
    [
        ("hold", {}, ["ArrayTaskSplit", "JobHeld"]),
        ("update", {"changes": {"comment": "x"}}, ["ArrayTaskSplit", "JobUpdated"]),
        ("requeue", {"hold": True}, ["ArrayTaskSplit", "JobHeld"]),
    ],
)
def test_verbs_for_some_tasks_of_an_array(
    api: Running, verb: str, words: dict[str, Any], kinds_of_one: Sequence[str]
) -> None:
    array = waiting_array(api)
    since = api.cluster.state.seq
    answer = api.transport.post("/v1/orders", {"verb": verb, "jobs": [f"{array}_[2-4]", f"{array}_[30]"], **words})
    assert (answer["done"], errors(answer)) == ([f"{array}_[2-4]"], [(f"{array}_[30]", 2017)])
    assert kinds(api, since) == [*kinds_of_one] * 3
    assert api.cluster.state.jobs[array].task_ids == api.cluster.state.jobs[array].array.waiting  # type: ignore[union-attr]
    assert list(api.cluster.state.jobs[array].task_ids) == [0, 1, 5, 6, 7, 8, 9]


def test_a_whole_array_is_held_and_released_by_one_event(api: Running) -> None:
    array = waiting_array(api, "0-999")
    since = api.cluster.state.seq
    assert api.transport.post("/v1/orders", {"verb": "hold", "jobs": [array]})["errors"] == []
    assert api.transport.post("/v1/orders", {"verb": "release", "jobs": [array]})["errors"] == []
    assert kinds(api, since) == ["JobHeld", "JobReleased"]


def test_what_is_decided_one_by_one_is_counted_first(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range is one word, however many tasks it names: each of them is an event, and is decided by itself."""
    monkeypatch.setattr("bireme.api.routes.orders.MOST_TARGETS", 5)
    array = waiting_array(api)
    since = api.cluster.state.seq
    many = [f"{array}_[0-3]", f"{array}_[4-5]"]
    error = refused(api.transport.post, "/v1/orders", {"verb": "hold", "jobs": many})
    assert (error.status, error.message) == (
        400, "jobs: more than 5 jobs and tasks at once: name whole arrays, or ask in parts"
    )  # fmt: skip
    assert kinds(api, since) == []
    assert api.transport.post("/v1/orders", {"verb": "hold", "jobs": [array, many[1]]})["errors"] == []
    assert api.transport.post("/v1/cancel", {"jobs": many})["cancelled"] == many, "decided together"


def test_orders_keep_to_the_cluster_that_is_named(api: Running) -> None:
    job_id = submit(api)
    answer = api.transport.post("/v1/orders", {"verb": "hold", "jobs": [job_id], "cluster": "other"})
    assert errors(answer) == [(str(job_id), 2017)]
    assert api.transport.post("/v1/orders", {"verb": "hold", "jobs": [job_id], "cluster": "tiny"})["errors"] == []


def test_requests_that_cannot_be_read_are_refused(api: Running) -> None:
    assert refused(api.transport.post, "/v1/orders", {"verb": "explode", "jobs": [1]}).status == 400
    assert refused(api.transport.post, "/v1/orders", {"verb": "hold", "jobs": "1"}).status == 400
    assert refused(api.transport.post, "/v1/cancel", {"jobs": ["1"] * 100_001}).status == 400
    ranges = ",".join("0-4000000" for _ in range(10_001))
    answer = api.transport.post("/v1/cancel", {"jobs": [f"1_[{ranges}]", "1_[4-2]", "1_[2-4:0]", "1.0", "x_1"]})
    assert [errno for _, errno in errors(answer)] == [2017] * 5


def test_components_that_wait_for_each_other_go_together(api: Running) -> None:
    part = {"spec": {"name": "het"}, "script": "#!/bin/sh\n"}
    leader = api.transport.post("/v1/jobs", {"het": [part, part]})["job_id"]
    answer = api.transport.post("/v1/cancel", {"name": "het"})
    assert (answer["cancelled"], answer["errors"]) == ([str(leader)], [])
    assert all(isinstance(job.phase, Finished) for job in api.cluster.state.jobs.values())
