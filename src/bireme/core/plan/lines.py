"""Lines that stand still: those behind a job that has no slot are not looked at, or they might delay it.

A full pass leaves one `Line` for each of them in its outlook: who blocks it, and all who stand behind, in order. Small
passes add those who come and, when the line can go on, take up where the pass before stopped (`planner._go_on`):
a long queue moves with every job that starts, and need not be walked again from its head.
Invariant: entries from `at` on are in the order of the queue; some of their jobs may be gone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from bireme.core.plan.queue import Entry


@dataclass(slots=True)
class Line:
    blocker: int | None = None
    """The job that must go first. None: as many have slots as may; the next is looked at when one of them has gone."""
    _entries: list[Entry] = field(default_factory=list)
    _at: int = 0

    def add(self, entry: Entry) -> None:
        if not self._entries or self._entries[-1] < entry:
            self._entries.append(entry)
        else:
            insort(self._entries, entry, lo=self._at)

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def first(self, pending: Container[int], gone: Container[int]) -> Entry | None:
        """Who stands at its head, of those that still wait."""
        while self._at < len(self._entries):
            entry = self._entries[self._at]
            if entry.job_id in pending and entry.job_id not in gone:
                return entry
            self._at += 1
        return None

    def leave(self) -> None:
        """The one at its head is looked at."""
        self._at += 1

    def rest(self) -> list[Entry]:
        return self._entries[self._at :]
