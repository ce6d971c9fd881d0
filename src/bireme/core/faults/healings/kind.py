"""Healings as a kind: what was decided about findings, and what became of it. It decides and does nothing itself.

Who decides proposes (`deciding.proposed`); who carries out looks for what is to do (`shelves.to_do`) in its own
`settles`, and says `HealingDone` or `HealingFailed` with the events that do it. What was done is undone by whoever did
it: it follows `HealingUndone`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from bireme.core.faults.healings.shelves import (
    COUNT,
    HEALINGS,
    LATEST,
    MOST_OVER,
    POLICY,
    TO_DO,
    count_proposed,
    put_policy,
)
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.healing.healings import Healing, HealingLife, Mark
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State

_OBSERVED, _SUGGESTED, _APPROVED = HealingLife.OBSERVED, HealingLife.SUGGESTED, HealingLife.APPROVED
_DONE, _REFUSED, _FAILED = HealingLife.DONE, HealingLife.REFUSED, HealingLife.FAILED
_UNDONE, _LAPSED = HealingLife.UNDONE, HealingLife.LAPSED

_HEALING: Rows = {
    (Absent, e.HealingProposed): (_OBSERVED, _SUGGESTED, _APPROVED),
    (_OBSERVED, e.HealingApproved): (_APPROVED,),
    (_SUGGESTED, e.HealingApproved): (_APPROVED,),
    (_OBSERVED, e.HealingRefused): (_REFUSED,),
    (_SUGGESTED, e.HealingRefused): (_REFUSED,),
    (_OBSERVED, e.HealingLapsed): (_LAPSED,),
    (_SUGGESTED, e.HealingLapsed): (_LAPSED,),
    (_APPROVED, e.HealingDone): (_DONE,),
    (_APPROVED, e.HealingFailed): (_FAILED,),
    (_DONE, e.HealingUndone): (_UNDONE,),
}


def _phase(state: State, key: Key) -> Phase:
    healing = HEALINGS.of(state).get(key)
    return Absent if healing is None else healing.phase


HEALING = Life("healing", _HEALING, {event: (attrgetter("id"),) for _, event in _HEALING}, _phase)

# -- its own events --------------------------------------------------------------------------------------------------


def _policy_set(state: State, event: e.HealingPolicySet, at: float) -> Sequence[c.Command]:
    put_policy(state, event.policy)
    return ()


def _proposed(state: State, event: e.HealingProposed, at: float) -> Sequence[c.Command]:
    first = Mark(phase=event.phase, at=at, by=event.proposal.by, text=event.why)
    count_proposed(state, event.id)
    LATEST.put(state, event.proposal.key, event.id)
    _put(state, Healing(id=event.id, proposal=event.proposal, phase=event.phase, trail=(first,)))
    return ()


def _approved(state: State, event: e.HealingApproved, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_APPROVED, at=at, by=event.by, text=event.why))


def _refused(state: State, event: e.HealingRefused, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_REFUSED, at=at, by=event.by, text=event.why))


def _done(state: State, event: e.HealingDone, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_DONE, at=at, text=event.what))


def _failed(state: State, event: e.HealingFailed, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_FAILED, at=at, text=event.why))


def _undone(state: State, event: e.HealingUndone, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_UNDONE, at=at, by=event.by, text=event.why))


def _lapsed(state: State, event: e.HealingLapsed, at: float) -> Sequence[c.Command]:
    return _marked(state, event.id, Mark(phase=_LAPSED, at=at, text=event.why))


def _marked(state: State, number: int, mark: Mark) -> Sequence[c.Command]:
    healing = HEALINGS.of(state)[number]
    _put(state, replace(healing, phase=mark.phase, trail=(*healing.trail, mark)))
    if not mark.phase.stands:
        _forget_old(state)
    return ()


def _put(state: State, healing: Healing) -> None:
    HEALINGS.put(state, healing.id, healing)
    if healing.phase is _APPROVED:
        TO_DO.put(state, healing.id, healing.id)
    elif healing.id in TO_DO.of(state):
        TO_DO.drop(state, healing.id)


def _forget_old(state: State) -> None:
    """The oldest of those that are over goes, when there are more than are kept at hand."""
    if len(HEALINGS.of(state)) <= MOST_OVER:
        return
    over = [each for each in HEALINGS.of(state).values() if not each.phase.stands]
    for oldest in over[: max(0, len(over) - MOST_OVER)]:
        HEALINGS.drop(state, oldest.id)
        if LATEST.of(state).get(oldest.proposal.key) == oldest.id:
            LATEST.drop(state, oldest.proposal.key)


HEALINGS_KIND = Kind(
    life=HEALING,
    applies={
        e.HealingPolicySet: _policy_set,
        e.HealingProposed: _proposed,
        e.HealingApproved: _approved,
        e.HealingRefused: _refused,
        e.HealingDone: _done,
        e.HealingFailed: _failed,
        e.HealingUndone: _undone,
        e.HealingLapsed: _lapsed,
    },
    keeps=(HEALINGS, LATEST, TO_DO, COUNT, POLICY),
    passes_over=frozenset(
        (
            e.ClusterConfigured,
            *e.JOB_EVENTS,
            *e.STEP_EVENTS,
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *FINDING_EVENTS,
            *FENCE_EVENTS,
        )
    ),
)
