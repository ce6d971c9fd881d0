"""Worlds one after the other, for as long as one lets them: how many, how many events, which faults; and what failed.

Used by `make soak`, `bireme sim soak` and `tests/simulation`. Also makes a failure smaller (`shrink`): acts are left
out as long as the same rule is still broken. Invariant: a failing world never ends the soak; it is kept and told.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bireme.sim.faults.draw import Story, draw
from bireme.sim.faults.play import Failed, Outcome, Player, Sabotage

MEMORY_DISK = "/dev/shm"


@dataclass(slots=True)
class Tally:
    """What was played so far."""

    worlds: int = 0
    steps: int = 0
    events: int = 0
    jobs: int = 0
    deaths: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    failures: list[Failed] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.steps += outcome.steps
        self.events += outcome.events
        self.jobs += outcome.jobs
        self.deaths += outcome.deaths
        self.acts += outcome.acts


def play(story: Story, *, until: int | None = None, sabotage: Sabotage | None = None) -> Outcome:
    """One world, its journal in memory where the machine has such a disk. Raises Failed."""
    where = MEMORY_DISK if Path(MEMORY_DISK).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bireme-world-", dir=where) as folder:
        return Player(story, Path(folder), until=until, sabotage=sabotage).play()


def soak(
    seeds: Iterable[int],
    seconds: float | None = None,
    told: Callable[[int, Tally], None] | None = None,
    draws: Callable[[int], Story] = draw,
) -> Tally:
    """Plays the worlds of these seeds, until the time is over if there is one; `told` after each."""
    tally, deadline = Tally(), None if seconds is None else time.monotonic() + seconds
    for seed in seeds:
        if deadline is not None and time.monotonic() >= deadline:
            break
        try:
            tally.add(play(draws(seed)))
        except Failed as failure:
            tally.worlds += 1
            tally.failures.append(failure)
        if told is not None:
            told(seed, tally)
    return tally


def shrink(story: Story, failure: Failed, seconds: float = 60.0) -> tuple[Story, Failed]:
    """The smallest story found in that time that breaks the same rule: first half of the acts, then ever fewer."""
    deadline = time.monotonic() + seconds
    size = max(1, len(story.acts) // 2)
    while size and time.monotonic() < deadline:
        smaller = _without_some(story, failure, size, deadline)
        if smaller is None:
            size //= 2
        else:
            story, failure = smaller
    return story, failure


def _without_some(story: Story, failure: Failed, size: int, deadline: float) -> tuple[Story, Failed] | None:
    for first in range(0, len(story.acts), size):
        left_out = frozenset(act.number for act in story.acts[first : first + size])
        tried = story.without(left_out)
        if time.monotonic() >= deadline:
            return None
        try:
            play(tried)
        except Failed as again:
            if again.rule == failure.rule:
                return tried, again
    return None
