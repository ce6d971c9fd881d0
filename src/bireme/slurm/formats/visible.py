r"""Text of others made safe to show: characters that a terminal would obey become visible, as `\u001b` or `\n`.

A job's name, a comment, a path or a node's reason may hold anything: colours, a new title, a line that looks like
another job's. Tables and blocks make each value `visible`; what the commands print as a whole goes through
`visible_lines`, so that a value nobody thought of harms nobody either. JSON escapes in its own way, which this one is
compatible with. Not for the output of jobs, which is their user's own.

Invariant: text that has nothing to hide comes back as it is, at the cost of one look.
"""

from __future__ import annotations

import re
from typing import Any

_OBEYED = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters of both sets, and those that change the direction of writing; not the line end and the tab."""
_IN_LINES = re.compile(f"[{_OBEYED}]")
_IN_VALUES = re.compile(rf"[{_OBEYED}\n\t]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def visible(text: str) -> str:
    """One value: it stays within its line."""
    return text if text.isprintable() else _IN_VALUES.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Whole lines: their ends and tabs stay."""
    return _IN_LINES.sub(_escape, text) if _IN_LINES.search(text) else text


def visible_values(value: Any) -> Any:
    """Records: every text in them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_values(name): visible_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [visible_values(each) for each in value]
    return value


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"
