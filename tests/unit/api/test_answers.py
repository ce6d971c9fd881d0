"""Long answers: made once for all who ask the same, in pieces, kept for nobody who does not read. Nothing is timed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from bireme.api import answers as module
from bireme.api.answers import Answer, Answers, Follower, Recipe
from bireme.api.serving import slices
from bireme.api.serving.turns import Turns


class Listing:
    """Numbered records, and how often each was made."""

    def __init__(self, count: int, text: str = "") -> None:
        self.made = [0] * count
        self.text = text
        self.recipe = Recipe("jobs", lambda: range(count), self._make, lambda: {"now": 7})

    def _make(self, part: Sequence[int]) -> list[dict[str, Any]]:
        for number in part:
            self.made[number] += 1
        return [{"id": number, "text": self.text} for number in part if number % 10 != 3]

    @property
    def whole(self) -> dict[str, Any]:
        records = [{"id": number, "text": self.text} for number in range(len(self.made)) if number % 10 != 3]
        return {"jobs": records, "now": 7}


async def read(answers: Answers, answer: Answer[Any], uid: int = 1, *, turns: Turns | None = None) -> Any:
    response = await Follower(answers, answer, turns or Turns(), uid).response()
    if isinstance(response, StreamingResponse):
        return json.loads(b"".join([bytes(piece) async for piece in response.body_iterator]))
    return json.loads(bytes(response.body))


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, ""), (4, ""), (300, ""), (300, "x" * 5_000)])
def test_an_answer_is_one_object_however_it_goes_out(count: int, text: str) -> None:
    listing = Listing(count, text)
    answers = Answers(lambda: 1)
    assert asyncio.run(read(answers, Answer(listing.recipe))) == listing.whole
    assert asyncio.run(read(answers, answers.get("all", listing.recipe))) == listing.whole


@pytest.mark.parametrize("text", ["", "x" * 5_000], ids=["whole", "in pieces"])
def test_what_many_ask_for_at_once_is_made_once(text: str) -> None:
    listing = Listing(300, text)

    async def scene() -> list[Any]:
        answers, turns = Answers(lambda: 1), Turns()
        asked = [answers.get("all", listing.recipe) for _ in range(50)]
        return await asyncio.gather(*(read(answers, each, uid, turns=turns) for uid, each in enumerate(asked)))

    assert asyncio.run(scene()) == [listing.whole] * 50
    assert listing.made == [1] * 300


def test_what_changed_before_somebody_asked_is_in_their_answer() -> None:
    version = [1]
    answers = Answers(lambda: version[0])
    listing = Listing(10)
    first = answers.get("all", listing.recipe)
    assert answers.get("all", listing.recipe) is first, "it was not begun"
    first.advance()
    assert answers.get("all", listing.recipe) is first, "nothing changed since it was begun"
    version[0] = 2
    second = answers.get("all", listing.recipe)
    assert second is not first
    assert answers.get("other words", listing.recipe) is not second


def test_an_answer_that_is_no_longer_fresh_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, listing = Answers(lambda: 1), Listing(10)
    first = answers.get("all", listing.recipe)
    first.advance()
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    assert answers.get("all", listing.recipe) is not first


def test_who_falls_behind_what_is_kept_makes_the_rest_from_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stopped gets a whole answer when it goes on, and nothing is kept for it meanwhile."""
    monkeypatch.setattr(module, "KEPT_BYTES", 600_000)
    monkeypatch.setattr(slices, "SLICE_S", 1e-9)
    listing = Listing(400, "x" * 5_000)

    async def scene() -> tuple[Any, int]:
        answers, turns = Answers(lambda: 1), Turns()
        shared = answers.get("all", listing.recipe)
        stopped = (await Follower(answers, shared, turns, 1).response()).body_iterator.__aiter__()  # type: ignore[attr-defined]
        begun = [await anext(stopped)]
        await read(answers, answers.get("all", listing.recipe), 2, turns=turns)
        kept = answers.kept_bytes
        rest = [piece async for piece in stopped]
        return json.loads(b"".join(begun + rest)), kept

    answer, kept = asyncio.run(scene())
    assert answer == listing.whole
    assert kept <= 600_000
    assert (listing.made[0], listing.made[-1]) == (1, 2), "nobody began anew"
    assert max(listing.made) <= 3


def test_nothing_is_kept_of_answers_that_nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    listing = Listing(300, "x" * 5_000)

    async def scene() -> None:
        answers = Answers(lambda: 1)
        response = await Follower(answers, answers.get("all", listing.recipe), Turns(), 1).response()
        assert answers.kept_bytes, "somebody is about to read it"
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await response({"type": "http"}, _receive, send)
        assert json.loads(b"".join(message.get("body", b"") for message in sent)) == listing.whole
        while answers.kept_bytes:
            await asyncio.sleep(0)

    asyncio.run(scene())


async def _receive() -> Any:
    raise AssertionError


def test_questions_do_not_pile_up() -> None:
    answers = Answers(lambda: 1)
    for number in range(10_000):
        answers.get(number, Listing(1).recipe).advance()
    assert answers.kept_bytes < 10_000
