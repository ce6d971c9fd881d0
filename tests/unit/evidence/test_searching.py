"""A rule whose pattern does not come to an end is switched off and named; the others go on."""

from __future__ import annotations

import signal

from tests.unit.evidence.reading_rules import CAUSES, ERROR, OOM

from bireme.core.diagnosis.matching import Rulebook
from bireme.core.diagnosis.model import Line, Rule
from bireme.evidence.searching import Searcher

ENDLESS = Rule(id="endless", cause="python", pattern=r"(a+)+$", words=("aaaa",))


def test_a_catastrophic_pattern_costs_its_own_answers_only() -> None:
    with Searcher(Rulebook(CAUSES, [ENDLESS, OOM]), rule_s=0.05) as searcher:
        bad = Line(text="a" * 60 + f"! {ERROR}")
        for _ in range(3):
            assert [clue.rule.id for clue in searcher.clues(bad)] == ["oom"]
        assert searcher.clues(Line(text="aaaa")) == []
    (problem,) = searcher.problems
    assert problem.startswith("rule endless was switched off")


def test_all_rules_together_have_a_budget() -> None:
    rules = [Rule(id=f"slow{n}", cause="python", pattern=r"(a|a)+$", words=("aaaa",)) for n in range(4)]
    with Searcher(Rulebook(CAUSES, rules), rule_s=100.0, all_s=0.01) as searcher:
        searcher.clues(Line(text="a" * 17 + "!"))
    assert searcher.problems
    assert "all rules together" in searcher.problems[0]


def test_what_waited_for_the_signal_before_gets_it_again() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with Searcher(Rulebook(CAUSES, [OOM])):
        assert signal.getsignal(signal.SIGVTALRM) != before
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
