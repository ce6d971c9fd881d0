"""Clients' connections without sockets: who may come from where, and limits of time, on a clock of the test's."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any, cast

import pytest

from bireme.router import board, inner
from bireme.router.client_side import ClientSide
from bireme.router.inner import Start
from bireme.router.messages import Key, Service, Table
from bireme.router.settings import Settings
from bireme.router.worker import Worker

KEY = Key(id="k", sha256=hashlib.sha256(b"secret").hexdigest())


class Wire:
    """A transport that keeps what is written."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.written = b""
        self.is_over = False
        self.untaken = 0

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def close(self) -> None:
        self.is_over = True

    abort = write_eof = resume_reading = pause_reading = close

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def answer(self) -> tuple[int, str]:
        head, _, body = self.written.partition(b"\r\n\r\n")
        self.written = b""
        return int(head.split()[1]), json.loads(body).get("error", {}).get("code", "")


@pytest.fixture
def worker() -> Any:
    loop = asyncio.new_event_loop()
    table = Table(serial=0, services=(Service(name="free"), Service(name="keyed", keys=(KEY,))))
    start = Start(
        settings=Settings(home="/nowhere"), row=0, workers=1, listeners=(), channel=0, meeting=0,
        memory=board.new_memory(1), kicks=(0,),
    )  # fmt: skip
    made = Worker(start, loop)
    made._apply(table, board.Blocks().give(inner.names_in(table), inner.keys_in(table)))
    yield made
    loop.close()


def knock(worker: Worker, peer: str) -> tuple[ClientSide, Wire]:
    client, wire = ClientSide(worker), Wire(peer)
    client.connection_made(cast(asyncio.Transport, wire))
    return client, wire


@pytest.mark.parametrize("peer", ["10.0.0.7", "2001:db8::1", "::ffff:10.0.0.7", "", "1270.0.0.1"])
def test_from_elsewhere_only_what_has_keys_is_reached(worker: Worker, peer: str) -> None:
    client, wire = knock(worker, peer)
    client.data_received(b"GET /free/x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert wire.answer() == (403, "loopback_only")
    client.data_received(b"GET /keyed/x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert wire.answer() == (401, "invalid_api_key")
    assert not worker._services["keyed"].arrived, "who may not use it is no load"
    client.data_received(b"GET /keyed/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\r\n")
    assert len(worker._services["keyed"].waiting) == 1, "it waits for a replica"


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_from_this_machine_no_key_is_needed_where_there_is_none(worker: Worker, peer: str) -> None:
    client, wire = knock(worker, peer)
    client.data_received(b"GET /free/x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(worker._services["free"].waiting) == 1
    assert wire.written == b""


def test_a_body_from_elsewhere_is_not_held_for_who_has_no_key(worker: Worker) -> None:
    client, wire = knock(worker, "10.0.0.7")
    client.data_received(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{")
    assert wire.answer() == (401, "invalid_api_key")
    assert worker.held_bytes == 0


def test_a_request_that_waits_has_its_time(worker: Worker) -> None:
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"GET /free/x HTTP/1.1\r\nHost: a\r\n\r\n")
    now = worker.now
    client.look(now + 1799)
    assert wire.written == b""
    client.look(now + 1801)
    assert wire.answer() == (503, "queue_timeout")
    assert not worker._services["free"].waiting


def test_a_client_that_takes_little_but_enough_is_kept(worker: Worker) -> None:
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"GET /-/health HTTP/1.1\r\nHost: a\r\n\r\n")
    wire.untaken = 100_000
    now = worker.now
    for _ in range(5):
        wire.untaken -= 5_000
        now += 31
        client.look(now)
        assert not wire.is_over
    wire.untaken -= 100
    client.look(now + 31)
    assert wire.is_over
