"""Why a job waited, over time: spans of reasons, joined where they are short beside the whole wait.

Reasons are said anew by every pass and are no events; what is kept of them is this trail. `daemon/telemetry/trail`
follows it, `store/series` keeps it, `timeline` shows it. Pure.

Invariant: a span is at least a twentieth of what its job had waited when it ended, or is the first of its wait; so a
wait of a month has some three hundred spans at most, however often its reasons change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from bireme.core.explain.wording import sentence
from bireme.core.model.reasons import Reason

FINEST_PART = 1 / 20
"""Of a wait: what lasts less joins the span before it."""
MOST_REASONS = 16
"""Of one span."""
Said = tuple[tuple[str, str], ...]
"""Reasons as people read them: Slurm's word, and a sentence."""


@dataclass(frozen=True, slots=True)
class Waited:
    """A time in which the same things kept a job waiting."""

    job_id: int
    start: float
    end: float | None
    """None: they still do."""
    reasons: Said


def is_short(began: float, start: float, now: float) -> bool:
    """Whether a span that ends now is too short to stand alone, in a wait that began then."""
    return start > began and now - start < FINEST_PART * (now - began)


def joined(before: Sequence[Reason], more: Sequence[Reason]) -> tuple[Reason, ...]:
    """The reasons of a span that goes on with others: each kind once, as it was said last."""
    newest = {reason.kind: reason for reason in (*before, *more)}
    return tuple(newest.values())[:MOST_REASONS]


def added(first: Sequence[Reason], more: Sequence[Reason]) -> tuple[Reason, ...]:
    """The first reasons, and of the others those of kinds that are not among them: each kind as it was said first."""
    kinds = {reason.kind for reason in first}
    return (*first, *(reason for reason in more if reason.kind not in kinds))[:MOST_REASONS]


def alike(one: Sequence[Reason], other: Sequence[Reason]) -> bool:
    """Whether they are of the same kinds. Their facts change with every pass."""
    return {reason.kind for reason in one} == {reason.kind for reason in other}


@lru_cache(4096)
def said(reasons: tuple[Reason, ...]) -> Said:
    """Many jobs wait for the same, in the same words."""
    return tuple((reason.kind.value, sentence(reason)) for reason in reasons[:MOST_REASONS])
