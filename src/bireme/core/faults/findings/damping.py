"""What is remembered of findings that are closed: an old event does not open one again, and one that flaps stays open.

A gatherer that outlives its daemon tells again what it told before; what happened before the finding was closed is no
news. What a detector opens and closes again and again (a link that comes and goes) would fence and lift, start and tell
as often: from the fourth time within `LATELY_S` on it stands for ten minutes at least, twice as long each further time.
Pure. Asked by `kind`. Invariant: what a person closes is closed, and counts for nothing.
"""

from __future__ import annotations

from bireme.core.faults.findings.shelves import PAST
from bireme.core.model.finding.findings import Finding, Past
from bireme.core.state.state import State

LATELY_S = 3_600.0
_FREE = 3
_FIRST_S, _MOST_S = 600.0, 4 * 3_600.0
_KEPT_S = 86_400.0
_MOST_KEPT = 10_000


def is_old(state: State, key: str, happened_at: float) -> bool:
    """Whether it happened before the finding was closed."""
    past = PAST.of(state).get(key)
    return past is not None and happened_at < past.closed_at


def times(state: State, key: str, at: float) -> int:
    """How often it was opened of late, with this time."""
    past = PAST.of(state).get(key)
    return past.times + 1 if past is not None and at - past.closed_at < max(LATELY_S, least_s(past.times)) else 1


def least_s(times: int) -> float:
    """So long it stands at least."""
    return 0.0 if times <= _FREE else min(_MOST_S, _FIRST_S * 2 ** min(times - _FREE - 1, 10))


def stays(finding: Finding, now: float) -> bool:
    """Whether its detector may not close it yet."""
    return now - finding.opened_at < least_s(finding.times)


def closed(state: State, finding: Finding, at: float, *, by_detector: bool) -> None:
    PAST.put(state, finding.trouble.key, Past(closed_at=at, times=finding.times if by_detector else 0))
    if len(PAST.of(state)) > _MOST_KEPT:
        _forget_old(state, at)


def _forget_old(state: State, at: float) -> None:
    known = sorted(PAST.of(state).items(), key=lambda each: each[1].closed_at)
    old = sum(at - past.closed_at > _KEPT_S for _, past in known)
    for key, _ in known[: old or len(known) // 2]:
        PAST.drop(state, key)
