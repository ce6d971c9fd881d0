"""Which replica gets a request: the one with the fewest in flight; with affinity, a client's own while it has room.

Pure: replicas are anything that says how many requests it has (`Candidate`), and chance is an argument. Called by
`backends` for every request. Invariant: nothing is chosen that has `limit` requests, or whose revision has no weight.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import ceil
from typing import Generic, Protocol, TypeVar

BOUND = 1.25
"""A replica that clients stick to has at most so many times the average in flight, and one: the next takes more."""
_POINTS = 64


class Candidate(Protocol):
    """A replica that may be chosen."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def load(self) -> int: ...
    @property
    def avoid_until(self) -> float: ...


C = TypeVar("C", bound=Candidate)


def least(candidates: Sequence[C], limit: int, turn: int, now: float) -> C | None:
    """The one with the fewest requests for its weight; among equals they take turns. None: all are full.

    One that could not be connected to is left alone for a while, unless there is no other.
    """
    best: C | None = None
    avoided: C | None = None
    fewest = 0.0
    count = len(candidates)
    for number in range(count):
        candidate = candidates[(turn + number) % count]
        load = candidate.load
        if limit and load >= limit:
            continue
        if candidate.avoid_until > now:
            if avoided is None or candidate.avoid_until < avoided.avoid_until:
                avoided = candidate
            continue
        score = load / candidate.weight
        if best is None or score < fewest:
            best, fewest = candidate, score
            if not load:
                break
    return best or avoided


def position(value: bytes) -> int:
    """Where a value is on a ring."""
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big")


class Ring(Generic[C]):
    """Consistent hashing: when replicas come and go, few clients change theirs."""

    def __init__(self, candidates: Sequence[C]) -> None:
        self._count = len(candidates)
        heaviest = max((each.weight for each in candidates), default=1.0)
        points = [
            (position(f"{each.id}/{number}".encode()), index)
            for index, each in enumerate(candidates)
            for number in range(max(1, round(_POINTS * each.weight / heaviest)))
        ]
        points.sort()
        self._at = [at for at, _ in points]
        self._points = [candidates[index] for _, index in points]

    def choose(self, value: bytes, limit: int, now: float) -> C | None:
        """The first behind this value that is not loaded above the bound; None: all are full."""
        order = list(self._behind(position(value)))
        bound = 1 + ceil(BOUND * (sum(each.load for each in order) + 1) / max(1, len(order)))
        fits = [each for each in order if not limit or each.load < limit]
        for each in fits:
            if each.load < bound and each.avoid_until <= now:
                return each
        return fits[0] if fits else None

    def _behind(self, at: int) -> Iterator[C]:
        """Each once, in the ring's order."""
        seen: set[str] = set()
        start = bisect(self._at, at)
        for number in range(len(self._points)):
            each = self._points[(start + number) % len(self._points)]
            if each.id not in seen:
                seen.add(each.id)
                yield each
                if len(seen) == self._count:
                    return


class Choice(Generic[C]):
    """The ready replicas of a service, ready to be chosen from. Made anew with every table."""

    def __init__(self, candidates: Sequence[C], revision_weights: Mapping[int, float]) -> None:
        if revision_weights:
            candidates = [each for each in candidates if revision_weights.get(each.revision, 0) > 0]
        self.candidates = tuple(candidates)
        self._groups: list[tuple[C, ...]] = []
        self._sums: list[float] = []
        self._rings: dict[int, Ring[C]] = {}
        if revision_weights:
            revisions = sorted({each.revision for each in candidates})
            self._groups = [tuple(each for each in candidates if each.revision == number) for number in revisions]
            self._sums = list(accumulate(revision_weights[number] for number in revisions))

    def choose(self, limit: int, turn: int, now: float, chance: float, affinity: bytes = b"") -> C | None:
        """`chance`: from 0 to below 1, which revision's turn it is; with affinity the value decides that too."""
        if len(self._groups) > 1:
            if affinity:
                chance = position(b"revision/" + affinity) / 2**64
            group = bisect(self._sums, chance * self._sums[-1])
            drawn = self._of(group, limit, turn, now, affinity)
            if drawn is not None and drawn.avoid_until <= now:
                return drawn
        return self._of(-1, limit, turn, now, affinity)

    def _of(self, group: int, limit: int, turn: int, now: float, affinity: bytes) -> C | None:
        """`group`: -1 for all."""
        candidates = self.candidates if group < 0 else self._groups[group]
        if not affinity:
            return least(candidates, limit, turn, now)
        if group not in self._rings:
            self._rings[group] = Ring(candidates)
        return self._rings[group].choose(affinity, limit, now)
