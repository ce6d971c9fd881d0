"""How often hardware fails, and of what: facts that others have published, each with its source. Pure data.

Rates: A. Kokolis et al. (Meta), "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025,
arXiv:2410.21680: 6.50 failures of jobs by infrastructure per 1,000 node-days on RSC-1, 2.34 on RSC-2. The share of
lemons (nodes that fail again and again) on RSC-1, 1.2 %, is theirs too; how much oftener one fails is assumed here.
Causes: Meta, "The Llama 3 Herd of Models", arXiv:2407.21783, table 5: 419 unexpected interruptions in 54 days on 16,384
GPUs, which is 3.79 per 1,000 node-days of eight. What each does to its node is read from its name, and assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.healing.restarts import RSC1_PER_1000_NODE_DAYS

RATES = {"rsc1": RSC1_PER_1000_NODE_DAYS, "rsc2": 2.34, "llama3": 419 / (54 * 16_384 / 8) * 1_000}
"""Failures per 1,000 node-days."""
SOURCES = {
    "rsc1": "Meta RSC-1, arXiv:2410.21680",
    "rsc2": "Meta RSC-2, arXiv:2410.21680",
    "llama3": "Llama 3, table 5, arXiv:2407.21783",
}
LEMON_SHARE = 0.012
LEMON_TIMES = 10.0


class Effect(StrEnum):
    """What a failure does."""

    BREAKS = "breaks"
    """A part of the node: the job dies, and so does each that has the node next. Drivers and kernel tell of it."""
    CORRUPTS = "corrupts"
    """As above, and nothing tells of it."""
    STOPS = "stops"
    """The node is gone."""
    HANGS = "hangs"
    """The job does nothing more; the hardware is well."""
    PASSES = "passes"
    """The job dies; the hardware is well."""


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    count: int
    """Of the 419."""
    effect: Effect


CAUSES = (
    Cause("faulty GPU", 148, Effect.BREAKS),
    Cause("GPU HBM3 memory", 72, Effect.BREAKS),
    Cause("software bug", 54, Effect.PASSES),
    Cause("network switch or cable", 35, Effect.BREAKS),
    Cause("host maintenance", 32, Effect.STOPS),
    Cause("GPU SRAM memory", 19, Effect.BREAKS),
    Cause("GPU system processor", 17, Effect.BREAKS),
    Cause("NIC", 7, Effect.BREAKS),
    Cause("NCCL watchdog timeouts", 7, Effect.HANGS),
    Cause("silent data corruption", 6, Effect.CORRUPTS),
    Cause("GPU thermal interface and sensor", 6, Effect.BREAKS),
    Cause("SSD", 3, Effect.BREAKS),
    Cause("power supply", 3, Effect.STOPS),
    Cause("server chassis", 2, Effect.STOPS),
    Cause("IO expansion board", 2, Effect.STOPS),
    Cause("dependency", 2, Effect.PASSES),
    Cause("CPU", 2, Effect.STOPS),
    Cause("system memory", 2, Effect.STOPS),
)
