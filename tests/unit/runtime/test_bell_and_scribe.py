"""What the runtime's loop waits with: a bell that is rung, and a thread that writes and says when it has."""

from __future__ import annotations

import asyncio
import threading

from bireme.runtime.bell import Bell
from bireme.runtime.scribe import Scribe


def test_whoever_waits_for_a_bell_goes_on_when_it_is_rung_or_when_the_time_is_over() -> None:
    async def scenario() -> list[bool]:
        bell, heard = Bell(), list[bool]()
        heard.append(await bell.wait(0.0))
        asyncio.get_running_loop().call_soon(bell.ring)
        heard.append(await bell.wait())
        heard.append(await bell.wait())  # it stays rung
        bell.hush()
        heard.append(await bell.wait(0.0))
        return heard

    assert asyncio.run(scenario()) == [False, True, True, False]


def test_a_bell_that_nobody_waits_for_any_more_can_be_waited_for_again() -> None:
    async def scenario() -> bool:
        bell = Bell()
        waiting = asyncio.create_task(bell.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        asyncio.get_running_loop().call_soon(bell.ring)
        return await bell.wait()

    assert asyncio.run(scenario())


def test_things_are_written_one_after_another_beside_the_loop_and_it_is_told_of_each() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        scribe, written, told = Scribe(), list[str](), list[str]()
        done, may_go_on = asyncio.Event(), threading.Event()

        def write(name: str) -> None:
            may_go_on.wait()
            written.append(f"{name} beside {threading.current_thread().name}")
            if name == "bad":
                raise OSError("no room")

        def tell(name: str, error: BaseException | None) -> None:
            assert threading.current_thread() is threading.main_thread()
            told.append(f"{name}: {error}")
            if name == "last":
                done.set()

        for name in ("first", "bad", "last"):
            scribe.write(lambda name=name: write(name), lambda error, name=name: tell(name, error))
        await asyncio.sleep(0)
        assert not written, "the loop goes on meanwhile"
        may_go_on.set()
        await done.wait()
        scribe.close()
        return written, told

    written, told = asyncio.run(scenario())
    assert written == ["first beside commit", "bad beside commit", "last beside commit"]
    assert told == ["first: None", "bad: no room", "last: None"]


def test_a_scribe_that_is_closed_has_written_everything() -> None:
    written: list[int] = []

    async def scenario() -> None:
        scribe = Scribe()
        for number in range(100):
            scribe.write(lambda number=number: written.append(number), lambda error: None)
        scribe.close()
        scribe.close()

    asyncio.run(scenario())
    assert written == list(range(100))
