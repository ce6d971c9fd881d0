"""Bodies of requests, read as far as they may go: nobody fills the memory of the pages with what they send.

Invariant: of a body that is too large no more than the bound, and one piece, is ever kept.
"""

from __future__ import annotations

from starlette.requests import Request


async def body_within(request: Request, most: int) -> bytes | None:
    """None: it is larger than that."""
    said = request.headers.get("content-length", "0")
    if not (said.isascii() and said.isdigit() and len(said) < 20) or int(said) > most:
        return None
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            return None
    return bytes(body)
