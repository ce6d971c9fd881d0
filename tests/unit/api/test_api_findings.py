"""/v1/findings: who sees what of a finding, and who may dismiss or close one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.api.conftest import ask_as

from bireme.cli.faults.findings import lines_of, text_of
from bireme.client.sdk import Client
from bireme.client.transport import ApiError
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.resources import Allocation, Device, GresPool, GresShare, NodeShare

Running = Any
ALICE, BOB = 4001, 4002
XID = Quote(text="NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", source="kernel", at=1000.0)


def trouble(place: Place, gravity: Gravity = Gravity.BROKEN, **more: Any) -> Trouble:
    said: dict[str, Any] = {"detector": "xid", "cause": "gpu_lost", "title": "GPU 1 fell off the bus (Xid 79)"}
    return Trouble(**{**said, "place": place, "gravity": gravity, "since": 990.0, "quotes": (XID,), **more})


def with_job_on_gpu_1(api: Running) -> None:
    config = api.cluster.state.config
    first, *others = config.nodes
    node = replace(first, gres=(GresPool("gpu", None, 2, (Device(0), Device(1))),))
    owner = Owner(uid=ALICE, gid=ALICE, user="alice")
    share = NodeShare("n1", cpus=1, memory_mib=10, cpu_ids=(0,), gres=(GresShare("gpu", None, 1, (1,)),))
    api.happen(
        e.ClusterConfigured(replace(config, nodes=(node, *others))),
        e.JobSubmitted(1, JobSpec(owner=owner, name="train", partitions=("main",)), 1, 1000.0, ()),
        e.JobAllocated(1, Allocation(1, 1, "main", (share,))),
        e.JobStarted(1, 1, 1000.0),
    )


def ask(api: Running, method: str, path: str, uid: int, body: Any = None) -> tuple[int, Any]:
    """On the loop of the cluster, as any user."""
    asked = asyncio.run_coroutine_threadsafe(ask_as(api.app, method, path, uid, body), api.loop)
    status, text = asked.result(10)
    return status, json.loads(text)


def listed(api: Running, uid: int) -> dict[int, dict[str, Any]]:
    return {each["id"]: each for each in ask(api, "GET", "/v1/findings", uid)[1]["findings"]}


def private(api: Running, *words: str) -> None:
    api.happen(e.ClusterConfigured(replace(api.cluster.state.config, raw={"PrivateData": ",".join(words)})))


def test_a_finding_is_listed_gravest_first_with_its_evidence_and_the_jobs_it_concerns(api: Running) -> None:
    with_job_on_gpu_1(api)
    degraded = trouble(Place(node="n1", gpu=0), Gravity.DEGRADED, detector="pcie", title="PCIe x8 instead of x16")
    api.happen(e.FindingOpened(1, degraded), e.FindingOpened(2, trouble(Place(node="n1", gpu=1, uuid="GPU-1"))))
    with Client(api.home) as client:
        broken, slow = client.findings()
        assert (broken["id"], broken["place"], broken["jobs"]) == (2, "n1:gpu1", ["1"])
        assert broken["evidence"][0]["text"] == XID.text
        assert (slow["gravity"], slow["jobs"]) == ("degraded", []), "nobody has GPU 0"
        assert client.finding(2) == broken
        assert client.ping()["findings"] == {"broken": 1, "degraded": 1}
        [told] = client.why(1)
        assert [each["id"] for each in told["findings"]] == [2]


def test_an_operator_dismisses_and_closes_and_a_user_may_not(api: Running) -> None:
    api.happen(e.FindingOpened(1, trouble(Place(node="n1"))), e.FindingOpened(2, trouble(Place(node="n2"))))
    for verb in ("dismiss", "mended"):
        assert ask(api, "POST", f"/v1/findings/1/{verb}", BOB, {"why": "x"})[0] == 403
    with Client(api.home) as client:
        with pytest.raises(ApiError, match="in a sentence"):
            client.dismiss_finding(1, " ")
        assert client.dismiss_finding(1, "a riser with eight lanes")["dismissed_by"]
        assert client.ping()["findings"] == {"broken": 1}, "who is dismissed is not counted"
        client.close_finding(2, "card replaced")
        assert [each["state"] for each in client.findings()] == ["dismissed"]
        with pytest.raises(ApiError) as gone:
            client.finding(2)
        assert (gone.value.status, gone.value.code) == (404, "ESLURM_INVALID_FINDING")


def test_what_is_private_is_told_to_whom_it_concerns(api: Running) -> None:
    with_job_on_gpu_1(api)
    of_job = trouble(Place(job_id=1, generation=1), detector="hang", title="job 1 hangs", lasts=False)
    api.happen(e.FindingOpened(1, trouble(Place(node="n1", gpu=1))), e.FindingOpened(2, trouble(Place(node="n2"))))
    api.happen(e.FindingOpened(3, of_job))
    private(api)
    assert listed(api, BOB).keys() == {1, 2, 3}
    private(api, "jobs")
    assert listed(api, BOB).keys() == {1, 2}, "the job is not his"
    assert listed(api, BOB)[1]["evidence_hidden"], "it names processes"
    assert listed(api, BOB)[1]["jobs"] == []
    assert not listed(api, ALICE)[3]["evidence_hidden"]
    private(api, "jobs", "nodes")
    assert listed(api, BOB).keys() == set()
    assert listed(api, ALICE).keys() == {1, 3}, "her job has that GPU"
    assert ask(api, "GET", "/v1/findings/2", ALICE)[0] == 404


def test_a_jobs_story_and_timeline_tell_of_its_findings_also_when_they_are_over(api: Running) -> None:
    with_job_on_gpu_1(api)
    of_job = trouble(Place(job_id=1, generation=1), detector="hang", title="job 1 hangs", lasts=False)
    api.happen(e.FindingOpened(1, of_job), e.FindingOpened(2, trouble(Place(node="n1", gpu=1))))
    api.happen(e.FindingClosed(of_job.key, "it goes on", job_id=1))
    with Client(api.home) as client:
        assert [each["kind"] for each in client.story(1)][-2:] == ["FindingOpened", "FindingClosed"]
        [timeline] = client.timeline(1)
    lanes = {lane["name"]: lane for lane in timeline["lanes"]}
    assert [mark["text"] for mark in lanes["events"]["marks"]][-2:] == ["found: job 1 hangs", "a finding is over"]
    assert [span["text"] for span in lanes["findings"]["spans"]] == ["GPU 1 fell off the bus (Xid 79)"]


def test_prometheus_is_told_how_many_there_are(api: Running) -> None:
    api.happen(e.FindingOpened(1, trouble(Place(node="n1", gpu=1))))
    page = api.transport.get_bytes("/metrics").decode()
    assert 'bireme_findings{detector="xid",gravity="broken",state="open"} 1' in page
    assert "bireme_findings_opened_total 1" in page
    assert 'bireme_node_findings{node="n1",gravity="broken"} 1' in page


def test_the_text_says_where_since_when_by_what_and_what_to_do(api: Running) -> None:
    said = trouble(Place(node="n1", gpu=1, uuid="GPU-1"), remedy="Take the node out of service and replace the card.")
    api.happen(e.FindingOpened(1, said))
    with Client(api.home) as client:
        found = client.finding(1)
        listed = "\n".join(lines_of({"findings": client.findings(), "now": 1000.0}))
    text = "\n".join(text_of(found, 1000.0, lambda at: f"<{at:.0f}>"))
    assert "1   broken   n1:gpu1  00:00:10  GPU 1 fell off the bus (Xid 79)" in listed
    for words in ("Xid (PCI:0000:3b:00): 79", "Take the node out", "bireme findings mended 1", "<990> (00:00:10 ago)"):
        assert words in text.replace("\n              ", " ")
    assert "\n".join(lines_of({"findings": [], "now": 0.0})) == "Nothing is known to be wrong."


@pytest.mark.parametrize("number", ["0", "x", "9" * 30, "-1"])
def test_a_number_that_no_finding_has(api: Running, number: str) -> None:
    status, said = ask(api, "GET", f"/v1/findings/{number}", 0)
    assert status == 404
    assert "bireme findings" in said["error"]["hint"]
