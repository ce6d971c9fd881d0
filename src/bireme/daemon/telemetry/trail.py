"""Follows what keeps jobs waiting, and has it written down beside the series: spans of reasons for each job.

The planner says reasons anew in every pass and is not asked to remember them. This looks at what it said last, now and
then, in slices, beside the loop's work: a pass costs nothing more for it. What comes and goes between two looks is not
seen. Called by `keeper`; the rules of what is one span are `core/telemetry/waiting`'s.
Invariant: an open span is of a job that waited at the last look; it is told when it is over, or has lasted a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bireme.core.jobs.states import job_reasons
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Pending
from bireme.core.model.reasons import Reason
from bireme.core.state.state import State
from bireme.core.telemetry.waiting import Waited, added, alike, is_short, joined, said

SLICE = 500
"""Jobs in one slice of a look: milliseconds, where the reasons of all have changed."""
SHORTEST_S = 1.0
"""A wait that is over sooner is not told of."""
MOST_UNWRITTEN = 50_000
"""Spans that wait for a store that cannot be opened: the oldest go."""
TOLD_AFTER_S = 600.0
"""An open span is written when it has lasted so long: most are over before, and are written once."""

_GO_THROUGH_S = 60.0
"""Between two times that all open spans are gone through for those that have lasted."""


@dataclass(slots=True)
class _Open:
    start: float
    reasons: tuple[Reason, ...]
    """As they were said last."""
    first: tuple[Reason, ...]
    """As they were said when it began: what is told when it is over, when the last word was that it can start."""
    is_told: bool = False


class Trail:
    """What keeps jobs waiting, as far as it was seen."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._known: dict[int, Waited] = {}
        self._unwritten: list[Waited] = []
        self._looked_at = 0.0
        self._went_through_at = 0.0

    def take_up(self, known: Iterable[Waited]) -> None:
        """The open spans that a daemon before this one wrote: those that still hold go on."""
        for one in known:
            mine = self._open.get(one.job_id)
            if mine is None:
                self._known[one.job_id] = one
            elif {word for word, _ in one.reasons} == {reason.kind for reason in mine.reasons}:
                mine.start, mine.is_told = one.start, True
            elif one.start < mine.start:
                self._unwritten.append(Waited(one.job_id, one.start, mine.start, one.reasons))

    def look(self, state: Callable[[], State], now: float) -> Iterator[None]:
        """All jobs that wait, a slice at a time: others may work between two slices."""
        changed_at = _said_at(state(), self._looked_at, now)
        waiting = list(state().pending.values())
        for first in range(0, len(waiting), SLICE):
            current = state()
            verdicts, spans = current.verdicts, self._open
            for job in waiting[first : first + SLICE]:
                verdict, one = verdicts.get(job.id), spans.get(job.id)
                if verdict is None or one is None or one.reasons is not verdict.reasons:
                    # not as most of a long queue, where all who stand behind others share one verdict
                    self._look_at(current, job, changed_at, now)
            yield
        pending = state().pending
        for job_id in self._open.keys() - pending.keys():
            self._close(job_id, now)
        for left in self._known.values():  # of jobs that wait no more, or for something else
            self._unwritten.append(Waited(left.job_id, left.start, now, left.reasons))
        self._known = {}
        self._looked_at = now

    def after(self, state: State, events: Sequence[e.Recorded]) -> None:
        """Told of every commit: a job that waits no more has its end from the event that ended the wait."""
        for recorded in events:
            job_id = getattr(recorded.event, "job_id", None)
            if job_id in self._open and job_id not in state.pending:
                self._close(job_id, recorded.at)

    def take(self, now: float, *, everything: bool = False) -> list[Waited]:
        """What is to be written. `everything`: also spans that have only begun, for whoever asks or ends."""
        unwritten, self._unwritten = self._unwritten, []
        if not everything and 0.0 <= now - self._went_through_at < _GO_THROUGH_S:
            return unwritten
        self._went_through_at = now
        for job_id, one in self._open.items():
            if not one.is_told and (everything or now - one.start >= TOLD_AFTER_S):
                one.is_told = True
                unwritten.append(Waited(job_id, one.start, None, said(one.reasons)))
        return unwritten

    def open_span(self, job_id: int) -> Waited | None:
        """What keeps it waiting now."""
        one = self._open.get(job_id)
        return None if one is None else Waited(job_id, one.start, None, said(one.reasons))

    def _look_at(self, state: State, job: Job, changed_at: float, now: float) -> None:
        one, phase = self._open.get(job.id), job.phase
        if not isinstance(phase, Pending):
            return
        reasons = job_reasons(state, job)
        if one is None:
            self._open[job.id] = self._begun(job.id, phase, reasons, now)
        elif one.start < phase.since:  # it ran meanwhile, and waits again
            self._close(job.id, phase.since)
            self._open[job.id] = _Open(max(phase.since, self._looked_at), reasons, reasons)
        elif alike(one.reasons, reasons):
            one.reasons = reasons
        elif is_short(phase.since, one.start, changed_at):
            one.reasons, one.first = joined(one.reasons, reasons), added(one.first, reasons)
        else:
            self._close(job.id, changed_at)
            self._open[job.id] = _Open(changed_at, reasons, reasons)

    def _begun(self, job_id: int, phase: Pending, reasons: tuple[Reason, ...], now: float) -> _Open:
        known = self._known.get(job_id)
        if known is not None and {word for word, _ in known.reasons} == {reason.kind for reason in reasons}:
            del self._known[job_id]
            return _Open(known.start, reasons, reasons, is_told=True)
        return _Open(max(phase.since, self._looked_at) if self._looked_at else now, reasons, reasons)

    def _close(self, job_id: int, at: float) -> None:
        one = self._open.pop(job_id)
        if one.is_told or at - one.start >= SHORTEST_S:
            self._unwritten.append(Waited(job_id, one.start, max(one.start, at), said(one.first)))
            if len(self._unwritten) > 2 * MOST_UNWRITTEN:
                del self._unwritten[:MOST_UNWRITTEN]


def _said_at(state: State, looked_at: float, now: float) -> float:
    """When the newest reasons were said: by the latest pass, if that was after the last look."""
    planned_at = state.planned_at
    return planned_at if planned_at is not None and looked_at < planned_at <= now else now
