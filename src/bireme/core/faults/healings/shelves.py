"""Where healings lie in the state, and how they are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bireme.core.model.healing.healings import Healing, HealingAct, HealingLife, Proposal
from bireme.core.model.healing.policy import HealingPolicy
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

HEALINGS: Shelf[int, Healing] = Shelf("healings", int, Healing)
"""By their numbers: all that stand, and the latest of those that are over (`MOST_OVER`)."""
LATEST: Shelf[str, int] = Shelf("healings_latest", str, int)
"""By the key of what was decided: the latest healing of that key."""
TO_DO: Shelf[int, int] = Shelf("healings_to_do", int, int)
"""The numbers of those that are approved and not yet done: whoever carries them out looks here in every turn."""
COUNT: Shelf[str, int] = Shelf("healing_count", str, int)
POLICY: Shelf[str, HealingPolicy] = Shelf("healing_policy", str, HealingPolicy)

MOST_OVER = 1_000
"""Healings that are over and kept at hand; what was before is in the journal alone."""
_THE_ONE = "the one"
_NO_POLICY = HealingPolicy()


def policy_of(state: State) -> HealingPolicy:
    """The policy that holds; the most careful one if none was ever set."""
    return POLICY.of(state).get(_THE_ONE, _NO_POLICY)


def is_policy_set(state: State) -> bool:
    """Whether anybody has said how far Bireme may go: where nobody has, nobody carries healings out either."""
    return _THE_ONE in POLICY.of(state)


def put_policy(state: State, policy: HealingPolicy) -> None:
    POLICY.put(state, _THE_ONE, policy)


def proposed_so_far(state: State) -> int:
    return COUNT.of(state).get(_THE_ONE, 0)


def count_proposed(state: State, number: int) -> None:
    COUNT.put(state, _THE_ONE, number)


def latest_of(state: State, key: str) -> Healing | None:
    """The newest healing of this key (`Proposal.key`), whatever has become of it."""
    number = LATEST.of(state).get(key)
    return None if number is None else HEALINGS.of(state).get(number)


def to_do(state: State, acts: Iterable[HealingAct]) -> Iterator[Healing]:
    """Those approved with one of these acts, oldest first: for whoever carries them out."""
    wanted = frozenset(acts)
    for number in tuple(TO_DO.of(state)):
        healing = HEALINGS.of(state).get(number)
        if healing is not None and healing.phase is HealingLife.APPROVED and healing.proposal.act in wanted:
            yield healing


def is_new(state: State, proposal: Proposal) -> bool:
    """Whether this was not decided already: none of its key stands, and none was refused, undone or failed for the
    same findings."""
    known = latest_of(state, proposal.key)
    if known is None or known.phase is HealingLife.LAPSED:
        return True
    if known.phase.stands:
        return False
    return not set(proposal.findings) <= set(known.proposal.findings)
