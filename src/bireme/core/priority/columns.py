"""The queue as columns: what each waiting job is weighed by, kept from one weighing to the next.

Weighing thousands of jobs every few minutes costs most where their factors are gathered, and these hardly change: a
row is made when a job comes or changes and copied from then on. `order.py` asks for all priorities; `multifactor.py`
says what a row is. Invariant: a row belongs to one specification in one phase, by identity: both are immutable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bireme.core.model.jobs import Job, JobSpec, Phase
from bireme.core.priority.multifactor import Basis, Floats, Integers, sums

_SINCE, _SITE, _NICE, _ASSOCIATION, _FIXED = 0, 1, 2, 3, 4
_WIDTH = _FIXED + 5
_SPARE_ROWS = 1_000
"""Rows of jobs that are gone are dropped when there are more of them than of others, and at least so many."""


_UNKNOWN: tuple[None, None, tuple[int, ...]] = (None, None, ())


class Columns:
    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self._associations: dict[int | None, int] = {}
        """Numbered in the order in which they came: `_ASSOCIATION` is the number."""
        self._forget()

    def _forget(self) -> None:
        self._rows_of: dict[int, tuple[JobSpec, Phase, tuple[int, ...]]] = {}
        self._partitions: list[str] = []
        self._facts: Floats = np.zeros((0, _WIDTH))
        self.uneven = False
        """Whether some job has more than one row, or none."""

    def weigh(self, jobs: Sequence[Job], now: float) -> tuple[list[Job], list[str], Integers]:
        """Owners, partitions and priorities of the rows: one for each partition of each job."""
        if len(self._partitions) > 2 * len(jobs) + _SPARE_ROWS:
            self._forget()
        owners, rows = self._look_up(jobs)
        facts = self._facts[rows]
        weighed = [self.basis.fair_share_of(association) for association in self._associations]
        values = sums(
            facts[:, _SITE],
            self.basis.ages(facts[:, _SINCE], now),
            np.array(weighed, dtype=np.float64)[facts[:, _ASSOCIATION].astype(np.int64)],
            facts[:, _FIXED:],
            facts[:, _NICE],
        )
        return owners, [self._partitions[row] for row in rows], values

    def _look_up(self, jobs: Sequence[Job]) -> tuple[list[Job], list[int]]:
        rows: list[int] = []
        fresh: list[tuple[float, ...]] = []
        get = self._rows_of.get
        for job in jobs:
            spec, phase, mine = get(job.id, _UNKNOWN)
            if spec is not job.spec or phase is not job.phase:
                mine = self._make(job, fresh)
                self._rows_of[job.id] = (job.spec, job.phase, mine)
                self.uneven |= len(mine) != 1
            rows += mine
        if fresh:
            self._facts = np.concatenate((self._facts, np.array(fresh, dtype=np.float64)))
        if not self.uneven:
            return list(jobs), rows
        return [job for job in jobs for _ in self._rows_of[job.id][2]], rows

    def _make(self, job: Job, fresh: list[tuple[float, ...]]) -> tuple[int, ...]:
        found = self.basis.fixed_of(job)
        first, spec, since = len(self._partitions), job.spec, self.basis.since_of(job)
        for each in found:
            number = self._associations.setdefault(each.association, len(self._associations))
            fresh.append((since, spec.site_factor, spec.nice, number, *each.columns))
            self._partitions.append(each.partition)
        return tuple(range(first, first + len(found)))
