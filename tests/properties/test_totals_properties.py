"""However short its tasks, whatever restarts and however coarse its curves are by now: a digest says what was used."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.samples import DAY, T0

from bireme.daemon.telemetry.intake import Gatherer, take
from bireme.gather.messages import Frame, Round
from bireme.store.series.store import SqliteSeries

BEGAN = T0 + 4_003.0
"""Of the job; no cell begins then."""


@dataclass(frozen=True)
class Life:
    """A task that reads so many KiB in each second."""

    begin: float
    length: float
    rate: int

    @property
    def end(self) -> float:
        return self.begin + self.length

    def used(self, at: float) -> int:
        return int(self.rate * max(0.0, min(at, self.end) - self.begin))


LIVES = st.lists(
    st.builds(Life, st.floats(BEGAN, BEGAN + 300.0), st.floats(0.5, 700.0), st.integers(0, 100_000)),
    min_size=1,
    max_size=5,
)


class Node:
    """What a gatherer tells of these lives: each task while it lives, and once more when it is over."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self.lives = lives
        self.seen: dict[int, float] = {}
        """When each task was looked at last, by anybody."""
        self.known: set[int] = set()
        """By this gatherer."""

    def frames(self, at: float) -> Iterator[Frame]:
        here = [no for no, life in enumerate(self.lives) if life.begin <= at < life.end]
        over = sorted(self.known.difference(here))
        ages = [at - self.lives[no].begin if no not in self.known else None for no in here]
        self.known = set(here)
        yield self._frame(over, [self.seen[no] for no in over], ended=True)
        self.seen |= dict.fromkeys(here, at)
        yield self._frame(here, [at] * len(here), ages=ages)

    def _frame(self, tasks: Sequence[int], at: Sequence[float], **more: object) -> Frame:
        read = [1024 * self.lives[no].used(when) for no, when in zip(tasks, at, strict=True)]
        ids = [f"7.1.{no}.0" for no in tasks]
        return Frame(about="task", node="n1", ids=ids, columns={"io_read": read}, **more)  # type: ignore[arg-type,list-item]


@settings(max_examples=25, deadline=None)
@given(
    lives=LIVES,
    pace=st.sampled_from([1.0, 10.0, 37.0]),
    daemon_restarts=st.sets(st.integers(1, 60), max_size=4),
    gatherer_away=st.none() | st.tuples(st.floats(BEGAN, BEGAN + 600.0), st.floats(1.0, 300.0)),
    kept_days=st.sampled_from([0, 2, 9]),
)
def test_the_sum_of_digests_is_what_was_used(
    lives: list[Life],
    pace: float,
    daemon_restarts: set[int],
    gatherer_away: tuple[float, float] | None,
    kept_days: int,
) -> None:
    node, end = Node(lives), max(life.end for life in lives)
    away_from, away_until = (gatherer_away[0], sum(gatherer_away)) if gatherer_away else (end, end)
    with tempfile.TemporaryDirectory() as folder:
        series, listener, no = SqliteSeries(f"{folder}/series.db", clock=lambda: end), Gatherer("g1"), 0
        for tick in range(int((end - BEGAN) / pace) + 3):
            at = BEGAN + tick * pace
            if away_from <= at < away_until:
                if node.known:  # it died, and another begins after it, which knows nothing
                    node.known, listener, no = set(), Gatherer("g2"), 0
                continue
            no += 1
            told = Round(no=no, at=at, interval_s=pace, frames=list(node.frames(at)), sent=at)
            series.append(listener.id, no, take(listener, told, at)[0])
            if tick in daemon_restarts:
                series.flush()
                listener = Gatherer(listener.id, taken=no)
        if kept_days:
            series.flush()
            series.thin_out(T0 + kept_days * DAY)
        digest = series.digest(7, 1, BEGAN, end)
        series.close()
    found = {step.step: step.figures["read_kib"].total for step in digest.steps if "read_kib" in step.figures}
    for task, life in enumerate(lives):
        last = node.seen.get(task)
        if last is None:
            assert task not in found, "it came and went between two looks"
        elif away_from <= life.end <= away_until + pace and gatherer_away:
            coarseness = {0: 10.0, 2: 60.0, 9: 600.0}[kept_days]
            assert found[task] == pytest.approx(life.used(last), abs=life.rate * (coarseness + 2 * pace) + 1)
        else:
            assert found[task] == pytest.approx(life.used(last), abs=1.0)
