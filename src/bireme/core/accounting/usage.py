"""What every association and QOS used, decayed exactly, without a tick.

Between two changes the TRES that run under an association are constant, so that its usage has a closed form: with
half-life h, what was used loses half in every h, and a rate r since `at` adds r * h/ln 2 * (1 - 2^-((t-at)/h)). Slurm
comes near it by steps of PriorityCalcPeriod; here no event and no period is needed. A meter is moved on only when a
job under it starts or stops. `State` holds one `Usages`, changed only by `apply`.
Invariant: a meter's rates are the sum of the charges of the jobs that run under it now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import QosFlag

T = TypeVar("T")
BILLING = "billing"
"""What fair share compares: RawUsage is its seconds."""
WALL = "wall"
"""Seconds of running jobs, whatever they hold: metered like a TRES of which every job has one."""


@dataclass(slots=True)
class Meter:
    """TRES-seconds used up to `at` by name, and what is added to each every second since."""

    at: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    decays: bool = True

    def read(self, name: str, now: float, half_life_s: float | None) -> float:
        kept, grown = _decay(now - self.at, half_life_s if self.decays else None)
        return self.used.get(name, 0.0) * kept + self.rates.get(name, 0.0) * grown

    def move_to(self, now: float, half_life_s: float | None) -> None:
        """Writes the usage as of `now`: it decays, and is still the same."""
        kept, grown = _decay(now - self.at, half_life_s if self.decays else None)
        used, rates = self.used, self.rates
        for name, rate in rates.items():
            used[name] = used.get(name, 0.0) * kept + rate * grown
        if len(used) > len(rates):
            for name in used.keys() - rates.keys():
                used[name] *= kept
        self.at = max(now, self.at)

    def add_rates(self, rates: Iterable[tuple[str, float]], sign: int) -> None:
        for name, rate in rates:
            self.rates[name] = self.rates.get(name, 0.0) + sign * rate
        if not self.rates.get(WALL):
            self.rates.clear()  # nothing runs: no rounding may be left behind


def _decay(elapsed_s: float, half_life_s: float | None) -> tuple[float, float]:
    """(what is left of one unit used before, what one unit a second since then amounts to)."""
    if elapsed_s <= 0:
        return 1.0, 0.0
    if half_life_s is None:
        return 1.0, elapsed_s
    kept = 2.0 ** (-elapsed_s / half_life_s)
    return kept, -math.expm1(-elapsed_s / half_life_s * math.log(2)) * half_life_s / math.log(2)


@dataclass(frozen=True, slots=True)
class Charge:
    """What a running job adds every second, and to whom."""

    associations: tuple[int, ...]
    """Its own association and every account above."""
    qos: tuple[str, ...]
    """Its QOS, and its partition's."""
    rates: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class Usages:
    """The meters of all associations and QOS, and what running jobs are charged now. `half_life_s` None: no decay
    (PriorityDecayHalfLife=0)."""

    half_life_s: float | None = 7 * 86_400.0
    associations: dict[int, Meter] = field(default_factory=dict)
    qos: dict[str, Meter] = field(default_factory=dict)
    charges: dict[int, Charge] = field(default_factory=dict)
    """By job id, of the jobs that run now."""
    reset_at: float | None = None
    """When it last began at zero: the next period is counted from here."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def raw(self, association_id: int, now: float) -> float:
        """Billing-seconds: `sshare`'s RawUsage."""
        return self.of_association(association_id, BILLING, now)

    def of_association(self, association_id: int, name: str, now: float) -> float:
        """Decayed TRES-seconds of an association and everything below it; `WALL` for the jobs' own seconds."""
        meter = self.associations.get(association_id)
        return meter.read(name, now, self.half_life_s) if meter else 0.0

    def of_qos(self, qos: str, name: str, now: float) -> float:
        meter = self.qos.get(qos)
        return meter.read(name, now, self.half_life_s) if meter else 0.0

    # -- changing: only `apply` --------------------------------------------------------------------------------------

    def start(self, job_id: int, charge: Charge, at: float) -> None:
        self.stop(job_id, at)
        self.charges[job_id] = charge
        self._add(charge, 1, at)

    def stop(self, job_id: int, at: float) -> None:
        """The job ended or is suspended; nothing if it was not charged."""
        charge = self.charges.pop(job_id, None)
        if charge is not None:
            self._add(charge, -1, at)

    def set_half_life(self, half_life_s: float | None, at: float) -> None:
        """What was used until now decayed at the old pace."""
        if half_life_s != self.half_life_s:
            for meter in self._meters():
                meter.move_to(at, self.half_life_s)
            self.half_life_s = half_life_s

    def reset(self, association_ids: Iterable[int], qos: Iterable[str], at: float) -> None:
        """Nothing was used until now. Jobs that run go on counting."""
        meters = [self.associations.get(number) for number in association_ids]
        meters += [self.qos.get(name) for name in qos]
        for meter in meters:
            if meter is not None:
                meter.used.clear()
                meter.at = max(at, meter.at)

    def take_off(self, association_id: int, above: Iterable[int], at: float) -> None:
        """Usage that is about to be reset no longer counts for the accounts above it either."""
        gone = self.associations.get(association_id)
        if gone is None:
            return
        gone.move_to(at, self.half_life_s)
        for number in above:
            meter = self.associations.get(number)
            if meter is not None:
                meter.move_to(at, self.half_life_s)
                for name, amount in gone.used.items():
                    meter.used[name] = max(0.0, meter.used.get(name, 0.0) - amount)

    def follow(self, before: AccountBook, book: AccountBook, at: float) -> None:
        """The book changed: the deleted take their meters along, the moved take their usage to the new parents."""
        for number in [number for number in self.associations if number not in book.associations]:
            del self.associations[number]
        for name in [name for name in self.qos if name not in book.qos]:
            del self.qos[name]
        for name, qos in book.qos.items():
            self._set_decay(name, not qos.has(QosFlag.NO_DECAY), at)
        if _moved(before, book):
            self._sum_again(book, at)

    def _add(self, charge: Charge, sign: int, at: float) -> None:
        meters: list[Meter | None] = []
        if sign > 0:
            meters += [_meter(self.associations, number, at) for number in charge.associations]
            meters += [_meter(self.qos, name, at) for name in charge.qos]
        else:  # what was deleted meanwhile has no meter any more
            meters += [self.associations.get(number) for number in charge.associations]
            meters += [self.qos.get(name) for name in charge.qos]
        for meter in meters:
            if meter is not None:
                meter.move_to(at, self.half_life_s)
                meter.add_rates(charge.rates, sign)

    def _set_decay(self, qos: str, decays: bool, at: float) -> None:
        meter = self.qos.get(qos)
        if meter is None and not decays:
            meter = self.qos[qos] = Meter(at)
        if meter is not None and meter.decays != decays:
            meter.move_to(at, self.half_life_s)
            meter.decays = decays

    def _sum_again(self, book: AccountBook, at: float) -> None:
        """Accounts used what the users below them used: as after any move in the tree."""
        users = {number: meter for number, meter in self.associations.items() if book.associations[number].user}
        self.associations = dict(users)
        for number, meter in users.items():
            meter.move_to(at, self.half_life_s)
            for account in book.chain(number)[1:]:
                total = self.associations.setdefault(account.id, Meter(at))
                _add_up(total.used, meter.used)
                _add_up(total.rates, meter.rates)
        self.charges = {
            job_id: Charge(_chain_ids(book, charge.associations), charge.qos, charge.rates)
            for job_id, charge in self.charges.items()
        }

    def _meters(self) -> Iterable[Meter]:
        return (*self.associations.values(), *self.qos.values())


def _meter(meters: dict[T, Meter], whose: T, at: float) -> Meter:
    found = meters.get(whose)
    if found is None:
        found = meters[whose] = Meter(at)
    return found


def _add_up(total: dict[str, float], part: Mapping[str, float]) -> None:
    for name, amount in part.items():
        total[name] = total.get(name, 0.0) + amount


def _moved(before: AccountBook, book: AccountBook) -> bool:
    return any(
        known.parent != each.parent
        for number, each in book.associations.items()
        if (known := before.associations.get(number)) is not None
    )


def _chain_ids(book: AccountBook, associations: tuple[int, ...]) -> tuple[int, ...]:
    if not associations or associations[0] not in book.associations:
        return ()
    return tuple(each.id for each in book.chain(associations[0]))
