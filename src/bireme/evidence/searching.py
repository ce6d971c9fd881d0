"""Asks rules about lines, each rule with a budget of time: a pattern that never comes to an end costs its own answers.

A site's pattern may need longer than the universe for a line (`(a+)+$`). Python's `re` looks for signals while it
searches, so a timer whose handler raises takes it back. What a timer counts is this process's own work, not the wait
for a busy machine. Signals reach the main thread alone: a daemon asks in a child (`bireme.evidence` as a program).
Invariant: a rule that was switched off is named in `problems`, and asked nothing more.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Self

from bireme.core.diagnosis.matching import Question, Rulebook, plain
from bireme.core.diagnosis.model import Clue, Line

RULE_S = 1.0
"""For all that one rule is asked in one answer."""
ALL_S = 20.0
"""For all rules together: beyond it, the one that took longest is switched off."""


class _TooLong(Exception):  # noqa: N818  (never leaves this module)
    pass


class Searcher:
    """Rules that are asked within their budgets. Use it as a context; only one at a time, in the main thread."""

    def __init__(self, book: Rulebook, *, rule_s: float = RULE_S, all_s: float = ALL_S) -> None:
        self.book = book
        self.problems: list[str] = []
        self._rule_s = rule_s
        self._all_s = all_s
        self._spent: dict[str, float] = {}
        self._off: set[str] = set()
        self._armed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGVTALRM, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise _TooLong

    def clues(self, line: Line) -> list[Clue]:
        text = plain(line.text)
        found = []
        for question in self.book.questions(line, text):
            if question.rule.id not in self._off:
                clue = self._asked(question, line, text)
                if clue is not None:
                    found.append(clue)
        return found

    def _asked(self, question: Question, line: Line, text: str) -> Clue | None:
        rule = question.rule.id
        began = time.process_time()
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_VIRTUAL, max(0.01, self._rule_s - self._spent.get(rule, 0.0)))
            clue = question.clue(line, text)
            self._armed = False
        except _TooLong:
            self._armed = False
            self._switch_off(rule, f"it took longer than {self._rule_s:g} s, at last for a line of {len(text)} signs")
            return None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._spent[rule] = self._spent.get(rule, 0.0) + time.process_time() - began
        if sum(self._spent.values()) > self._all_s:
            slowest = max(self._spent, key=lambda each: self._spent[each])
            self._switch_off(slowest, f"all rules together took longer than {self._all_s:g} s, and it the most")
        return clue

    def _switch_off(self, rule: str, why: str) -> None:
        self._off.add(rule)
        self._spent.pop(rule, None)
        self.problems.append(f"rule {rule} was switched off for this answer: {why}; mend its pattern")
