"""Classic fair share (PriorityFlags=NO_FAIR_TREE): F = 2^(-UE / S / damp).

S is the association's part of all shares: its part of its siblings', times its parent's S. UE is its effective usage:
its own part of all usage, moved towards its parent's effective usage by its part of its siblings' shares. Called by
`priority/fair_share.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Association
from bireme.core.priority.fair_tree import Standing, competitors, standing_aside


def classic(book: AccountBook, used: Mapping[int, float], dampening: int = 1) -> dict[int, Standing]:
    """Every association's standing; `used` is the raw usage of each."""
    used_at_all = 1.0 if used.get(book.root.id) else 0.0
    found = {book.root.id: Standing(1.0, used_at_all, 1.0, None, _factor(1.0, 1.0, dampening))}
    waiting = [book.root.id]
    while waiting:
        parent = waiting.pop()
        siblings = competitors(book, parent)
        _measure(book, parent, siblings, used, dampening, found)
        waiting.extend(child.id for child in siblings if not child.user)
    return found


def _measure(
    book: AccountBook,
    parent: int,
    siblings: Sequence[Association],
    used: Mapping[int, float],
    dampening: int,
    found: dict[int, Standing],
) -> None:
    above = found[parent]
    everything = used.get(book.root.id, 0.0)
    together = sum(each.shares for each in siblings if each.shares is not None)
    for each in (*siblings, *standing_aside(book, parent)):
        actual = used.get(each.id, 0.0) / everything if everything else 0.0
        if each.shares is None:
            shares, effective = above.norm_shares, above.effective_usage
        else:
            part = each.shares / together if together else 0.0
            shares = part * above.norm_shares
            top = parent == book.root.id
            effective = actual if top else actual + (above.effective_usage - actual) * part
        found[each.id] = Standing(shares, actual, effective, None, _factor(shares, effective, dampening))


def _factor(shares: float, usage: float, dampening: int) -> float:
    return 2.0 ** -(usage / shares / max(1, dampening)) if shares > 0 else 0.0
