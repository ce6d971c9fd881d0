"""A log that cannot fill a disk: of a line that repeats itself some are written, the others are counted and told.

`RationedHandler` stands before the handler that writes. Lines that one place in the source says are alike, whatever
they are about, so that a user who makes the daemon or an agent complain a thousand times a second gets few of them
written; together all places have a ration too. Used by the daemon and by the agents. Not here: how large a log file
may get and what is kept of old ones.

Invariant: what was left out is said, with its number, before or together with the next line that is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]

BURST_ALIKE = 20
"""So many lines of one place are written at once ..."""
ALIKE_EVERY_S = 6.0
"""... and then one in so many seconds."""
BURST = 400
EVERY_S = 0.5
"""The same for all places together: 170,000 lines a day at most."""
LONGEST_LINE = 8_192
"""A line may quote what a user sent; more characters of it are not written."""
_MOST_PLACES = 1_000


@dataclass(slots=True)
class Ration:
    """What is left to one place: `burst` lines at once, and another every `every_s` seconds."""

    burst: float
    every_s: float
    left: float
    seen_at: float
    left_out: int = 0
    since: float = 0.0
    """When the first of those that were left out came."""

    def refill(self, now: float) -> None:
        self.left = min(self.burst, self.left + max(0.0, now - self.seen_at) / self.every_s)
        self.seen_at = now


class RationedHandler(logging.Handler):
    """Passes on to `inner` what the rations allow. CRITICAL is always written: the process ends after it."""

    def __init__(
        self,
        inner: logging.Handler,
        *,
        burst_alike: int = BURST_ALIKE,
        alike_every_s: float = ALIKE_EVERY_S,
        burst: int = BURST,
        every_s: float = EVERY_S,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(inner.level)
        self.inner = inner
        self.formatter = inner.formatter  # else `basicConfig` gives both its own, without the time
        self._burst_alike, self._alike_every_s = burst_alike, alike_every_s
        self._clock = clock
        self._all = Ration(burst, every_s, burst, clock())
        self._places: dict[tuple[str, int, int], Ration] = {}

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802  # the library's name
        super().setFormatter(fmt)
        self.inner.setFormatter(fmt)

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        place = self._ration_of(record, now)
        place.refill(now)
        self._all.refill(now)
        if record.levelno < logging.CRITICAL:
            if place.left < 1.0 or self._all.left < 1.0:
                place.since = place.since if place.left_out else now
                place.left_out += 1
                return
            place.left -= 1.0
            self._all.left -= 1.0
        self._tell_of_others(place, now)
        self.inner.handle(_shown(record, self._words(place, now)))

    def close(self) -> None:
        """Says what was left out and not told yet, then closes the log."""
        self._tell_of_others(None, self._clock(), finished=True)
        self.inner.close()
        super().close()

    def flush(self) -> None:
        self.inner.flush()

    def _ration_of(self, record: logging.LogRecord, now: float) -> Ration:
        key = (record.pathname, record.lineno, record.levelno)
        if key not in self._places:
            if len(self._places) >= _MOST_PLACES:  # nothing has so many: what is forgotten only begins anew
                self._places.clear()
            self._places[key] = Ration(self._burst_alike, self._alike_every_s, self._burst_alike, now)
        return self._places[key]

    def _tell_of_others(self, speaking: Ration | None, now: float, *, finished: bool = False) -> None:
        """Places that fell silent cannot say what was left out of them: another's line brings it along."""
        for (path, line, level), place in self._places.items():
            if place is speaking or not place.left_out:
                continue
            if finished or now - place.seen_at >= place.every_s:
                text = f"{self._words(place, now)[2:-1]} ({path.rpartition('/')[2]}:{line})"
                self.inner.handle(logging.LogRecord("bireme.log", level, path, line, text, None, None))

    def _words(self, place: Ration, now: float) -> str:
        if not place.left_out:
            return ""
        words = f" [{place.left_out} more lines like this in {max(1, round(now - place.since))} s were left out]"
        place.left_out = 0
        return words


def _shown(record: logging.LogRecord, remark: str) -> logging.LogRecord:
    """The record with the remark, and cut where it is too long: a copy, since other handlers have it as well."""
    text = record.getMessage()
    if not remark and len(text) <= LONGEST_LINE:
        return record
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}... ({len(text)} characters)"
    shown = logging.makeLogRecord(record.__dict__)
    shown.msg, shown.args = text + remark, None
    return shown
