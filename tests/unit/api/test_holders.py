"""Interactive jobs live as long as somebody holds them: from their submission on, and through the daemon's absence."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

import pytest
from tests.unit.api.conftest import Running

from bireme.api.cluster import Decide
from bireme.client.transport import Transport, _request_bytes
from bireme.core.model.events import JobCancelled, Recorded
from bireme.core.model.jobs import Outcome, Pending

HELD = {"spec": {"name": "shell", "kind": "interactive", "held_open": True}, "environment": {}}
NOT_HELD = {"spec": {"name": "no shell", "kind": "interactive"}, "environment": {}}
SOON_S = 0.05


@pytest.fixture
def hasty(api: Running) -> Running:
    api.app.state.context.holders.grace_s = SOON_S
    return api


def events_until(api: Running, kind: str) -> list[str]:
    """The events so far, to the first of this kind, with what caused it as the last."""
    seen: list[str] = []
    with Transport(api.home).stream("/v1/events", {"after": 3}) as stream:
        for line in stream.lines():
            if line.startswith("event: "):
                seen.append(line[7:])
            if seen and seen[-1] == kind and line.startswith("data: "):
                return seen
    raise AssertionError(seen)


def begin(api: Running) -> None:
    api.loop.call_soon_threadsafe(api.app.state.context.holders.begin)


def is_waiting(api: Running, job_id: int) -> bool:
    return isinstance(api.cluster.state.jobs[job_id].phase, Pending)


def test_a_job_that_nobody_comes_to_hold_is_ended(hasty: Running) -> None:
    unheld = hasty.transport.post("/v1/jobs", NOT_HELD)["job_id"]
    job_id = hasty.transport.post("/v1/jobs", HELD)["job_id"]
    assert events_until(hasty, "JobCancelled") == ["JobSubmitted", "JobSubmitted", "JobCancelled"]
    assert (is_waiting(hasty, unheld), is_waiting(hasty, job_id)) == (True, False)
    assert hasty.cluster.state.jobs[job_id].phase.outcome.by_uid == 0  # type: ignore[union-attr]


def test_nor_does_it_outlive_a_holder_who_left_while_the_daemon_was_away(api: Running) -> None:
    gone, held = (api.transport.post("/v1/jobs", HELD)["job_id"] for _ in range(2))
    with api.transport.stream(f"/v1/jobs/{held}/hold-open") as lease:
        assert next(lease.lines()) == '{"kind":"Watching"}'
        api.app.state.context.holders.grace_s = SOON_S
        begin(api)  # as a daemon that has just started
        events_until(api, "JobCancelled")
        assert (is_waiting(api, gone), is_waiting(api, held)) == (False, True)
        api.happen(JobCancelled(held, Outcome("CANCELLED")))


def test_who_is_gone_when_the_job_is_accepted_leaves_no_job(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace is long here: the job ends because there is nobody to be told of it."""
    decided, gone, do = threading.Event(), asyncio.Event(), api.cluster.do

    async def do_when_gone(cause: str, decide: Decide) -> Sequence[Recorded]:
        decided.set()
        await gone.wait()
        for _ in range(10):  # turns of the loop, in which it hears that the connection ended
            await asyncio.sleep(0)
        return await do(cause, decide)

    monkeypatch.setattr(api.cluster, "do", do_when_gone)
    message = _request_bytes("POST", "/v1/jobs", None, HELD, "test")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.connect(api.transport.paths.socket)
        asking.sendall(message)
        assert decided.wait(10)
    api.loop.call_soon_threadsafe(gone.set)
    assert events_until(api, "JobCancelled") == ["JobSubmitted", "JobCancelled"]
