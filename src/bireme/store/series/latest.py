"""The latest figures of every subject, as its gatherer told them last. In memory alone; called by `store`.

Invariant: a gatherer's newest round counts, whatever its clock says; one that was made too long ago is not shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.store.series.fresh import Stack

INTERVALS = 5
LEAST_S = 30.0

Figures = tuple[Subject, float, Mapping[str, float]]


class Latest:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rounds: dict[str, list[Stack]] = {}

    def take(self, gatherer: str, stacks: Sequence[Stack]) -> None:
        """A round, or several together; the newest counts."""
        newest = max((float(stack.at[-1]) for stack in stacks), default=-math.inf)
        self._rounds[gatherer] = [stack for stack in stacks if stack.at[-1] == newest]

    def of(self, about: About) -> list[Figures]:
        now = self._clock()
        found: dict[Subject, Figures] = {}
        for stacks in list(self._rounds.values()):
            for stack in stacks:
                at = float(stack.at[-1])
                if stack.about == about and abs(now - at) <= max(INTERVALS * stack.interval_s, LEAST_S):
                    for subject, values in _figures(stack):
                        known = found.get(subject)
                        if known is None or known[1] < at:
                            found[subject] = subject, at, values
        return list(found.values())


def _figures(stack: Stack) -> list[tuple[Subject, dict[str, float]]]:
    """Those of which anything was measured."""
    values = stack.values[-1].T
    known = ~np.isnan(values)
    return [
        (Subject(stack.about, stack.node, name), {stack.metrics[no]: float(values[row, no]) for no in measured})
        for row, name in enumerate(stack.names)
        if len(measured := np.flatnonzero(known[row]).tolist())
    ]
