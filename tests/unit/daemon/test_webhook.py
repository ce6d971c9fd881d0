"""The address that operators are told by: the facts by POST, tried again when it fails, in the log by its host."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bireme.daemon import hooks
from bireme.daemon.hooks import Hook


@contextmanager
def listening(fails: int, gate: threading.Event | None = None) -> Iterator[tuple[str, list[Any]]]:
    """An address that refuses so many calls, and what it was told. `gate`: until it is open no job is answered."""
    told: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if gate is not None and "job_id" in told[-1]:
                gate.wait()
            self.send_response(503 if len(told) <= fails else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-word", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def called(address: str, tries: int) -> None:
    hook = Hook(lambda: address, lambda: 20.0, name="healing.webhook", tries=tries)
    hook.call({"what": "fence raised", "place": "n1", "evidence": ["x"]})
    await asyncio.gather(*hook.under_way)


@pytest.mark.parametrize(("fails", "calls"), [(0, 1), (1, 2), (9, 3)], ids=["at once", "again", "given up"])
def test_it_is_tried_three_times_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: int, calls: int
) -> None:
    monkeypatch.setattr(hooks, "_AGAIN_S", 0.0)
    with listening(fails) as (address, told), caplog.at_level(logging.WARNING):
        asyncio.run(called(address, 3))
    assert told == [{"what": "fence raised", "place": "n1", "evidence": ["x"]}] * calls
    assert ("127.0.0.1 cannot be run or reached: it answers 503" in caplog.text) is bool(fails)
    assert "secret-word" not in caplog.text


def test_the_news_of_one_users_jobs_do_not_stand_before_those_of_nodes() -> None:
    """All turns of jobs are taken, and nobody gives one back."""

    async def play(address: str) -> None:
        hook = Hook(lambda: address, lambda: 20.0)
        for number in range(20):
            hook.call({"what": "healing done", "job_id": number + 1})
        jobs = hook.under_way
        hook.call({"what": "fence raised", "place": "n2"})
        (fence,) = [each for each in hook.under_way if each not in jobs]
        await fence
        assert {"what": "fence raised", "place": "n2"} in told, "before the news of all jobs"
        assert len(told) <= 1 + 2, "of jobs no more than those whose turn it was"
        gate.set()
        await hook.close()

    gate = threading.Event()
    with listening(0, gate) as (address, told):
        asyncio.run(asyncio.wait_for(play(address), 20.0))
