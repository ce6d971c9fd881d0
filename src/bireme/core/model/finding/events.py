"""Facts of the journal about findings (`core/faults/findings`). They stand with all others in `model/events.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from bireme.core.model.finding.findings import Trouble


@dataclass(frozen=True, slots=True)
class FindingOpened:
    """Something is wrong that nobody had seen before, or that had been gone."""

    id: int
    trouble: Trouble

    @property
    def key(self) -> str:
        return self.trouble.key

    @property
    def job_id(self) -> int | None:
        """Whose story it belongs to; None: it is about no job."""
        return self.trouble.place.job_id or None


@dataclass(frozen=True, slots=True)
class FindingChanged:
    """It is graver or milder than it was, or has another cause: the whole as it is seen now."""

    trouble: Trouble

    @property
    def key(self) -> str:
        return self.trouble.key

    @property
    def job_id(self) -> int | None:
        return self.trouble.place.job_id or None


@dataclass(frozen=True, slots=True)
class FindingDismissed:
    """A person has looked and says that it is nothing."""

    key: str
    by: str
    why: str
    job_id: int | None = None


@dataclass(frozen=True, slots=True)
class FindingClosed:
    """It is over: mended, gone, or what it was about is gone. `by`: who said so, empty: the detector."""

    key: str
    why: str
    by: str = ""
    job_id: int | None = None


FindingEvent = FindingOpened | FindingChanged | FindingDismissed | FindingClosed
FINDING_EVENTS: tuple[type[FindingEvent], ...] = get_args(FindingEvent)
"""All of them, for whoever takes one stand on every one."""
