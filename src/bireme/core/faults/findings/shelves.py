"""Where findings lie in the state."""

from __future__ import annotations

from bireme.core.model.finding.findings import Finding, Past
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

FINDINGS: Shelf[str, Finding] = Shelf("findings", str, Finding)
"""By their keys, those that stand."""
PAST: Shelf[str, Past] = Shelf("findings_past", str, Past)
"""By their keys, those that were closed of late."""
COUNT: Shelf[str, int] = Shelf("finding_count", str, int)

_THE_ONE = "opened"


def opened_so_far(state: State) -> int:
    return COUNT.of(state).get(_THE_ONE, 0)


def count_opened(state: State, number: int) -> None:
    COUNT.put(state, _THE_ONE, number)
