"""Who may use a service: keys by their hashes, and how many requests each may send in a minute and have at a time.

Asked by `client_side`. What is counted may be counted by several workers at once: `Rate` keeps its own part in cells
that only it writes and adds up those of the others (`board`). Invariants: a key's text is never kept, logged or
compared; two hashes are compared in constant time, and which one to compare with is found by a hash that its sender
cannot choose.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

_BEARER = b"bearer "
_MADE_HERE = re.compile(rb"bireme-[A-Za-z0-9_-]{43}")
"""What `bireme service key add` makes, in whatever words it comes."""
_COUNT_BITS = 32
_COUNT = (1 << _COUNT_BITS) - 1
WINDOW_S = 60


class Hashed(Protocol):
    """A key, as a table has it."""

    @property
    def sha256(self) -> str: ...


K = TypeVar("K", bound=Hashed)


class KeyRing(Generic[K]):
    """The keys of a service."""

    def __init__(self, keys: Iterable[K]) -> None:
        self._keys = {bytes.fromhex(key.sha256): key for key in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, credentials: Iterable[tuple[bytes, bytes, bytes]]) -> tuple[K, bytes] | None:
        """The first key that is one of these, and the line it came on."""
        for name, value, line in credentials:
            text = _key_text(name, value)
            digest = sha256(text).digest()
            key = self._keys.get(digest)
            if text and key is not None and hmac.compare_digest(bytes.fromhex(key.sha256), digest):
                return key, line
        return None


def not_ours(credentials: Iterable[tuple[bytes, bytes, bytes]]) -> list[tuple[bytes, bytes, bytes]]:
    """Those that a replica may see: a key of ours opens a service, which may be another's than this replica's. Clients
    send one key to every model at an address."""
    return [each for each in credentials if not _MADE_HERE.search(each[1])]


def _key_text(name: bytes, value: bytes) -> bytes:
    if name != b"authorization":
        return value
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


Read = Callable[[int], Iterable[int]]
"""(cell) -> what everybody has in it, the asking one too."""


class Rate:
    """A sliding window of a minute: what came in this one, and a part of what came in the one before."""

    __slots__ = ("_cell", "_read", "_write")

    def __init__(self, cell: int, read: Read, write: Callable[[int, int], None]) -> None:
        """`cell` and the one after it are this key's."""
        self._cell = cell
        self._read = read
        self._write = write

    def take(self, mine: tuple[int, int], limit: int, now: float) -> float:
        """Counts a request if there is room for it: 0; else in how many seconds to ask again.

        `mine`: what the cells of this one hold now. A cell holds the number of the window and a count.
        """
        window, passed = divmod(now, WINDOW_S)
        number = int(window) & _COUNT
        current = sum(_counted(value, number) for value in self._read(self._cell + (number & 1)))
        before = sum(_counted(value, number - 1) for value in self._read(self._cell + (~number & 1)))
        weighed = before * (1 - passed / WINDOW_S) + current
        if weighed + 1 > limit:
            return _room_in(before, current, limit, passed)
        own = _counted(mine[number & 1], number)
        self._write(self._cell + (number & 1), number << _COUNT_BITS | own + 1)
        return 0.0


def _counted(value: int, number: int) -> int:
    return value & _COUNT if value >> _COUNT_BITS == number else 0


def _room_in(before: int, current: int, limit: int, passed: float) -> float:
    """Seconds until the part of the window before has become small enough."""
    if before and current + 1 <= limit:
        needed = WINDOW_S * (1 - (limit - 1 - current) / before)
        return max(1.0, needed - passed)
    return max(1.0, WINDOW_S - passed)
