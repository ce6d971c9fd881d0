"""How much of a body is read of people who may not even be logged in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from bireme.web.bodies import body_within


class Sender:
    """A client that sends piece after piece, and knows how many were taken."""

    def __init__(self, *pieces: bytes, length: str | None = None) -> None:
        self.left = list(pieces)
        self.headers = [(b"content-length", length.encode())] if length is not None else []

    async def __call__(self) -> dict[str, Any]:
        piece = self.left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left)}

    def read(self, most: int) -> bytes | None:
        request = Request({"type": "http", "method": "POST", "headers": self.headers}, self)
        return asyncio.run(body_within(request, most))


def test_a_body_within_the_bound_is_read_whole() -> None:
    assert Sender(b"code=", b"abc", length="8").read(8) == b"code=abc"
    assert Sender(b"", b"code").read(8) == b"code"


@pytest.mark.parametrize("length", ["9", "60000001", "-1", "many", "1" * 5000])
def test_a_length_that_is_too_large_or_none_is_believed_before_anything_is_read(length: str) -> None:
    sender = Sender(b"x" * 9, length=length)
    assert sender.read(8) is None
    assert len(sender.left) == 1


def test_a_body_in_pieces_is_left_where_it_becomes_too_large() -> None:
    sender = Sender(*[b"xxxxx"] * 10)
    assert sender.read(8) is None
    assert len(sender.left) == 8
