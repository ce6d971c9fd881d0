"""What workers tell of their seconds, added up to what the daemon's autoscaler hears."""

from __future__ import annotations

from bireme.router.board import Board
from bireme.router.inner import Did, Part, names_in
from bireme.router.loads import Loads
from bireme.router.messages import Replica, Service, ServiceLoad, Table
from bireme.router.rules.tally import Tally

TABLE = Table(
    serial=1,
    services=(Service(name="chat", replicas=(Replica(id="chat-1", host="127.0.0.1", port=1, revision=1),)),),
)
CELLS = {name: number for number, name in enumerate(names_in(TABLE))}
WORKERS = 2


def board() -> Board:
    return Board(memoryview(bytearray(8 * 3 * (1 << 15) * WORKERS)).cast("q"), WORKERS, None)


def did(seconds: float, held: float = 0.0, waited: float = 0.0, arrived: int = 0) -> Did:
    """So many in flight, and so many in the queue, all the time."""
    parts = [
        Part("chat", "", Tally(), waited * seconds, arrived),
        Part("chat", "chat-1", Tally(), held * seconds),
    ]
    return Did(parts, seconds, 1, 0)


def told(loads: Loads) -> ServiceLoad:
    return loads.load(TABLE, board(), CELLS, 0.0).services[0]


def test_an_average_is_of_the_time_that_the_worker_counted() -> None:
    loads = Loads()
    loads.add(0, did(1.4, held=6.0, waited=2.0, arrived=7))
    assert (told(loads).concurrency, told(loads).waiting, told(loads).rate) == (6.0, 2.0, 5.0)


def test_a_load_that_follows_another_at_once_says_the_same() -> None:
    loads = Loads()
    loads.add(0, did(1.0, held=6.0))
    assert [told(loads).concurrency for _ in range(3)] == [6.0, 6.0, 6.0]


def test_workers_that_told_at_different_times_are_added_up() -> None:
    loads = Loads()
    loads.add(0, did(1.0, held=6.0, arrived=10))
    loads.add(1, did(2.0, held=1.5, arrived=10))
    assert (told(loads).concurrency, told(loads).rate) == (7.5, 15.0)
    loads.add(0, did(1.0, held=2.0, arrived=1))
    assert (told(loads).concurrency, told(loads).rate, told(loads).arrived) == (3.5, 6.0, 21)


def test_a_load_says_the_longest_time_that_is_told_of() -> None:
    loads = Loads()
    loads.add(0, did(1.0, held=1.0))
    loads.add(1, did(2.5, held=1.0))
    assert loads.load(TABLE, board(), CELLS, 0.0).seconds == 2.5
    assert loads.load(TABLE, board(), CELLS, 0.0).seconds == 1.0


def test_a_worker_without_anything_or_that_is_gone_counts_no_more() -> None:
    loads = Loads()
    loads.add(0, did(1.0, held=6.0, waited=1.0, arrived=4))
    loads.add(1, did(1.0, held=3.0))
    loads.add(0, Did([], 1.0, 0, 0))
    assert (told(loads).concurrency, told(loads).waiting, told(loads).rate, told(loads).arrived) == (3.0, 0.0, 0.0, 4)
    loads.forget(1)
    assert told(loads).concurrency == 0.0
