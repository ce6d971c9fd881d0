"""Rounds that are not confirmed: kept over restarts, damage and a long time without a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.gather.messages import Frame, Round
from bireme.gather.spool import Spool


def a_round(no: int, size: int = 1) -> Round:
    frame = Frame(about="node", node="n" * size, ids=["n"], columns={"node_load": [float(no)]})
    return Round(no=no, at=float(no), interval_s=10.0, frames=[frame])


def numbers(spool: Spool, after: int = 0) -> list[int]:
    return [told.no for told in spool.after(after)]


def fill(folder: Path, *nos: int, size: int = 1) -> Spool:
    spool = Spool(folder)
    for no in nos:
        spool.add(a_round(no, size))
    return spool


def test_rounds_stay_until_they_are_confirmed(tmp_path: Path) -> None:
    spool = fill(tmp_path, 1, 2, 3)
    assert numbers(spool) == [1, 2, 3]
    assert numbers(spool, after=2) == [3]
    spool.confirm(2)
    assert numbers(spool) == [3]
    assert next(spool.after(0)) == a_round(3)


def test_the_next_process_goes_on_under_the_same_id(tmp_path: Path) -> None:
    first = fill(tmp_path, 1, 2)
    first.close()
    again = Spool(tmp_path)
    assert (again.id, again.last, numbers(again)) == (first.id, 2, [1, 2])


def test_numbers_go_on_when_everything_was_confirmed(tmp_path: Path) -> None:
    first = fill(tmp_path, 1, 2, 3)
    first.confirm(3)
    first.close()
    again = Spool(tmp_path)
    assert (again.id, again.last, numbers(again)) == (first.id, 3, [])


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_message_that_is_cut_off_ends_it(tmp_path: Path, cut: int) -> None:
    fill(tmp_path, 1, 2).close()
    file = tmp_path / "rounds"
    file.write_bytes(file.read_bytes()[:-cut])
    again = Spool(tmp_path)
    assert numbers(again) == [1]
    again.add(a_round(2))
    assert numbers(again) == [1, 2]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2).close()
    file = tmp_path / "rounds"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        spool = Spool(tmp_path)
        assert all(told == a_round(told.no) for told in spool.after(0))
        assert numbers(spool) in ([], [1])
        spool.close()


def test_what_does_not_fit_is_dropped_oldest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=10_000)
    for no in range(1, 101):
        spool.add(a_round(no, size=500))
    kept = numbers(spool)
    assert kept == list(range(kept[0], 101))
    assert spool.dropped == kept[0] - 1
    assert (tmp_path / "rounds").stat().st_size <= 10_000


def test_confirmed_rounds_leave_no_bytes(tmp_path: Path) -> None:
    spool = fill(tmp_path, *range(1, 50), size=50_000)
    spool.confirm(48)
    assert (tmp_path / "rounds").stat().st_size < 60_000
    assert numbers(spool) == [49]


def test_it_is_private(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(tmp_path.iterdir())] == ["0o600", "0o600"]
