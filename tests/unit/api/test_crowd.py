"""Who gets a connection, and who gives way: the rules alone, without a socket."""

from __future__ import annotations

from bireme.api.serving.crowd import FEW, RESERVED_FILES, Crowd, Limits


class Someone:
    def __init__(self, uid: int, *, busy: bool = False) -> None:
        self.uid, self.busy, self.gave_way = uid, busy, False

    def give_way(self) -> None:
        self.gave_way = True


def filled(crowd: Crowd, uid: int, count: int, *, busy: bool = False) -> list[Someone]:
    comers = [Someone(uid, busy=busy) for _ in range(count)]
    assert [crowd.enter(each) for each in comers] == [""] * count
    return comers


def test_a_users_oldest_idle_connection_makes_room_for_a_new_one_of_theirs() -> None:
    crowd = Crowd(Limits(connections=10, connections_each=3))
    first, second, third = filled(crowd, 1, 3)
    first.busy = True
    assert crowd.enter(Someone(1)) == ""
    assert [each.gave_way for each in (first, second, third)] == [False, True, False]
    assert crowd.total == 3


def test_a_user_whose_connections_are_all_busy_is_refused_and_others_are_not() -> None:
    crowd = Crowd(Limits(connections=10, connections_each=3))
    filled(crowd, 1, 3, busy=True)
    assert crowd.enter(Someone(1)) == "user"
    assert crowd.enter(Someone(2)) == ""


def test_when_all_are_taken_the_one_with_the_most_gives_way() -> None:
    crowd = Crowd(Limits(connections=10, connections_each=8))
    few, many = filled(crowd, 1, 4), filled(crowd, 2, 6)
    filled(crowd, 1, 1)
    assert [each.gave_way for each in few + many] == [False] * 4 + [True] + [False] * 5


def test_somebody_with_few_connections_comes_though_all_are_busy() -> None:
    crowd = Crowd(Limits(connections=8, connections_each=8))
    filled(crowd, 1, 8, busy=True)
    newcomer = filled(crowd, 2, FEW, busy=True)
    assert crowd.enter(Someone(2)) == "all"
    crowd.leave(newcomer[0])
    assert crowd.enter(Someone(2)) == ""


def test_who_has_left_is_not_counted_and_leaves_once() -> None:
    crowd = Crowd(Limits(connections=8, connections_each=8))
    (one,) = filled(crowd, 1, 1)
    crowd.leave(one)
    crowd.leave(one)
    crowd.leave(Someone(5))
    assert (crowd.total, crowd.by_uid) == (0, {})


def test_limits_stay_within_what_the_process_may_open() -> None:
    limits = Limits(connections=4096, connections_each=1024).within(1024)
    assert limits.connections + limits.at_door + RESERVED_FILES == 1024
    assert limits.connections_each <= limits.connections * 3 // 4
