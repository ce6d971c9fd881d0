"""Who holds how much: running tallies for everybody whom some rule counts, so that a check costs one lookup a rule.

`State` has one as a derived index: `apply` keeps it (`follow`), `reindex` makes it again (`make_ledger`). A planning
pass works in a `draft`, which sees the tallies below it and changes only its own. Jobs that no rule counts are not in
it. Invariant: a tally is the sum over the jobs that are recorded as its holder's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from bireme.core.limits.licences import PREFIX, parse_licences
from bireme.core.limits.rules import Holder, Rulebook, licence_holder

MINUTE_S = 60


@dataclass(slots=True)
class Tally:
    jobs: int = 0
    submitted: int = 0
    tres: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """What running jobs use a second, with their QOS's UsageFactor."""
    until: dict[str, float] = field(default_factory=dict)
    """Sum of rate × the job's latest end: what is still to come at `now` is this less rate × now."""
    endless: dict[str, int] = field(default_factory=dict)
    """Jobs without a time limit, which may use without end."""

    def copy(self) -> Tally:
        return Tally(self.jobs, self.submitted, dict(self.tres), dict(self.rates), dict(self.until), dict(self.endless))

    def minutes_to_come(self, tres: str, now: float) -> float:
        """What the jobs that run may still use, each until its time limit."""
        if self.endless.get(tres):
            return inf
        return max(0.0, self.until.get(tres, 0) - self.rates.get(tres, 0) * now) / MINUTE_S

    def add(self, holding: Holding, sign: int) -> None:
        self.jobs += sign
        if not self.jobs:
            for sums in (self.tres, self.rates, self.until, self.endless):
                sums.clear()  # nothing runs: no rounding may be left behind
            return
        for name, amount in holding.tres.items():
            rate = amount if holding.factor == 1.0 else amount * holding.factor
            self.tres[name] = self.tres.get(name, 0) + sign * amount
            if holding.ends_at is None:
                self.endless[name] = self.endless.get(name, 0) + sign
            else:
                self.rates[name] = self.rates.get(name, 0) + sign * rate
                self.until[name] = self.until.get(name, 0) + sign * rate * holding.ends_at

    @property
    def empty(self) -> bool:
        return not self.jobs and not self.submitted


NOTHING = Tally()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one running job counts, and for whom."""

    holders: tuple[Holder, ...]
    tres: Mapping[str, int]
    ends_at: int | None
    """When its time limit ends it, in whole seconds so that sums stay exact; None: never."""
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A job, or so many tasks of an array, in the queue or running."""

    queues: tuple[Holder, ...]
    count: int


@dataclass(slots=True)
class Ledger:
    rules: Rulebook = field(default_factory=Rulebook)
    tallies: dict[Holder, Tally] = field(default_factory=dict)
    holdings: dict[int, Holding] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    _below: Ledger | None = None
    """What a draft sees under its own changes."""

    def tally(self, holder: Holder) -> Tally:
        """What is counted for one holder of limits. To read only."""
        found = self.tallies.get(holder)
        if found is None:
            return self._below.tally(holder) if self._below is not None else NOTHING
        return found

    def draft(self) -> Ledger:
        return Ledger(self.rules, _below=self)

    def hold(self, holding: Holding) -> None:
        """In a draft: a job starts."""
        self._add(holding, 1)

    def release(self, holding: Holding) -> None:
        """In a draft: a job that runs below ends."""
        self._add(holding, -1)

    def queue(self, place: Place) -> None:
        """In a draft: a job comes in."""
        self._count(place, 1)

    # -- by job: only the state's own ledger -------------------------------------------------------------------------

    def set(self, job_id: int, holding: Holding | None, place: Place | None) -> None:
        """Counts the job so from now on."""
        before = self.holdings.pop(job_id, None), self.places.pop(job_id, None)
        if holding is not None and holding.holders:
            self.holdings[job_id] = holding
            self._add(holding, 1)
        if place is not None and place.queues:
            self.places[job_id] = place
            self._count(place, 1)
        if before[0] is not None:
            self._add(before[0], -1)
        if before[1] is not None:
            self._count(before[1], -1)

    def _add(self, holding: Holding, sign: int) -> None:
        for holder in holding.holders:
            self._own(holder).add(holding, sign)
            self._drop_if_empty(holder)

    def _count(self, place: Place, sign: int) -> None:
        for holder in place.queues:
            self._own(holder).submitted += sign * place.count
            self._drop_if_empty(holder)

    def _own(self, holder: Holder) -> Tally:
        found = self.tallies.get(holder)
        if found is None:
            found = self.tallies[holder] = self.tally(holder).copy()
        return found

    def _drop_if_empty(self, holder: Holder) -> None:
        if self._below is None and self.tallies[holder].empty:
            del self.tallies[holder]


def licences_in_use(ledger: Ledger) -> list[tuple[str, int, int]]:
    """(name, how many there are, how many jobs hold), by name."""
    there = sorted(parse_licences(ledger.rules.settings.licenses) or ())
    return [
        (tres.removeprefix(PREFIX), total, ledger.tally(licence_holder(tres)).tres.get(tres, 0))
        for tres, total in there
    ]


def tallies_agree(one: Ledger, other: Ledger) -> bool:
    """Whether both count the same, sums with rounding aside; for `State.validate`."""
    return one.tallies.keys() == other.tallies.keys() and all(
        (tally.jobs, tally.submitted) == (theirs.jobs, theirs.submitted) and _positive(tally) == _positive(theirs)
        for tally, theirs in ((tally, other.tallies[holder]) for holder, tally in one.tallies.items())
    )


def _positive(tally: Tally) -> Iterable[tuple[str, int]]:
    return {(name, amount) for name, amount in tally.tres.items() if amount}
