"""Frozen values of many fields that are keys again and again: their hash is worked out once.

A class inherits `HashedOnce` and says `__hash__ = HashedOnce.hash_once`, since a dataclass would make its own.
Invariant: as with any key, equal values have equal hashes.
"""

from __future__ import annotations

from dataclasses import fields


class HashedOnce:
    __slots__ = ("_hash",)
    _hash: int

    def hash_once(self) -> int:
        try:
            return self._hash
        except AttributeError:
            values = tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
            object.__setattr__(self, "_hash", hash(values))
            return self._hash
