"""Services over the API, as the SDK and other people ask for them. What replicas do is played by the test."""

from __future__ import annotations

import asyncio
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.conftest import ask_as

import bireme
from bireme.client.transport import ApiError
from bireme.core.lifecycle import due
from bireme.core.model import events as e
from bireme.core.model.jobs import Outcome, Pending
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.core.model.serving.services import Health
from bireme.slurm.records.services import SERVICE_FIELDS

Running = Any
SCRIPT = "#!/bin/sh\n#SBATCH --ntasks=1\n#BIREME --replicas=2 --health=/h --model=org/chat\nexec server\n"
ANN, BOB = 4001, 4002
"""By uid, which is also the name: no machine knows them."""


@pytest.fixture
def client(api: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with bireme.Client(api.home) as made:  # type: ignore[attr-defined]
        yield made


def settled(api: Running) -> None:
    """What the kernel does in every turn."""

    async def settle_all() -> None:
        for event in due.settled(api.cluster.state, api.cluster.clock.now()):
            api.cluster.record("core", [event])

    asyncio.run_coroutine_threadsafe(settle_all(), api.loop).result(10)


def started(api: Running, job_id: int) -> None:
    node, cpu = divmod(job_id - 1, 4)
    share = NodeShare(f"n{node + 1}", cpus=1, memory_mib=1, cpu_ids=(cpu,))
    allocation = Allocation(job_id, 1, "main", (share,))
    api.happen(e.JobAllocated(job_id, allocation), e.JobStarted(job_id, 1, 1000.0))


def ready(api: Running, name: str = "chat") -> None:
    """All its replicas run and answer."""
    settled(api)
    for number, replica in list(api.cluster.state.services[name].replicas.items()):
        if replica.health is not Health.READY and replica.draining_since is None:
            if isinstance(api.cluster.state.jobs[replica.job_id].phase, Pending):
                started(api, replica.job_id)
            api.happen(e.ReplicaHealthChanged(name, number, Health.READY))
    settled(api)


def crash(api: Running, job_id: int) -> None:
    """The replica that is this job ends by itself."""
    settled(api)
    started(api, job_id)
    failed = e.JobEnding(job_id, 1, Outcome("FAILED", ExitStatus(3)))
    api.happen(failed, e.JobEnded(job_id, 1, 1000.0))
    settled(api)


def ask(api: Running, method: str, path: str, uid: int, body: Any = None) -> tuple[int, Any]:
    future = asyncio.run_coroutine_threadsafe(ask_as(api.app, method, path, uid, body), api.loop)
    status, text = future.result(20)
    return status, json.loads(text)


def body_of(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {"spec": {"name": name, "job": {}, **spec}, "script": SCRIPT, "environment": {"A": "b"}}


# -- from Python -------------------------------------------------------------------------------------------------------


def test_a_script_becomes_a_service_with_an_address(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, "--flag", name="chat", replicas="1-3", drain="5s", env={"A": "b"}, model=["a", "b"])
    spec = api.cluster.state.services["chat"].revisions[1].spec
    assert (spec.scaling.replicas_min, spec.scaling.replicas_max, spec.drain_s) == (1, 3, 5.0)
    assert spec.routing.models == ("a", "b")
    assert (spec.job.name, spec.job.argv, spec.probes.readiness.path) == ("chat", ("--flag",), "/h")
    assert b'"A":"b"' in api.cluster.store.get(spec.job.environment)
    assert api.cluster.store.get(spec.job.script).decode() == SCRIPT
    assert service.url == "http://router:8600/chat/"


def test_a_record_has_the_fields_that_are_documented(api: Running, client: Any) -> None:
    client.serve(SCRIPT, name="chat")
    settled(api)
    (listed,) = client.services()
    assert listed.keys() == SERVICE_FIELDS.keys()
    assert listed == client.service("chat").record()
    assert {"url", "wanted", "ready", "revision", "replicas", "reasons"} <= listed.keys()


def test_a_service_of_the_sdk_has_every_field_of_its_record(api: Running, client: Any) -> None:
    client.serve(SCRIPT, name="chat")
    settled(api)
    service, record = client.service("chat"), client.services()[0]
    others = {"keys", "reasons"}  # the keys themselves, and reasons in words
    assert {name: getattr(service, name) for name in record.keys() - others} == {
        name: value for name, value in record.items() if name not in others
    }
    assert service.keys() == []
    assert service.reasons == [each["text"] for each in record["reasons"]]


def test_a_service_that_is_not_there_is_an_error_at_once(client: Any) -> None:
    with pytest.raises(ApiError, match="No such service") as refused:
        client.service("nope")
    assert refused.value.__notes__ == ["there is no service 'nope'; there are none yet"]
    assert client.service("nope", must_exist=False).name == "nope"


def test_the_life_of_a_service(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    settled(api)
    assert (service.wanted, service.ready, service.state) == (2, 0, "WAITING")
    jobs = [each["job_id"] for each in service.replicas]
    assert [record["name"] for record in client.jobs()] == ["chat", "chat"]
    assert service.reasons[0].startswith("Replica 1 (job 1) waits: ")
    started(api, jobs[0])
    assert service.state == "LOADING"
    with pytest.raises(TimeoutError, match=r"Replica 1 \(job 1\) runs and is not ready yet"):
        service.wait_ready(0.0)
    ready(api)
    assert service.wait_ready(5)["ready"] == 2
    assert (service.state, service.record()["serving"], service.reasons) == ("READY", 1, [])

    assert service.scale(3)["wanted"] == 3
    assert service.record()["fixed"]
    assert service.scale(None)["wanted"] == 2
    assert service.restart()["revision"] == 2
    assert service.state == "UPDATING"
    assert service.rollback()["revision"] == 1
    service.stop()
    settled(api)
    assert service.state == "STOPPING"


def test_an_update_that_is_given_up_is_an_error_to_who_waits(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    ready(api)
    client.serve(SCRIPT, name="chat", drain="1s")
    api.happen(e.RevisionFailed("chat", 2, "no more than 0 of its replicas got ready"))
    with pytest.raises(bireme.ServiceFailed, match="chat: revision 2 was given up: no more than 0"):  # type: ignore[attr-defined]
        service.wait_ready(5)
    assert service.reasons[0].startswith("Revision 2 was given up")


def test_who_waits_for_the_end_is_told(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat", replicas="0-2")
    service.stop()
    settled(api)
    service.wait_gone(5)
    with pytest.raises(ApiError, match="No such service"):
        service.record()
    kinds = [event["kind"] for event in service.events()]
    assert kinds == ["ServiceDeployed", "ServiceStopping", "ServiceRemoved"], "its story outlives it"


def test_a_canary_waits_for_a_word(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    ready(api)
    client.serve(SCRIPT, name="chat", canary="10%")
    ready(api)
    assert (service.state, service.record()["serving"]) == ("CANARY", 1)
    assert [each["canary_percent"] for each in service.record()["revisions"]] == [None, 10]
    assert [each["canary_percent"] for each in service.canary(35)["revisions"]] == [None, 35]
    seq = api.cluster.state.seq
    service.canary(35)
    assert api.cluster.state.seq == seq, "it has that part already"
    with pytest.raises(ApiError, match="between 1% and 99%"):
        service.canary(100)
    assert service.promote()["revision"] == 2
    with pytest.raises(ApiError, match="Nothing to promote") as refused:
        service.promote()
    assert refused.value.status == 409
    with pytest.raises(ApiError, match="has no canary"):
        service.canary(20)


def test_what_a_new_revision_ends_is_said(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    ready(api)
    client.serve(SCRIPT, name="chat", canary="10%")
    told = client.transport.post("/v1/services/chat/restart")
    assert told["notices"] == ["revision 2, the canary, is given up for it"]
    with pytest.warns(UserWarning, match="revision 3, which was on its way, is given up for it"):
        client.serve(SCRIPT, name="chat")
    assert "notices" not in service.record()


def test_who_waits_for_a_canary_waits_for_its_replicas(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    ready(api)
    client.serve(SCRIPT, name="chat", canary="10%")
    settled(api)
    with pytest.raises(TimeoutError):
        service.wait_ready(0.0)
    ready(api)
    assert service.wait_ready(5)["state"] == "CANARY"


def test_a_canary_of_a_service_that_has_none_yet_is_told_not_to_be_one(api: Running, client: Any) -> None:
    with pytest.warns(UserWarning, match="--canary=10% is not applied: no revision serves yet"):
        client.serve(SCRIPT, name="chat", canary="10%")
    ready(api)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.serve(SCRIPT, name="chat", canary="10%")


def test_who_waits_for_a_first_revision_that_crashes_is_told_why(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat", replicas=1)
    crash(api, 1)
    with pytest.raises(TimeoutError):
        service.wait_ready(0.0)  # the first crash is followed by another try at once
    crash(api, 2)
    with pytest.raises(bireme.ServiceFailed, match=r"does not get ready: replica 2 crashed: .* exit code 3") as failed:  # type: ignore[attr-defined]
        service.wait_ready(5)
    assert failed.value.record["state"] == "CRASHING"
    assert [each["exit_code"] for each in service.crashes] == [3, 3]


def test_who_waits_for_a_rollback_waits_for_the_revision_that_comes_back(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    ready(api)
    client.serve(SCRIPT, name="chat", drain="1s")
    assert service.rollback()["revision"] == 1
    path = "/v1/services/chat/wait"
    ready(api)
    assert service.wait_ready(5)["revision"] == 1
    told = client.transport.get(path, {"until": "settled", "revision": 1, "timeout": 5})
    assert (told["done"], told["failure"]) == (True, "")
    assert client.transport.get(path, {"until": "ready", "timeout": 5})["done"]


def test_the_output_of_replicas_that_are_over_is_found_also_when_the_service_is_gone(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat", replicas=1)
    crash(api, 1)
    told = client.transport.get("/v1/services/chat/logs")
    ((over,), (living,)) = (told["over"], told["replicas"])
    assert (over["replica"], over["job_id"], over["why"]) == (1, 1, "it ended by itself with exit code 3")
    assert living["number"] == 2
    service.stop()
    settled(api)
    service.wait_gone(5)
    told = client.transport.get("/v1/services/chat/logs")
    assert [each["replica"] for each in told["over"]] == [1, 2]
    assert told["replicas"] == []


def test_a_crash_is_told_with_its_code_and_job(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat", replicas=1)
    crash(api, 1)
    crash(api, 2)
    record = service.record()
    assert [(each["job_id"], each["exit_code"]) for each in record["crashes"]] == [(1, 3), (2, 3)]
    assert record["state"] == "CRASHING"
    assert "exit code 3" in record["reasons"][0]["text"]
    assert record["reasons"][0]["until"] > 1000.0


def test_a_request_that_is_sent_twice_makes_one_revision(api: Running, client: Any) -> None:
    body = {**body_of(), "idempotency_key": "k1"}
    first = client.transport.post("/v1/services", body)
    assert client.transport.post("/v1/services", body) == first
    assert client.transport.post("/v1/services", {**body, "idempotency_key": "k2"})["revision"] == 2


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_and_only_its_hash_is_kept(api: Running, client: Any) -> None:
    service = client.serve(SCRIPT, name="chat")
    made = service.add_key("for the web page", requests_per_minute=60, max_concurrency=4)
    assert len(made.key) >= 43
    kept = api.cluster.state.services["chat"].keys[made.id]
    assert kept.digest == hashlib.sha256(made.key.encode()).hexdigest()
    (listed,) = service.keys()
    assert (listed["note"], listed["requests_per_minute"], listed["max_concurrency"]) == ("for the web page", 60, 4)
    journal = b"".join(repr(each.event).encode() for each in api.cluster.store.replay(0))
    assert made.key.encode() not in journal
    assert kept.digest not in json.dumps([service.record(), service.keys(), service.events()])
    service.revoke_key(made.id)
    assert service.keys() == []
    with pytest.raises(ApiError, match="No such key") as refused:
        service.revoke_key(made.id)
    assert (refused.value.status, refused.value.code) == (404, "ESLURM_INVALID_SERVICE_KEY")
    assert f"has no key '{made.id}'; it has none" in refused.value.hint


@pytest.mark.parametrize(
    "body",
    [{"note": 7}, {"note": "x" * 201}, {"note": "a\x1b[2J"}, {"requests_per_minute": 0}, {"max_concurrency": True},
     {"max_concurrency": 1.5}],
)  # fmt: skip
def test_a_bad_key_is_refused(api: Running, client: Any, body: dict[str, Any]) -> None:
    client.serve(SCRIPT, name="chat")
    with pytest.raises(ApiError) as refused:
        client.transport.post("/v1/services/chat/keys", body)
    assert refused.value.status == 400


# -- several people ----------------------------------------------------------------------------------------------------


def test_a_service_is_its_owners_and_nobody_elses_to_change(api: Running) -> None:
    assert ask(api, "POST", "/v1/services", ANN, body_of())[0] == 200
    assert api.cluster.state.services["chat"].owner.uid == ANN
    status, said = ask(api, "POST", "/v1/services", BOB, body_of())
    assert (status, said["error"]["code"]) == (403, "ESLURM_ACCESS_DENIED")
    assert said["error"]["hint"] == f"service chat is {ANN}'s"
    for path, body in (("scale", {"replicas": 0}), ("stop", {}), ("restart", {}), ("rollback", {}), ("promote", {}),
                       ("canary", {"percent": 5}),
                       ("keys", {}), ("keys/x/revoke", {})):  # fmt: skip
        assert ask(api, "POST", f"/v1/services/chat/{path}", BOB, body)[0] == 403
    for path in ("keys", "events", "logs"):
        assert ask(api, "GET", f"/v1/services/chat/{path}", BOB)[0] == 403
    assert ask(api, "GET", "/v1/services/chat", BOB)[0] == 200
    assert len(api.cluster.state.services["chat"].revisions) == 1


def test_an_operator_may_change_it_and_it_stays_its_owners(api: Running) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of())
    assert ask(api, "POST", "/v1/services", 0, body_of(drain_s=1.0))[1]["revision"] == 2
    service = api.cluster.state.services["chat"]
    assert (service.owner.uid, service.revisions[2].spec.job.owner.uid) == (ANN, ANN)


def test_who_had_the_name_before_is_nobodys_business(api: Running) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of())
    api.happen(e.ServiceStopping("chat", "ann"), e.ServiceRemoved("chat"))
    ask(api, "POST", "/v1/services", BOB, body_of())
    told = ask(api, "GET", "/v1/services/chat/events", BOB)[1]["events"]
    assert [event["kind"] for event in told] == ["ServiceDeployed"]
    assert [event["kind"] for event in ask(api, "GET", "/v1/services/chat/events", ANN)[1]["events"]] == [
        "ServiceDeployed",
        "ServiceStopping",
        "ServiceRemoved",
    ]


def test_live_events_of_who_had_the_name_before_are_not_told_to_who_has_it(api: Running) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of())
    api.happen(e.ServiceScaled("chat", 0, "anns secret"), e.ServiceStopping("chat", "ann"), e.ServiceRemoved("chat"))
    api.cluster.clock.time += 1.0
    ask(api, "POST", "/v1/services", BOB, body_of())
    api.happen(e.ServiceScaled("chat", 0, "bobs own"))
    api.loop.call_soon_threadsafe(api.app.state.context.live.close)  # streams end when they have told what is there
    told = asyncio.run_coroutine_threadsafe(ask_as(api.app, "GET", "/v1/events?after=0", BOB), api.loop).result(20)[1]
    assert "bobs own" in told
    assert "anns secret" not in told


def test_nobody_takes_anothers_requests(api: Running) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of(routing={"hosts": ["chat.org"], "models": ["org/chat"]}))
    for name, routing, says in (
        ("evil", {"hosts": ["chat.org"]}, "--host=chat.org is another service's"),
        ("evil", {"models": ["org/chat"]}, "--model=org/chat is another service's"),
        ("evil", {"models": ["chat"]}, "--model=chat is another service's"),
    ):
        status, said = ask(api, "POST", "/v1/services", BOB, body_of(name, routing=routing))
        assert (status, said["error"]["hint"]) == (400, says)
    ask(api, "POST", "/v1/services", ANN, body_of("other", routing={"models": ["small"]}))
    assert (
        "'small' is a model of another service"
        in ask(api, "POST", "/v1/services", BOB, body_of("small"))[1]["error"]["hint"]
    )


def test_who_deploys_is_told_that_the_router_cannot_be_reached(api: Running) -> None:
    api.of_router["problem"] = "127.0.0.1:8600 is taken"
    made = ask(api, "POST", "/v1/services", ANN, body_of())[1]
    assert made["notices"] == ["it cannot be reached now: 127.0.0.1:8600 is taken; see: bireme doctor"]


def test_a_host_name_is_given_by_an_operator_or_is_for_anybody(api: Running) -> None:
    """By any other people may reach the router: who had it would read their requests."""
    for host in ("models.org", "amodels.org", "gpu.models.org.", "elsewhere.org"):
        status, said = ask(api, "POST", "/v1/services", BOB, body_of("evil", routing={"hosts": [host]}))
        assert status in (400, 403), host
    assert said["error"]["hint"] == (
        "--host=elsewhere.org is for an operator to give (`router.hosts` in bireme.toml); "
        "anybody may take chat.org, *.models.org"
    )
    assert ask(api, "POST", "/v1/services", BOB, body_of("one", routing={"hosts": ["b.models.org"]}))[0] == 200
    given = body_of("one", routing={"hosts": ["elsewhere.org"]})
    assert ask(api, "POST", "/v1/services", 0, given)[0] == 200
    assert ask(api, "POST", "/v1/services", BOB, given)[0] == 200, "what his service was given it keeps"
    status, said = ask(api, "POST", "/v1/services", 0, body_of("two", routing={"hosts": ["pages.org"]}))
    assert (status, said["error"]["hint"]) == (
        400,
        "--host=pages.org is the name of this cluster's pages: choose another",
    )


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "spec: expected an object"),
        ({"spec": {"name": "a"}}, "spec: expected an object with a job"),
        (body_of("../etc"), "cannot be a service's name"),
        (body_of("a.example.org"), "cannot be a service's name"),
        (body_of("a\x1b[2J\n"), "cannot be a service's name"),
        (body_of("x" * 100_000), "cannot be a service's name"),
        (body_of("v1"), "part of the router's addresses"),
        (body_of(scaling={"replicas_min": 4, "replicas_max": 2}), "the minimum (4) is above the maximum (2)"),
        (body_of(scaling={"replicas_min": -1}), "not below 0"),
        (body_of(scaling={"replicas_max": 10**9}), "at most 10000"),
        (body_of(scaling={"replicas_max": "many"}), "replicas_max"),
        (body_of(updating={"canary_percent": 100}), "between 1% and 99%"),
        (body_of(updating={"surge": {"number": 0}}), "may not both be 0"),
        (body_of(probes={"readiness": {"path": "health"}}), "begins with /"),
        (body_of(probes={"readiness": {"path": "/a b\r\nX: y"}}), "begins with /"),
        (body_of(probes={"readiness": {"period_s": 0}}), "above 0"),
        (body_of(routing={"hosts": ["a/b"]}), "is no host name"),
        (body_of(routing={"hosts": ["127.0.0.1"]}), "is no host name"),
        (body_of(routing={"hosts": ["localhost"]}), "is no host name"),
        (body_of(routing={"hosts": ["router"]}), "is the router's own name"),
        (body_of(routing={"hosts": ["a\r\nX-Evil: 1"]}), "is no host name"),
        (body_of(routing={"models": ["a b"]}), "no model's name has"),
        (body_of(routing={"affinity_header": "X: y\r\n"}), "cannot be the name of a header"),
        (body_of(routing={"queue_timeout_s": -1}), "above 0"),
        (body_of(routing={"queue_limit": -1}), "--queue is"),
        (body_of(routing={"unknown": 1}), "unknown"),
        ({**body_of(), "idempotency_key": "x" * 10_000}, "idempotency_key"),
        ({**body_of(), "idempotency_key": 7}, "idempotency_key"),
        ({"spec": {"name": "a", "job": {"replica": {"service": "x"}}}, "script": SCRIPT}, "spec.replica"),
        ({"spec": {"name": "a", "job": {"array": {"task_ids": [1]}}}, "script": SCRIPT}, "--replicas"),
        ({"spec": {"name": "a", "job": {"begin_at": 5.0}}, "script": SCRIPT}, "leave --begin"),
        ({"spec": {"name": "a", "job": {}}, "script": "#!/bin/sh\0"}, "NUL"),
        ({"spec": {"name": "a", "job": {"partitions": ["nowhere"]}}, "script": SCRIPT}, "Invalid partition"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_service_is_refused_in_a_sentence(api: Running, body: dict[str, Any], says: str) -> None:
    status, said = ask(api, "POST", "/v1/services", ANN, body)
    assert status in (400, 403)
    error = said["error"]
    assert says in f"{error['message']} {error['hint']}"
    assert len(error["message"]) + len(error["hint"]) < 1000
    assert not api.cluster.state.services


def test_no_job_can_call_itself_a_replica(api: Running) -> None:
    forged = {"service": "chat", "revision": 1, "number": 1, "port": 31000, "probes": {}}
    status, said = ask(api, "POST", "/v1/jobs", ANN, {"spec": {"replica": forged}, "script": SCRIPT})
    assert (status, "spec.replica" in said["error"]["message"]) == (400, True)


@pytest.mark.parametrize("name", ["nosuch", "..", "%2e%2e", "a%00b", "x" * 5000])
def test_what_is_not_there_is_said_so(api: Running, name: str) -> None:
    status, said = ask(api, "GET", f"/v1/services/{name}", ANN)
    assert (status, said["error"]["code"]) == (404, "ESLURM_INVALID_SERVICE")
    assert len(said["error"]["hint"]) < 300


def test_a_name_that_is_nearly_right_is_told(api: Running) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of())
    assert (
        ask(api, "GET", "/v1/services/chta", ANN)[1]["error"]["hint"]
        == "there is no service 'chta'; did you mean chat?"
    )


@pytest.mark.parametrize("body", [{}, {"replicas": "two"}, {"replicas": True}, {"replicas": -1}, {"replicas": 10**12}])
def test_a_scale_that_makes_no_sense_is_refused(api: Running, body: dict[str, Any]) -> None:
    ask(api, "POST", "/v1/services", ANN, body_of())
    assert ask(api, "POST", "/v1/services/chat/scale", ANN, body)[0] == 400
    assert ask(api, "POST", "/v1/services/chat/rollback", ANN, {"to": "x"})[0] == 400
    status, said = ask(api, "POST", "/v1/services/chat/rollback", ANN, {"to": 99})
    assert (status, said["error"]["message"]) == (404, "No such revision")
