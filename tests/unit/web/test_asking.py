"""Answers of the daemon are shared by those who may know the same, and by nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bireme.web.asking import NotLoggedInError, Shared, Visitor
from bireme.web.upstream import RefusedError, Upstream

LOST = RefusedError(401, b"{}")


class Daemon(Upstream):
    """Answers with who asked; `views`: by token, of which view it says that the answer is."""

    def __init__(self, views: dict[str, str]) -> None:
        super().__init__("/nowhere")
        self.views, self.asked = views, list[str]()

    async def read(self, token: str, target: str) -> tuple[Any, str]:
        self.asked.append(token)
        await asyncio.sleep(0)
        if token not in self.views:
            raise LOST
        return f"{token} {target}", self.views[token]


def visitor(uid: int, view: str) -> Visitor:
    return Visitor(f"t{uid}", f"u{uid}", uid, False, f"s{uid}", 0.0, view)


def told(daemon: Daemon, *visitors: Visitor) -> list[str]:
    shared = Shared(daemon, lambda: 0.0)

    async def scene() -> list[str]:
        return [await shared.get(each, "/v1/queue", {"q": "a"}) for each in visitors]

    return asyncio.run(scene())


def test_those_of_one_view_share_what_is_the_same_for_them() -> None:
    daemon = Daemon({f"t{uid}": "all:" for uid in range(1, 6)})
    answers = told(daemon, *(visitor(uid, "all:") for uid in range(1, 6)))
    assert answers[1:] == ["t2 /v1/queue?q=a"] * 4
    assert daemon.asked == ["t1", "t2"], "the first one's answer says that it may be shared"


def test_whom_something_is_hidden_from_asks_alone() -> None:
    views = {"t1": "all:jobs", "t2": "", "t3": "", "t4": "all:jobs"}
    daemon = Daemon(views)
    answers = told(daemon, *(visitor(int(token[1:]), view) for token, view in views.items()))
    assert [each.split()[0] for each in answers] == ["t1", "t2", "t3", "t4"]


def test_who_had_the_view_of_an_operator_before_something_was_hidden_has_it_no_more() -> None:
    daemon = Daemon({"t1": "all:jobs", "t2": "", "t3": "all:jobs"})
    before = [visitor(uid, "all:") for uid in (1, 2, 3)]
    assert [each.split()[0] for each in told(daemon, *before, *before)][1::3] == ["t2", "t2"]


def test_a_session_that_has_ended_ends_for_its_own_user_alone() -> None:
    daemon = Daemon({"t1": "all:", "t3": "all:"})
    shared = Shared(daemon, lambda: 0.0)

    async def scene() -> None:
        await shared.get(visitor(1, "all:"), "/v1/gpus")
        first = asyncio.create_task(shared.get(visitor(2, "all:"), "/v1/gpus"))
        second = asyncio.create_task(shared.get(visitor(3, "all:"), "/v1/gpus"))
        assert await second == "t3 /v1/gpus"
        with pytest.raises(NotLoggedInError):
            await first

    asyncio.run(scene())
