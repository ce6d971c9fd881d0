"""What a connection may take: time, bytes, requests sent ahead. Each refusal is an HTTP answer that says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.api.conftest import Running

from bireme.api.serving.crowd import Crowd, Limits
from bireme.api.serving.protocol import AHEAD, BEGUN_BYTES, HEAD_BYTES
from bireme.client.transport import ApiError, Transport

PING = b"GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\n"


LISTING = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
END = b"}\r\n0\r\n\r\n"


def fill(api: Running) -> None:
    """So many jobs that a listing is larger than what the kernel keeps for a socket."""
    spec = {"name": "x" * 900, "comment": "y" * 900}
    api.transport.post("/v1/jobs", {"jobs": [{"spec": spec}] * 300, "script": "x"})
    api.transport.close()


def limited(api: Running, **limits: float) -> None:
    """Other limits, for connections that are made from now on."""
    made = Limits(**{"head_s": 60.0, **limits})  # type: ignore[arg-type]
    api.server.crowd = Crowd(made)


@contextlib.contextmanager
def connected(api: Running, *pieces: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(api.transport.paths.socket)
        for piece in pieces:
            sock.sendall(piece)
        yield sock


def answered(sock: socket.socket) -> tuple[int, str]:
    """The status and the hint of the last answer before the connection ends."""
    received = b""
    with contextlib.suppress(ConnectionResetError):  # what was sent after the refusal is not read
        while piece := sock.recv(65536):
            received += piece
    head, _, body = received.rpartition(b"\r\n\r\n")
    return int(head.split(b"HTTP/1.1 ")[-1][:3]), json.loads(body)["error"]["hint"]


def test_half_a_head_is_given_up(api: Running) -> None:
    limited(api, head_s=0.05)
    with connected(api, b"GET /v1/ping HTTP/1.1\r\nHo") as sock:
        assert answered(sock) == (408, "its head took longer than 0.05 s")
    with connected(api) as silent:
        assert silent.recv(1) == b""
    assert api.transport.get("/v1/ping")["cluster"] == "tiny"


def test_a_body_that_stands_still_is_given_up(api: Running) -> None:
    limited(api, body_s=0.05)
    with connected(api, b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{") as sock:
        assert answered(sock) == (408, "nothing more of its body came for 0.05 s")


def test_an_answer_that_nobody_reads_is_given_up(api: Running) -> None:
    fill(api)
    limited(api, answer_s=0.05)
    with connected(api, LISTING) as sock:
        until(api, 1, lambda connection: connection.cycle is not None)
        until(api, 0, lambda connection: True)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(1 << 20):
                received += piece
    assert not received.endswith(END)


@pytest.mark.parametrize("ahead", [1, AHEAD + 5])
def test_an_answer_that_nobody_reads_is_given_up_whatever_is_sent_meanwhile(api: Running, ahead: int) -> None:
    """Another request, or so many that they are refused: that is not to have read the answer."""
    fill(api)
    limited(api, answer_s=0.5)
    with connected(api, LISTING.replace(b"Connection: close\r\n", b"")) as sock:
        until(api, 1, lambda connection: connection.cycle is not None and connection.flow.write_paused)
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(PING * ahead)
        until(api, 0, lambda connection: True)


def test_a_long_head_is_refused(api: Running) -> None:
    with connected(api, b"GET /v1/ping?x=" + b"x" * HEAD_BYTES) as sock:
        assert answered(sock)[0] == 431


def test_a_large_body_is_refused(api: Running) -> None:
    with pytest.raises(ApiError) as refused:
        api.transport.post("/v1/jobs", b"x" * 9_000_000)
    assert refused.value.status == 413


def test_requests_sent_ahead_are_few(api: Running) -> None:
    with connected(api, b"GET /v1/jobs/1/wait HTTP/1.1\r\nHost: x\r\n\r\n" + PING * (AHEAD + 5)) as sock:
        assert answered(sock)[0] == 429


def test_connections_that_hold_nothing_make_room(api: Running) -> None:
    limited(api, connections_each=4, connections=100, grace_s=0.0)
    with contextlib.ExitStack() as open_ones:
        half = [open_ones.enter_context(connected(api, b"GET /v1/ping HT")) for _ in range(4)]
        until(api, 4, lambda connection: connection._received > 0)
        api.transport.get("/v1/ping")
        assert answered(half[0])[0] == 408
    assert api.transport.get("/v1/ping")["cluster"] == "tiny"


def test_who_is_busy_with_all_of_theirs_is_told_so_and_tried_again(api: Running) -> None:
    api.transport.post("/v1/jobs", {"spec": {"name": "long"}, "script": "x"})
    limited(api, connections_each=2, connections=100)
    with contextlib.ExitStack() as open_ones:
        waiting = b"GET /v1/jobs/1/wait?timeout=3000 HTTP/1.1\r\nHost: x\r\n\r\n"
        socks = [open_ones.enter_context(connected(api, waiting)) for _ in range(2)]
        until(api, 2, lambda connection: connection.cycle is not None)
        with connected(api) as third:
            assert answered(third) == (
                429, "you have 2 connections to the daemon, all of them busy: end some, or try again"
            )  # fmt: skip
        refusals = counted_refusals(api)

        def end_one_after_three_refusals() -> None:
            if len(refusals) == 3:
                socks[0].close()

        refusals.then = end_one_after_three_refusals
        with Transport(api.home, timeout_s=20, tool="test") as patient:
            assert patient.get("/v1/ping")["cluster"] == "tiny"
        assert len(refusals) >= 3


class Refusals(list[str]):
    """What the crowd said, and what is to be done each time."""

    def then(self) -> None: ...


def counted_refusals(api: Running) -> Refusals:
    refusals, enter = Refusals(), api.server.crowd.enter

    def counting(new: object) -> str:
        said = enter(new)  # type: ignore[arg-type]
        if said:
            refusals.append(said)
            refusals.then()
        return said

    class Counting(Crowd):
        enter = staticmethod(counting)  # type: ignore[assignment]

    counted = Counting(api.server.crowd.limits, api.server.crowd.by_uid, api.server.crowd.total)
    before, api.server.crowd = api.server.crowd, counted
    counted.leave = before.leave  # type: ignore[method-assign]
    return refusals


def until(api: Running, count: int, good: Callable[[Any], bool]) -> None:
    """So many connections are as they should be."""

    async def look() -> None:
        while sum(good(each) for own in api.server.crowd.by_uid.values() for each in own) != count:
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(look(), api.loop).result(30)


def leave_unsent(api: Running) -> None:
    """A little more is written to every connection than the kernel keeps: less than makes its writer pause."""

    async def write() -> None:
        for connection in api.server._state.connections:
            transport = connection.transport  # type: ignore[union-attr]
            while not transport.get_write_buffer_size():
                transport.write(b"x" * 4096)
            assert not connection.flow.write_paused  # type: ignore[union-attr]

    asyncio.run_coroutine_threadsafe(write(), api.loop).result(30)


@contextlib.contextmanager
def pinged(api: Running) -> Iterator[socket.socket]:
    """A connection whose request is answered and read."""
    with connected(api, PING) as sock:
        received = b""
        while not received.endswith(b"}"):
            received += sock.recv(65536)
        yield sock


def test_what_is_closed_with_little_unsent_is_given_up_too(api: Running) -> None:
    limited(api, answer_s=0.05)
    with pinged(api):
        leave_unsent(api)

        async def close() -> None:
            for connection in list(api.server._state.connections):
                connection.transport.close()  # type: ignore[union-attr]

        asyncio.run_coroutine_threadsafe(close(), api.loop).result(30)
        until(api, 0, lambda connection: True)
    assert api.server._state.connections == set()


def test_a_connection_with_something_unsent_keeps_its_place(api: Running) -> None:
    """Were it counted no longer and not closed either, one user could take all of the daemon's descriptors."""
    limited(api, connections_each=3, connections=100, grace_s=0.0)
    with contextlib.ExitStack() as open_ones:
        for _ in range(3):
            open_ones.enter_context(pinged(api))
        leave_unsent(api)
        for _ in range(5):
            with connected(api) as another:
                assert answered(another)[0] == 429
        assert api.server.crowd.total == 3
        until(api, 3, lambda connection: connection.busy)
        assert len(api.server._state.connections) == 3


