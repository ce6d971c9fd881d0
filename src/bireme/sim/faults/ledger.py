"""What everybody used, counted a second time: by adding up intervals, without meters or closed forms kept up to date.

Fed with the events of the journal; `differences` compares it with what the state says. The clock may jump back: an
interval never begins or ends before what was last counted for its association, as the meters have it.
Invariant: nothing of `core/accounting/usage.py` is used here but its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.core.model import events as e
from bireme.core.state.state import State

CPU = "cpu"
RELATIVE_ERROR = 1e-6


@dataclass(slots=True)
class Interval:
    cpus: int
    begin: float
    end: float | None = None


class UsageLedger:
    def __init__(self) -> None:
        self._intervals: dict[int, list[Interval]] = {}
        """By association."""
        self._open: dict[int, list[tuple[int, Interval]]] = {}
        """Of the jobs that are charged now, by job."""
        self._touched: dict[int, float] = {}
        self._cpus: dict[int, int] = {}

    def follow(self, state: State, events: Sequence[e.Recorded]) -> None:
        """After the group was committed; `state` is as it was left."""
        for recorded in events:
            match recorded.event:
                case e.JobAllocated(job_id=job_id, allocation=allocation):
                    self._cpus[job_id] = sum(share.cpus for share in allocation.shares)
                    self._begin(state, job_id, recorded.at)
                case e.JobResumed(job_id=job_id):
                    self._begin(state, job_id, recorded.at)
                case e.JobSuspended(job_id=job_id) | e.JobEnding(job_id=job_id) | e.JobLaunchFailed(job_id=job_id):
                    self._end(job_id, recorded.at)

    def _begin(self, state: State, job_id: int, at: float) -> None:
        self._end(job_id, at)
        for association in _chain(state, job_id):
            interval = Interval(self._cpus[job_id], self._moment(association, at))
            self._intervals.setdefault(association, []).append(interval)
            self._open.setdefault(job_id, []).append((association, interval))

    def _end(self, job_id: int, at: float) -> None:
        for association, interval in self._open.pop(job_id, ()):
            interval.end = self._moment(association, at)

    def _moment(self, association: int, at: float) -> float:
        self._touched[association] = max(at, self._touched.get(association, at))
        return self._touched[association]

    def used(self, association: int, now: float, half_life_s: float | None) -> float:
        now = max(now, self._touched.get(association, now))
        return sum(_decayed(each, now, half_life_s) for each in self._intervals.get(association, ()))

    def differences(self, state: State, now: float) -> Iterator[str]:
        for association in self._intervals:
            said = state.usage.of_association(association, CPU, now)
            counted = self.used(association, now, state.usage.half_life_s)
            if not math.isclose(said, counted, rel_tol=RELATIVE_ERROR, abs_tol=1e-3):
                yield f"association {association} used {counted:.3f} CPU-seconds, the state says {said:.3f}"


def _chain(state: State, job_id: int) -> list[int]:
    job = state.jobs.get(job_id)
    if job is None:
        return []
    found = state.accounts.find(job.spec.account, job.spec.owner.user, "")
    return [each.id for each in state.accounts.chain(found.id)] if found is not None else []


def _decayed(interval: Interval, now: float, half_life_s: float | None) -> float:
    """Each second of it, worth what is left of it now."""
    end = now if interval.end is None else interval.end
    if half_life_s is None:
        return interval.cpus * (end - interval.begin)
    pace = math.log(2) / half_life_s
    return interval.cpus * (math.exp(-pace * (now - end)) - math.exp(-pace * (now - interval.begin))) / pace
