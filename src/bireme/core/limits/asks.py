"""What a job asks of its limits: TRES with billing and licences, and for how long.

Before a place is found it is what the request adds up to; after, what the shares really are (whole cores, whole nodes),
which may be more. Used by `checks` and `following`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.accounting.billing import billing
from bireme.core.limits.licences import parse_licences
from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import JobSpec
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.demand import Demand, requested_tres

MAX_TRES = "MAX_TRES"


@dataclass(frozen=True, slots=True)
class Ask:
    tres: Mapping[str, int]
    seconds: float
    """Its time limit; infinite without one."""
    most_on_a_node: Mapping[str, int] = field(default_factory=dict)
    """Known once it has a place."""


def ask_of(spec: JobSpec, partition: PartitionConfig | None, demand: Demand, settings: Settings) -> Ask:
    tres = with_extras(requested_tres(demand), spec, partition, settings)
    return Ask(tres, seconds_of(spec, partition))


def ask_placed(spec: JobSpec, partition: PartitionConfig | None, allocation: Allocation, settings: Settings) -> Ask:
    tres = with_extras(allocation.tres(), spec, partition, settings)
    return Ask(tres, seconds_of(spec, partition), _most_on_a_node(allocation.shares))


def with_extras(
    tres: dict[str, int], spec: JobSpec, partition: PartitionConfig | None, settings: Settings
) -> dict[str, int]:
    """A request with its licences and its billing, which limits may name like any other TRES."""
    if spec.resources.licenses:
        tres.update(parse_licences(spec.resources.licenses) or ())
    weights = partition.tres_billing_weights if partition else ()
    tres["billing"] = int(billing(tres, weights, MAX_TRES in settings.priority_flags))
    return tres


def run_limit_s(spec: JobSpec, partition: PartitionConfig | None) -> int | None:
    """The limit that counts: the job's own, else the partition's default, else the partition's maximum."""
    if spec.time_limit_given:
        return spec.time_limit_s
    if partition is None:
        return None
    return partition.default_time_s if partition.default_time_s is not None else partition.max_time_s


def seconds_of(spec: JobSpec, partition: PartitionConfig | None) -> float:
    limit = run_limit_s(spec, partition)
    return inf if limit is None else float(limit)


def _most_on_a_node(shares: Sequence[NodeShare]) -> dict[str, int]:
    most: dict[str, int] = {}
    for share in shares:
        for name, amount in Allocation(0, 0, "", (share,)).tres().items():
            most[name] = max(amount, most.get(name, 0))
    return most
