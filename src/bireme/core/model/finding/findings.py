"""A finding: something is wrong with a GPU, a node or a job, since when, by which evidence, and what to do about it.

Values only. Detectors (`core/faults/detection`) say what they see, again and again; `core/faults/findings` makes one
finding of it.
Invariant: two findings have different keys; a key is the detector's name and the place, so what is seen twice is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Gravity(StrEnum):
    """What it means for whoever is placed there."""

    NOTE = "note"
    """Worth knowing: nothing is lost by it yet."""
    DEGRADED = "degraded"
    """It works, and costs speed."""
    BROKEN = "broken"
    """Work there fails, hangs or comes out wrong: nobody should be placed there."""

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {Gravity.NOTE: 0, Gravity.DEGRADED: 1, Gravity.BROKEN: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a finding is about: a GPU of a node, a node, a switch, a job, or one task of it. The narrowest known."""

    node: str = ""
    gpu: int | None = None
    """Its number on the node, as allocations have it."""
    uuid: str = ""
    """As its driver names it, where that is known."""
    job_id: int = 0
    generation: int = 0
    rank: int | None = None
    """Of a task of the job: its number among all tasks of its step."""
    switch: str = ""
    """A switch, or a block, by its name in the topology."""

    @property
    def key(self) -> str:
        """`node3`, `node3:gpu2`, `job 42.1`, `job 42.1 rank 3`, `switch leaf1`. A GPU without a number goes by its
        UUID."""
        if self.switch:
            return f"switch {self.switch}"
        if self.job_id:
            rank = "" if self.rank is None else f" rank {self.rank}"
            return f"job {self.job_id}.{self.generation}{rank}"
        if self.gpu is not None:
            return f"{self.node}:gpu{self.gpu}"
        return f"{self.node}:{self.uuid}" if self.uuid else self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One piece of evidence, as it was read or measured: never a conclusion."""

    text: str
    source: str
    """As in `core/diagnosis`: `kernel`, `device`, `series`, `record`, `output`, `check`."""
    at: float = 0.0
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What a detector sees, whole: it is said again as long as it is so."""

    detector: str
    place: Place
    gravity: Gravity
    cause: str
    """An id of the published list of causes (`bireme diagnose --causes`)."""
    title: str
    """A line for people: `GPU 2 fell off the bus (Xid 79)`."""
    since: float
    quotes: tuple[Quote, ...] = ()
    remedy: str = ""
    """What to do, as a sentence."""
    who: str = "platform"
    """`you`, `platform` or `vendor`."""
    slower: float = 0.0
    """By how much work there is slower than elsewhere, as a share, where that was measured."""
    lasts: bool = True
    """It stands until somebody or a check says that it is mended. False: it is over when the detector says so."""

    @property
    def key(self) -> str:
        return f"{self.detector} {self.place.key}"


class FindingLife(StrEnum):
    """Where a finding stands."""

    OPEN = "open"
    DISMISSED = "dismissed"
    """A person has said that it is nothing: it stays silent until it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is remembered of a finding that is closed."""

    closed_at: float
    times: int
    """How often its detector has opened and closed it of late; 0: a person has closed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The thing of the kind `core/faults/findings`."""

    id: int
    """Short, for people to type; never given twice."""
    trouble: Trouble
    opened_at: float
    changed_at: float
    times: int = 1
    """How often it was opened of late: it comes and goes."""
    phase: FindingLife = FindingLife.OPEN
    dismissed_by: str = ""
    why_dismissed: str = ""
