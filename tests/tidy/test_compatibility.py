"""COMPATIBILITY.md is current, and the oracle is as large as it says, as far as that can be told without a Slurm."""

from __future__ import annotations

from tests.oracle.cases import load
from tests.oracle.compare import listed_differences
from tests.oracle.compatibility import FILE, document
from tests.oracle.layouts import LAYOUTS
from tests.oracle.readings import READINGS

KINDS = {"improvement", "machine", "version", "timing", "differs"}


def test_the_document_is_current() -> None:
    assert FILE.read_text() == document(), "python -m tests.oracle.compatibility > COMPATIBILITY.md"


def test_every_case_can_be_run() -> None:
    for group in load():
        assert group.layout in LAYOUTS
        for case in group.cases:
            assert case.read == "decision" or case.read in READINGS, case.title


def test_there_are_as_many_cases_as_promised() -> None:
    sizes = {group.name: len(group.cases) for group in load()}
    assert sizes["environment"] >= 40
    assert sizes["refusals"] >= 60


def test_every_known_difference_has_a_kind_and_a_reason() -> None:
    for one in listed_differences():
        assert one.kind in KINDS, f"{one.cases}: {one.kind}"
        assert one.reason, one.cases
