"""Where the policy for idle GPUs and the notices lie in the state."""

from __future__ import annotations

from bireme.core.model.idling.policy import IdleNotice, IdlePolicy
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

POLICY: Shelf[str, IdlePolicy] = Shelf("idle_policy", str, IdlePolicy)
NOTICES: Shelf[int, IdleNotice] = Shelf("idle_notices", int, IdleNotice)

_THE_ONE = "policy"
_OFF = IdlePolicy()


def policy_of(state: State) -> IdlePolicy:
    """The policy in force; one that is off where none was ever set."""
    return POLICY.of(state).get(_THE_ONE, _OFF)


def put_policy(state: State, policy: IdlePolicy) -> None:
    POLICY.put(state, _THE_ONE, policy)
