"""What a pod's events complain of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bireme.engines.kubernetes.apiserver.api import ApiProblem
from bireme.engines.kubernetes.pod_events import complaint, newest

POD = {"metadata": {"namespace": "team", "name": "c-7-1-0", "uid": "u1"}}


def event(reason: str, message: str = "", **times: Any) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "reason": reason, "message": message, **times}


def test_the_newest_counts_also_of_those_that_repeat_themselves() -> None:
    repeated = event("FailedMount", 'claim "x"\n  not found', lastTimestamp="2026-01-01T00:09:00Z")
    series = event("Unhealthy", series={"lastObservedTime": "2026-01-01T00:07:00.000000Z"}, lastTimestamp=None)
    once = event("FailedScheduling", eventTime="2026-01-01T00:08:00.000000Z", lastTimestamp=None)
    assert newest([once, repeated, series]) == 'FailedMount: claim "x" not found'
    assert newest([series, once, event("Made")]) == "FailedScheduling"
    assert newest([]) == ""
    assert len(newest([event("Long", "x" * 10_000)])) == 500


class Server:
    def __init__(self, answer: list[dict[str, Any]] | ApiProblem) -> None:
        self._answer = answer
        self.asked: tuple[str, dict[str, str]] = ("", {})

    async def list(self, path: str, params: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
        self.asked = (path, params)
        if isinstance(self._answer, ApiProblem):
            raise self._answer
        return self._answer, "1"


def asked(server: Server) -> str:
    return asyncio.run(complaint(server, POD))  # type: ignore[arg-type]


def test_only_warnings_of_this_very_pod_are_asked_for() -> None:
    server = Server([event("FailedMount", "no claim")])
    assert asked(server) == "FailedMount: no claim"
    of_pod = {"fieldSelector": "involvedObject.uid=u1,type=Warning"}
    assert server.asked == ("/api/v1/namespaces/team/events", of_pod)


def test_who_may_not_read_them_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(Server(ApiProblem("events is forbidden", status=403))) == ""
    assert "why pod c-7-1-0 does not start cannot be read: events is forbidden" in caplog.text
