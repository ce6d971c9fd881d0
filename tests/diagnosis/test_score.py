"""What `make diagnose-score` prints is held: enough cases, enough right in both parts, none confident and wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.diagnosis.cases import all_cases, diagnosed
from tests.diagnosis.score import main, scores

from bireme.core.diagnosis.judging import judge
from bireme.evidence.reading import Output, Reader
from bireme.evidence.rulebook import load
from bireme.evidence.searching import Searcher


def test_there_are_enough_cases_of_enough_kinds_and_each_names_its_source() -> None:
    cases = all_cases()
    assert len(cases) >= 150
    assert len({case.cause for case in cases}) >= 30
    assert {case.cause for case in cases} <= load().causes.keys()
    assert [name for name, count in Counter(case.name for case in cases).items() if count > 1] == []
    assert all(case.source and (case.log or case.kernel or case.record) for case in cases)


def test_no_origin_is_in_both_parts_and_neither_part_is_small() -> None:
    cases = all_cases()
    parts = {part: {case.origin for case in cases if case.part == part} for part in ("seen", "scored")}
    assert not parts["seen"] & parts["scored"]
    assert min(sum(case.part == part for case in cases) for part in ("seen", "scored")) >= 50


@pytest.mark.parametrize("part", [0, 1], ids=["seen", "scored"])
def test_nineteen_of_twenty_are_right_and_none_is_confident_and_wrong(part: int) -> None:
    score = scores()[part]
    assert score.confident_and_wrong == []
    assert score.right_share >= 0.95


def test_logs_that_are_read_from_files_come_to_the_same(tmp_path: Path) -> None:
    """The whole way of `bireme diagnose --file`: ranks, times and labels are taken off lines there."""
    loaded = load()
    book = loaded.book()
    for case in all_cases():
        if case.kernel or case.record or case.trusted:
            continue
        (tmp_path / "job.log").write_text(case.log.lstrip("\n"))
        with Searcher(book) as searcher:
            found = Reader(searcher).read([Output(path=str(tmp_path / "job.log"), source="file")])
        assert judge(found.clues, loaded.causes).cause == diagnosed(case, loaded).cause, case.name


def test_the_table_names_what_was_taken_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "seen: " in printed
    assert "scored: " in printed
    assert printed.count("confident and wrong: 0") == 2
