"""Lines and clues as JSON: between the program that reads with a job owner's identity and who started it.

What comes from there is not believed: the owner can do to that program what they can do to their own. So no field is
longer than it may be, a line is output or trace whatever it says, and a clue's rule is one of ours.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import asdict
from typing import Any, get_args

from bireme.core.diagnosis.matching import MOST_CHARACTERS, Rulebook, sure_of
from bireme.core.diagnosis.model import Clue, Line, Source

_MOST_NAMED = 20
_LONGEST_NAME = 4096
_MOST_NUMBER = 1 << 62


def line_data(line: Line) -> dict[str, Any]:
    return asdict(line)


def line_from(data: Any, sources: Container[Source] = get_args(Source)) -> Line | None:
    """A line as it was sent; None: it is no line, or of another source than it may be."""
    if not isinstance(data, Mapping) or not isinstance(data.get("text"), str) or data.get("source") not in sources:
        return None
    rank, at = data.get("rank"), data.get("at")
    return Line(
        text=data["text"][:MOST_CHARACTERS],
        source=data["source"],
        order=_count(data.get("order")),
        last=_count(data.get("last")),
        file=_text(data.get("file")),
        number=_count(data.get("number")),
        at=float(at) if isinstance(at, int | float) and abs(at) < 1e12 and math.isfinite(at) else None,
        node=_text(data.get("node")),
        rank=_count(rank) if isinstance(rank, int) else None,
        device=_text(data.get("device")),
        pid=_count(data.get("pid")),
        others=_count(data.get("others")),
    )


def clue_data(clue: Clue) -> dict[str, Any]:
    return {"rule": clue.rule.id, "line": line_data(clue.line), "named": dict(clue.named)}


def clues_from(data: Any, book: Rulebook, sources: Container[Source] = ("output", "trace")) -> list[Clue]:
    """Those of a list that can be believed: a known rule, a line of a source that the rule is about."""
    rules = {rule.id: rule for rule in book.rules}
    found = []
    for each in data if isinstance(data, list) else ():
        rule = rules.get(str(each.get("rule"))) if isinstance(each, Mapping) else None
        line = line_from(each.get("line"), sources) if rule is not None else None
        sure = sure_of(rule, line.source) if rule is not None and line is not None else None
        if rule is None or line is None or sure is None:
            continue
        named = each.get("named")
        pairs = list(named.items())[:_MOST_NAMED] if isinstance(named, Mapping) else []
        found.append(Clue(rule, line, {str(name): _text(value) for name, value in pairs}, sure))
    return found


def _text(value: Any) -> str:
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER else 0
