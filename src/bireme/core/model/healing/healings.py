"""A healing: something that Bireme decided to do about findings, with its reason, evidence and undo.

Values only: what people approve, refuse and undo, and what the audit log is made of. In `core/faults`, who decides is
`fences` (a GPU or a node out of service) and `restarts` (a job started again); `healings` keeps them all, as a kind.
Invariant: what was decided does not change any more (`Proposal`); what became of it is a trail that only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.finding.findings import Place, Quote


class HealingAct(StrEnum):
    """What is to be done. Whose it is carries it out when it is approved, and says `HealingDone` or `HealingFailed`."""

    FENCE_GPU = "fence-gpu"
    FENCE_NODE = "fence-node"
    RESTART_JOB = "restart-job"
    """Ended and queued again, from its checkpoint where it has one."""
    STOP_JOB = "stop-job"
    """Ended, and not tried again: its cause is not hardware."""
    TELL = "tell"
    """Nothing is done: the owner is told what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What was decided, whole: by code, from findings and the policy, or by a person who asked for it."""

    act: HealingAct
    place: Place
    """The part of the pool, or the start of a job, that it is done to."""
    title: str
    """A line for people: `take GPU 2 of n1 out of service`."""
    reason: str
    """Why, as a sentence: `GPU 2 fell off the bus (Xid 79)`."""
    findings: tuple[int, ...] = ()
    quotes: tuple[Quote, ...] = ()
    undo: str = ""
    """How it is taken back, as a sentence; empty: it cannot be."""
    by: str = ""
    """Who asked for it; empty: nobody, Bireme decided."""

    @property
    def key(self) -> str:
        """What is decided about one place with one act is one thing: it is not decided again while it stands."""
        return f"{self.act} {self.place.key}"


class HealingLife(StrEnum):
    """Where a healing stands."""

    OBSERVED = "observed"
    """The mode is observe: it would be done, and nobody is asked."""
    SUGGESTED = "suggested"
    APPROVED = "approved"
    """By a person, or by the mode: it is being done."""
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    UNDONE = "undone"
    LAPSED = "lapsed"
    """It was not done, and there is no occasion any more: what it was about is mended or gone."""

    @property
    def stands(self) -> bool:
        """Whether something may still become of it."""
        return self in _STANDING


_STANDING = frozenset((HealingLife.OBSERVED, HealingLife.SUGGESTED, HealingLife.APPROVED, HealingLife.DONE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry of a healing's audit: what became of it, when, by whom (empty: Bireme), and why or how."""

    phase: HealingLife
    at: float
    by: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """The thing of the kind `core/faults/healings`."""

    id: int
    """Short, for people to type; never given twice."""
    proposal: Proposal
    phase: HealingLife
    trail: tuple[Mark, ...]
    """From the first to the latest."""

    @property
    def latest(self) -> Mark:
        return self.trail[-1]
