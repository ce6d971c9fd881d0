"""A node as it is now: its configuration, whether it answers, and whether an operator took it out.

What runs on it is not stored here: `core/placement/occupancy.py` counts what allocations hold. The state word that
users see (IDLE, MIXED, ALLOCATED, DOWN*, DRAINING ...) is derived in `core/jobs/states.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import NodeShare


class Health(StrEnum):
    UNKNOWN = "UNKNOWN"  # configured, not heard from yet
    UP = "UP"
    LOST = "LOST"  # was up, stopped answering
    DOWN = "DOWN"  # set down by an operator or by a failed start


@dataclass(frozen=True, slots=True)
class Note:
    """Why an operator (or Bireme) took a node out, by whom and when."""

    text: str
    by_uid: int
    at: float


@dataclass(frozen=True, slots=True)
class ShutGpu:
    """A GPU of a node (or a MIG instance) that nobody is given, by its number there, and why in a few words."""

    number: int
    why: str
    since: float = 0.0


@dataclass(slots=True)
class Node:
    config: NodeConfig
    health: Health = Health.UNKNOWN
    drained: bool = False
    note: Note | None = None
    closed: Note | None = None
    """Why whoever looks after the node lets no new jobs onto it (a Kubernetes cluster that cordoned it)."""
    up_since: float | None = None
    last_seen: float | None = None
    agent: str = ""
    """Version of the agent that answered."""
    asks_replicas: bool = True
    """Whether that agent asks the replicas of services whether they are well: if not, none is placed here."""
    leftovers: frozenset[tuple[int, int]] = frozenset()
    """(job, generation) of starts that are over and of which something is still there: nobody gets the node before."""
    shut: tuple[ShutGpu, ...] = ()
    """GPUs that are out of service while the node keeps the others (`core/faults/fences`), by number."""
    others: NodeShare | None = None
    """What runs there that is no job of this daemon's: another scheduler put it on the node, and may take it away."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def schedulable(self) -> bool:
        return self.health is Health.UP and not self.drained and not self.closed and not self.leftovers

    @property
    def shut_gpus(self) -> tuple[int, ...]:
        return tuple(gpu.number for gpu in self.shut)

    @property
    def out_because(self) -> Note | None:
        """What is said of a node that takes no jobs; an operator's word first."""
        return self.note or self.closed
