"""What one user's large requests leave to others: room for scripts, and turns between the groups of many jobs."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.api.conftest import Running

from bireme.api.routes import submissions
from bireme.api.serving.turns import Turns
from bireme.client import transport
from bireme.client.transport import ApiError
from bireme.store import shelf

SCRIPT = "#!/bin/sh\n"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whose turns were waited for."""
    waited: list[int] = []

    class Counted(Turns):
        async def mine(self, uid: int, *, hurries: bool = False) -> None:
            waited.append(uid)
            await super().mine(uid, hurries=hurries)

    monkeypatch.setattr("bireme.api.app.Turns", Counted)
    return waited


def test_scripts_that_no_job_names_have_a_share_of_the_room(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "SHARE_BYTES", 1_000)
    monkeypatch.setattr(transport, "BUSY_S", 0.0)
    api.transport.request("POST", "/v1/blobs", body=b"a" * 900)
    with pytest.raises(ApiError) as refused:
        api.transport.request("POST", "/v1/blobs", body=b"b" * 900)
    assert refused.value.status == 429
    assert "submit the jobs that name them" in refused.value.hint
    large, small = {"spec": {}, "script": SCRIPT + "x" * 900}, {"spec": {}, "script": SCRIPT}
    one, other = api.transport.post("/v1/jobs", {"jobs": [large, small]})["jobs"]
    assert "900 bytes of scripts" in one["error"]["hint"]
    assert other["job_id"]
    with pytest.raises(ApiError):  # others' commits do not write what no job names
        api.transport.request("POST", "/v1/blobs", body=b"b" * 900)
    monkeypatch.setattr(shelf, "ON_ITS_WAY_S", -1.0)
    api.transport.request("POST", "/v1/blobs", body=b"b" * 900)  # instead of the first, which nobody came to name


def test_many_jobs_are_taken_in_groups_with_turns_between(
    turns: list[int], api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    gather = asyncio.gather

    def counted(*pending: object) -> object:
        sizes.append(len(pending))
        return gather(*pending)  # type: ignore[call-overload]

    monkeypatch.setattr(submissions.asyncio, "gather", counted)
    api.transport.get("/v1/ping")
    before = len(turns)
    jobs = [{"spec": {"name": f"j{number}"}, "idempotency_key": f"k{number % 240}"} for number in range(250)]
    jobs[7] = {"spec": {"name": 3}}
    answers = api.transport.post("/v1/jobs", {"jobs": jobs, "script": SCRIPT})["jobs"]
    assert sizes == [100, 100, 50]
    assert len(turns) - before >= 4
    assert "error" in answers[7]
    ids = [each.get("job_id") for each in answers]
    first = [*ids[:7], *ids[8:240]]
    assert first == sorted(set(first)), "in the order in which they were asked for"
    assert [*ids[240:247], *ids[248:]] == [*ids[:7], *ids[8:10]], "a key that was seen before is the job of before"


def test_long_answers_are_made_in_slices(turns: list[int], api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.api.serving.slices.SLICE_S", 1e-9)
    array = {"spec": {"array": {"task_ids": list(range(20))}}, "script": SCRIPT}
    job = api.transport.post("/v1/jobs", array)["job_id"]
    for task in range(19):
        api.transport.post(f"/v1/jobs/{job}_{task}/hold")  # which gives each a record of its own
    for path, name in (
        ("/v1/nodes", "nodes"),
        ("/v1/priorities", "priorities"),
        ("/v1/jobs", "jobs"),
        (f"/v1/jobs/{job}", "jobs"),
        (f"/v1/jobs/{job}/story", "events"),
        (f"/v1/jobs/{job}/steps", "steps"),
        ("/v1/accounting/shares", "shares"),
    ):
        before = len(turns)
        answer = api.transport.get(path)
        assert name in answer
        assert len(turns) - before >= max(1, len(answer[name]))
    assert len(api.transport.get("/v1/nodes")["nodes"]) > 1
    assert len(api.transport.get(f"/v1/jobs/{job}")["jobs"]) == 20
