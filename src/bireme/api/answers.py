"""Long answers: made in slices, sent in pieces, and made once for all who ask for the same at the same time.

A listing of a hundred thousand jobs is a hundred megabytes: somebody who does not read it must not make the daemon keep
it. Two hundred people who watch the queue ask for the same: it is made for all of them (`Answers`). Nobody leads:
whoever follows an answer and has a turn pushes it on, so that nobody is held to another's pace.

Invariants: an answer is one JSON object, whether it goes out in one piece or in many. It shows nothing that had changed
before it was asked for. Of all answers no more than `KEPT_BYTES` are kept; who falls behind that makes the rest anew,
from where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from bireme.api.serving.peers import SCOPE_KEY, is_gone
from bireme.api.serving.slices import Slicer
from bireme.api.serving.turns import Turns
from bireme.store.codec import dumps

AT_ONCE = 256 * 1024
"""A shorter answer goes out whole, with its length."""
PIECE_BYTES = 64 * 1024
"""What is written in one turn: about as much as a socket takes."""
KEPT_BYTES = 64 << 20
FRESH_S = 0.25
"""So long an answer is given again where nothing has changed: what counts seconds is then as new as people can tell."""
_KNOWN = 64
"""Questions whose latest answer is kept at hand."""

Item = TypeVar("Item")
Records = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Recipe(Generic[Item]):
    """How `{name: [records], ...}` is made: what of, how, and what is said beside the records once these are made."""

    name: str
    items: Callable[[], Sequence[Item]]
    make: Callable[[Sequence[Item]], Records]
    beside: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a piece begins: at which item, and with which bytes before its first record."""

    item: int
    lead: bytes


class Answer(Generic[Item]):
    """One answer, as far as it is made: pushed on by those who follow it."""

    def __init__(self, recipe: Recipe[Item], shelf: Answers | None = None) -> None:
        """`shelf`: where it is kept for others; None: it is for one alone."""
        self.begun_at: float | None = None
        self.version: Hashable = None
        self.done = False
        self.size = 0
        self.pieces: list[bytes] | None = []
        """None: they are no longer kept."""
        self.followers = 0
        self._recipe = recipe
        self._shelf = shelf
        self._items: Sequence[Item] = ()
        self._slicer: Slicer[Item] = Slicer(())
        self._lead = b'{"%s":[' % recipe.name.encode()
        self._places: list[_Place] = []
        self._whole = b""

    def advance(self) -> None:
        """Makes some more of it, within one slice of time."""
        assert self.pieces is not None
        assert not self.done
        if self.begun_at is None:
            self._begin(self._recipe.items(), _Place(0, self._lead))
        place = _Place(self._slicer.next, self._lead)
        records = [record for part in self._slicer.slice() for record in self._recipe.make(part)]
        piece = b""
        if records:
            piece, self._lead = self._lead + dumps(records)[1:-1], b","
        if not self._slicer:
            opening, beside = b"" if self._lead == b"," else self._lead, dumps(self._recipe.beside())
            piece += opening + (b"]," + beside[1:] if beside != b"{}" else b"]}")
            self.done = True
        if piece:
            self._places.append(place)
            self.pieces.append(piece)
            self.size += len(piece)
            if self._shelf is not None:
                self._shelf.count(len(piece))

    @property
    def was_quick(self) -> bool:
        """Whether one slice was enough for it."""
        return self.done and len(self._places) == 1

    def whole(self) -> bytes:
        assert self.done
        self._whole = self._whole or b"".join(self.pieces or ())
        return self._whole

    def taken(self, count: int) -> int:
        """Notes that who has the answer alone took so many pieces; how many stay before the next one. Shared ones all
        stay."""
        if self._shelf is not None or self.pieces is None:
            return count
        del self.pieces[:count], self._places[:count]
        return 0

    def forget(self) -> None:
        """Keeps an answer's pieces no longer: who follows it goes on alone."""
        if self.pieces is not None:
            self.pieces = None
            if self._shelf is not None:
                self._shelf.count(-self.size)

    def rest_from(self, number: int) -> Answer[Item]:
        """What comes after so many pieces, for one alone."""
        rest = Answer(self._recipe)
        ahead = number < len(self._places)
        rest._begin(self._items, self._places[number] if ahead else _Place(self._slicer.next, self._lead))
        rest.done = self.done and not ahead
        return rest

    def _begin(self, items: Sequence[Item], place: _Place) -> None:
        self.begun_at = time.monotonic()
        self.version = self._shelf.version() if self._shelf is not None else None
        self._items, self._slicer, self._lead = items, Slicer(items, place.item), place.lead


