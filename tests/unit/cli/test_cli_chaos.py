"""Faults that last are taken back once, by whoever comes first; signs are seen in time, or said to be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.cli.chaos.faults import KINDS, Sign, _cut
from bireme.cli.chaos.lasting import Lasting, Ledger, Undo, take_back
from bireme.cli.chaos.watching import watch
from bireme.gather.rehearsal.scene import NodeGpus, PlayedFault, Scene


def fault(number: int, undo: Undo) -> Lasting:
    return Lasting(number, "checkpoint", "1", began=0.0, until=10.0, undo=undo)


def ledger(folder: Path) -> Ledger:
    return Ledger(str(folder / "chaos"))


@pytest.mark.parametrize("name", ["step-1.pt", ".metadata"])
def test_what_was_cut_off_a_file_comes_back(tmp_path: Path, name: str) -> None:
    """Of a file without which a checkpoint is not whole, all is taken."""
    file, whole = tmp_path / name, os.urandom(200_000)
    file.write_bytes(whole)
    cut = _cut(file, tmp_path / "kept")
    assert not file.exists() or file.stat().st_size < len(whole)
    take_back(fault(1, Undo(cut=cut)))
    assert file.read_bytes() == whole
    assert not (tmp_path / "kept").exists()


def test_a_file_that_its_owner_has_written_anew_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "step-1.pt"
    file.write_bytes(b"x" * 1_000)
    cut = _cut(file, tmp_path / "kept")
    file.write_bytes(b"new")
    take_back(fault(1, Undo(cut=cut)))
    assert file.read_bytes() == b"new"


def test_a_fault_is_taken_back_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    filled = tmp_path / "filled"
    filled.touch()
    number = book.next_number()
    one = fault(number, Undo(filled=str(filled)))
    book.write(one)
    assert book.next_number() == number + 1, "its file is there already"
    assert book.all() == [one]
    assert book.end(one)
    assert not filled.exists()
    assert not book.end(one)


def test_a_played_fault_is_over_in_time_whoever_forgot_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "rehearsal")
    scene.set_up([NodeGpus("n1", ("h100", "")), NodeGpus("n2", ("a100",))])
    assert [(card.uuid, card.model, card.bus) for card in scene.cards()] == [
        ("GPU-n1-0", "h100", "0000:17:00.0"),
        ("GPU-n1-1", "Rehearsed GPU", "0000:18:00.0"),
        ("GPU-n2-0", "a100", "0001:17:00.0"),
    ]
    hot = PlayedFault("throttle", "n1", 1, until=100.0)
    scene.begin("1", hot)
    assert scene.faults(99.0) == (hot,)
    assert scene.faults(100.0) == ()
    scene.end("1")
    assert scene.faults(0.0) == ()


def test_signs_are_told_as_they_are_seen_and_then_what_is_missing() -> None:
    now = [0.0]

    def rest(seconds: float) -> None:
        now[0] += seconds

    signs = [
        Sign("never", 3.0, lambda: None),
        Sign("later", 60.0, lambda: "there it is" if now[0] > 20.0 else None),
        Sign("at once", 1.0, lambda: "here"),
    ]
    told = list(watch(signs, clock=lambda: now[0], rest=rest))
    assert [(each.what, each.after_s is not None) for each in told] == [
        ("at once", True),
        ("never", False),
        ("later", True),
    ]


def test_every_fault_stands_in_the_page() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "chaos.md").read_text()
    assert [kind.name for kind in KINDS if f"| `{kind.name} " not in page] == []
