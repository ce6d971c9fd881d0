"""What is to be set on associations and QOS, and setting it: `sacctmgr`'s words after they are understood.

An edit says only what changes. As in Slurm, -1 clears a number, an empty text or list clears it; names with `+` or `-`
before them change a list, plain names replace it. Pure values: `accounting/changes.py` decides which records they meet.
Invariant: what is set here is a legal record by itself; whether it fits the rest of the book is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from bireme.core.model.accounts import Association, Limits, Qos, QosFlag, changed_names, tres_map

CLEAR = -1
PARENT = "parent"
_TRES_FIELDS = frozenset(each.name for each in fields(Limits) if "TresMap" in str(each.type))
COUNT_FIELDS = frozenset(each.name for each in fields(Limits)) - _TRES_FIELDS


class BookError(ValueError):
    """What is asked cannot be done to the book. The text is what `sacctmgr` prints, all of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsEdit:
    """Fields of `Limits` by name."""

    counts: Mapping[str, int] = field(default_factory=dict)
    tres: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Field -> TRES name -> amount; TRES that are not named keep theirs."""

    def __bool__(self) -> bool:
        return bool(self.counts or self.tres)

    def on(self, limits: Limits) -> Limits:
        unknown = (self.counts.keys() - COUNT_FIELDS) | (self.tres.keys() - _TRES_FIELDS)
        if unknown:
            raise BookError(f" Unknown limit: {min(unknown)}")
        changed: dict[str, object] = {}
        for name, count in self.counts.items():
            changed[name] = None if count == CLEAR else _not_negative(name, count)
        for name, amounts in self.tres.items():
            merged = dict(getattr(limits, name))
            for tres, amount in amounts.items():
                merged[tres] = amount if amount == CLEAR else _not_negative(f"{name} {tres}", amount)
            changed[name] = tres_map({tres: amount for tres, amount in merged.items() if amount != CLEAR})
        return replace(limits, **changed)  # type: ignore[arg-type]  # checked by name above


def _not_negative(name: str, number: int) -> int:
    if number < 0:
        raise BookError(f" {name} cannot be {number}: a number from 0, or -1 to clear it")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationEdit:
    shares: int | str | None = None
    """A number, or `parent`; -1 is the default of 1."""
    priority: int | None = None
    qos: tuple[str, ...] | None = None
    default_qos: str | None = None
    limits: LimitsEdit = field(default_factory=LimitsEdit)

    def on(self, association: Association) -> Association:
        qos, qos_changes = self._qos_on(association)
        return replace(
            association,
            qos=qos,
            qos_changes=qos_changes,
            shares=association.shares if self.shares is None else _shares(self.shares),
            priority=_number(self.priority, association.priority, "Priority"),
            default_qos=association.default_qos if self.default_qos is None else self.default_qos,
            limits=self.limits.on(association.limits) if self.limits else association.limits,
        )

    def _qos_on(self, association: Association) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(the list set here, changes to the inherited one): one of the two is empty."""
        if self.qos is None:
            return association.qos, association.qos_changes
        changes = tuple(name for name in self.qos if name[:1] in "+-")
        if len(changes) < len(self.qos) or not self.qos:
            return tuple(dict.fromkeys(name for name in self.qos if name[:1] not in "+-")), ()
        if association.qos:
            return changed_names(association.qos, changes), ()
        names = {change[1:] for change in changes}
        return (), tuple(each for each in association.qos_changes if each[1:] not in names) + changes

    def names_qos(self) -> set[str]:
        named = {name.lstrip("+-") for name in self.qos or ()}
        return named | ({self.default_qos} if self.default_qos else set())


def _shares(shares: int | str) -> int | None:
    if isinstance(shares, str):
        if shares.lower() != PARENT:
            raise BookError(f" Bad Fairshare value: {shares}")
        return None
    if shares < CLEAR:
        raise BookError(f" Bad Fairshare value: {shares}. Shares are a number from 0, or parent")
    return 1 if shares == CLEAR else shares


def _number(new: int | None, old: int | None, name: str) -> int | None:
    if new is None:
        return old
    return None if new == CLEAR else _not_negative(name, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class QosEdit:
    description: str | None = None
    priority: int | None = None
    flags: tuple[str, ...] | None = None
    preempt: tuple[str, ...] | None = None
    preempt_mode: str | None = None
    preempt_exempt_s: int | None = None
    grace_s: int | None = None
    usage_factor: float | None = None
    usage_threshold: float | None = None
    limit_factor: float | None = None
    limits: LimitsEdit = field(default_factory=LimitsEdit)

    def on(self, qos: Qos) -> Qos:
        return replace(
            qos,
            description=qos.description if self.description is None else self.description,
            priority=_number(self.priority, qos.priority, "Priority") or 0,
            flags=qos.flags if self.flags is None else _flags(qos.flags, self.flags),
            preempt=qos.preempt if self.preempt is None else _names(qos.preempt, self.preempt),
            preempt_mode=qos.preempt_mode if self.preempt_mode is None else self.preempt_mode,
            preempt_exempt_s=_number(self.preempt_exempt_s, qos.preempt_exempt_s, "PreemptExemptTime"),
            grace_s=_number(self.grace_s, qos.grace_s, "GraceTime") or 0,
            usage_factor=_factor(self.usage_factor, qos.usage_factor, 1.0, "UsageFactor") or 0.0,
            usage_threshold=_factor(self.usage_threshold, qos.usage_threshold, None, "UsageThreshold"),
            limit_factor=_factor(self.limit_factor, qos.limit_factor, None, "LimitFactor"),
            limits=self.limits.on(qos.limits) if self.limits else qos.limits,
        )


def _names(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    changes = tuple(name for name in new if name[:1] in "+-")
    return changed_names(old, changes) if changes and len(changes) == len(new) else tuple(dict.fromkeys(new))


def _flags(old: tuple[QosFlag, ...], new: tuple[str, ...]) -> tuple[QosFlag, ...]:
    chosen = set(_names(tuple(flag.value for flag in old), new))
    return tuple(flag for flag in QosFlag if flag.value in chosen)


def _factor(new: float | None, old: float | None, cleared: float | None, name: str) -> float | None:
    if new is None:
        return old
    if new == CLEAR:
        return cleared
    if new < 0:
        raise BookError(f" {name} cannot be {new:g}: a number from 0, or -1 to clear it")
    return new
