"""Who is let in when many knock at once: users by turns. Real sockets; whose they are is said by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.api.serving import door as module
from bireme.api.serving.door import Door

TURNED_AWAY = b"HTTP/1.1 429 x\r\n\r\n"


class Street:
    """A listening socket, those who knock at it in order, and who was let in at which turn of the loop."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(256)
        self.listener.setblocking(False)
        self.path = path
        self.uids: list[int] = []
        self.knocking: list[socket.socket] = []
        self.let_in: list[tuple[int, int]] = []
        self.turn = 0

    def knock(self, uid: int, times: int = 1) -> None:
        for _ in range(times):
            self.knocking.append(socket.socket(socket.AF_UNIX))
            self.knocking[-1].connect(str(self.path))
            self.uids.append(uid)

    def come_in(self, sock: socket.socket, uid: int) -> None:
        self.let_in.append((self.turn, uid))
        sock.close()

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            self.turn += 1
            await asyncio.sleep(0)

    def turns_until(self, uid: int) -> int:
        return next(turn for turn, each in self.let_in if each == uid)


@pytest.fixture
def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Street]:
    made = Street(tmp_path / "sock")
    monkeypatch.setattr(module, "uid_of", lambda sock: made.uids.pop(0))
    yield made
    for sock in made.knocking:
        sock.close()


def play(
    street: Street,
    turns: int,
    *,
    most: int = 1024,
    is_light: Callable[[int], bool] = lambda uid: True,
    seen: Callable[[int, int], None] = lambda uid, turns: None,
) -> None:
    async def scene() -> None:
        door = Door(street.come_in, TURNED_AWAY, most, is_light, seen)
        door.open(street.listener)
        await street.pass_turns(turns)
        door.close()

    asyncio.run(scene())


def test_one_connection_of_somebody_does_not_wait_for_all_of_another(street: Street) -> None:
    street.knock(1, 60)
    street.knock(2)
    play(street, 80)
    assert street.turns_until(2) <= street.turns_until(1) + 3, "they are taken some at a time"
    assert len(street.let_in) == 61
    of_one = [turn for turn, uid in street.let_in if uid == 1]
    assert len(set(of_one)) == 60, "one at a turn of the loop"


def test_who_asks_for_much_is_let_in_more_rarely(street: Street) -> None:
    street.knock(1, 30)
    street.knock(2, 10)
    play(street, 30, is_light=lambda uid: uid != 1)
    counts = [sum(uid == each for _, uid in street.let_in) for each in (1, 2)]
    assert counts[1] == 10
    assert 5 <= counts[0] <= 8


def test_who_finds_no_place_to_wait_is_told_to_come_again(street: Street) -> None:
    street.knock(1, 12)
    street.knock(2)
    play(street, 20, most=8)
    told = [sock.recv(100) for sock in street.knocking]
    assert told.count(TURNED_AWAY) == 7, "one was let in at once, half of the places are one user's"
    assert told[-1] == b"", "another user's is let in"


def test_however_many_users_knock_no_more_than_so_many_wait(street: Street) -> None:
    """One person may have thousands of uids (/etc/subuid)."""
    for uid in range(30):
        street.knock(uid)
    play(street, 40, most=8, is_light=lambda uid: False)
    told = [sock.recv(100) for sock in street.knocking]
    assert told.count(TURNED_AWAY) == 22


def test_a_new_user_takes_the_place_of_one_who_has_many(street: Street) -> None:
    street.knock(1, 4)
    street.knock(2, 4)
    street.knock(3)
    play(street, 60, most=8, is_light=lambda uid: False)
    told = [sock.recv(100) for sock in street.knocking]
    assert [place for place, said in enumerate(told) if said == TURNED_AWAY] == [3]
    assert sorted(uid for _, uid in street.let_in) == [1, 1, 1, 2, 2, 2, 2, 3]


def test_a_closed_door_leaves_nobody_waiting(street: Street) -> None:
    street.knock(1, 12)
    play(street, 2)
    assert all(sock.recv(100) == b"" for sock in street.knocking)


def test_who_knocks_and_runs_away_takes_nobodys_place(street: Street) -> None:
    street.knock(1)
    street.knock(1, 20)
    for sock in street.knocking[1:]:
        sock.close()
    street.knock(1, 2)
    worth: list[int] = []
    play(street, 60, most=4, seen=lambda uid, turns: worth.append(turns))
    assert len(street.let_in) == 3
    assert worth == [0] + [1] * 22, "but it is counted"