def test_who_gives_way_is_closed_whether_or_not_it_reads(api: Running) -> None:
    limited(api, connections_each=1, connections=100, grace_s=0.0)
    with pinged(api) as deaf:
        leave_unsent(api)
        rest = asyncio.run_coroutine_threadsafe(give_way(api), api.loop).result(30)
        assert rest == 0
        until(api, 0, lambda connection: True)
        with contextlib.suppress(ConnectionResetError):
            while deaf.recv(1 << 20):
                pass


async def give_way(api: Running) -> int:
    (connection,) = api.server._state.connections
    connection.give_way()  # type: ignore[union-attr]
    return int(connection.transport.get_write_buffer_size())  # type: ignore[union-attr]


def test_a_long_listing_comes_in_pieces_and_lets_others_in_between(api: Running) -> None:
    fill(api)
    with connected(api, LISTING) as slow:
        head = slow.recv(300, socket.MSG_PEEK)
        assert b"transfer-encoding: chunked" in head, "nobody keeps the whole of it"
        assert api.transport.get("/v1/ping")["cluster"] == "tiny"
        received = b""
        while piece := slow.recv(1 << 20):
            received += piece
        assert received.endswith(END)
    jobs = api.transport.get("/v1/jobs")["jobs"]
    assert [job["job_id"] for job in jobs] == list(range(1, 301))
    (one,) = api.transport.get("/v1/jobs", {"job": "7"})["jobs"]
    assert one["job_id"] == 7


