"""The Fair Tree: users ranked by walking the share tree, so that no account's users can be hurt by another account's.

At every level siblings are compared by their level fair share, S/U: the part of their siblings' shares over the part of
their siblings' usage. The tree is walked from the best to the worst; each user met takes the next rank, and its factor
is that rank over the number of users. Called by `priority/fair_share.py`.

Ties: tied users share a rank; tied accounts are walked as if they were one, their children compared with each other;
a user tied with an account comes first, and the account's best users share its rank.
`parent` shares: such a user is best among its siblings; such an account stands aside, and its children compete with
its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import Association


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an association stands: one line of `sshare`."""

    norm_shares: float
    """Its part of its siblings' shares (classic: of all shares)."""
    norm_usage: float
    """Its part of all usage."""
    effective_usage: float
    """Its part of its siblings' usage (classic: what counts against it)."""
    level_fs: float | None = None
    """Fair Tree only; None for root and for `parent` shares."""
    factor: float | None = None
    """The fair share factor of a user's association, 0 to 1; classic gives accounts one too."""


def competitors(book: AccountBook, association_id: int) -> list[Association]:
    """The association's children, with the children of those accounts that stand aside in their place."""
    found: list[Association] = []
    for child in book.children(association_id):
        if child.shares is None and not child.user:
            found.extend(competitors(book, child.id))
        else:
            found.append(child)
    return found


def standing_aside(book: AccountBook, association_id: int) -> list[Association]:
    """The accounts below whose place their children take: those with `parent` shares, at any depth of such."""
    found: list[Association] = []
    for child in book.children(association_id):
        if child.shares is None and not child.user:
            found.extend((child, *standing_aside(book, child.id)))
    return found


def fair_tree(book: AccountBook, used: Mapping[int, float]) -> dict[int, Standing]:
    """Every association's standing; `used` is the raw usage of each."""
    levels = {book.root.id: Standing(0.0, 1.0 if used.get(book.root.id) else 0.0, 1.0, None)}
    below: dict[int, list[Association]] = {}
    waiting = [book.root.id]
    while waiting:
        parent = waiting.pop()
        below[parent] = competitors(book, parent)
        _measure(book, parent, below[parent], used, levels)
        waiting.extend(child.id for child in below[parent] if not child.user)
    factors = _rank(book, below, levels)
    return {
        number: Standing(each.norm_shares, each.norm_usage, each.effective_usage, each.level_fs, factors.get(number))
        for number, each in levels.items()
    }


def _measure(
    book: AccountBook,
    parent: int,
    siblings: Sequence[Association],
    used: Mapping[int, float],
    levels: dict[int, Standing],
) -> None:
    everything, theirs = used.get(book.root.id, 0.0), used.get(parent, 0.0)
    shares_together = sum(each.shares for each in siblings if each.shares is not None)
    for each in (*siblings, *standing_aside(book, parent)):
        mine = used.get(each.id, 0.0)
        usage = mine / theirs if theirs else 0.0
        if each.shares is None:
            shares, level = levels[parent].norm_shares, None
        else:
            shares = each.shares / shares_together if shares_together else 0.0
            level = _level_fs(shares, usage)
        levels[each.id] = Standing(shares, mine / everything if everything else 0.0, usage, level)


def _level_fs(shares: float, usage: float) -> float:
    if shares == 0:
        return 0.0
    return shares / usage if usage else math.inf


def _rank(
    book: AccountBook, below: Mapping[int, list[Association]], levels: Mapping[int, Standing]
) -> dict[int, float]:
    users = sum(1 for each in book.associations.values() if each.user)
    walk = _Walk(below, levels, users)
    walk.through(below[book.root.id], tied_above=False)
    return walk.factors


class _Walk:
    """The ranks given so far, while the tree is walked from the best to the worst."""

    def __init__(self, below: Mapping[int, list[Association]], levels: Mapping[int, Standing], users: int) -> None:
        self.below = below
        self.levels = levels
        self.users = users
        self.next_rank = users
        self.rank = users
        self.factors: dict[int, float] = {}

    def level(self, association: Association) -> float:
        level = self.levels[association.id].level_fs
        return math.inf if level is None else level

    def through(self, siblings: Sequence[Association], tied_above: bool) -> None:
        """Ranks the users among and below `siblings`. `tied_above`: the first of them shares the latest rank."""
        ordered = sorted(siblings, key=lambda each: (-self.level(each), not each.user))
        before: float | None = None
        position = 0
        while position < len(ordered):
            each = ordered[position]
            level = self.level(each)
            tied = tied_above or level == before
            tied_above, before = False, level
            if each.user:
                self.take(each, tied)
                position += 1
                continue
            end = position
            while end < len(ordered) and self.level(ordered[end]) == level:
                end += 1
            merged = [child for account in ordered[position:end] for child in self.below[account.id]]
            self.through(merged, tied)
            position = end

    def take(self, user: Association, tied: bool) -> None:
        if not tied:
            self.rank = self.next_rank
        self.factors[user.id] = self.rank / self.users
        self.next_rank -= 1
