"""/v1/priorities and /v1/top: the parts of priorities, and who may change the order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.client.transport import ApiError
from bireme.core.model.cluster import PrioritySettings
from bireme.core.model.events import ClusterConfigured
from bireme.slurm.records.priorities import PRIORITY_FIELDS

Running = Any
"""The fixture `api` of conftest.py."""


def submit(api: Running, **spec: Any) -> int:
    body = {"spec": {"name": "job", **spec}, "script": "#!/bin/sh\n", "environment": {}}
    return int(api.transport.post("/v1/jobs", body)["job_id"])


def weigh(api: Running, **weights: Any) -> None:
    config = api.cluster.state.config
    priority = PrioritySettings(multifactor=True, **weights)
    api.happen(ClusterConfigured(replace(config, settings=replace(config.settings, priority=priority))))


def test_basic_priorities_have_no_parts(api: Running) -> None:
    submit(api)
    answer = api.transport.get("/v1/priorities")
    assert (answer["type"], answer["priorities"]) == ("priority/basic", [])


def test_each_partition_of_each_waiting_job_is_a_line(api: Running) -> None:
    weigh(api, weight_job_size=800, weight_tres=(("cpu", 80.0),))
    first = submit(api)
    both = submit(api, partitions=["main", "small"], nice=10)
    submit(api, hold=True)
    answer = api.transport.get("/v1/priorities")
    rows = [(row["job_id"], row["partition"], row["priority"]) for row in answer["priorities"]]
    # one node of two and one CPU of eight; then one CPU of the partition's eight, or four
    assert rows == [(first, "main", 250 + 10), (both, "main", 250 + 10 - 10), (both, "small", 250 + 20 - 10)]
    assert answer["weights"]["job_size"] == 800
    assert set(answer["priorities"][0]) == set(PRIORITY_FIELDS)


def test_filters_choose_jobs_and_lines(api: Running) -> None:
    weigh(api, weight_job_size=800)
    first, both = submit(api), submit(api, partitions=["main", "small"])
    chosen = api.transport.get("/v1/priorities", {"partition": "small"})["priorities"]
    assert [(row["job_id"], row["partition"]) for row in chosen] == [(both, "small")]
    chosen = api.transport.get("/v1/priorities", {"job": str(first)})["priorities"]
    assert [row["job_id"] for row in chosen] == [first]
    assert api.transport.get("/v1/priorities", {"user": "nobody-at-all"})["priorities"] == []


def test_top_reorders_and_refuses_in_slurms_words(api: Running) -> None:
    weigh(api, weight_job_size=800)
    first, second = submit(api), submit(api, nice=100)
    api.transport.post("/v1/top", {"jobs": [str(second)]})
    jobs = api.cluster.state.jobs
    assert (jobs[second].spec.nice, jobs[first].spec.nice) == (0, 100)
    held = submit(api, hold=True)
    with pytest.raises(ApiError, match="Job is in held state, pending scheduler release"):
        api.transport.post("/v1/top", {"jobs": [str(held)]})
    with pytest.raises(ApiError, match="Invalid job id specified"):
        api.transport.post("/v1/top", {"jobs": ["999"]})
    with pytest.raises(ApiError, match="expected a list"):
        api.transport.post("/v1/top", {})
