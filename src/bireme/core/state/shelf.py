"""A shelf: where a kind keeps its things in the state, by their keys, without a field of `State` for them.

A kind names its shelves (`Kind.keeps`); the registry lists them, and the store writes each into snapshots under its
name and reads it back. The oldest kinds (jobs, nodes, reservations, the account book) have fields of `State`: the
planner reads those thousands of times in a pass. What lies on a shelf is not in `bireme snapshot`, which only holds
what is planned with. Changed by `apply` alone, as all of the state.
Invariant: a shelf with nothing on it is not in the state, so that states that hold the same are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from bireme.core.state.state import State

K = TypeVar("K", int, str)
V = TypeVar("V")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shelf(Generic[K, V]):
    """Things of one class by their keys; `name` is theirs in every snapshot, and so may never change."""

    name: str
    key: type[K]
    thing: type[V]

    def of(self, state: State) -> Mapping[K, V]:
        """All that lies on it, in the order in which it was put there."""
        return state.shelves.get(self.name, _NOTHING)

    def put(self, state: State, key: K, thing: V) -> None:
        state.shelves.setdefault(self.name, {})[key] = thing

    def drop(self, state: State, key: K) -> None:
        """Takes it away; KeyError if it is not there."""
        things = state.shelves[self.name]
        del things[key]
        if not things:
            del state.shelves[self.name]
