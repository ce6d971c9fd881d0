"""MLflow's client against servers that answer well, badly, and with anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bireme.daemon.experiments.mlflow import Mlflow, Point, gone
from bireme.daemon.scaling.fetching import Unanswered

Ask = Callable[[Mlflow], Awaitable[Any]]


def answered(ask: Ask, *answers: tuple[int, bytes], credential: str = "") -> tuple[Any, list[bytes]]:
    """What comes of a question, and the requests that were made, by a server that gives these answers in turn."""
    requests: list[bytes] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), b"0")
        requests.append(head + await reader.readexactly(int(length)))
        status, body = left.pop(0)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    async def play() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                return await ask(Mlflow(f"http://127.0.0.1:{port}/base/", credential))
            except Unanswered as error:
                return error

    return asyncio.run(play()), requests


def said(**content: Any) -> bytes:
    return json.dumps(content).encode()


MISSING = (404, said(error_code="RESOURCE_DOES_NOT_EXIST", message="No such thing"))
TAKEN = (400, said(error_code="RESOURCE_ALREADY_EXISTS", message="It is there"))
FOUND = (200, said(experiment={"experiment_id": "7", "lifecycle_stage": "active"}))


def test_an_experiment_is_found_or_made() -> None:
    assert answered(lambda m: m.experiment("a b"), FOUND)[0] == "7"
    made, requests = answered(lambda m: m.experiment("a b"), MISSING, (200, said(experiment_id="8")))
    assert made == "8"
    assert b"GET /base/api/2.0/mlflow/experiments/get-by-name?experiment_name=a+b " in requests[0]
    assert json.loads(requests[1].partition(b"\r\n\r\n")[2]) == {"name": "a b"}


def test_who_makes_an_experiment_too_late_has_the_others() -> None:
    assert answered(lambda m: m.experiment("a"), MISSING, TAKEN, FOUND)[0] == "7"


def test_a_deleted_experiment_is_told() -> None:
    deleted = (200, said(experiment={"experiment_id": "7", "lifecycle_stage": "deleted"}))
    assert "restore it" in str(answered(lambda m: m.experiment("a"), deleted)[0])


def test_the_daemons_credential_is_in_the_head_alone() -> None:
    _, (request,) = answered(lambda m: m.delete_run("r"), (200, b"{}"), credential="Bearer secret")
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"Authorization: Bearer secret" in head
    assert b"secret" not in head.split(b"\r\n")[0] + body


def test_a_run_is_read_with_the_latest_of_its_metrics() -> None:
    told = {
        "info": {"run_id": "r", "experiment_id": "7", "status": "RUNNING", "run_name": "n"},
        "data": {"metrics": [{"key": "loss", "value": "NaN", "timestamp": 2500, "step": 3}]},
    }
    run, _ = answered(lambda m: m.run("r"), (200, said(run=told)))
    assert (run.status, run.name, run.deleted) == ("RUNNING", "n", False)
    assert (run.metrics["loss"].at, run.metrics["loss"].step) == (2.5, 3)


def test_a_history_is_in_order() -> None:
    told = [{"key": "l", "value": 1, "timestamp": 2000, "step": 2}, {"key": "l", "value": 2, "timestamp": 1000}]
    points, _ = answered(lambda m: m.history("r", "l"), (200, said(metrics=told)))
    assert points == [Point(1.0, 0, 2.0), Point(2.0, 2, 1.0)]


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", said(run=None), said(run={"info": 3}), said(run={"info": {"run_id": 1}}), b"\xff"],
)
def test_an_answer_that_is_not_mlflows_is_none(body: bytes) -> None:
    found, _ = answered(lambda m: m.run("r"), (200, body))
    assert isinstance(found, Unanswered)


def test_what_a_server_says_beside_a_refusal_is_passed_on_and_cannot_write_to_a_terminal() -> None:
    found, _ = answered(lambda m: m.run("r"), (403, said(error_code="X", message="no \x1b[31m" + "x" * 5000)))
    assert found.refuses
    assert "\x1b" not in str(found)
    assert len(str(found)) < 300
    assert gone(answered(lambda m: m.run("r"), MISSING)[0])


def test_a_server_that_breaks_is_no_refusal() -> None:
    found, _ = answered(lambda m: m.run("r"), (502, b"<html>bad gateway"))
    assert not found.refuses
