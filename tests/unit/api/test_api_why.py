"""GET /v1/jobs/{job}/why and /v1/snapshot, over a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.client.sdk import Client
from bireme.client.transport import ApiError
from bireme.core.model.events import JobAllocated, JobCancelled, JobStarted
from bireme.core.model.jobs import Outcome
from bireme.core.model.resources import Allocation, NodeShare
from bireme.store.planning_input import decode_input

Running = Any
"""The fixture `api` of conftest.py: `transport`, `cluster`, `happen`."""


def submit(api: Running, **resources: Any) -> int:
    spec = {"name": "job", "time_limit_s": 3600, "time_limit_given": True, "resources": resources}
    return int(api.transport.post("/v1/jobs", {"spec": spec, "script": "#!/bin/sh\ntrue # secret\n"})["job_id"])


def start(api: Running, job_id: int, node: str = "n1") -> None:
    share = NodeShare(node, cpus=4, memory_mib=1000, cpu_ids=(0, 1, 2, 3))
    api.happen(JobAllocated(job_id, Allocation(job_id, 1, "main", (share,))), JobStarted(job_id, 1, 1000.0))


def why(api: Running, job_id: int | str, **params: Any) -> dict[str, Any]:
    [told] = api.transport.get(f"/v1/jobs/{job_id}/why", params)["jobs"]
    return dict(told)


def test_a_waiting_job_and_what_it_could_do(api: Running) -> None:
    start(api, submit(api))
    waiting = submit(api, nodes_min=2, nodes_max=2, nodes_given=True, cpus_per_task=4)
    told = why(api, waiting)
    assert told["waiting"]["expected"]["certainty"] == "slot"
    assert told["waiting"]["expected"]["waits_for"][0]["job"] == "1"
    assert [each["what"] for each in told["suggestions"]] == ["on 1 node"]
    assert told["all_tried"]
    assert "suggestions" not in why(api, waiting, suggestions=0)
    with Client(api.home) as client:
        assert client.why(waiting)[0]["job_id"] == waiting


def test_a_running_and_an_ended_job(api: Running) -> None:
    first, second = submit(api), submit(api)
    start(api, first)
    api.happen(JobCancelled(second, Outcome("CANCELLED", by_uid=7)))
    assert why(api, first)["running"]["ends_at"] == 4600.0
    assert why(api, second)["ended"]["text"] == "It was cancelled by uid 7 before it ran."


@pytest.mark.parametrize("job", ["99", "1_2_3", "nonsense"])
def test_an_unknown_job(api: Running, job: str) -> None:
    with pytest.raises(ApiError) as caught:
        api.transport.get(f"/v1/jobs/{job}/why")
    assert caught.value.code == "ESLURM_INVALID_JOB_ID"


def test_a_snapshot_holds_the_queue_and_no_secrets(api: Running) -> None:
    start(api, submit(api))
    submit(api)
    data = api.transport.get_bytes("/v1/snapshot")
    taken = decode_input(data)
    assert (taken.now, taken.version) == (1000.0, "1.2.3")
    assert (list(taken.state.holding), list(taken.state.pending)) == ([1], [2])
    assert api.cluster.state.jobs[1].spec.script.encode() not in data
    assert b'"name":"job"' not in api.transport.get_bytes("/v1/snapshot", {"anonymise": 1})
