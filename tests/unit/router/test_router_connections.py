"""Clients' connections without sockets: who may come from where, and limits of time, on a clock of the test's."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from bireme.router import board, inner
from bireme.router.client_side import ClientSide
from bireme.router.inner import Start
from bireme.router.messages import Key, Replica, Service, Table
from bireme.router.replica_side import ReplicaSide
from bireme.router.settings import Settings
from bireme.router.turns import AT_ONCE, FULL_READ_BYTES, Turns
from bireme.router.worker import Worker

KEY = Key(id="k", sha256=hashlib.sha256(b"secret").hexdigest())


class Wire:
    """A transport that keeps what is written."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.written = b""
        self.is_over = False
        self.is_read = True
        self.first = (0, "")
        """A refusal that came in the place of an answer's head."""
        self.untaken = 0

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def close(self) -> None:
        self.is_over = True

    abort = write_eof = close

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

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


# --- who may have how many ---


def crowded(*services: Service) -> Worker:
    """A worker with forty connections."""
    start = Start(
        settings=Settings(home="/nowhere", most_connections=40, most_of_one=40), row=0, workers=1, listeners=(),
        channel=0, meeting=0, memory=board.new_memory(1), kicks=(0,),
    )  # fmt: skip
    made, table = Worker(start, asyncio.new_event_loop()), Table(serial=0, services=services)
    made._apply(table, board.Blocks().give(inner.names_in(table), inner.keys_in(table)))
    return made


def test_no_owner_has_the_last_connections_for_queues_of_its_services() -> None:
    greedy = [Service(name=name, queue=1_000_000, uid=7) for name in ("a", "b")]
    worker = crowded(*greedy, Service(name="modest", uid=8))
    codes = []
    for number in range(38):
        client, wire = knock(worker, "127.0.0.1")
        client.data_received(b"GET /%b/x HTTP/1.1\r\nHost: a\r\n\r\n" % (b"ab"[number % 2 : number % 2 + 1]))
        if wire.written:
            codes.append(wire.answer())
            assert wire.is_over, "who is sent away does not keep its connection"
            client.connection_lost(None)
    assert set(codes) == {(503, "too_many_connections")}
    assert len(worker.clients) == 36
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"GET /modest/x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(worker._services["modest"].waiting) == 1
    worker.loop.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "127.9.9.9", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)
def test_connections_are_counted_by_whose_they_are(worker: Worker, one: str, other: str, same: bool) -> None:
    assert (knock(worker, one)[0].holder == knock(worker, other)[0].holder) is same


# --- turns ---

TINY = b"1\r\na\r\n"
CHUNKED = b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def a_round(worker: Worker) -> None:
    """Of the loop."""
    worker.loop.call_soon(worker.loop.stop)
    worker.loop.run_forever()


def rounds_until(worker: Worker, is_so: Callable[[], bool]) -> int:
    count = 0
    while not is_so():
        a_round(worker)
        count += 1
    return count


def test_chunks_of_a_byte_are_looked_through_in_turns(worker: Worker) -> None:
    """A client that sends many of them at once is not read meanwhile, and all of them come to be read."""
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"POST /v1/x " + CHUNKED)
    client.data_received(TINY * 40_000)
    assert 0 < worker.held_bytes <= 7 * AT_ONCE, "no more of it is looked through at once, as it came and its data"
    assert not wire.is_read
    rounds = rounds_until(worker, lambda: wire.is_read)
    assert rounds > 1
    assert worker.held_bytes == 7 * 40_000
    client.data_received(b"0\r\n\r\n")
    assert wire.answer() == (400, "bad_body")
    assert worker.held_bytes == 0


def test_a_model_is_found_in_tiny_chunks(worker: Worker) -> None:
    client, wire = knock(worker, "127.0.0.1")
    text = b'{"model": "free", "text": "' + b"x" * 1000 + b'"}'
    client.data_received(b"POST /v1/x " + CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n")
    rounds_until(worker, lambda: bool(worker._services["free"].waiting))
    assert wire.written == b""
    assert worker.held_bytes == 6 * len(text) + 5, "as it came, once"


def test_who_leaves_before_its_turn_is_forgotten(worker: Worker) -> None:
    client, _wire = knock(worker, "127.0.0.1")
    client.data_received(b"POST /v1/x " + CHUNKED + TINY * 1000)
    client.connection_lost(None)
    a_round(worker)
    assert worker.held_bytes == 0


def test_what_is_read_meanwhile_comes_behind(worker: Worker) -> None:
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"POST /v1/x " + CHUNKED + TINY * 1000)
    client.data_received(TINY * 1000)
    assert not wire.is_read
    rounds_until(worker, lambda: wire.is_read)
    assert worker.held_bytes == 7 * 2000


