"""Frozen values of many fields that are keys again and again: their hash is worked out once.

A class inherits `HashedOnce` and says `__hash__ = HashedOnce.hash_once`, since a dataclass would make its own.
Invariant: as with any key, equal values have equal hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any


class HashedOnce:
    __slots__ = ("_hash",)
    _hash: int

    def hash_once(self) -> int:
        try:
            return self._hash
        except AttributeError:
            values = _values_of(type(self))  # type: ignore[arg-type]  # mypy reads the class's own __hash__ as its type's
            object.__setattr__(self, "_hash", hash(values(self)))
            return self._hash


@cache
def _values_of(kind: type[Any]) -> Callable[[object], object]:
    return attrgetter(*(each.name for each in fields(kind)))
