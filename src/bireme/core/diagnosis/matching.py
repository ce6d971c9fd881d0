"""Which rules know a line. Called by `evidence` for each line that may matter, and by the rules' own tests. Pure.

A line is first looked through for the rules' words, which is cheap; only the patterns of rules whose word stands in it
are searched. Invariants: what is searched is at most `MOST_CHARACTERS` long, whatever was written; a line is only known
to rules of its source. A line of a file that nobody vouches for is known to rules of output, and to those of the kernel
and of devices with at most medium certainty: anybody can write what looks like a line of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bireme.core.diagnosis.model import SIGNS, Cause, Clue, Confidence, Line, Rule, Source

MOST_CHARACTERS = 4_000
_HANDED_IN: Source = "file"
_BELIEVED_ELSEWHERE: tuple[Source, ...] = ("kernel", "device")
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """As a person would see it: without colours, without what a carriage return wrote over, not longer than is read."""
    seen = text.rstrip("\r\n")[: 4 * MOST_CHARACTERS].rpartition("\r")[2]
    return _CONTROLS.sub("", _COLOURS.sub("", seen))[:MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Question:
    """A rule that may be asked about lines in which one of its words stands."""

    rule: Rule
    pattern: re.Pattern[str]

    def clue(self, line: Line, text: str) -> Clue | None:
        """`text`: the line's, made `plain`. May take long, if the rule's pattern is a bad one."""
        sure = sure_of(self.rule, line.source)
        found = self.pattern.search(text) if sure is not None else None
        if sure is None or found is None:
            return None
        return Clue(self.rule, line, {name: value or "" for name, value in found.groupdict().items()}, sure)


class Rulebook:
    """All rules and causes, ready to be asked."""

    def __init__(self, causes: Iterable[Cause], rules: Iterable[Rule]) -> None:
        self.causes = {cause.id: cause for cause in causes}
        self.rules = tuple(rules)
        self._by_word: dict[str, list[Question]] = {}
        for rule in self.rules:
            question = Question(rule, re.compile(rule.pattern))
            for word in rule.words:
                self._by_word.setdefault(word, []).append(question)

    @property
    def words(self) -> tuple[str, ...]:
        """In lower case: no rule that tells of a cause knows a line that has none of them."""
        return tuple(
            word for word, asked in self._by_word.items() if any(each.rule.role not in SIGNS for each in asked)
        )

    @property
    def words_of_health(self) -> tuple[str, ...]:
        """In lower case: no sign of health is in a line that has none of them. Only lines near the end are worth it."""
        return tuple(word for word, asked in self._by_word.items() if any(each.rule.role in SIGNS for each in asked))

    def clues(self, line: Line) -> Iterator[Clue]:
        """The clues of one line, in the order of the rules' words; a rule tells a line once."""
        text = plain(line.text)
        for question in self.questions(line, text):
            clue = question.clue(line, text)
            if clue is not None:
                yield clue

    def questions(self, line: Line, text: str) -> Iterator[Question]:
        """The rules that may know a line, each once, in the order of their words. `text`: the line's, made `plain`."""
        asked = set()
        lowered = text.lower()
        for word, questions in self._by_word.items():
            if word not in lowered:
                continue
            for question in questions:
                if question.rule.id not in asked and sure_of(question.rule, line.source) is not None:
                    asked.add(question.rule.id)
                    yield question


def sure_of(rule: Rule, source: Source) -> Confidence | None:
    """How sure a line of that source can be for the rule; None: the rule does not know such lines."""
    if source in rule.sources or (source == _HANDED_IN and "output" in rule.sources):
        return rule.sure
    if source == _HANDED_IN and any(each in rule.sources for each in _BELIEVED_ELSEWHERE):
        return "medium" if rule.sure == "high" else rule.sure
    return None
