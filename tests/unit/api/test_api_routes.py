"""What the API answers: over a real socket, with real credentials, in front of a small cluster."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from bireme.api.routes.history import _merged
from bireme.api.serving import server
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.core.model.events import (
    ClusterConfigured,
    JobAllocated,
    JobCancelled,
    JobForgotten,
    JobStarted,
    NodeRegistered,
)
from bireme.core.model.jobs import Outcome
from bireme.core.model.refusals import Refusal, Why
from bireme.core.model.resources import Allocation, NodeShare
from bireme.ports import Capabilities, JournalError
from bireme.slurm.records.steps import history_rows

Running = Any
"""The fixture `api` of conftest.py: `transport`, `cluster`, `happen`."""
SCRIPT = "#!/bin/sh\necho hello\n"


def submit(api: Running, **spec: Any) -> int:
    body = {"spec": {"name": "job", **spec}, "script": SCRIPT, "environment": {"A": "1"}}
    return int(api.transport.post("/v1/jobs", body)["job_id"])


def start(api: Running, job_id: int, node: str = "n1") -> None:
    share = NodeShare(node, cpus=2, memory_mib=100, cpu_ids=(0, 1))
    api.happen(JobAllocated(job_id, Allocation(job_id, 1, "main", (share,))), JobStarted(job_id, 1, 1000.0))


def refused(call: Any, *args: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args)
    return caught.value


def test_a_socket_that_was_removed_is_made_again(
    api: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.01)
    path = api.transport.paths.socket
    api.transport.get("/v1/ping")
    staying = asyncio.run_coroutine_threadsafe(api.server.stay_at(path, for_everyone=True), api.loop)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), api.loop).result()  # it has seen which file it is
    for count, remove in enumerate((os.unlink, lambda name: os.replace(name, f"{name}.elsewhere")), 1):
        remove(path)
        while caplog.text.count("it is made again") != count:
            time.sleep(0.005)
        fresh = Transport(api.home)
        assert fresh.get("/v1/ping")["cluster"] == "tiny"
        fresh.close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    api.transport.get("/v1/ping")  # who is connected stays so
    os.rename(os.path.dirname(path), f"{api.home}/gone")
    while "cannot be made again" not in caplog.text:
        time.sleep(0.005)
    os.rename(f"{api.home}/gone", os.path.dirname(path))
    staying.cancel()


def test_ping_says_which_cluster_it_is(api: Running) -> None:
    assert api.transport.get("/v1/ping") == {
        "cluster": "tiny",
        "clusters": ["tiny"],
        "version": "1.2.3",
        "pid": 42,
        "node_count": 2,
        "now": 1000.0,
        "engine": "none",
        "problem": "",
        "journal": "",
        "about": "",
        "up_since": 900.0,
        "notices": [],
        "confined": {},
        "unconfined": {},
        "releases": [],
        "router": {"url": "http://router:8600"},
        "telemetry": {},
        "findings": {},
        "healings": {"fenced_gpus": 0, "fenced_nodes": 0, "suggested": 0},
    }


def test_ping_names_what_is_of_another_release(api: Running) -> None:
    """An engine without agents of its own tells of its nodes what runs there: that is not ours to compare."""
    api.happen(NodeRegistered("n1", 1000.0, "1.2.2"), NodeRegistered("n2", 1000.0, "1.2.3"))
    assert api.transport.get("/v1/ping")["releases"] == []
    api.cluster.engine.capabilities = Capabilities(agents=Agents())
    assert api.transport.get("/v1/ping")["releases"] == [
        {"part": "agent", "release": "1.2.2", "count": 1, "nodes": "n1"}
    ]
    api.happen(NodeRegistered("n1", 1001.0, "1.2.3"))
    assert api.transport.get("/v1/ping")["releases"] == []


def test_a_submitted_job_is_the_callers_and_on_disk(api: Running) -> None:
    job_id = submit(api, owner={"uid": 4242, "gid": 1, "user": "mallory"})
    (record,) = api.transport.get(f"/v1/jobs/{job_id}")["jobs"]
    assert (record["user_id"], record["name"], record["state"]) == (os.getuid(), "job", "PENDING")
    assert api.transport.get_bytes(f"/v1/jobs/{job_id}/script") == SCRIPT.encode()
    assert json.loads(api.cluster.store.get(api.cluster.state.jobs[job_id].spec.environment)) == {"A": "1"}
    story = api.transport.get(f"/v1/jobs/{job_id}/story")["events"]
    assert [(event["kind"], event["cause"]) for event in story] == [("JobSubmitted", f"uid {os.getuid()} test")]


def test_a_repeated_key_returns_the_first_job(api: Running) -> None:
    body = {"spec": {}, "script": SCRIPT, "idempotency_key": "once"}
    assert api.transport.post("/v1/jobs", body) == api.transport.post("/v1/jobs", body)
    assert len(api.cluster.state.jobs) == 1


def test_many_jobs_in_one_request_each_get_their_answer(api: Running) -> None:
    jobs = [{"spec": {"name": "a"}}, {"spec": {"partitions": ["nowhere"]}}, {"spec": {"nice": "x"}}, 7, {"spec": {}}]
    answers = api.transport.post("/v1/jobs", {"jobs": jobs, "script": SCRIPT})["jobs"]
    assert [answer.get("job_id") for answer in answers] == [1, None, None, None, 2]
    assert answers[1]["error"]["message"] == "Invalid partition name specified"
    assert answers[2]["error"]["message"] == "nice: expected a whole number, got text"
    assert answers[3]["error"]["message"] == "each of jobs must be an object"


def test_components_of_a_heterogeneous_job_stand_or_fall_together(api: Running) -> None:
    good, bad = {"spec": {}, "script": SCRIPT}, {"spec": {"partitions": ["nowhere"]}}
    assert refused(api.transport.post, "/v1/jobs", {"het": [good, bad]}).slurm_errno == 2000
    assert not api.cluster.state.jobs
    leader = api.transport.post("/v1/jobs", {"het": [good, good]})["job_id"]
    assert [job.het_job_id for job in api.cluster.state.jobs.values()] == [leader, leader]


def test_test_only_stores_nothing(api: Running) -> None:
    answer = api.transport.post("/v1/jobs", {"spec": {}, "script": SCRIPT}, {"test_only": 1})
    assert (answer["start_time"], answer["nodes"], answer["partition"]) == (1000.0, ["n1"], "main")
    later = {"spec": {"hold": True, "begin_at": 5000.0}, "script": SCRIPT}
    assert api.transport.post("/v1/jobs", later, {"test_only": 1})["start_time"] == 5000.0  # as Slurm: no hold
    assert not api.cluster.state.jobs


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is not valid JSON"),
        (b"[]", "the request must be a JSON object"),
        (b"\xff\xfe", "the request is not valid JSON"),
        ({}, "spec: expected an object"),
        ({"spec": {"nicee": 1}}, "nicee: JobSpec has no such field"),
        ({"spec": {"resources": {"nodes_min": None}}}, "resources.nodes_min: expected a whole number, got null"),
        ({"spec": {}, "script": 5}, "script: expected text"),
        ({"spec": {}, "script": "#!/bin/sh\n\0"}, "the script contains a NUL byte"),
        ({"spec": {}, "environment": {"A": 1}}, "environment: 'A' cannot be a variable"),
        ({"spec": {}, "environment": {"A=B": "1"}}, "environment: 'A=B' cannot be a variable"),
        ({"jobs": 3}, "jobs: expected a list"),
        ({"het": []}, "het: expected a list of objects"),
        ({"spec": {}, "idempotency_key": 3}, "idempotency_key: expected text"),
    ],
)
def test_what_cannot_be_understood_is_named_and_not_stored(api: Running, body: Any, message: str) -> None:
    error = refused(api.transport.post, "/v1/jobs", body)
    assert error.status == 400
    assert error.message.startswith(message)
    assert not api.cluster.state.jobs


def test_bytes_that_are_not_text_survive_the_way_into_the_store(api: Running) -> None:
    body = {"spec": {"argv": ["caf\udce9"]}, "script": "#!/bin/sh\n# caf\udce9\n", "environment": {"A": "\udcff"}}
    job_id = api.transport.post("/v1/jobs", body)["job_id"]
    assert api.cluster.state.jobs[job_id].spec.argv == ("caf\udce9",)
    assert api.transport.get_bytes(f"/v1/jobs/{job_id}/script") == b"#!/bin/sh\n# caf\xe9\n"
    assert api.transport.get(f"/v1/jobs/{job_id}")["jobs"][0]["argv"] == ["caf\udce9"]


def test_a_large_script_gets_slurms_message(api: Running) -> None:
    error = refused(api.transport.post, "/v1/jobs", {"spec": {}, "script": "#!/bin/sh\n" + "#" * 5_000_000})
    assert (error.status, error.slurm_errno) == (413, 2012)
    assert error.message == "Pathname of a file, directory or other parameter too long"
    assert "max_script_size is 4194304" in error.hint


def test_a_request_beyond_the_limit_is_not_read(api: Running) -> None:
    error = refused(api.transport.post, "/v1/jobs", {"spec": {}, "script": "#" * 10_000_000})
    assert (error.status, error.slurm_errno) == (413, 2012)
    assert api.transport.get("/v1/ping")["pid"] == 42


def test_a_full_disk_is_an_error_and_not_a_job(api: Running) -> None:
    api.cluster.fail_with = JournalError("cannot write the journal x: database or disk is full")
    error = refused(submit, api)
    assert (error.status, error.slurm_errno) == (507, 5)
    assert error.message == "nothing was stored: cannot write the journal x: database or disk is full"


def test_an_unexpected_failure_tells_nothing_but_that_it_happened(api: Running) -> None:
    api.cluster.fail_with = RuntimeError("secret")
    error = refused(submit, api)
    assert error.status == 500
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Refusal(Why.ACCESS_DENIED, "not you"), 403),
        (Refusal(Why.ERROR), 400),
        (JournalError("full"), 507),
        (RuntimeError("secret"), 500),
        (RecursionError(), 400),
    ],
)
def test_routes_with_and_without_a_variable_part_fail_alike(api: Running, failure: Exception, status: int) -> None:
    """They are found in two ways (`app.Api`)."""
    job = submit(api)
    api.cluster.fail_with = failure
    short, long = refused(submit, api), refused(api.transport.post, f"/v1/jobs/{job}/hold")
    assert (short.status, long.status) == (status, status)
    assert (short.message, short.code, short.hint) == (long.message, long.code, long.hint)


def test_a_path_of_another_method_or_with_more_in_it_is_no_route(api: Running) -> None:
    for method, path in (("DELETE", "/v1/jobs"), ("GET", "/v1/nothing"), ("POST", "/v1/ping")):
        assert refused(api.transport.request, method, path).status in {404, 405}


@pytest.mark.parametrize("job", ["99", "x", "1_99", "1+1", "-1", "1_[a]"])
def test_an_unknown_job_is_slurms_error(api: Running, job: str) -> None:
    submit(api)
    for method, path in (("GET", f"/v1/jobs/{job}"), ("POST", f"/v1/jobs/{job}/cancel")):
        error = refused(api.transport.request, method, path)
        assert (error.status, error.message, error.slurm_errno) == (404, "Invalid job id specified", 2017)


def test_an_unknown_route_says_so(api: Running) -> None:
    assert refused(api.transport.get, "/v1/nothing").message == "there is no such route"


def test_jobs_are_listed_by_filters_and_fields(api: Running) -> None:
    one, two = submit(api, name="a"), submit(api, name="b", partitions=["small"])
    start(api, one)

    def ids(**filters: str) -> list[int]:
        return [record["job_id"] for record in api.transport.get("/v1/jobs", filters)["jobs"]]

    assert ids() == [one, two]
    assert ids(name="b") == [two]
    assert ids(state="RUNNING") == [one]
    assert ids(partition="small,other") == [two]
    assert ids(user=str(os.getuid())) == [one, two]
    assert ids(user="nobody-at-all") == []
    assert ids(nodes="n1") == [one]
    assert ids(nodes="n2") == []
    assert ids(job=f"{two},77") == [two]
    assert api.transport.get("/v1/jobs", {"fields": "job_id,name", "job": str(one)})["jobs"] == [
        {"job_id": one, "name": "a"}
    ]


def test_jobs_are_changed_by_their_routes(api: Running) -> None:
    job_id = submit(api)
    post = api.transport.post
    post(f"/v1/jobs/{job_id}/hold")
    assert api.transport.get(f"/v1/jobs/{job_id}")["jobs"][0]["held_by"] == "admin"
    post(f"/v1/jobs/{job_id}/release")
    post(f"/v1/jobs/{job_id}/update", {"changes": {"nice": 5, "nodes_min": 2, "comment": "x"}})
    spec = api.cluster.state.jobs[job_id].spec
    assert (spec.nice, spec.resources.nodes_min, spec.comment) == (5, 2, "x")
    assert refused(post, f"/v1/jobs/{job_id}/update", {"changes": {"nice": "x"}}).message.startswith("nice: expected")
    assert refused(post, f"/v1/jobs/{job_id}/update", {"changes": {"owner": {}}}).status == 400
    assert post(f"/v1/jobs/{job_id}/cancel") == {"jobs": [job_id]}
    assert api.transport.get(f"/v1/jobs/{job_id}")["jobs"][0]["state"] == "CANCELLED"
    error = refused(post, f"/v1/jobs/{job_id}/cancel")
    assert error.message == "Job/step already completing or completed"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cpus_per_task": -3}, "cpus_per_task is -3: it must be from 1 to"),
        ({"cpus_per_task": 0}, "cpus_per_task is 0: it must be from 1 to"),
        ({"nice": 99999999999}, "nice is 99999999999: it must be from -2147483645 to 2147483645"),
        ({"site_factor": -2147483646}, "site_factor is -2147483646: it must be"),
        ({"priority": 2**32 - 1}, "priority is 4294967295: it must be from 0 to"),
        ({"ntasks": 0}, "ntasks is 0: it must be from 1 to"),
        ({"nodes_min": 3, "nodes_max": 2}, "nodes_max is 2, below nodes_min, which is 3"),
        ({"array_throttle": -1}, "array_throttle is -1: it must be from 0 to"),
        ({"array_throttle": "x"}, "throttle: expected a whole number, got text"),
        ({"time_limit_s": -1}, "time_limit_s is -1: it must be from 0 to"),
        ({"mail_type": ["x"]}, "mail_type: 'x' is none of BEGIN"),
        ({"script": "0" * 64}, "script: a job has no such field to change"),
        ({"kind": "pods"}, "kind: a job has no such field to change"),
        ({"array": None}, "array: a job has no such field to change"),
        ({"resources": {}}, "resources: a job has no such field to change"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs/{job}/update", "/v1/orders"])
def test_what_scontrol_update_refuses_is_refused_by_the_routes(
    api: Running, path: str, changes: dict[str, Any], said: str
) -> None:
    job_id = submit(api)
    before = api.cluster.state.jobs[job_id].spec
    body = {"changes": changes, **({"verb": "update", "jobs": [str(job_id)]} if path == "/v1/orders" else {})}
    error = refused(api.transport.post, path.format(job=job_id), body)
    assert (error.status, error.message[: len(said)]) == (400, said)
    assert api.cluster.state.jobs[job_id].spec == before


def test_a_least_number_of_nodes_above_the_most_is_refused(api: Running) -> None:
    job_id = submit(api)
    api.transport.post(f"/v1/jobs/{job_id}/update", {"changes": {"nodes_max": 1}})
    assert refused(api.transport.post, f"/v1/jobs/{job_id}/update", {"changes": {"nodes_min": 2}}).slurm_errno == 2006


@pytest.mark.parametrize(
    ("engine", "field", "said"),
    [
        ("embedded", "container_image", ""),
        ("embedded", "container_bundle", ""),
        ("embedded", "container_mounts", "could not add mount entry"),
        ("kubernetes", "container_image", ""),
    ],
)
def test_a_container_that_the_engine_cannot_run_is_refused(api: Running, engine: str, field: str, said: str) -> None:
    api.cluster.engine.name = engine
    body = {"spec": {"name": "x", field: "/data/thing:../x"}, "script": "#!/bin/sh\n"}
    if not said:
        assert api.transport.post("/v1/jobs", body)["job_id"]
    else:
        assert said in refused(api.transport.post, "/v1/jobs", body).hint


def test_a_signal_is_sent_instead_of_the_end(api: Running) -> None:
    job_id = submit(api)
    assert refused(api.transport.post, f"/v1/jobs/{job_id}/signal", {}).message == "signal: is missing"
    assert refused(api.transport.post, f"/v1/jobs/{job_id}/signal", {"signal": "TERM"}).status == 400
    start(api, job_id)
    api.transport.post(f"/v1/jobs/{job_id}/signal", {"signal": 10, "scope": "batch"})
    signalled = api.transport.get(f"/v1/jobs/{job_id}/story")["events"][-1]
    assert (signalled["kind"], signalled["data"]["signal"], signalled["data"]["scope"]) == ("JobSignalled", 10, "batch")


def test_many_are_cancelled_by_filters(api: Running) -> None:
    first, second, third = submit(api, name="a"), submit(api, name="b"), submit(api, name="a")
    answer = api.transport.post("/v1/cancel", {"name": "a", "state": "PENDING"})
    assert answer == {"cancelled": [str(first), str(third)], "errors": []}
    answer = api.transport.post("/v1/cancel", {"jobs": [first, second, "x", 99]})
    assert answer["cancelled"] == [str(second)]
    assert [(error["job"], error["error"]["slurm_errno"]) for error in answer["errors"]] == [
        (str(first), 2021), ("x", 2017), ("99", 2017),
    ]  # fmt: skip


def test_waiting_ends_when_the_job_does(api: Running) -> None:
    job_id = submit(api)
    assert api.transport.get(f"/v1/jobs/{job_id}/wait", {"timeout": 0})["done"] is False
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(Transport(api.home).get(f"/v1/jobs/{job_id}/wait", {"timeout": 30}))
    )
    waiting.start()
    api.happen(JobCancelled(job_id, Outcome("CANCELLED")))
    waiting.join()
    assert (answers[0]["done"], answers[0]["jobs"][0]["state"]) == (True, "CANCELLED")


def test_waiting_for_the_start(api: Running) -> None:
    job_id = submit(api)
    start(api, job_id)
    assert api.transport.get(f"/v1/jobs/{job_id}/wait", {"until": "started"})["done"] is True
    assert refused(api.transport.get, f"/v1/jobs/{job_id}/wait", {"until": "friday"}).status == 400
    assert refused(api.transport.get, f"/v1/jobs/{job_id}/wait", {"timeout": "x"}).status == 400


def test_a_step_is_created_with_its_endpoints(api: Running) -> None:
    job_id = submit(api)
    error = refused(api.transport.post, f"/v1/jobs/{job_id}/steps", {"spec": {}})
    assert (error.status, error.message) == (409, "Job is pending execution")
    start(api, job_id)
    made = api.transport.post(f"/v1/jobs/{job_id}/steps", {"spec": {"argv": ["true"], "io_key": "secret"}})
    assert (made["step_id"], made["ntasks"]) == (0, 1)
    assert made["nodes"] == [{"node": "n1", "endpoint": "unix:/n1", "tasks": [0], "cpus": 2}]
    steps = api.transport.get(f"/v1/jobs/{job_id}/steps")["steps"]
    assert [step["step_id"] for step in steps] == ["batch", 0]
    assert steps[1]["endpoints"][0]["endpoint"] == "unix:/n1"
    assert "secret" not in json.dumps(api.transport.get(f"/v1/jobs/{job_id}/story"))
    api.transport.post(f"/v1/jobs/{job_id}/steps/0/cancel", {"signal": 9})
    assert refused(api.transport.post, f"/v1/jobs/{job_id}/steps/x/cancel").status == 404
    assert api.transport.get(f"/v1/jobs/{job_id}/usage") == {"steps": {"batch": {"max_rss_kib": 7}}}


def test_a_step_waits_for_its_job_to_start(api: Running) -> None:
    job_id = submit(api)
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            Transport(api.home).post(f"/v1/jobs/{job_id}/steps", {"spec": {"argv": ["true"]}}, {"wait": 30})
        )
    )
    waiting.start()
    start(api, job_id)
    waiting.join()
    assert answers[0]["step_id"] == 0


def test_nodes_and_partitions(api: Running) -> None:
    assert [node["name"] for node in api.transport.get("/v1/nodes")["nodes"]] == ["n1", "n2"]
    assert api.transport.get("/v1/nodes", {"nodes": "n[2]", "fields": "name,cpus"})["nodes"] == [
        {"name": "n2", "cpus": 4}
    ]
    assert refused(api.transport.get, "/v1/nodes", {"nodes": "n9"}).message == "Invalid node name specified"
    assert [one["name"] for one in api.transport.get("/v1/partitions")["partitions"]] == ["main", "small"]
    assert api.transport.get("/v1/config")["cluster"] == "tiny"
    assert api.transport.get("/v1/topology")["plugin"] == "topology/flat"


def test_operators_change_nodes_and_partitions(api: Running) -> None:
    api.transport.post("/v1/nodes/update", {"nodes": "n[1-2]", "state": "drain", "reason": "disk"})
    (node, _) = api.transport.get("/v1/nodes")["nodes"]
    assert (node["flags"], node["reason"], node["reason_uid"]) == (["DRAIN"], "disk", os.getuid())
    api.transport.post("/v1/partitions/small/update", {"changes": {"state": "DOWN", "max_time_s": 60}})
    assert api.cluster.state.partitions["small"].max_time_s == 60
    assert refused(api.transport.post, "/v1/partitions/small/update", {"changes": {"color": 1}}).status == 400
    assert refused(api.transport.post, "/v1/partitions/nope/update", {"changes": {}}).slurm_errno == 2000
    api.transport.post("/v1/shutdown", {"end_jobs": True})
    api.transport.get("/v1/ping")  # it begins once its own answer is on its way
    assert api.shutdowns == [True]


class Agents:
    async def living_agents(self) -> dict[str, bool]:
        return {"n1": True, "n2": False}

    async def silent_agents(self, within_s: float) -> list[str]:
        return []


def test_a_shutdown_says_what_it_ends_and_whom_it_does_not_reach(api: Running) -> None:
    assert api.transport.post("/v1/shutdown", {"end_jobs": False}) == {"pid": 42}
    assert api.transport.post("/v1/shutdown", {"end_jobs": True}) == {
        "pid": 42, "jobs": 0, "agents": [], "left_agents": [], "services": []
    }  # fmt: skip
    api.cluster.engine.capabilities = Capabilities(agents=Agents())
    job_id = submit(api)
    share = NodeShare("n1", 1, 0)
    api.happen(JobAllocated(job_id, Allocation(job_id, 1, "main", (share,))), JobStarted(job_id, 1, 1000.0))
    told = api.transport.post("/v1/shutdown", {"end_jobs": True})
    assert told == {"pid": 42, "jobs": 1, "agents": ["n1"], "left_agents": ["n2"], "services": []}


def test_a_job_that_ends_while_history_is_asked_is_told_once() -> None:
    stored = [{"job_id": 1, "restarts": 0, "state": "REQUEUED"}, {"job_id": 2, "restarts": 0, "state": "COMPLETED"}]
    remembered = [
        {"job_id": 1, "restarts": 1, "state": "RUNNING"},
        {"job_id": 2, "restarts": 0, "state": "RUNNING"},
        {"job_id": 3, "restarts": 0, "state": "FAILED"},
    ]
    told = [(each["job_id"], each["state"]) for each in _merged(stored, remembered, duplicates=False)]
    assert told == [(2, "COMPLETED"), (1, "RUNNING"), (3, "FAILED")]
    assert len(_merged(stored, remembered, duplicates=True)) == 4


def test_history_shows_what_still_runs(api: Running) -> None:
    job_id = submit(api)
    start(api, job_id)
    (record,) = api.transport.get("/v1/history", {"steps": 1})["jobs"]
    assert (record["job_id"], record["state"], [step["step_id"] for step in record["steps"]]) == (
        job_id, "RUNNING", ["batch"],
    )  # fmt: skip
    assert api.transport.get("/v1/history", {"end": 999})["jobs"] == []
    assert api.transport.get("/v1/history", {"fields": "job_id", "user": str(os.getuid())})["jobs"] == [
        {"job_id": job_id}
    ]


def test_a_component_that_is_only_in_the_history_is_told_of_alone(api: Running) -> None:
    part = {"spec": {}, "script": SCRIPT}
    leader = api.transport.post("/v1/jobs", {"het": [part, part]})["job_id"]

    def told(job: str) -> list[str]:
        named = [one["job"] for one in api.transport.get(f"/v1/jobs/{job}/why", {"suggestions": 0})["jobs"]]
        assert [one["job"] for one in api.transport.get(f"/v1/jobs/{job}/timeline")["timelines"]] == named
        return named

    assert told(f"{leader}+1") == [f"{leader}+1"]
    api.transport.post("/v1/cancel", {"jobs": [str(leader)]})
    for job in [api.cluster.state.jobs[leader], api.cluster.state.jobs[leader + 1]]:
        api.cluster.store.append([], history_rows(api.cluster.state, job, job.phase, 1000.0))
        api.happen(JobForgotten(job.id))
    assert told(f"{leader}+1") == [f"{leader}+1"]
    assert told(str(leader)) == [f"{leader}+0", f"{leader}+1"]
    assert refused(api.transport.get, f"/v1/jobs/{leader}+2/why").code == "ESLURM_INVALID_JOB_ID"


def test_events_come_as_they_happen_and_after_a_number(api: Running) -> None:
    first = submit(api)
    with api.transport.stream("/v1/events", {"after": 0}) as stream:
        lines = stream.lines()
        kinds = []
        for line in lines:
            if line.startswith("event: "):
                kinds.append(line[7:])
            if kinds and kinds[-1] == "JobSubmitted":
                break
        assert kinds == ["ClusterConfigured", "NodeRegistered", "NodeRegistered", "JobSubmitted"]
        api.happen(JobCancelled(first, Outcome("CANCELLED")))
        data = next(json.loads(line[6:]) for line in lines if "JobCancelled" in line and line.startswith("data: "))
    assert (data["job_id"], data["seq"]) == (first, 5)


def test_a_lease_that_ends_gives_the_allocation_back(api: Running) -> None:
    job_id = submit(api, kind="interactive")
    start(api, job_id)
    with api.transport.stream(f"/v1/jobs/{job_id}/hold-open") as lease:
        assert next(lease.lines()) == '{"kind":"Watching"}'
    ended = Transport(api.home)
    with ended.stream("/v1/events", {"after": 0}) as stream:
        assert next(line for line in stream.lines() if line == "event: JobEnding")
    assert api.cluster.state.jobs[job_id].phase.outcome.status.signal == 9  # type: ignore[union-attr]


def test_the_document_is_served(api: Running) -> None:
    """What it says of each route is read in tests/tidy."""
    document = api.transport.get("/v1/openapi.json")
    assert "/v1/jobs/{job}/wait" in document["paths"]
    assert "Error" in document["components"]["responses"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_another_user_can_look_but_not_touch(api: Running) -> None:
    job_id = submit(api)
    _let_others_in(api.home)
    asked = [
        ("GET", f"/v1/jobs/{job_id}", None),
        ("GET", f"/v1/jobs/{job_id}/why", None),
        ("GET", "/v1/snapshot", None),
        ("GET", f"/v1/jobs/{job_id}/script", None),
        ("GET", f"/v1/jobs/{job_id}/story", None),
        ("GET", f"/v1/jobs/{job_id}/hold-open", None),
        ("POST", f"/v1/jobs/{job_id}/cancel", {}),
        ("POST", f"/v1/jobs/{job_id}/update", {"changes": {"comment": "x"}}),
        ("POST", "/v1/nodes/update", {"nodes": "n1", "state": "DOWN", "reason": "x"}),
        ("POST", "/v1/reconfigure", {}),
        ("POST", "/v1/shutdown", {}),
        ("POST", "/v1/jobs", {"spec": {}, "uid": 0, "script": SCRIPT}),
        ("POST", "/v1/jobs", {"spec": {"name": "mine"}, "script": SCRIPT}),
    ]
    statuses = _as_user(65534, api.home, asked)
    assert statuses == [200, 200, 200, 403, 403, 403, 403, 403, 403, 403, 403, 403, 200]
    assert [job.spec.owner.uid for job in api.cluster.state.jobs.values()] == [0, 65534]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_private_data_hides_jobs_from_others(api: Running) -> None:
    job_id = submit(api)
    _let_others_in(api.home)
    private = replace(api.cluster.state.config, raw={"PrivateData": "jobs,usage"})
    api.happen(ClusterConfigured(private))
    paths = [f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/wait?timeout=0", f"/v1/jobs/{job_id}/why", "/v1/jobs"]
    assert _as_user(65534, api.home, [("GET", path, None) for path in paths]) == [404, 404, 404, 200]
    assert len(api.transport.get("/v1/jobs")["jobs"]) == 1


def _let_others_in(home: str) -> None:
    for folder in (home, home + "/run"):
        os.chmod(folder, 0o711)
    folder = os.path.dirname(home)
    while folder != "/":
        os.chmod(folder, os.stat(folder).st_mode | 0o011)
        folder = os.path.dirname(folder)


def _as_user(uid: int, home: str, asked: list[tuple[str, str, Any]]) -> list[int]:
    """The statuses that a process of this uid gets."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        statuses = []
        for method, path, body in asked:
            try:
                statuses.append(Transport(home).request(method, path, body=body).status)
            except ApiError as error:
                statuses.append(error.status)
            except BaseException:
                statuses.append(-1)
        os.write(write_end, json.dumps(statuses).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return list(json.loads(answer))


def test_nobody_answers(tmp_path: Any) -> None:
    with pytest.raises(BiremeUnavailable) as caught:
        Transport(str(tmp_path)).get("/v1/ping")
    assert caught.value.message == "Unable to contact slurm controller (connect failure)"
    assert caught.value.hint.endswith("start it with: bireme up")


def test_an_answer_that_is_not_http_is_not_an_answer(tmp_path: Any) -> None:
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run" / "api.sock"))
        listener.listen()

        def speak() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-hello\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(BiremeUnavailable, match="not an HTTP answer"):
            Transport(str(tmp_path)).get("/v1/ping")
        thread.join()
