"""Live events: what was missed is read by pages, for as long as somebody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bireme.api.live import Live, Missed
from bireme.core.model.events import JobHeld, Recorded


def event(seq: int) -> Recorded:
    return Recorded(seq, 1.0, "x", JobHeld(seq, "user"))


class Journal:
    """Pages of two events, up to the newest."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.pages = 0
        self.reading = 0
        self.most_reading = 0

    def after(self, seq: int) -> Missed:
        async def page() -> Sequence[Recorded]:
            nonlocal seq
            self.reading += 1
            self.most_reading = max(self.most_reading, self.reading)
            await asyncio.sleep(0)
            self.reading -= 1
            self.pages += 1
            found = [event(each) for each in range(seq + 1, min(seq + 2, self.newest) + 1)]
            seq = found[-1].seq if found else seq
            return found

        return page


def test_what_happens_while_a_reader_catches_up_comes_once_and_in_order() -> None:
    async def run() -> list[int]:
        live, journal, seen = Live(), Journal(5), list[int]()
        async for recorded in live.follow(lambda _: True, journal.after(0)):
            if recorded is None:
                continue
            seen.append(recorded.seq)
            if recorded.seq in (2, 5, 6):
                journal.newest += 1
                live.publish([event(journal.newest)])
            if recorded.seq == 8:
                return seen
        return seen

    assert asyncio.run(asyncio.wait_for(run(), 30)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_nothing_is_read_for_a_reader_who_has_left() -> None:
    async def run() -> int:
        live, journal = Live(), Journal(10_000)
        for _ in range(3):
            stream = live.follow(lambda event: False, journal.after(0))  # of others' jobs: none of them is sent
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
        return journal.pages

    assert asyncio.run(run()) == 3


def test_many_who_want_everything_read_one_after_the_other() -> None:
    async def run() -> int:
        live, journal = Live(), Journal(20)

        async def read() -> None:
            async for recorded in live.follow(lambda _: True, journal.after(0)):
                if recorded is not None and recorded.seq == 20:
                    return

        await asyncio.gather(*(read() for _ in range(50)))
        return journal.most_reading

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 1
