"""A process inside a job on another machine: its connection is handed over, and is good for that job only."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from bireme.api.serving.peers import Peer
from bireme.client.transport import ApiError, Transport
from bireme.core.model.events import JobAllocated, JobStarted
from bireme.core.model.resources import Allocation, NodeShare

Running = Any
"""The fixture `api` of conftest.py."""


def submit(api: Running) -> int:
    body = {"spec": {"name": "job"}, "script": "#!/bin/sh\n", "environment": {}}
    return int(api.transport.post("/v1/jobs", body)["job_id"])


class AdoptedConnection(Transport):
    """A transport whose connection did not come through the socket file."""

    def __init__(self, api: Running, job_id: int) -> None:
        super().__init__(api.home, timeout_s=20, tool="test")
        self._api, self._job_id = api, job_id

    def _connect(self, timeout_s: float | None) -> Any:
        connection = super()._connect(timeout_s)
        ours, theirs = socket.socketpair()
        peer = Peer(os.getuid(), os.getgid(), 0, (), self._job_id)
        self._api.loop.call_soon_threadsafe(self._api.server.adopt, theirs, peer)
        connection._socket.close()
        connection._socket = ours
        return connection


def test_it_reads_what_its_owner_reads_and_changes_its_own_job(api: Running) -> None:
    own = submit(api)
    inside = AdoptedConnection(api, own)
    assert inside.get(f"/v1/jobs/{own}")["jobs"][0]["job_id"] == own
    inside.post(f"/v1/jobs/{own}/hold")
    assert api.cluster.state.jobs[own].phase.held_by == "user"
    inside.close()


@pytest.mark.parametrize(
    "path", ["/v1/jobs/{other}/cancel", "/v1/jobs", "/v1/cancel", "/v1/shutdown", "/v1/reconfigure"]
)
def test_it_changes_nothing_else_even_if_its_owner_is_an_administrator(api: Running, path: str) -> None:
    own, other = submit(api), submit(api)
    inside = AdoptedConnection(api, own)
    with pytest.raises(ApiError, match="Access/permission denied") as refused:
        inside.post(path.format(other=other))
    assert refused.value.hint == f"inside job {own} only the job itself can be changed"
    assert api.shutdowns == []
    inside.close()


def test_srun_inside_is_told_the_way_that_exists_inside(api: Running) -> None:
    own = submit(api)
    share = NodeShare("n1", cpus=2, memory_mib=100, cpu_ids=(0, 1))
    api.happen(JobAllocated(own, Allocation(own, 1, "main", (share,))), JobStarted(own, 1, 1000.0))
    body = {"spec": {"argv": ["true"], "ntasks": 1, "overlap": True}}
    assert api.transport.post(f"/v1/jobs/{own}/steps", body)["nodes"][0]["endpoint"] == "unix:/n1"
    inside = AdoptedConnection(api, own)
    assert inside.post(f"/v1/jobs/{own}/steps", body)["nodes"][0]["endpoint"] == "unix:/pod/n1"
    inside.close()
