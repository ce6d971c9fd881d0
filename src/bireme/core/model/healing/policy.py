"""How far Bireme goes by itself when something is broken: the policy, as operators set it.

Values only. The daemon makes it of its settings (`healing.*`) and journals it whole (`HealingPolicySet`); what follows
from it is decided in `core/faults/fences` (parts of the pool) and `core/faults/restarts` (jobs).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.healing.restarts import RestartRule


class HealingMode(StrEnum):
    """What becomes of a decision."""

    OBSERVE = "observe"
    """It is written down, and nobody is asked."""
    SUGGEST = "suggest"
    """It is done when an operator approves it."""
    ACT = "act"
    """It is done at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingPolicy:
    mode: HealingMode = HealingMode.OBSERVE
    partitions: tuple[tuple[str, HealingMode], ...] = ()
    """Partitions in which another mode holds. Of a node in several, the most careful one counts."""
    breaker_percent: float = 10.0
    """So much of the pool may be out of service at once by Bireme's own decision (one node always): beyond it, people
    are asked."""

    restarts: tuple[RestartRule, ...] = ()
    """The first that is for a job counts; none: the default rule."""
    whole_nodes: tuple[str, ...] = ()
    """Clusters (as partitions name theirs; the empty name: this one) in which somebody else chooses the GPUs of a job,
    so that nothing smaller than a node can be kept free."""
    ordered: tuple[str, ...] = ()
    """Clusters with a scheduler of their own: it is told to drain a node, and says when it has."""
    guests_ordered: bool = False
    """So have all clusters that partitions name: they are of a Slurm cluster beside this one."""

    def fences_gpus_in(self, clusters: tuple[str, ...]) -> bool:
        return not set(clusters) & set(self.whole_nodes) and not self.orders_in(clusters)

    def orders_in(self, clusters: tuple[str, ...]) -> bool:
        return bool(set(clusters) & set(self.ordered)) or (self.guests_ordered and any(clusters))

    def mode_in(self, partitions: tuple[str, ...]) -> HealingMode:
        """For what is in these partitions (a job's one, a node's several)."""
        own = dict(self.partitions)
        modes = [own.get(name, self.mode) for name in partitions] or [self.mode]
        return min(modes, key=list(HealingMode).index)