class Answers:
    """The answers under way, for all who ask the same. `version` changes with whatever they show."""

    def __init__(self, version: Callable[[], Hashable]) -> None:
        self.version = version
        self.kept_bytes = 0
        self._latest: OrderedDict[Hashable, Answer[Any]] = OrderedDict()
        """By question; the oldest first."""
        self._kept: dict[Answer[Any], None] = {}
        """Those whose pieces are kept; the oldest first."""

    def get(self, question: Hashable, recipe: Recipe[Any]) -> Answer[Any]:
        """One that was begun after the last change, or not yet; else a new one."""
        known = self._latest.get(question)
        if known is not None and known.pieces is not None and (known.begun_at is None or self._is_fresh(known)):
            return known
        made = Answer(recipe, self)
        self._latest[question] = made
        self._latest.move_to_end(question)
        self._kept[made] = None
        if known is not None:
            self._drop_unused(known)
        if len(self._latest) > _KNOWN:
            self._drop_unused(self._latest.popitem(last=False)[1])
        return made

    def follow(self, answer: Answer[Any]) -> None:
        answer.followers += 1

    def leave(self, answer: Answer[Any]) -> None:
        """After `follow`. What nobody follows is kept for a moment: the next who asks may be there already.

        What was made in one slice is kept for those who ask in the same turn of the loop: longer would cost more than
        to make it again.
        """
        answer.followers -= 1
        if answer.followers or answer not in self._kept:
            return
        loop = asyncio.get_running_loop()
        if answer.was_quick:
            loop.call_soon(self._drop_unused, answer)
        else:
            loop.call_later(FRESH_S, self._drop_unused, answer)

    def count(self, more: int) -> None:
        """Counts bytes that are kept from now on, or fewer of them; the oldest answers give way."""
        self.kept_bytes += more
        while self.kept_bytes > KEPT_BYTES and self._kept:
            self._drop(next(iter(self._kept)))

    def _is_fresh(self, answer: Answer[Any]) -> bool:
        assert answer.begun_at is not None
        return time.monotonic() - answer.begun_at < FRESH_S and answer.version == self.version()

    def _drop_unused(self, answer: Answer[Any]) -> None:
        if not answer.followers and answer in self._kept:
            self._drop(answer)

    def _drop(self, answer: Answer[Any]) -> None:
        del self._kept[answer]
        answer.forget()


# -- sending ---------------------------------------------------------------------------------------------------------


class Follower:
    """One who is being answered: how far, and in whose turns."""

    def __init__(self, answers: Answers, answer: Answer[Any], turns: Turns, uid: int) -> None:
        self._answers, self._answer = answers, answer
        self._turns, self._uid = turns, uid
        self._number = 0
        """Pieces that it has had."""
        self._bytes = 0
        answers.follow(answer)

    async def response(self) -> Response:
        """Whole, or in pieces."""
        try:
            while self._answer.pieces is not None and not self._answer.done and self._answer.size <= AT_ONCE:
                self._answer.advance()
                if not self._answer.done:
                    await self._turns.mine(self._uid)
            if self._answer.pieces is not None and self._answer.size <= AT_ONCE:
                whole = self._answer.whole()
                self.leave()
                return Response(whole, media_type="application/json")
        except BaseException:
            self.leave()
            raise
        return _InPieces(self)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Each in a turn of its own."""
        while self._ahead or not self._answer.done:
            if self._answer.pieces is None:
                self._go_on_alone()
            elif self._ahead >= PIECE_BYTES or self._answer.done:
                yield self._take()
            else:
                self._answer.advance()
            await self._turns.mine(self._uid)

    def leave(self) -> None:
        self._answers.leave(self._answer)

    @property
    def _ahead(self) -> int:
        return self._answer.size - self._bytes

    def _take(self) -> bytes:
        assert self._answer.pieces is not None
        first, size = self._number, 0
        while self._number < len(self._answer.pieces) and size < PIECE_BYTES:
            size += len(self._answer.pieces[self._number])
            self._number += 1
        taken = b"".join(self._answer.pieces[first : self._number])
        self._bytes += size
        self._number = self._answer.taken(self._number)
        return taken

    def _go_on_alone(self) -> None:
        self.leave()
        self._answer, self._number, self._bytes = self._answer.rest_from(self._number), 0, 0
        self._answers.follow(self._answer)


class _InPieces(StreamingResponse):
    """Ends when nobody is there any more; without a task that waits for just this."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower.pieces(), media_type="application/json")
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in self.body_iterator:
                if is_gone(scope):
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._follower.leave()


async def answer_in_slices(answers: Answers, turns: Turns, request: Request, recipe: Recipe[Any]) -> Response:
    """An answer for this request alone."""
    return await Follower(answers, Answer(recipe), turns, request.scope[SCOPE_KEY].uid).response()


async def shared_answer(
    answers: Answers, turns: Turns, request: Request, question: Hashable, recipe: Recipe[Any]
) -> Response:
    """An answer that is the same for all who put this question."""
    return await Follower(answers, answers.get(question, recipe), turns, request.scope[SCOPE_KEY].uid).response()
