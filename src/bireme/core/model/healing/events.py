"""Facts of the journal about healings (`core/faults/healings`). They stand with all others in `model/events.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from bireme.core.model.healing.healings import HealingLife, Proposal
from bireme.core.model.healing.policy import HealingPolicy


@dataclass(frozen=True, slots=True)
class HealingPolicySet:
    """How far Bireme goes by itself from now on."""

    policy: HealingPolicy


@dataclass(frozen=True, slots=True)
class HealingProposed:
    """Something was decided. `phase`: OBSERVED, SUGGESTED, or APPROVED where it is done at once. `why`: what the mode
    or the circuit breaker says to that."""

    id: int
    proposal: Proposal
    phase: HealingLife
    why: str = ""


@dataclass(frozen=True, slots=True)
class HealingApproved:
    """A person says that it is to be done."""

    id: int
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class HealingRefused:
    """A person says that it is not to be done: it is not suggested again for the same findings."""

    id: int
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class HealingDone:
    """It was carried out. `what`: how, where that says more than its title."""

    id: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class HealingFailed:
    """It was approved and could not be carried out."""

    id: int
    why: str


@dataclass(frozen=True, slots=True)
class HealingUndone:
    """It was taken back: by a person, or (`by` is empty) because what it was about is mended."""

    id: int
    why: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class HealingLapsed:
    """It was never done, and there is no occasion for it any more."""

    id: int
    why: str


HealingEvent = (
    HealingPolicySet
    | HealingProposed
    | HealingApproved
    | HealingRefused
    | HealingDone
    | HealingFailed
    | HealingUndone
    | HealingLapsed
)
HEALING_EVENTS: tuple[type[HealingEvent], ...] = get_args(HealingEvent)
"""All of them, for whoever takes one stand on every one."""
