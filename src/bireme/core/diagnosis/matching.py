"""Which rules know a line. Called by `evidence` for each line that may matter, and by the rules' own tests. Pure.

A line is first looked through for the rules' words, which is cheap; only the patterns of rules whose word stands in it
are searched. Invariant: what is searched is at most `MOST_CHARACTERS` long, whatever was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bireme.core.diagnosis.model import Cause, Clue, Line, Rule

MOST_CHARACTERS = 4_000
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """As a person would see it: without colours, without what a carriage return wrote over, not longer than is read."""
    seen = text.rstrip("\r\n")[: 4 * MOST_CHARACTERS].rpartition("\r")[2]
    return _CONTROLS.sub("", _COLOURS.sub("", seen))[:MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class _Entry:
    rule: Rule
    pattern: re.Pattern[str]


class Rulebook:
    """All rules and causes, ready to be asked."""

    def __init__(self, causes: Iterable[Cause], rules: Iterable[Rule]) -> None:
        self.causes = {cause.id: cause for cause in causes}
        self.rules = tuple(rules)
        self._by_word: dict[str, list[_Entry]] = {}
        for rule in self.rules:
            entry = _Entry(rule, re.compile(rule.pattern))
            for word in rule.words:
                self._by_word.setdefault(word, []).append(entry)

    @property
    def words(self) -> tuple[str, ...]:
        """In lower case: no rule knows a line that has none of them."""
        return tuple(self._by_word)

    def clues(self, line: Line) -> Iterator[Clue]:
        """Those of one line, in the rules' order; a rule tells a line once."""
        text, seen = plain(line.text), set()
        lowered = text.lower()
        for word, entries in self._by_word.items():
            if word not in lowered:
                continue
            for entry in entries:
                if entry.rule.id in seen or line.source not in entry.rule.sources:
                    continue
                found = entry.pattern.search(text)
                if found is not None:
                    seen.add(entry.rule.id)
                    yield Clue(entry.rule, line, {name: value or "" for name, value in found.groupdict().items()})
