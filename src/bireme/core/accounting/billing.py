"""What a job costs a second: its TRES weighed by its partition's TRESBillingWeights.

Called when a job is charged and when its record shows `billing`. Weights are per unit of the TRES as Bireme counts it
(memory in MiB); `slurm/conf` turns `Mem=0.25G` into that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

ON_NODES = ("cpu", "mem", "gres/")
"""TRES that a node has: PriorityFlags=MAX_TRES takes the largest of these, and adds the others."""


def billing(tres: Mapping[str, int], weights: tuple[tuple[str, float], ...], take_largest: bool = False) -> float:
    """Billing units a second. Without weights it is the number of CPUs, as in Slurm."""
    if not weights:
        return float(tres.get("cpu", 0))
    on_nodes = [weight * tres[name] for name, weight in weights if name in tres and name.startswith(ON_NODES)]
    elsewhere = [weight * tres[name] for name, weight in weights if name in tres and not name.startswith(ON_NODES)]
    together = max(on_nodes, default=0.0) if take_largest else math.fsum(on_nodes)
    return together + math.fsum(elsewhere)
