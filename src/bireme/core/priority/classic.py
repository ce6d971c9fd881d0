"""Classic fair share (PriorityFlags=NO_FAIR_TREE): F = 2^(-UE / S / damp).

S is the association's part of all shares: its part of its siblings', times its parent's S. UE is its effective usage:
its own part of all usage, moved towards its parent's effective usage by its part of its siblings' shares.

With PriorityFlags=DEPTH_OBLIVIOUS, F = 2^(-R): below the first level, R is the parent's R times the usage ratio among
the siblings to the power of k, so that deep trees punish no more than flat ones. Called by `priority/fair_share.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Association
from bireme.core.priority.fair_tree import Standing, competitors, standing_aside


def classic(
    book: AccountBook, used: Mapping[int, float], dampening: int = 1, *, depth_oblivious: bool = False
) -> dict[int, Standing]:
    """Every association's standing; `used` is the raw usage of each."""
    used_at_all = 1.0 if used.get(book.root.id) else 0.0
    found = {book.root.id: Standing(1.0, used_at_all, 1.0, None, _factor(1.0, 1.0, dampening))}
    waiting = [book.root.id]
    while waiting:
        parent = waiting.pop()
        siblings = competitors(book, parent)
        _measure(book, parent, siblings, used, dampening, found, depth_oblivious)
        waiting.extend(child.id for child in siblings if not child.user)
    return found


def _measure(
    book: AccountBook,
    parent: int,
    siblings: Sequence[Association],
    used: Mapping[int, float],
    dampening: int,
    found: dict[int, Standing],
    depth_oblivious: bool,
) -> None:
    above = found[parent]
    everything = used.get(book.root.id, 0.0)
    together = sum(each.shares for each in siblings if each.shares is not None)
    used_together = sum(used.get(each.id, 0.0) for each in siblings) / everything if everything else 0.0
    for each in (*siblings, *standing_aside(book, parent)):
        actual = used.get(each.id, 0.0) / everything if everything else 0.0
        if each.shares is None:
            shares, effective = above.norm_shares, above.effective_usage
        else:
            part = each.shares / together if together else 0.0
            shares = part * above.norm_shares
            if parent == book.root.id:
                effective = actual
            elif depth_oblivious:
                effective = shares * _ratio(above, actual, shares, used_together)
            else:
                effective = actual + (above.effective_usage - actual) * part
        found[each.id] = Standing(shares, actual, effective, None, _factor(shares, effective, dampening))


def _ratio(above: Standing, actual: float, shares: float, used_together: float) -> float:
    """R of an association below the first level. Whose siblings' shares are all, together, the parent's.

    k is 1 where the association is off balance on the same side as its ancestors, else the smaller the further these
    are: a child is drawn towards what its ancestors deserve.
    """
    if not (actual and shares and used_together and above.norm_shares and above.effective_usage):
        return 0.0
    parent = above.effective_usage / above.norm_shares
    local = (actual / shares) / (used_together / above.norm_shares)
    k = 1.0 if log(parent) * log(local) > 0 else 1.0 / (1.0 + (5.0 * log(parent)) ** 2)
    ratio: float = parent * local**k
    return ratio


def _factor(shares: float, usage: float, dampening: int) -> float:
    return 2.0 ** -(usage / shares / max(1, dampening)) if shares > 0 else 0.0
