"""Every route of the OpenAPI document with hostile values: answered, refused in words, and with bounded work.

Work is counted and not timed: Python calls (each step of a generator is one), on a cluster where some hundred jobs are
known, and how much larger the process became. An expansion of what was asked (four million tasks, a hundred million
hosts, the tasks of a step laid out) goes beyond one of them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.unit.api.conftest import SmallCluster

from bireme.api.app import TABLES, create_app
from bireme.api.cluster import Service
from bireme.api.routes import why
from bireme.api.routes.description import describe
from bireme.api.serving.peers import SCOPE_KEY, Peer
from bireme.core.model.events import JobSubmitted
from bireme.core.model.jobs import ArraySpec, JobSpec, Owner, ResourceRequest
from bireme.core.model.steps import StepSpec
from bireme.core.reservations.orders import ReservationOrder
from bireme.store.journal import SqliteStore

CALLS = 400_000
"""So many one request may make."""
GROWTH_KIB = 300 * 1024
"""So much larger the whole walk may make the process."""
JOBS = 300

TEXTS = [
    "1_[0-4000000]",
    "1_[" + ",".join(f"{number}-4000000:7" for number in range(500)) + "]",
    "n[0-65535][0-65535][0-65535]",
    "[" * 4_000,
    "a," * 3_000,
    "a&b|" * 1_000,
    "9" * 5_000,
    "nan",
    "²",
]
NUMBERS = [-1, 10**9, 10**40, 1e308]
DEEP = [b"[" * 5_000, b'{"a":' * 5_000, b'{"spec":' + b"[" * 2_000 + b"]" * 2_000 + b"}"]
CAREFUL = {"/v1/shutdown", "/v1/reconfigure"}


class Answer:
    def __init__(self, status: int, calls: int) -> None:
        self.status, self.calls = status, calls


class Bench:
    """The application itself, asked in this thread, with its work counted."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(str(folder / "journal.db"))
        self.cluster = SmallCluster(self.store)
        owner = Owner(uid=1000, gid=1000, user="ann")
        spec = JobSpec(owner=owner, script="x", partitions=("main",))
        array = JobSpec(owner=owner, script="x", partitions=("main",), array=ArraySpec(tuple(range(1000))))
        self.cluster.record("test", [JobSubmitted(1, array, 1, None, (), None, "")])
        self.cluster.record("test", [JobSubmitted(number, spec, 1, None, (), None, "") for number in range(2, JOBS)])
        service = Service(version="1", pid=1, up_since=0.0, owner_uid=0, max_body_bytes=8_000_000)
        self.app = create_app(self.cluster, self.store, service)  # type: ignore[arg-type]
        self.loop = asyncio.new_event_loop()
        self.document = describe(TABLES, "1")

    def close(self) -> None:
        self.loop.close()
        self.store.close()

    def ask(self, method: str, path: str, query: str = "", body: bytes = b"", uid: int = 0) -> Answer:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode("utf-8", "replace"), "query_string": query.encode(), "root_path": "",
            "headers": [(b"content-length", str(len(body)).encode())], "scheme": "http",
            "server": ("x", 0), "client": None, SCOPE_KEY: Peer(uid, uid, 1),
        }  # fmt: skip
        statuses: list[int] = []

        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            """The request, once; then nothing: the other side stays and listens."""
            message = next(messages, None)
            return message if message is not None else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            self.loop.run_until_complete(self.app(scope, receive, send))
        finally:
            sys.setprofile(None)
        return Answer(statuses[0], calls)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("hostile"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.MonkeyPatch.context() as patched:
        # Of suggestions, which are planned one by one until then, the first is enough here.
        patched.setattr(why, "PATIENCE_S", 0.0)
        yield made
    made.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


def check(answer: Answer, what: str) -> None:
    assert answer.status < 500 or answer.status == 503, f"{what[:200]} is answered with {answer.status}"
    assert answer.calls < CALLS, f"{what[:200]} makes {answer.calls} calls"


def operations(bench: Bench) -> list[tuple[str, str, list[dict[str, Any]]]]:
    return [
        (method.upper(), path, operation.get("parameters", []))
        for path, methods in bench.document["paths"].items()
        for method, operation in methods.items()
        if not path.endswith("/hold-open") and path not in ("/v1/events", *CAREFUL)
    ]


def test_every_parameter_of_every_route(bench: Bench) -> None:
    asked = 0
    for method, path, parameters in operations(bench):
        plain = path.replace("{job}", "2").replace("{step}", "0")
        for parameter in parameters:
            for text in TEXTS:
                if parameter["in"] == "path":
                    target = path.replace("{" + parameter["name"] + "}", text).replace("{job}", "2")
                    answer = bench.ask(method, target, "timeout=0", uid=1000)
                else:
                    quiet = "" if parameter["name"] == "timeout" else "&timeout=0"
                    answer = bench.ask(method, plain, f"{parameter['name']}={quote(text)}{quiet}", uid=1000)
                check(answer, f"{method} {path} {parameter['name']}={text!r}")
                asked += 1
    assert asked > 300


def test_all_filters_at_once(bench: Bench) -> None:
    many = ",".join(str(number) for number in range(4_500))
    for path in ("/v1/jobs", "/v1/history", "/v1/priorities"):
        names = ("job", "user", "account", "partition", "state", "name")
        answer = bench.ask("GET", path, "&".join(f"{name}={many}" for name in names), uid=1000)
        check(answer, path)


def test_deep_json_is_refused(bench: Bench) -> None:
    for method, path, _ in operations(bench):
        if method != "POST":
            continue
        for body in DEEP:
            answer = bench.ask("POST", path.replace("{job}", "2").replace("{step}", "0"), body=body, uid=1000)
            check(answer, f"POST {path} {body[:20]!r}")
            if path in ("/v1/jobs", "/v1/cancel", "/v1/accounting/changes"):
                assert answer.status == 400, (path, answer.status)


HALVES = [rb'{"x":"\ud800"}', b'{"x":"\xed\xa0\x80"}', rb'{"\udfff":[1]}', rb'{"x":[{"y":"a\udc7fb"}]}']


def test_text_that_is_none_is_refused_by_every_route(bench: Bench) -> None:
    """What is kept of it, every command of everybody would have to show."""
    read = [path for method, path, _ in operations(bench) if method == "POST" and path != "/v1/blobs"]
    taking = [path for path in read if bench.ask("POST", path.replace("{job}", "2"), body=b"[").status == 400]
    assert {"/v1/jobs", "/v1/jobs/{job}/update", "/v1/orders"} <= set(taking)
    for path in taking:
        for body in HALVES:
            assert bench.ask("POST", path.replace("{job}", "2").replace("{step}", "0"), body=body).status == 400, path


def test_what_is_beside_the_specification_has_a_length(bench: Bench) -> None:
    fine = {"spec": {"name": "x"}, "script": "#!/bin/sh\n"}
    for name, good, bad in (
        ("idempotency_key", "k" * 256, "k" * 257),
        ("clusters", [], ["bireme"] * 1_000),
        ("environment", {"A": "x" * 100_000}, {"A": "x" * 4 * 1024 * 1024}),
    ):
        assert bench.ask("POST", "/v1/jobs", body=json.dumps({**fine, name: good}).encode()).status == 200, name
        assert bench.ask("POST", "/v1/jobs", body=json.dumps({**fine, name: bad}).encode()).status in (400, 413), name
    rules = {"spec": {"resources": {"node_rules": {}}}, "script": "#!/bin/sh\n"}
    assert bench.ask("POST", "/v1/jobs", body=json.dumps(rules).encode()).status == 400


WRONG = [{"a": "b"}, None, [["x"]]]


def hostile(hint: str) -> list[Any]:
    """For a field of this type: what is too much of it, and what it cannot be."""
    values: list[Any] = [*WRONG]
    if "str" in hint:
        values += TEXTS[1:6:2]
    if "int" in hint or "float" in hint:
        values += NUMBERS
    if "tuple" in hint:
        values += [["n1"] * 20_000, [10**12, 1]]
    if "Dependencies" in hint:
        values += [{"items": [{"kind": "afterok", "job_id": 1}] * 9_000}]
    if "ArraySpec" in hint:
        values += [{"task_ids": list(range(2_000))}, {"task_ids": [10**10, 1]}, {"task_ids": [1], "text": "x" * 9_999}]
    return values


@pytest.mark.parametrize(
    ("kind", "path", "inside"),
    [
        (JobSpec, "/v1/jobs", lambda field: {"spec": {"name": "x", **field}, "script": "#!/bin/sh\n"}),
        (ResourceRequest, "/v1/jobs", lambda field: {"spec": {"resources": field}, "script": "#!/bin/sh\n"}),
        (JobSpec, "/v1/jobs/3/update", lambda field: {"changes": field}),
        (ResourceRequest, "/v1/jobs/3/update", lambda field: {"changes": field}),
        (StepSpec, "/v1/jobs/2/steps", lambda field: {"spec": field}),
        (
            ReservationOrder,
            "/v1/reservations",
            lambda field: {"name": "r", "order": {"begin": 1e4, "end": 2e4, **field}},
        ),
    ],
    ids=["submit", "submit resources", "update", "update resources", "step", "reservation"],
)
def test_every_field_of_what_is_asked(bench: Bench, kind: type, path: str, inside: Any) -> None:
    uid = 0 if kind is ReservationOrder else 1000
    for field in fields(kind):
        for value in hostile(str(field.type)):
            body = json.dumps(inside({field.name: value})).encode()
            check(bench.ask("POST", path, body=body, uid=uid), f"POST {path} {field.name}={value!r:.80}")
    bench.cluster.state.validate()


def test_long_lists_of_orders(bench: Bench) -> None:
    one = {"spec": {"name": "x"}, "script": "x"}
    for path, body in [
        ("/v1/cancel", {"jobs": ["1_[0-4000000]"] * 1000}),
        ("/v1/cancel", {"jobs": [str(number) for number in range(2_000)], "signal": 10}),
        ("/v1/cancel", {"user": TEXTS, "jobs": TEXTS}),
        ("/v1/top", {"jobs": ["1_[0-4000000]"] * 1000}),
        ("/v1/nodes/update", {"nodes": "n[0-65535]," * 1000, "state": "DOWN", "reason": "x"}),
        ("/v1/jobs", {"het": [one] * 9_000}),
        ("/v1/jobs/2/steps", {"het": [{"spec": {}}] * 9_000}),
        ("/v1/jobs", {"spec": {"name": "x"}, "script": "x", "environment": {f"V{n}": "x" for n in range(9_000)}}),
    ]:
        check(bench.ask("POST", path, body=json.dumps(body).encode(), uid=1000), f"POST {path}")
