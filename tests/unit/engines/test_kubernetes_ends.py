"""How the newest jobs ended, as the cluster's Lease carries it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.model import observations as o
from bireme.core.model.resources import ExitStatus
from bireme.engines.kubernetes.ends import Ends


def end(job_id: int, generation: int = 1, **more: object) -> o.BatchFinished:
    return o.BatchFinished(job_id, generation, ExitStatus(code=3), 1000.5, **more)  # type: ignore[arg-type]


def test_a_daemon_of_the_same_home_reads_what_the_one_before_wrote(tmp_path: Path) -> None:
    before = Ends(tmp_path / "name")
    before.note("node1", end(7, ordered=True))
    before.note("node2", end(8, 2, label="5_3"))
    before.note("node1", o.BatchFinished(9, 1, ExitStatus(signal=9, out_of_memory=True), 1.0))
    after = Ends(tmp_path / "name")
    after.read(before.text)
    assert after.told_again() == before.told_again()
    assert (after.on("node1"), after.on("node2"), after.on("node3")) == (((7, 1), (9, 1)), ((8, 2),), ())


def test_what_another_home_wrote_is_not_ours(tmp_path: Path) -> None:
    other = Ends(tmp_path / "other")
    other.note("node1", end(7))
    ours = Ends(tmp_path / "ours")
    ours.read(other.text)
    assert ours.told_again() == []


def test_only_the_newest_are_kept_and_they_fit_an_object(tmp_path: Path) -> None:
    ends = Ends(tmp_path / "name")
    for job_id in range(60_000_000, 60_000_600):
        ends.note("a-node-with-a-rather-long-name.example.com", end(job_id, label=f"{job_id}_4000000"))
    assert [one.job_id for one in ends.told_again()] == list(range(60_000_100, 60_000_600))
    assert len(ends.text) < 128 * 1024, "of 256 KiB that all annotations of an object may have"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"home": 1}'])
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    ends = Ends(tmp_path / "name")
    ends.read(text)
    assert ends.told_again() == []


@pytest.mark.parametrize("row", ["7", '[1,2,"n",3,{},0]', '["x",1,"n",1.0,{},0,""]', '[1,1,"n",1.0,{"no":1},0,""]'])
def test_a_row_that_is_none_costs_no_start(tmp_path: Path, row: str) -> None:
    ends = Ends(tmp_path / "name")
    ends.read(f'{{"home":"{ends.home}","ends":[[4,1,"n",1.0,{{}},0,""],{row}]}}')
    assert [one.job_id for one in ends.told_again()] == [4]


def test_a_home_keeps_its_name_and_an_empty_file_is_none(tmp_path: Path) -> None:
    """Such a file is what a power failure left: two homes with it would take each other's ends for their own."""
    file = tmp_path / "kubernetes" / "name"
    named = Ends(file).home
    assert named
    assert Ends(file).home == named
    file.write_text("")
    given = Ends(file).home
    assert given not in ("", named)
    assert file.read_text() == given
    assert [path.name for path in file.parent.iterdir()] == ["name"], "nothing half-written stays"
