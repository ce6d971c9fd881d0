"""What the cluster is expected to be asked for: shapes of work and how often they come.

The scores of `scores.py` judge a place by what it leaves to work that is still to come. A `Target` is that work: from
the list that is replayed (`sim/placement`), or from what was submitted lately on a live cluster (`mix.py`).
Invariant: the weights of a target's shapes, with those that want no GPU, add up to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
WHOLE_MILLI = 1000
"""A GPU in the unit of its parts."""


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """What a job takes of one node. CPUs in any unit, as long as the nodes' are in the same."""

    cpus: int
    milli: int = 0
    """Of each of its GPUs; 1000 is a whole one."""
    gpus: int = 0
    models: tuple[str, ...] = ()
    """The GPU models it can use; empty: any."""

    @property
    def in_part(self) -> bool:
        return self.gpus == 1 and self.milli < WHOLE_MILLI

    @property
    def total_milli(self) -> int:
        return self.gpus * self.milli


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Shapes of GPU work as columns. Models are numbers: places in the cluster's list of them."""

    cpus: IntArray
    gpus: IntArray
    milli: IntArray
    usable: BoolArray
    """Models x shapes."""
    weight: FloatArray

    @classmethod
    def of(cls, counts: Mapping[Ask, float], models: Sequence[str]) -> Target:
        """Asks without a GPU count as work that no GPU is of use to."""
        total = sum(counts.values()) or 1.0
        asks = [ask for ask in counts if ask.gpus]
        usable = [[not ask.models or model in ask.models for ask in asks] for model in models]
        return cls(
            np.array([ask.cpus for ask in asks], dtype=np.int64),
            np.array([ask.gpus for ask in asks], dtype=np.int64),
            np.array([ask.milli for ask in asks], dtype=np.int64),
            np.array(usable, dtype=np.bool_).reshape(len(models), len(asks)),
            np.array([counts[ask] / total for ask in asks], dtype=np.float64),
        )


def typical(counts: Mapping[Ask, float], share: float = 0.95) -> dict[Ask, float]:
    """The most frequent shapes that together are this share of all; the rest is left out, as the FGD paper does."""
    enough = share * sum(counts.values())
    kept: dict[Ask, float] = {}
    seen = 0.0
    for ask, count in sorted(counts.items(), key=lambda pair: (pair[1], pair[0]), reverse=True):
        if seen >= enough:
            break
        kept[ask] = count
        seen += count
    return kept
