"""What a training job gets done: work that counts, work that is done again, saving, loading, and waiting. Pure.

A start loads for `load_s`, then works for `checkpoint_s` and saves for `save_s`, over and over. What it did since its
last save is lost when it dies; where it never saves, all of it.
Invariant: what is counted adds up to the time that has passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    checkpoint_s: float = 900.0
    """inf: never."""
    save_s: float = 10.0
    load_s: float = 300.0


@dataclass(slots=True)
class Progress:
    """How far one job has come, in seconds of its whole gang."""

    habits: Habits
    useful_s: float = 0.0
    lost_s: float = 0.0
    saving_s: float = 0.0
    loading_s: float = 0.0
    waiting_s: float = 0.0
    starts: int = 0
    most_lost_s: float = 0.0
    """By one failure."""
    waits: list[float] = field(default_factory=list)
    """Between a failure and the next start, each."""
    _since: float = 0.0
    _runs: bool = False

    def begin(self, at: float) -> None:
        """A start runs from now on."""
        assert not self._runs, "one start after the other"
        self.waiting_s += at - self._since
        if self.starts:
            self.waits.append(at - self._since)
        self._since, self._runs, self.starts = at, True, self.starts + 1

    def saved_at(self, at: float) -> float | None:
        """When this start has saved its work last, by that time."""
        saves = self._saves(at)
        return self._since + self.habits.load_s + saves * self._cycle_s if saves else None

    def halt(self, at: float, *, dies: bool = True) -> None:
        """Nothing more is done from now on; `dies`: what was not saved is lost."""
        if not self._runs:
            return
        worked_s = self._spent(at)
        self._since, self._runs = at, False
        lost_s = worked_s if dies else 0.0
        if dies and self.habits.checkpoint_s == inf:
            lost_s, self.useful_s = worked_s + self.useful_s, 0.0
        self.useful_s += worked_s if not dies else 0.0
        self.lost_s += lost_s
        self.most_lost_s = max(self.most_lost_s, lost_s)

    def end(self, at: float) -> None:
        """The time is over: what was done so far counts, and who waits has waited."""
        if self._runs:
            self.halt(at, dies=False)
        else:
            self.waiting_s += at - self._since
            self._since = at

    def _spent(self, at: float) -> float:
        """Counts a run; the work of it that was not saved."""
        left_s = at - self._since
        loading_s = min(left_s, self.habits.load_s)
        self.loading_s += loading_s
        left_s -= loading_s
        if self.habits.checkpoint_s == inf:
            return left_s
        saves = self._saves(at)
        rest_s = left_s - saves * self._cycle_s
        unsaved_s = min(rest_s, self.habits.checkpoint_s)
        self.useful_s += saves * self.habits.checkpoint_s
        self.saving_s += saves * self.habits.save_s + (rest_s - unsaved_s)
        return unsaved_s

    @property
    def _cycle_s(self) -> float:
        return self.habits.checkpoint_s + self.habits.save_s

    def _saves(self, at: float) -> int:
        """How often this start has saved its work."""
        if not self._runs or self.habits.checkpoint_s == inf:
            return 0
        return int(max(0.0, at - self._since - self.habits.load_s) // self._cycle_s)