def test_a_long_read_lets_others_go_first(worker: Worker) -> None:
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n")
    client.data_received(b" " * (FULL_READ_BYTES - 1))
    assert wire.is_read
    client.data_received(b" " * FULL_READ_BYTES)
    assert not wire.is_read, "the loop would read on and on"
    rounds_until(worker, lambda: wire.is_read)


def answering(worker: Worker, head: bytes) -> tuple[ReplicaSide, Wire, ClientSide, Wire]:
    """A request that a replica has begun to answer."""
    replica = Replica(id="r", host="127.0.0.1", port=1)
    table = Table(serial=0, services=(Service(name="free", replicas=(replica,)),))
    worker._apply(table, board.Blocks().give(inner.names_in(table), ()))
    backend = worker._services["free"].backends["r"]
    side, replica_wire = ReplicaSide(worker, backend), Wire("127.0.0.1")
    side.connection_made(cast(asyncio.Transport, replica_wire))
    backend.idle.append(side)
    client, wire = knock(worker, "127.0.0.1")
    client.data_received(b"GET /free/x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    side.data_received(head)
    wire.first = wire.answer() if wire.written.startswith(b"HTTP/1.1 502") else (0, "")
    wire.written = b""
    return side, replica_wire, client, wire


ANSWERS = {
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", TINY, b"0\r\n\r\n"),
    "frames": (b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\x89\x00", b""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_in_tiny_pieces_is_passed_on_in_turns(worker: Worker, name: str) -> None:
    head, piece, end = ANSWERS[name]
    side, replica_wire, client, wire = answering(worker, head)
    side.data_received(piece * 10_000)
    assert 0 < len(wire.written) <= AT_ONCE * len(piece)
    assert not replica_wire.is_read
    client.pause_writing()
    client.resume_writing()
    assert not replica_wire.is_read, "that the client takes more does not give it another turn"
    rounds_until(worker, lambda: replica_wire.is_read)
    assert wire.written == piece * 10_000
    if end:
        side.data_received(end)
        assert side in worker._services["free"].backends["r"].idle
        assert replica_wire.is_read


def test_a_replica_that_ends_its_answer_in_its_turn_is_read_on(worker: Worker) -> None:
    head, piece, end = ANSWERS["chunks"]
    side, replica_wire, _client, wire = answering(worker, head)
    side.data_received(piece * 1000 + end)
    idle = worker._services["free"].backends["r"].idle
    rounds_until(worker, lambda: side in idle)
    assert wire.written == piece * 1000 + end
    assert replica_wire.is_read


class Plodder:
    """A connection that always has more to look through."""

    def __init__(self, turns: Turns, order: list[int], number: int) -> None:
        self.turns, self.order, self.number = turns, order, number

    def go_on(self) -> None:
        self.order.append(self.number)
        self.turns.wait(self)
        if self.number == 13:
            raise RuntimeError("one that goes wrong")


def test_turns_go_round_and_one_that_goes_wrong_stops_nobody(worker: Worker) -> None:
    worker.loop.set_exception_handler(lambda loop, context: None)
    order: list[int] = []
    for number in range(20):
        worker.turns.wait(Plodder(worker.turns, order, number))
    rounds_until(worker, lambda: len(order) >= 60)
    assert order == [at % 20 for at in range(len(order))]


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"hello", b"HTTP/1.1 200 " + b"r" * 70_000 + b"\r\n\r\n"]
)
def test_what_is_no_answer_is_told_at_once(worker: Worker, said: bytes) -> None:
    _side, _replica_wire, _client, wire = answering(worker, said)
    assert wire.first == (502, "bad_answer")


def test_what_waits_is_averaged_over_all_of_the_time_since_it_was_told_before(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a look begins in one second and ends in the next."""
    now, told = [100.02], list[inner.Did]()
    monkeypatch.setattr("bireme.router.worker.time.monotonic", lambda: now[0])
    monkeypatch.setattr(worker, "tell", told.append)
    client, _ = knock(worker, "127.0.0.1")
    client.data_received(b"GET /free/x HTTP/1.1\r\nHost: a\r\n\r\n")
    worker._tell_load()
    now[0] = 100.97
    slow = client.look

    def look(at: float) -> None:
        slow(at)
        now[0] = 101.01

    monkeypatch.setattr(ClientSide, "look", lambda self, at: look(at))
    worker._look()
    now[0] = 101.26
    worker._look()
    (part,) = told[-1].parts
    assert part.area / told[-1].seconds == pytest.approx(1.0)
