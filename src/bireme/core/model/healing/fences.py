"""A fence: a GPU or a node that is out of service, since when, why, and by which healing. And the events.

Values only. The smallest thing is fenced: a node whose GPU is fenced keeps the others. What was running there when the
fence was raised goes on; nothing is placed there any more. Invariant: of one place there is at most one fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from bireme.core.model.finding.findings import Place


class FenceLife(StrEnum):
    """Where a fence stands."""

    RAISED = "raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The thing of the kind `core/faults/fences`."""

    place: Place
    """A node, or a GPU of one: by its number, and by its UUID where that is known."""
    why: str
    """In a line: `GPU 2 fell off the bus (Xid 79) (finding 7)`."""
    healing: int
    """The healing that raised it: what was found, who wanted it, how it is taken back."""
    raised_at: float = 0.0
    by: str = ""
    """Who asked for it; empty: Bireme decided, and the circuit breaker counts it."""
    drained: bool = False
    """Of a node: it is drained for this fence, and not by somebody else before. Whoever resumes it lifts the fence."""
    phase: FenceLife = FenceLife.RAISED

    @property
    def key(self) -> str:
        return self.place.key

    @property
    def of_gpu(self) -> bool:
        return self.place.gpu is not None or bool(self.place.uuid)


@dataclass(frozen=True, slots=True)
class FenceRaised:
    """A GPU or a node is out of service from now on."""

    fence: Fence

    @property
    def key(self) -> str:
        return self.fence.key


@dataclass(frozen=True, slots=True)
class FenceLifted:
    """It is in service again. `by`: who said so; empty: what was found there is mended."""

    key: str
    why: str
    by: str = ""


FenceEvent = FenceRaised | FenceLifted
FENCE_EVENTS: tuple[type[FenceEvent], ...] = get_args(FenceEvent)
"""All of them, for whoever takes one stand on every one."""