def test_who_leaves_in_the_middle_of_a_body_is_no_failure(api: Running, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand of them would fill the log, and each trace of calls takes longer to write than a request."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{"
    with connected(api, head) as leaving:
        _until(api, lambda: [each for each in api.server._state.connections if each.cycle is not None])
        leaving.close()
        _until(api, lambda: not api.server._state.tasks)
    assert caplog.records == []


def _until(api: Running, good: Callable[[], Any]) -> None:
    async def seen() -> None:
        while not good():
            await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(seen(), api.loop).result(30)


SUBMISSION = json.dumps({"spec": {"name": "slow"}, "script": "x" * 20_000}).encode()


@pytest.mark.parametrize("first", [0, 1, BEGUN_BYTES - 1, BEGUN_BYTES, len(SUBMISSION) - 1])
def test_a_request_begins_when_its_body_is_there_or_much_of_it(api: Running, first: int) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(SUBMISSION)
    with connected(api, head + SUBMISSION[:first]) as sock:
        until(api, 1, lambda connection: connection.cycle is not None and connection._received == len(head) + first)
        assert len(api.server._state.tasks) == (first >= BEGUN_BYTES)
        sock.sendall(SUBMISSION[first:])
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_who_waits_to_be_told_to_send_a_body_is_told(api: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(SUBMISSION)
    with connected(api, head) as sock:
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(SUBMISSION)
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_sent_ahead_in_pieces_arrives_whole(api: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(SUBMISSION)
    with connected(
        api, b"GET /v1/jobs/1/wait?timeout=0.1 HTTP/1.1\r\nHost: x\r\n\r\n" + head + SUBMISSION[:10]
    ) as sock:
        until(api, 1, lambda connection: bool(connection.pipeline) or connection._held is not None)
        sock.sendall(SUBMISSION[10:])
        received = b""
        while piece := sock.recv(65536):
            received += piece
    assert b"HTTP/1.1 200" in received
    assert api.transport.get("/v1/jobs/1")["jobs"][0]["name"] == "slow"


PING = b"GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_connection_without_requests_ends(api: Running) -> None:
    api.server._config.timeout_keep_alive = 0.05
    with connected(api, PING) as sock:
        received = b""
        while piece := sock.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_was_used_since_is_looked_at_later(api: Running) -> None:
    def looked_at(idle_for_s: float) -> tuple[bool, bool]:
        """Whether it is closed, and whether it will be looked at again."""
        (connection,) = api.server._state.connections
        connection._idle_since = api.loop.time() - idle_for_s
        connection._look_whether_idle()
        return connection.transport.is_closing(), connection._idle_timer is not None

    async def look(idle_for_s: float) -> tuple[bool, bool]:
        return looked_at(idle_for_s)

    api.transport.close()
    with connected(api, PING) as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert asyncio.run_coroutine_threadsafe(look(1.0), api.loop).result(30) == (False, True)
        sock.sendall(PING[:9])
        until(api, 1, lambda connection: connection._received > connection._head_from)
        assert asyncio.run_coroutine_threadsafe(look(1000.0), api.loop).result(30) == (False, False)
        sock.sendall(PING[9:])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert asyncio.run_coroutine_threadsafe(look(1000.0), api.loop).result(30) == (True, False)
        assert sock.recv(1) == b""
