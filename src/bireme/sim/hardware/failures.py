"""The failures of a pool, drawn beforehand from one seed: where, when, of what, and how long a repair takes.

They are the same for every policy that is compared, so that what differs is the policy. Lemons fail oftener, the others
so much less that the pool has the published rate. Pure.
Invariant: same seed, nodes, span and rate, same failures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bireme.sim.hardware.rates import CAUSES, LEMON_SHARE, LEMON_TIMES, Cause, Effect

_DAY_S = 86_400.0
_STUCK_SHARE = 0.1
"""Of the usual time: what a maintenance takes, against a repair."""


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    node: str
    cause: Cause
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How it fails. `per_1000_node_days`: the rate of the whole pool; `repair_s`: the mean of a repair."""

    per_1000_node_days: float
    repair_s: float = _DAY_S
    lemon_share: float = LEMON_SHARE
    lemon_times: float = LEMON_TIMES


@dataclass(frozen=True, slots=True)
class Drawn:
    failures: tuple[Failure, ...]
    lemons: frozenset[str]


def draw(nodes: Sequence[str], span_s: float, hardware: Hardware, seed: int) -> Drawn:
    """All failures of these nodes within the span, in order of time."""
    source = random.Random(f"hardware {seed}")
    lemons = frozenset(source.sample(list(nodes), round(hardware.lemon_share * len(nodes))))
    weight = 1.0 + hardware.lemon_share * (hardware.lemon_times - 1.0) if lemons else 1.0
    usual = hardware.per_1000_node_days / 1_000 / _DAY_S / weight
    weights = [cause.count for cause in CAUSES]
    found = []
    for node in nodes:
        rate = usual * (hardware.lemon_times if node in lemons else 1.0)
        at = source.expovariate(rate) if rate else span_s
        while at < span_s:
            (cause,) = source.choices(CAUSES, weights)
            mean_s = hardware.repair_s * (_STUCK_SHARE if cause.effect is Effect.STOPS else 1.0)
            found.append(Failure(at, node, cause, source.expovariate(1.0 / mean_s)))
            at += source.expovariate(rate)
    return Drawn(tuple(sorted(found, key=lambda each: (each.at, each.node))), lemons)
