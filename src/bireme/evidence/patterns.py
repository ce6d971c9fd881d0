"""Whether a rule's pattern can take long: asked for a site's patterns before they are used, and for ours in the tests.

Python's regular expressions cannot be stopped while they search, so a pattern that takes long on some line is refused
at the start. Which lines make it slow is tried out: pieces of the rule's own examples, repeated more and more often.
Invariant: the trying itself ends: a pattern that is slow is given no longer text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from time import thread_time

from bireme.core.diagnosis.matching import MOST_CHARACTERS

SLOW_S = 0.05
"""Of the processor, not of the clock: what else the machine does is no fault of a pattern."""
_REPEATS = (6, 10, 14, 18, 22, 26, 64, 512, MOST_CHARACTERS)
_MOST_PLACES = 12
_WIDTHS = (1, 3)


def is_slow(pattern: re.Pattern[str], examples: Iterable[str], limit_s: float = SLOW_S) -> bool:
    """Whether a line of the length that is read can be made on which it takes longer."""
    return any(_is_slow_on(pattern, head, piece, limit_s) for text in examples for head, piece in _pieces(text))


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    step = max(len(text) // _MOST_PLACES, 1)
    for start in range(0, len(text), step):
        for width in _WIDTHS:
            yield text[:start], text[start : start + width]
    yield "", text


def _is_slow_on(pattern: re.Pattern[str], head: str, piece: str, limit_s: float) -> bool:
    for repeats in _REPEATS:
        text = (head + piece * min(repeats, MOST_CHARACTERS // len(piece) + 1))[: MOST_CHARACTERS - 1] + "\0"
        began = thread_time()
        pattern.search(text)
        if thread_time() - began > limit_s:
            return True
    return False
