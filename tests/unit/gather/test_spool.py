"""Rounds that are not confirmed: kept over restarts, damage and a long time without a daemon."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel takes a part of what crosses this, without an error, as a disk does that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_round_that_is_written_in_part_is_lost_and_no_other(tmp_path: Path) -> None:
    spool = fill(tmp_path, 1, 2)
    size = (tmp_path / "rounds").stat().st_size
    with files_of_at_most(size + 20), pytest.raises(OSError, match="No space left"):
        spool.add(a_round(3))
    assert (tmp_path / "rounds").stat().st_size == size
    spool.add(a_round(4))
    assert numbers(spool) == [1, 2, 4]
    spool.close()
    again = Spool(tmp_path)
    assert (numbers(again), again.last) == ([1, 2, 4], 4)


def test_a_round_that_rots_is_passed_over_and_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = fill(tmp_path, 1, 2, 3)
    with (tmp_path / "rounds").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert [numbers(spool), numbers(spool)] == [[1, 2], [1, 2]]
    assert [record.getMessage().split(" in ")[0] for record in caplog.records] == ["round 3"]
    spool.confirm(3)
    spool.add(a_round(4))
    assert numbers(spool) == [4]


def test_what_is_confirmed_is_taken_off_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = fill(tmp_path, 1, 2)
    replaced = os.pwrite

    def none_is_left(file: int, data: bytes, place: int) -> int:
        """A file that is there can be written anew, one more cannot."""
        if os.fstat(file).st_size < place + len(data) and os.readlink(f"/proc/self/fd/{file}").endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replaced(file, data, place)

    monkeypatch.setattr(os, "pwrite", none_is_left)
    spool.confirm(2)
    assert (tmp_path / "rounds").stat().st_size == 0
    spool.close()
    assert Spool(tmp_path).last == 2


def test_a_file_that_cannot_be_cut_is_no_error_of_who_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = fill(tmp_path, 1, 2)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", broken)
        spool.confirm(1)
        spool.confirm(2)
        spool.confirm(2)
    assert len(caplog.records) == 1
    assert numbers(spool) == []
    spool.add(a_round(3))
    assert numbers(spool) == [3]
