"""What pages ask: a script explained, a change planned, the audit, a service's traffic and one request to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.unit.api.conftest import ask_as

from bireme.client.transport import ApiError
from bireme.core.model import events as e

Running = Any
ANN, BOB = 4001, 4002
SCRIPT = "#!/bin/sh\n#SBATCH --job-name=train -N2 --time=60\ntrue\n"
SERVING = "#!/bin/sh\n#BIREME --replicas=2 --health=/h\nexec server\n"


def ask(api: Running, method: str, path: str, uid: int, body: Any = None) -> tuple[int, Any]:
    future = asyncio.run_coroutine_threadsafe(ask_as(api.app, method, path, uid, body), api.loop)
    status, text = future.result(20)
    return status, json.loads(text)


# -- explain -----------------------------------------------------------------------------------------------------------


def test_a_script_is_explained_and_its_submission_is_one(api: Running) -> None:
    told = api.transport.post("/v1/explain", {"script": SCRIPT, "name": "train.sh", "folder": "/tmp"})
    assert told["error"] == ""
    assert [line["kind"] for line in told["lines"]] == ["interpreter", "options", "command"]
    (job,) = told["jobs"]
    assert (job["name"], job["nodes"]["min"], job["time_limit_s"]) == ("train", 2, 3600)
    assert {section["title"] for section in job["sections"]} >= {"Resources", "Where", "When", "Files"}
    assert told["submission"]["path"] == "/v1/jobs"
    assert api.transport.post("/v1/jobs", told["submission"]["body"], {"test_only": 1})["job_id"] == 1
    made = api.transport.post(told["submission"]["path"], told["submission"]["body"])
    spec = api.cluster.state.jobs[made["job_id"]].spec
    assert (spec.name, spec.work_dir, spec.resources.nodes_min) == ("train", "/tmp", 2)


def test_a_service_is_explained_as_one(api: Running) -> None:
    told = api.transport.post("/v1/explain", {"script": SERVING, "name": "chat.sh"})
    assert (told["service"], told["submission"]["path"], told["error"]) == ("chat", "/v1/services", "")
    made = api.transport.post("/v1/services", told["submission"]["body"])
    assert (made["name"], api.cluster.state.services["chat"].target.spec.scaling.replicas_max) == ("chat", 2)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hi\n", "does not look like a batch script"),
        ("#!/bin/sh\n#SBATCH --colour=red\n", "unrecognized option"),
        ("#!/bin/sh\r\n#SBATCH -n1\r\n", "DOS line breaks"),
        ("#!/bin/sh\n#SBATCH --time=never\n", "time"),
        ("#!/bin/sh\n#BIREME --replicas=many\n", "replicas"),
    ],
)
def test_why_it_cannot_be_submitted_is_told(api: Running, script: str, error: str) -> None:
    told = api.transport.post("/v1/explain", {"script": script})
    assert error in told["error"]
    assert told["submission"] is None
    assert len(told["lines"]) == script.count("\n"), "its lines are told all the same"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"script": SCRIPT, "folder": "relative"}, 400),
        ({"script": SCRIPT, "name": "-x"}, 400),
        ({"script": SCRIPT, "arguments": "x"}, 400),
        ({"script": "#" * 300_000}, 413),
        ({"script": "#!/bin/sh\n#SBATCH --array=0-4000000\n"}, 413),
    ],
)
def test_what_is_no_script_is_refused(api: Running, body: dict[str, Any], status: int) -> None:
    with pytest.raises(ApiError) as refused:
        api.transport.post("/v1/explain", body)
    assert refused.value.status == status


# -- what if -----------------------------------------------------------------------------------------------------------


def submitted(api: Running, name: str, nodes: int, **fields: Any) -> int:
    asked = {"nodes_min": nodes, "nodes_max": nodes, "nodes_given": True, "exclusive": True}
    spec = {"name": name, "resources": asked, "time_limit_s": 3600, "time_limit_given": True, **fields}
    job_id: int = api.transport.post("/v1/jobs", {"spec": spec, "script": "#!/bin/sh\ntrue\n"})["job_id"]
    return job_id


def planned(api: Running, **change: Any) -> Any:
    return api.transport.post("/v1/whatif", change)


def test_more_nodes_let_a_job_start_sooner(api: Running) -> None:
    first, second = submitted(api, "first", 2), submitted(api, "second", 2)
    told = planned(api, add_nodes=["2x4"])
    by_id = {each["job_id"]: each for each in told["jobs"]}
    assert (told["before"]["nodes"], told["after"]["nodes"]) == (2, 4)
    assert (told["before"]["start_now"], told["after"]["start_now"]) == (1, 2)
    assert not by_id[first]["changes"]
    assert by_id[second]["changes"]
    assert by_id[second]["before"] >= 1000.0 + 3600
    assert by_id[second]["after"] == 1000.0
    assert told["jobs"][0]["job_id"] == second, "what changes comes first"
    assert len(api.cluster.state.nodes) == 2, "nothing of the cluster is changed"


def test_a_node_less_lets_jobs_wait(api: Running) -> None:
    job = submitted(api, "both", 2)
    told = planned(api, drain=["n2"])
    (row,) = told["jobs"]
    assert (row["job_id"], row["before"], row["after"]) == (job, 1000.0, None)
    assert row["why"]
    assert told["after"]["unknown"] == 1


def test_nothing_changed_is_nothing_changed(api: Running) -> None:
    submitted(api, "a", 1)
    told = planned(api)
    assert told["before"] == told["after"]
    assert not any(row["changes"] for row in told["jobs"])


def test_priorities_by_other_weights(api: Running) -> None:
    """By the weight of their age the older job comes first; by size the larger one."""
    older = submitted(api, "small", 1)
    larger = submitted(api, "large", 2)
    keys = {"PriorityType": "priority/multifactor", "PriorityWeightJobSize": "100000", "PriorityFavorSmall": "NO"}
    rows = {row["job_id"]: row for row in planned(api, keys=keys)["jobs"]}
    assert (rows[older]["before"], rows[larger]["before"]) != (rows[older]["after"], rows[larger]["after"])
    assert rows[larger]["after"] == 1000.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"add_nodes": ["many"]}, "is not NODESxGPUS:TYPE"),
        ({"add_nodes": ["99999999999x8:h100"]}, "at most"),
        ({"add_nodes": ["50000x1"]}, "too many to plan here"),
        ({"drain": ["n77"]}, "there is no node or switch n77"),
        ({"keys": {"PriorityWeightWhat": "1"}}, "PriorityWeightWhat"),
        ({"keys": {"SchedulerType": 3}}, "keys: expected"),
        ({"add_nodes": "2x4"}, "a list of texts"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(api: Running, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        planned(api, **change)
    assert refused.value.status == 400
    assert said in str(refused.value)


def test_who_may_take_no_snapshot_may_not_ask(api: Running) -> None:
    state = api.cluster.state
    state.config = replace(state.config, raw={**state.config.raw, "PrivateData": "jobs"})
    assert ask(api, "POST", "/v1/whatif", BOB, {})[0] == 403
    assert ask(api, "POST", "/v1/whatif", 0, {})[0] == 200


# -- the journal, backwards --------------------------------------------------------------------------------------------


def test_what_people_asked_for_is_told_to_operators(api: Running) -> None:
    change = {"nodes": "n1", "state": "DRAIN", "reason": "fan"}
    assert ask(api, "POST", "/v1/nodes/update", 0, change)[0] == 200
    submitted(api, "a job", 1)
    assert ask(api, "POST", "/v1/partitions/small/update", 0, {"changes": {"state": "DOWN"}})[0] == 200
    status, told = ask(api, "GET", "/v1/audit", 0)
    assert (status, [each["kind"] for each in told["events"]]) == (200, ["PartitionUpdated", "NodeUpdated"])
    assert told["events"][0]["user"] == "root"
    last = told["events"][0]["seq"]
    assert [each["kind"] for each in ask(api, "GET", f"/v1/audit?before={last}", 0)[1]["events"]] == ["NodeUpdated"]
    assert len(ask(api, "GET", "/v1/audit?limit=1", 0)[1]["events"]) == 1
    assert ask(api, "GET", "/v1/audit", BOB)[0] == 403


def test_what_happened_to_a_node_is_told_newest_first(api: Running) -> None:
    api.happen(e.NodeLost("n1", "no answer"), e.NodeLost("n2", "no answer"), e.NodeRegistered("n1", 1000.0))
    told = api.transport.get("/v1/nodes/n1/events")
    assert [each["kind"] for each in told["events"]] == ["NodeRegistered", "NodeLost", "NodeRegistered"]
    assert all(each["data"]["node"] == "n1" for each in told["events"])
    with pytest.raises(ApiError, match="no node 'n9' here"):
        api.transport.get("/v1/nodes/n9/events")


# -- a service ---------------------------------------------------------------------------------------------------------


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        told = json.dumps({"path": self.path, "key": self.headers["Authorization"], "sent": sent.decode()}).encode()
        self.send_response(418)
        self.send_header("X-Said", "<b>")
        self.end_headers()
        self.wfile.write(told)

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://elsewhere.example/")
        self.end_headers()
        self.wfile.write(b"x" * 300_000)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def served(api: Running) -> Iterator[Running]:
    """A router that answers, and a service of ANN's."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    service = replace(api.app.state.context.service, router_url=lambda: url, router=lambda: {"url": url})
    object.__setattr__(api.app.state.context, "service", service)
    told = ask(api, "POST", "/v1/explain", ANN, {"script": SERVING, "name": "chat.sh"})[1]
    assert ask(api, "POST", "/v1/services", ANN, told["submission"]["body"])[0] == 200
    yield api
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_is_sent_through_the_router(served: Running) -> None:
    body = {"method": "POST", "path": "v1/x?a=b", "headers": {"Authorization": "Bearer k"}, "body": "hällo"}
    status, told = ask(served, "POST", "/v1/services/chat/try", ANN, body)
    assert (status, told["status"], told["cut"]) == (200, 418, False)
    assert json.loads(told["body"]) == {"path": "/chat/v1/x?a=b", "key": "Bearer k", "sent": "hällo"}
    assert ["X-Said", "<b>"] in told["headers"]


