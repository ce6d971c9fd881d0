"""The metrics port: one page for many, deflated or not, and nothing else; ports that are taken."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from bireme.gather import serving
from bireme.gather.address import PortError, address_of
from bireme.gather.serving import MOST_CONNECTIONS, MOST_HEAD_BYTES, KeptPort, MetricsPort, bound


class Pages:
    """Counts how often a page is made."""

    def __init__(self) -> None:
        self.made = 0
        self.fails = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def __call__(self) -> str:
        self.made += 1
        await self.may_go_on.wait()
        if self.fails:
            raise RuntimeError("no page")
        return f"page {self.made}\n"


def served(check: Callable[[Pages, int], Awaitable[None]]) -> None:
    async def run() -> None:
        pages = Pages()
        listener = free_listener()
        port = MetricsPort(listener, pages)
        await port.begin()
        try:
            await check(pages, listener.getsockname()[1])
        finally:
            port.close()

    asyncio.run(run())


def free_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


async def said(port: int, request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


def test_the_page_is_what_prometheus_reads() -> None:
    async def check(pages: Pages, port: int) -> None:
        head, body = await said(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert body == b"page 1\n"
        assert b"Content-Type: text/plain; version=0.0.4" in head
        assert b"Content-Length: 7" in head

    served(check)


def test_it_goes_out_deflated_to_who_can_read_that() -> None:
    async def check(pages: Pages, port: int) -> None:
        head, body = await said(port, b"GET /metrics HTTP/1.1\r\nAccept-Encoding: br, gzip;q=0.5\r\n\r\n")
        assert (b"Content-Encoding: gzip" in head, gzip.decompress(body)) == (True, b"page 1\n")
        head, body = await said(port, b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip;q=0\r\n\r\n")
        assert (b"Content-Encoding" in head, body) == (False, b"page 1\n")

    served(check)


def test_many_who_ask_at_once_cost_one_page() -> None:
    async def check(pages: Pages, port: int) -> None:
        pages.may_go_on.clear()
        asking = [asyncio.create_task(said(port, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(8)]
        while not pages.made:
            await asyncio.sleep(0)
        pages.may_go_on.set()
        assert {body for _, body in await asyncio.gather(*asking)} == {b"page 1\n"}

    served(check)


def test_an_older_page_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SHARED_S", -1.0)

    async def check(pages: Pages, port: int) -> None:
        bodies = [(await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] for _ in range(2)]
        assert bodies == [b"page 1\n", b"page 2\n"]

    served(check)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /v1/jobs HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
    ],
)
def test_there_is_nothing_else(request_: bytes, status: bytes) -> None:
    async def check(pages: Pages, port: int) -> None:
        head, body = await said(port, request_)
        assert head.split(b" ")[1] == status
        assert not (request_.startswith(b"HEAD") and body)

    served(check)


def test_a_head_without_an_end_is_hung_up_on() -> None:
    async def check(pages: Pages, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 2 * MOST_HEAD_BYTES)
        with suppress(ConnectionError):
            assert not await reader.read()
        writer.close()

    served(check)


def test_of_too_many_the_next_is_hung_up_on() -> None:
    async def check(pages: Pages, port: int) -> None:
        pages.may_go_on.clear()
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in idle:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while not pages.made:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            assert not await reader.read()
        pages.may_go_on.set()
        assert all([(await each.read()).endswith(b"page 1\n") for each, _ in idle])
        for _, each in idle:
            each.close()

    served(check)


def test_who_asks_takes_the_place_of_one_who_does_not_finish_asking() -> None:
    async def check(pages: Pages, port: int) -> None:
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in halves:
            writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert (await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] == b"page 1\n"
        for _, each in halves:
            each.close()

    served(check)


def test_a_page_that_cannot_be_made_is_said_and_made_the_next_time() -> None:
    async def check(pages: Pages, port: int) -> None:
        pages.fails = True
        assert (await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith(b"HTTP/1.1 500")
        pages.fails = False
        assert (await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] == b"page 2\n"

    served(check)


# --- where ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("gpu1:1", ("gpu1", 1)),
    ],
)
def test_without_a_host_it_is_loopback(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "0", "65536", "port", ":9400", "host:", "١", "9" * 400])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(PortError, match="PORT"):
        address_of(text)


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"127.0.0.1:{port} .metrics.address.: Address already in use; another"):
            bound(str(port), "metrics.address")


def test_a_port_that_is_taken_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_AGAIN_S", 0.0)

    async def run() -> None:
        pages, taken = Pages(), socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        kept = KeptPort(pages, "metrics.address")
        await kept.move(str(port))
        assert "Address already in use" in kept.problem
        taken.close()
        while kept.problem:
            await asyncio.sleep(0)
        assert (await said(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] == b"page 1\n"
        await kept.move("")
        with pytest.raises(ConnectionRefusedError):
            await said(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    asyncio.run(run())
