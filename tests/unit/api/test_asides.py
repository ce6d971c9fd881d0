"""Questions that are thought about beside the loop: who answers, who waits for whom, and what a child leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from bireme.api.serving import asides
from bireme.api.serving.asides import MOST_EACH, Asides, ThoughtError, TooManyQuestionsError, UnansweredError


def ask(asked: Asides, think: Callable[[], Any], uid: int = 1, is_gone: Callable[[], bool] = lambda: False) -> Any:
    return asked.ask(uid, think, is_gone)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_another_process_answers_and_changes_nothing_here() -> None:
    seen = [1]

    def think() -> tuple[int, list[int], int]:
        seen.append(2)
        return os.getpid(), seen, os.nice(0)

    async def main() -> None:
        pid, told, nice = await ask(Asides(), think)
        assert pid != os.getpid()
        assert (told, seen) == ([1, 2], [1])
        assert nice > os.nice(0) or nice == 19

    asyncio.run(main())


def test_a_child_has_no_descriptor_of_its_parent() -> None:
    """A lock or a socket that it kept would outlive the daemon."""

    async def main() -> None:
        reading, writing = os.pipe()
        held = await ask(Asides(), lambda: len(descriptors()))
        os.close(reading)
        os.close(writing)
        assert held <= 3, "its pipe, and what it needs to look"

    asyncio.run(main())


def test_nothing_is_left_of_a_child() -> None:
    async def main() -> None:
        asked, before = Asides(), descriptors()
        pid = await ask(asked, os.getpid)
        while os.path.exists(f"/proc/{pid}"):
            await asyncio.sleep(0.001)
        while descriptors() - before:
            await asyncio.sleep(0.001)

    asyncio.run(main())


def test_nothing_is_left_of_a_child_whose_loop_has_ended() -> None:
    async def main() -> int:
        return int(await ask(Asides(), os.getpid))

    before = descriptors()
    pid = asyncio.run(main())
    gc.collect()
    assert not os.path.exists(f"/proc/{pid}")
    assert descriptors() == before


def test_whoever_asks_meanwhile_is_answered_by_the_next_child_one_question_of_each_user_first() -> None:
    async def main() -> None:
        asked = Asides()
        first = asyncio.create_task(ask(asked, os.getpid))
        await asyncio.sleep(0)
        rest = [(uid, asyncio.create_task(ask(asked, os.getpid, uid))) for uid in (1, 1, 2, 3)]
        pids = [await first, *[await task for _, task in rest]]
        mine, mine_again, theirs, others = pids[1:]
        assert mine == theirs == others
        assert len({pids[0], mine, mine_again}) == 3

    asyncio.run(main())


def test_what_went_wrong_is_told_and_the_others_are_answered() -> None:
    def fails() -> None:
        raise ValueError("no such thought")

    async def main() -> None:
        asked = Asides()
        blocking = asyncio.create_task(ask(asked, int))
        await asyncio.sleep(0)
        bad, good = asyncio.create_task(ask(asked, fails, 2)), asyncio.create_task(ask(asked, lambda: "yes", 3))
        assert await blocking == 0
        with pytest.raises(ThoughtError, match="no such thought"):
            await bad
        assert await good == "yes"

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU])
def test_a_child_that_is_ended_costs_its_questions_alone(number: int) -> None:
    async def main() -> None:
        asked = Asides()
        with pytest.raises(UnansweredError, match="was ended"):
            await ask(asked, lambda: os.kill(os.getpid(), number))
        assert await ask(asked, lambda: 7) == 7

    asyncio.run(main())


def test_a_child_does_not_think_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> None:
        while True:
            pass

    async def main() -> None:
        with pytest.raises(UnansweredError):
            await ask(Asides(), endless)

    monkeypatch.setattr(asides, "MOST_S", 1)
    asyncio.run(main())


def test_nobody_thinks_for_who_has_left_nor_for_more_than_one_may_ask() -> None:
    async def main() -> None:
        asked = Asides()
        first = asyncio.create_task(ask(asked, int))
        await asyncio.sleep(0)
        gone = asyncio.create_task(ask(asked, int, is_gone=lambda: True))
        waiting = [asyncio.create_task(ask(asked, int)) for _ in range(MOST_EACH - 1)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestionsError):
            await ask(asked, int)
        assert await ask(asked, lambda: "another user", 2) == "another user"
        with pytest.raises(UnansweredError, match="nobody waits"):
            await gone
        assert [await task for task in (first, *waiting)] == [0] * MOST_EACH

    asyncio.run(main())


def test_where_no_process_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    async def main() -> None:
        asked, before = Asides(), descriptors()
        with monkeypatch.context() as patched:
            patched.setattr(asides, "fork_deaf", no_fork)
            with pytest.raises(UnansweredError, match="temporarily unavailable"):
                await ask(asked, int)
        assert descriptors() == before
        assert await ask(asked, int) == 0

    asyncio.run(main())


def test_a_long_answer_comes_whole() -> None:
    async def main() -> None:
        told = await ask(Asides(), lambda: b"x" * 20_000_000)
        assert told == b"x" * 20_000_000

    asyncio.run(main())