def test_no_redirect_is_followed_and_long_answers_are_cut(served: Running) -> None:
    told = ask(served, "POST", "/v1/services/chat/try", ANN, {})[1]
    assert (told["status"], len(told["body"]), told["cut"]) == (302, 256 * 1024, True)


@pytest.mark.parametrize(
    "body",
    [
        {"method": "TRACE"},
        {"path": "a b"},
        {"path": "../other/"},
        {"path": "x\r\nHost: y"},
        {"headers": {"Host": "x"}},
        {"headers": {"X": "a\r\nb: c"}},
        {"headers": {"X Y": "a"}},
        {"body": 1},
    ],
)
def test_what_would_be_another_request_is_refused(served: Running, body: dict[str, Any]) -> None:
    assert ask(served, "POST", "/v1/services/chat/try", ANN, body)[0] in (400, 413)


def test_only_its_owner_and_operators_try_it(served: Running) -> None:
    assert ask(served, "POST", "/v1/services/chat/try", BOB, {})[0] == 403
    assert ask(served, "POST", "/v1/services/none/try", ANN, {})[0] == 404
    assert ask(served, "POST", "/v1/services/chat/try", 0, {})[0] == 200


def test_traffic_is_what_the_router_told(served: Running) -> None:
    assert ask(served, "GET", "/v1/services/chat/traffic", BOB)[1]["curves"] == []
    told = {"start": 0.0, "end": 20.0, "step_s": 10.0, "curves": [{"metric": "requests", "mean": [1.0, 2.0]}]}
    context = served.app.state.context
    object.__setattr__(context, "service", replace(context.service, traffic=lambda name: told))
    assert ask(served, "GET", "/v1/services/chat/traffic", BOB)[1]["curves"] == told["curves"]


def test_history_of_some_nodes(api: Running) -> None:
    assert api.transport.get("/v1/history", {"nodes": "n[1-2]"})["jobs"] == []
    with pytest.raises(ApiError) as refused:
        api.transport.get("/v1/history", {"nodes": "n[1-"})
    assert refused.value.status == 400
