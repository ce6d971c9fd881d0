"""How much of what a node has left is of use to expected work; what is not is fragmented.

For each shape of the target: the GPUs (and parts of GPUs) of the node that it could run on, if the node has the CPUs
and a GPU of its model; zero if it could not run there at all. The mean over the target is the node's usefulness, and
the rest of its free GPUs its fragmentation. With no options that is the measure of "Beware of Fragmentation" (Weng et
al., USENIX ATC'23), which asks whether one more job of a shape fits. The options make it look further ahead:

- `remainder`: this share of what copies of the shape would leave over on each GPU counts as lost;
- `shortage`: this share of the GPUs for which the node lacks the CPUs counts as lost, were it filled with the shape;
- `scarcity`: work that only few GPUs of the cluster can take weighs more on those: (all / those) to this power.

Everything per GPU comes out of a table by its free thousandths, so that many nodes cost little more than one.
Invariant: usefulness never exceeds what is free (for a scarcity of zero).
"""

from __future__ import annotations

import numpy as np

from bireme.core.placement.target import WHOLE_MILLI, FloatArray, IntArray, Target


class Usefulness:
    __slots__ = ("_class_of", "_copies", "_cpus", "_gpus", "_shortage", "_weight", "_worth")

    def __init__(
        self,
        target: Target,
        supply: IntArray,
        *,
        remainder: float = 0.0,
        shortage: float = 0.0,
        scarcity: float = 0.0,
    ) -> None:
        """`supply`: how many GPUs of each model the cluster has."""
        sizes, self._class_of = np.unique(target.milli, return_inverse=True)
        left = np.arange(WHOLE_MILLI + 1, dtype=np.int64)[:, None]
        self._copies: IntArray = left // np.maximum(sizes, 1)
        over = left % np.maximum(sizes, 1)
        self._worth: FloatArray = np.where(left >= sizes, left - remainder * over, 0.0)
        self._cpus = np.maximum(target.cpus, 1)
        self._gpus = np.maximum(target.gpus, 1)
        self._shortage = shortage
        within_reach = np.maximum(target.usable.T @ supply, 1)
        pressure = (max(int(supply.sum()), 1) / within_reach) ** scarcity
        self._weight: FloatArray = target.usable * target.weight * pressure

    def of(self, cpus: IntArray, left: IntArray, model: IntArray) -> FloatArray:
        """Of nodes with these CPUs, these thousandths of each GPU (nodes x GPUs) and this GPU model."""
        copies = self._copies[left].sum(axis=1)[:, self._class_of] // self._gpus
        worth = self._worth[left].sum(axis=1)[:, self._class_of]
        room = cpus[:, None] // self._cpus
        if self._shortage:
            lacking = 1.0 - np.minimum(room / np.maximum(copies, 1), 1.0)
            worth *= 1.0 - self._shortage * lacking
        worth *= (copies > 0) & (room > 0)
        useful: FloatArray = np.einsum("ij,ij->i", worth, self._weight[model])
        return useful
