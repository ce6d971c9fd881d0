"""Which devices of a node a fence is about. A card's MIG instances and shards go with the card.

Asked when a fence is raised, and again when the configuration has changed: the same card may have another number then.
Invariant: a number that comes out is one of the node's GPUs as configured now.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.finding.findings import Place
from bireme.core.model.resources import Device

GPU = "gpu"


def gpus_of(node: NodeConfig) -> tuple[Device, ...]:
    return tuple(device for pool in node.gres if pool.name == GPU for device in pool.devices)


def count_of(node: NodeConfig) -> int:
    """How many it has; asked of every node of a pool."""
    count = 0
    for pool in node.gres:
        if pool.name == GPU:
            count += len(pool.devices)
    return count


def numbers_at(node: NodeConfig, place: Place) -> tuple[int, ...]:
    """The GPU numbers that the place stands for; none if the node has no such GPU. A UUID that is known decides."""
    gpus = gpus_of(node)
    named = [gpu for gpu in gpus if place.uuid and gpu.uuid == place.uuid]
    if not named and not (place.uuid and any(gpu.uuid for gpu in gpus)):
        named = [gpu for gpu in gpus if gpu.index == place.gpu]
    cards = {_card(gpu) for gpu in named} - {""}
    return tuple(sorted({gpu.index for gpu in gpus if gpu in named or _card(gpu) in cards}))


def with_both_names(node: NodeConfig, place: Place) -> Place:
    """The place with its number and its UUID, as far as the configuration has them."""
    for gpu in gpus_of(node):
        if place.uuid and gpu.uuid == place.uuid:
            return replace(place, gpu=gpu.index)
    for gpu in gpus_of(node):
        if gpu.index == place.gpu:
            return replace(place, uuid=place.uuid or gpu.uuid or "")
    return place


def _card(gpu: Device) -> str:
    """The file of the card that a GPU is, or is an instance of: the first of several (`MultipleFiles`)."""
    return (gpu.file or "").split(",", 1)[0]
