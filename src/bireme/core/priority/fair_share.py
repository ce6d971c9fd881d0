"""Fair share of every association, by the method that the cluster is configured for.

Called by the priority of jobs and by `sshare`. A function of the book, usage and the time: nothing is stored.
"""

from __future__ import annotations

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.usage import Usages
from bireme.core.model.cluster import Settings
from bireme.core.priority.classic import classic
from bireme.core.priority.fair_tree import Standing, fair_tree

_CLASSIC_FLAGS = frozenset({"NO_FAIR_TREE", "DEPTH_OBLIVIOUS"})


def uses_fair_tree(settings: Settings) -> bool:
    return not _CLASSIC_FLAGS.intersection(settings.priority_flags)


def standings(book: AccountBook, usage: Usages, now: float, settings: Settings) -> dict[int, Standing]:
    used = {number: usage.raw(number, now) for number in book.associations}
    if uses_fair_tree(settings):
        return fair_tree(book, used)
    oblivious = "DEPTH_OBLIVIOUS" in settings.priority_flags
    return classic(book, used, settings.fair_share_dampening_factor, depth_oblivious=oblivious)


def fair_share(book: AccountBook, usage: Usages, now: float, settings: Settings) -> dict[int, float]:
    """The factor of every user's association, 0 to 1, by association id."""
    found = standings(book, usage, now, settings)
    return {
        number: standing.factor
        for number, standing in found.items()
        if standing.factor is not None and book.associations[number].user
    }
