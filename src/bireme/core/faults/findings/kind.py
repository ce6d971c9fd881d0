"""Findings as a kind. A detector says what it sees as often as it likes: one finding comes of it, one event a change.

What a detector no longer sees is over at once where the trouble does not last by itself (a hang, a throttled GPU);
what lasts (an uncorrected ECC error, a card off the bus) is closed by a person or by a check that has passed. A finding
about a job is over with the job's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from bireme.core.faults.findings import damping
from bireme.core.faults.findings.shelves import COUNT, FINDINGS, PAST, count_opened, opened_so_far
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Finding, FindingLife, Trouble
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State

_MOST_QUOTES = 12
MOST = 10_000
"""Findings that stand at one time: what is seen beyond is not kept. A pool in which so much is wrong has one cause."""

_OPEN, _DISMISSED = FindingLife.OPEN, FindingLife.DISMISSED
_FINDING: Rows = {
    (Absent, e.FindingOpened): (_OPEN,),
    (_OPEN, e.FindingChanged): (_OPEN,),
    (_DISMISSED, e.FindingChanged): (_OPEN,),
    (_OPEN, e.FindingDismissed): (_DISMISSED,),
    (_OPEN, e.FindingClosed): (Absent,),
    (_DISMISSED, e.FindingClosed): (Absent,),
}


def _phase(state: State, key: Key) -> Phase:
    finding = FINDINGS.of(state).get(key)
    return Absent if finding is None else finding.phase


FINDING = Life("finding", _FINDING, {event: (attrgetter("key"),) for _, event in _FINDING}, _phase)

# -- what is seen ----------------------------------------------------------------------------------------------------


def _trouble_seen(state: State, seen: o.TroubleSeen, now: float) -> list[e.Event]:
    """Nothing where it is known already: evidence that only grows is not worth an event."""
    trouble = seen.trouble
    if not _is_there(state, trouble):
        return []
    known = FINDINGS.of(state).get(trouble.key)
    if known is None:
        if damping.is_old(state, trouble.key, _happened_at(seen)):
            return []
        number = opened_so_far(state) + 1
        return [e.FindingOpened(number, trouble)] if len(FINDINGS.of(state)) < MOST else []
    graver = trouble.gravity.rank > known.trouble.gravity.rank
    milder = trouble.gravity.rank < known.trouble.gravity.rank and not known.trouble.lasts
    if graver or (known.phase is _OPEN and (milder or trouble.cause != known.trouble.cause)):
        return [e.FindingChanged(_with(trouble, known.trouble))]
    return []


def _happened_at(seen: o.TroubleSeen) -> float:
    """Of what lasts by itself: when it was told last. It is seen for as long as somebody remembers it."""
    told = [quote.at for quote in seen.trouble.quotes] if seen.trouble.lasts else []
    return max(told, default=seen.at)


def _with(trouble: Trouble, before: Trouble) -> Trouble:
    """As it is seen now, since it began, with the evidence of before: another fault there is another repair."""
    more = [each for each in before.quotes if each.text not in {quote.text for quote in trouble.quotes}]
    return replace(trouble, since=min(trouble.since, before.since), quotes=(*trouble.quotes, *more)[:_MOST_QUOTES])


def _is_there(state: State, trouble: Trouble) -> bool:
    """Of a start that is over, and of a node that nobody has, nothing is found."""
    place = trouble.place
    if place.job_id:
        return state.holds(place.job_id, place.generation)
    if place.switch:
        return place.switch in state.config.topology.leaves
    return place.node in state.nodes


def _trouble_gone(state: State, seen: o.TroubleGone, now: float) -> list[e.Event]:
    known = FINDINGS.of(state).get(f"{seen.detector} {seen.place.key}")
    if known is None or (known.trouble.lasts and not seen.mended) or damping.stays(known, now):
        return []
    return [e.FindingClosed(known.trouble.key, seen.why, job_id=known.trouble.place.job_id or None)]


# -- its own events --------------------------------------------------------------------------------------------------


def _opened(state: State, event: e.FindingOpened, at: float) -> Sequence[c.Command]:
    count_opened(state, event.id)
    often = damping.times(state, event.key, at)
    finding = Finding(id=event.id, trouble=event.trouble, opened_at=at, changed_at=at, times=often)
    FINDINGS.put(state, event.key, finding)
    return ()


def _changed(state: State, event: e.FindingChanged, at: float) -> Sequence[c.Command]:
    known = FINDINGS.of(state)[event.key]
    FINDINGS.put(
        state,
        event.key,
        Finding(id=known.id, trouble=event.trouble, opened_at=known.opened_at, changed_at=at, times=known.times),
    )
    return ()


def _dismissed(state: State, event: e.FindingDismissed, at: float) -> Sequence[c.Command]:
    known = FINDINGS.of(state)[event.key]
    silenced = replace(known, phase=_DISMISSED, changed_at=at, dismissed_by=event.by, why_dismissed=event.why)
    FINDINGS.put(state, event.key, silenced)
    return ()


def _closed(state: State, event: e.FindingClosed, at: float) -> Sequence[c.Command]:
    damping.closed(state, FINDINGS.of(state)[event.key], at, by_detector=not event.by)
    FINDINGS.drop(state, event.key)
    return ()


# -- what happens to what they are about -----------------------------------------------------------------------------


def _without_place(state: State, now: float) -> Iterator[e.Event]:
    """What a finding was about is gone: the start is over, the node left the configuration."""
    for finding in list(FINDINGS.of(state).values()):
        if not _is_there(state, finding.trouble):
            what = "the job has ended" if finding.trouble.place.job_id else "the node is not configured any more"
            yield e.FindingClosed(finding.trouble.key, what, job_id=finding.trouble.place.job_id or None)


FINDINGS_KIND = Kind(
    life=FINDING,
    applies={
        e.FindingOpened: _opened,
        e.FindingChanged: _changed,
        e.FindingDismissed: _dismissed,
        e.FindingClosed: _closed,
    },
    keeps=(FINDINGS, PAST, COUNT),
    interprets={o.TroubleSeen: _trouble_seen, o.TroubleGone: _trouble_gone},
    settles=_without_place,
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
            *HEALING_EVENTS,
            *FENCE_EVENTS,
        )
    ),
)
