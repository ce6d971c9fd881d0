"""What a partition's own limits say to a request: MaxTime, MinNodes, MaxNodes, MaxMemPerNode.

A job over them waits, and its QOS may let it go beyond some (PartitionTimeLimit ...); with EnforcePartLimits it is
refused when it is submitted. Called by the planner and by submission.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.model.accounts import Qos, QosFlag
from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import JobSpec
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.placement.demand import requested_tres, resolve


def beyond_partition(
    spec: JobSpec, partition: PartitionConfig, settings: Settings, qos: Qos | None = None
) -> Iterator[Reason]:
    """Every limit of the partition that the request exceeds."""
    if over_time_limit(spec, partition) and not _lets(qos, QosFlag.PARTITION_TIME_LIMIT):
        yield reason(ReasonKind.PARTITION_TIME_LIMIT, partition=partition.name, limit_s=partition.max_time_s or 0)
    asked = spec.resources
    most = partition.max_nodes
    if most is not None and asked.nodes_min > most and not _lets(qos, QosFlag.PARTITION_MAX_NODES):
        yield reason(ReasonKind.PARTITION_NODE_LIMIT, partition=partition.name, bound="at most", limit=most)
    given = asked.nodes_max or asked.nodes_min if asked.nodes_given else partition.min_nodes
    if given < partition.min_nodes and not _lets(qos, QosFlag.PARTITION_MIN_NODES):
        yield reason(
            ReasonKind.PARTITION_NODE_LIMIT, partition=partition.name, bound="at least", limit=partition.min_nodes
        )
    memory = partition.max_memory_per_node_mib or settings.max_memory_per_node_mib
    if memory:
        wanted = _memory_on_a_node(spec, partition, settings)
        if wanted > memory:
            yield reason(ReasonKind.MAX_MEM_PER_LIMIT, partition=partition.name, limit=memory, asked=wanted)


def _lets(qos: Qos | None, flag: QosFlag) -> bool:
    return qos is not None and qos.has(flag)


def over_time_limit(spec: JobSpec, partition: PartitionConfig) -> bool:
    if partition.max_time_s is None or not spec.time_limit_given:
        return False
    wanted = spec.time_min_s if spec.time_min_s is not None else spec.time_limit_s
    return wanted is None or wanted > partition.max_time_s


def _memory_on_a_node(spec: JobSpec, partition: PartitionConfig, settings: Settings) -> int:
    demand = resolve(spec, partition, settings)
    total = requested_tres(demand).get("mem", 0)
    return -(-total // demand.nodes_wanted)
