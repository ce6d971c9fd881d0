"""Whose GPU it was: from what jobs hold, never by guess.

An allocation names GPUs by their number on a node, a driver by UUID. Which is which is known where the configuration
has the UUID (the machine was looked at), or the device's file, whose number the driver tells too; on a Slurm cluster
slurmd says on the node which file has which number. On Kubernetes the kubelet chooses, and says itself which pod has
which UUID: that goes before all numbers. Where none of it is known (a GPU that is only counted), nothing is attributed.
Invariant: a GPU that a job has in part is `shared`: its curves are not the job's, only the use by its own tasks is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Allocation, Device, NodeShare

_DEVICE_FILE = re.compile(r"/dev/(?:nvidia|dri/renderD)(\d+)")


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A start of a job to which a kubelet gave a card: `shared` if others may have it too."""

    job_id: int
    generation: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU or a MIG instance as its driver names it, on its node."""

    node: str
    uuid: str
    minor: int | None
    """Of its device file; None of an instance, which has that of its GPU."""
    number: int | None = None
    """Slurm's, where slurmd says it; None: that is not known."""
    holders: tuple[CardHolder, ...] = ()
    """Whose it is, where a kubelet says it."""


@dataclass(frozen=True, slots=True)
class CardSeen:
    """A card and what it is. `is_part`: a MIG instance."""

    card: Card
    model: str
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU that an allocation has: `shared` if others may have other parts of it."""

    node: str
    uuid: str
    shared: bool


def held_gpus(
    allocation: Allocation, config_of: Callable[[str], NodeConfig | None], cards: Iterable[Card]
) -> tuple[HeldGpu, ...]:
    """Those GPUs of an allocation whose UUID is known."""
    cards = tuple(cards)
    known = {(card.node, card.minor): card.uuid for card in cards if card.minor is not None}
    numbered = {(card.node, card.number): card.uuid for card in cards if card.number is not None}
    given = _given(allocation, cards)
    held: list[HeldGpu] = []
    for share in allocation.shares:
        if share.gres and share.node in given:
            held += given[share.node]
        elif share.gres and (node := config_of(share.node)) is not None:
            said = {number: uuid for (name, number), uuid in numbered.items() if name == node.name}
            held += _of_share(share, said | _uuids(node, known))
    return tuple(held)


def number_of(minor: int | None, files: Sequence[str]) -> int | None:
    """Slurm's number of the GPU with this device file, if one of its files by number is that one."""
    for number, file in enumerate(files):
        match = _DEVICE_FILE.fullmatch(file)
        if match and minor is not None and int(match[1]) == minor:
            return number
    return None


def gpus_of(allocation: Allocation) -> int:
    """How many GPUs it has, whole or in parts, whether their UUIDs are known or not."""
    return sum(max(share.gres_count("gpu"), len(share.gpus_seen())) for share in allocation.shares)


def _given(allocation: Allocation, cards: Iterable[Card]) -> dict[str, list[HeldGpu]]:
    """By node: what kubelets gave to this start of the job."""
    found: dict[str, list[HeldGpu]] = {}
    for card in cards:
        for holder in card.holders:
            if (holder.job_id, holder.generation) == (allocation.job_id, allocation.generation):
                found.setdefault(card.node, []).append(HeldGpu(card.node, card.uuid, holder.shared))
    return found


def _of_share(share: NodeShare, uuids: Mapping[int, str]) -> list[HeldGpu]:
    whole = set(share.gres_indices("gpu"))
    parts = {gpu for gres in share.gres for gpu, _ in gres.parts} - whole
    rows = [(index, False) for index in sorted(whole)] + [(index, True) for index in sorted(parts)]
    return [HeldGpu(share.node, uuids[index], shared) for index, shared in rows if index in uuids]


def uuids_of(node: NodeConfig, cards: Iterable[Card]) -> dict[int, str]:
    """Of a node's GPUs whose UUID is known, by their numbers there."""
    mine = [card for card in cards if card.node == node.name]
    said = {card.number: card.uuid for card in mine if card.number is not None}
    return said | _uuids(node, {(card.node, card.minor): card.uuid for card in mine if card.minor is not None})


def _uuids(node: NodeConfig, known: Mapping[tuple[str, int], str]) -> dict[int, str]:
    """By the GPU's number on the node."""
    devices = [device for pool in node.gres if pool.name == "gpu" for device in pool.devices]
    found = {device.index: device.uuid or known.get((node.name, _minor(device))) for device in devices}
    return {index: uuid for index, uuid in found.items() if uuid}


def _minor(device: Device) -> int:
    """The number of a GPU's device file; -1, which no file has, where none is named."""
    match = _DEVICE_FILE.fullmatch(device.file or "")
    return int(match[1]) if match else -1
