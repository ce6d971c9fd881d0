"""Long work on the loop, cut into slices: others have their turn in between, and a long answer goes out in pieces.

A listing of a hundred thousand jobs is some seconds of work and a hundred megabytes: made in one go, all others would
wait for it, and somebody who does not read it would make the daemon keep it. Used by the routes that list jobs.

Invariant: an answer is one JSON object, whether it went out in one piece or in many; of it no more is kept than
`AT_ONCE` bytes and one slice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from bireme.api.peers import SCOPE_KEY
from bireme.api.routing import Context
from bireme.core.model.jobs import ArrayWaiting, Job
from bireme.store.codec import dumps

SLICE = 250
"""Jobs that are looked at in one go, and of which records are made."""
AT_ONCE = 512 * 1024
"""A shorter answer goes out whole, with its length."""

Item = TypeVar("Item")
Records = list[dict[str, Any]]


async def slices_of(api: Context, request: Request, items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    """The items, some at a time, each time in the caller's turn."""
    for begin in range(0, len(items), SLICE):
        if begin:
            await api.turns.mine(request.scope[SCOPE_KEY].uid)
        yield items[begin : begin + SLICE]


async def answer_in_slices(
    api: Context, request: Request, name: str, items: Sequence[Item], make: Callable[[Sequence[Item]], Records]
) -> Response:
    """`{name: [...], "now": ...}` with the records that `make` makes of the items, slice by slice."""
    pieces = _pieces(api, request, name, items, make)
    first: list[bytes] = []
    async for piece in pieces:
        first.append(piece)
        if sum(map(len, first)) > AT_ONCE:
            return StreamingResponse(_all(first, pieces), media_type="application/json")
    return Response(b"".join(first), media_type="application/json")


async def _pieces(
    api: Context, request: Request, name: str, items: Sequence[Item], make: Callable[[Sequence[Item]], Records]
) -> AsyncIterator[bytes]:
    yield b'{"%s":[' % name.encode()
    comma = b""
    async for part in slices_of(api, request, items):
        records = make(part)
        if records:
            yield comma + dumps(records)[1:-1]
            comma = b","
    yield b'],"now":%s}' % dumps(api.now())


async def _all(first: Iterable[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(first)
    async for piece in rest:
        yield piece


def as_of_now(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, where arrays keep the waiting tasks that they have now.

    A task that starts while the list is made leaves its array's record, for one that is not in the list: it would be in
    neither.
    """
    return [
        replace(job, array=ArrayWaiting(job.array.waiting.copy(), job.array.throttle))
        if isinstance(job.array, ArrayWaiting)
        else job
        for job in jobs
    ]
