"""Asking strangers over HTTP: bounded in time and size, whatever they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bireme.daemon.scaling.fetching import Unanswered, fetch

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def fetched(answer: Answer, limit_s: float = 120.0) -> bytes:
    async def scenario() -> bytes:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await fetch(f"http://127.0.0.1:{port}/metrics?x=1", limit_s=limit_s, limit_bytes=100_000)

    return asyncio.run(scenario())


def saying(text: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return answer


async def drips(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def floods(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


def test_a_body_ends_with_its_length_or_with_the_connection() -> None:
    assert fetched(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more")) == b"hello"
    assert fetched(saying(b"HTTP/1.0 200 OK\r\n\r\nhello")) == b"hello"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (saying(b"HTTP/1.1 404 Not Found\r\n\r\n"), "status 404"),
        (saying(b"220 smtp.example.org ESMTP\r\n\r\n"), "not HTTP"),
        (saying(b""), "not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"), "not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "in chunks"),
        (saying(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000), "head has no end"),
        (floods, "longer than 97 KiB"),
    ],
)
def test_what_is_no_answer_is_told_in_words(answer: Answer, words: str) -> None:
    with pytest.raises(Unanswered, match=words):
        fetched(answer)


def test_one_that_drips_is_left_when_its_time_is_over() -> None:
    with pytest.raises(Unanswered, match=r"no answer within 0\.3 s"):
        fetched(drips, limit_s=0.3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http:///nowhere", "http://127.0.0.1:99999/", "http://[::1/"])
def test_where_nobody_is_no_answer_comes(url: str) -> None:
    with pytest.raises(Unanswered):
        asyncio.run(fetch(url, limit_s=5.0, limit_bytes=1000))
