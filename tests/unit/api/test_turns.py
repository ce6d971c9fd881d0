"""Turns on the loop and slots in threads: users in a circle, counted and not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bireme.api.serving.turns import Circle, Slots, Turns


@pytest.fixture(autouse=True)
def one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """What users had lately is not forgotten within a test, however long a busy machine takes for it."""
    monkeypatch.setattr("bireme.api.serving.turns._WINDOW_S", 3600.0)


def test_one_request_of_somebody_waits_for_one_of_another_and_not_for_all() -> None:
    async def scene() -> list[str]:
        turns, done = Turns(), []

        async def ask(uid: int, name: str) -> None:
            await turns.mine(uid)
            done.append(name)

        many = [asyncio.create_task(ask(1, "many")) for _ in range(100)]
        one = asyncio.create_task(ask(2, "one"))
        await asyncio.gather(*many, one)
        return done

    assert asyncio.run(scene()).index("one") <= 2


def test_slices_of_a_long_work_alternate_with_those_of_others() -> None:
    async def scene() -> list[int]:
        turns, done = Turns(), []

        async def work(uid: int) -> None:
            for _ in range(10):
                await turns.mine(uid)
                done.append(uid)

        await asyncio.gather(*(work(1) for _ in range(20)), work(2), work(3))
        return done

    done = asyncio.run(scene())
    assert done.count(2) == done.count(3) == 10
    assert max(place for place, uid in enumerate(done) if uid != 1) <= 40, "twenty works of one count as one"


def test_a_turn_that_nobody_else_wants_is_taken_at_once() -> None:
    async def scene() -> int:
        turns, passed = Turns(), 0
        loop = asyncio.get_running_loop()
        begin = loop.create_future()
        loop.call_soon(begin.set_result, None)
        await begin
        await turns.mine(1)
        passed += 1
        return passed

    assert asyncio.run(scene()) == 1


def test_who_gave_up_does_not_keep_the_others() -> None:
    async def scene() -> list[int]:
        turns, done = Turns(), []

        async def ask(uid: int) -> None:
            await turns.mine(uid)
            done.append(uid)

        tasks = [asyncio.create_task(ask(uid)) for uid in (1, 1, 1, 2)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sorted(done)

    assert asyncio.run(scene()) == [1, 1, 2]


def test_slots_are_given_to_users_in_turn_and_to_each_so_many() -> None:
    async def scene() -> tuple[int, list[int]]:
        slots, begun, busiest, held = Slots(3, 2), [], 0, 0
        gate = asyncio.Event()

        async def work(uid: int) -> None:
            nonlocal held, busiest
            async with slots.held_by(uid):
                begun.append(uid)
                held += uid == 1
                busiest = max(busiest, held)
                await gate.wait()
                held -= uid == 1

        tasks = [asyncio.create_task(work(1)) for _ in range(10)]
        tasks.append(asyncio.create_task(work(2)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == [1, 1, 2], "one slot is left for who comes later"
        gate.set()
        await asyncio.gather(*tasks)
        return busiest, begun

    busiest, begun = asyncio.run(scene())
    assert busiest == 2
    assert len(begun) == 11


def test_the_last_slots_are_for_who_has_none() -> None:
    async def scene() -> list[int]:
        slots, begun, gate = Slots(5, 3, spare=2), [], asyncio.Event()

        async def work(uid: int) -> None:
            async with slots.held_by(uid):
                begun.append(uid)
                await gate.wait()

        tasks = [asyncio.create_task(work(uid)) for uid in (1, 1, 1, 1, 2, 2, 3, 3)]
        for _ in range(5):
            await asyncio.sleep(0)
        first = list(begun)
        gate.set()
        await asyncio.gather(*tasks)
        assert sorted(begun) == [1, 1, 1, 1, 2, 2, 3, 3]
        return first

    assert asyncio.run(scene()) == [1, 1, 1, 2, 3]


def test_a_slot_of_somebody_who_was_cancelled_is_free_again() -> None:
    async def scene() -> int:
        slots = Slots(1, 1)
        gate = asyncio.Event()

        async def work() -> int:
            async with slots.held_by(1):
                await gate.wait()
                return 1

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.sleep(0)
        gate.set()
        return await tasks[2]

    assert asyncio.run(scene()) == 1


async def turns_of_a_busy_user(meanwhile: Callable[[Turns], Awaitable[None]]) -> int:
    """How many user 1, with twenty requests that never end, gets while something else goes on."""
    turns, done = Turns(), 0

    async def work() -> None:
        nonlocal done
        while True:
            await turns.mine(1)
            done += 1

    tasks = [asyncio.create_task(work()) for _ in range(20)]
    for _ in range(50):
        await asyncio.sleep(0)
    begun = done
    await meanwhile(turns)
    for task in tasks:
        task.cancel()
    return done - begun


def test_a_newcomers_steps_are_not_each_behind_a_slice_of_who_has_had_many() -> None:
    """Before a request begins the loop turns several times for it: it is taken, let in, read."""

    async def twelve_steps(_turns: Turns) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    async def a_newcomers(turns: Turns) -> None:
        turns.seen(2)
        await twelve_steps(turns)

    assert asyncio.run(turns_of_a_busy_user(a_newcomers)) <= 5
    assert asyncio.run(turns_of_a_busy_user(twelve_steps)) >= 11, "alone nobody is held back"


def test_who_asks_for_little_overtakes_those_who_are_held_back() -> None:
    async def four_turns(turns: Turns) -> None:
        for _ in range(4):
            await turns.mine(2)

    assert asyncio.run(turns_of_a_busy_user(four_turns)) <= 4


def test_who_asks_one_thing_after_another_is_light_beside_a_crowd() -> None:
    async def scene() -> tuple[bool, bool]:
        turns = Turns()
        for _ in range(100):
            turns.seen(1, 1)
        for _ in range(70):
            turns.seen(2, 1)
        return turns.is_light(1), turns.is_light(2)

    assert asyncio.run(scene()) == (False, True)


def test_few_requests_at_a_time_begin_at_once_however_many_there_were() -> None:
    async def requests(turns: Turns) -> None:
        for _ in range(100):
            turns.seen(2, 1)  # more than the other
        for _ in range(5):
            await turns.begin(2)
            turns.end(2)
            await asyncio.sleep(0)

    async def turns_each(turns: Turns) -> None:
        for _ in range(100):
            turns.seen(2, 1)
        for _ in range(5):
            await turns.mine(2)

    hurried = asyncio.run(turns_of_a_busy_user(requests))
    assert hurried <= 5 < 20 <= asyncio.run(turns_of_a_busy_user(turns_each)) + 15


def test_of_a_crowds_connections_one_is_read_in_a_turn_of_the_loop() -> None:
    async def scene() -> list[list[int]]:
        turns, read, by_turn = Turns(), [], []
        for uid, times in ((1, 100), (2, 1)):
            for _ in range(times):
                turns.seen(uid, 1)
        ready = [1] * 5 + [2] * 2
        for place, uid in enumerate(ready):
            if not turns.puts_off(uid, lambda place=place: read.append(place)):
                read.append(place)
        for _ in range(6):
            by_turn.append(read.copy())
            read.clear()
            await asyncio.sleep(0)
        return by_turn

    assert asyncio.run(scene()) == [[0, 5, 6], [1], [2], [3], [4], []]


def test_who_sends_a_byte_on_each_of_many_connections_is_read_one_by_one() -> None:
    async def scene() -> int:
        turns = Turns()
        turns.seen(2)
        return [turns.puts_off(1, lambda: None) for _ in range(1_000)].count(False)

    assert asyncio.run(scene()) <= 10


def test_what_waits_goes_on_by_user_and_what_was_given_up_is_passed_over() -> None:
    circle = Circle[str](lambda name: not name.startswith("gone"))
    for uid, name in ((1, "a"), (1, "gone"), (1, "b"), (2, "gone too"), (3, "c")):
        circle.join(uid, name)
    assert (len(circle), circle.users(), circle.count_of(1)) == (5, [1, 2, 3], 3)
    taken = []
    while (each := circle.next()) is not None:
        taken.append(each)
    assert taken == [(1, "a"), (3, "c"), (1, "b")]
    assert (len(circle), circle.users()) == (0, [])


def test_the_newest_of_whoever_has_the_most_makes_room() -> None:
    circle = Circle[str]()
    for uid, name in ((1, "a"), (2, "b"), (2, "c")):
        circle.join(uid, name)
    assert circle.newest_of_most() == "c"
    assert circle.newest_of_most() is None
    assert sorted(circle.clear()) == ["a", "b"]
    assert len(circle) == 0
