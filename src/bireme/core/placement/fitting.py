"""Fitting in what somebody else decided: how much of a node is held stands, which CPUs and devices is chosen here.

Used for the jobs of another scheduler's queue (`core/jobs/mirroring`) and for what runs on nodes beside Bireme's jobs
(`State.take_others`). Invariant: what comes out can always be held, also when others hold more than there is.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.resources import GresShare, NodeShare
from bireme.core.placement.numbers import Bits, bits_of, numbers_of
from bireme.core.placement.occupancy import NodeRoom


def fitted_share(share: NodeShare, room: NodeRoom | None) -> NodeShare:
    """A share of the same size, with CPUs and devices that are free in the room; None: the node is not known here."""
    if room is None:
        return share
    cpu_ids = _chosen(share.cpu_ids, room.cpus, share.cpus)
    return replace(share, cpu_ids=cpu_ids, gres=tuple(_fitted_gres(each, room) for each in share.gres))


def _fitted_gres(share: GresShare, room: NodeRoom) -> GresShare:
    """Named as the node's configuration names it: a queue may leave the type out."""
    kinds = [key for key in (*room.devices, *room.counts) if key[0] == share.name]
    key = next((key for key in kinds if key[1] == share.type), kinds[0] if kinds else (share.name, share.type))
    free = room.devices.get(key, 0)
    indices = _chosen(share.indices, free, share.count)
    # Fewer free devices than it holds: two schedulers' views differ for a moment. It is then counted, not numbered.
    return GresShare(share.name, key[1], share.count, indices if len(indices) == share.count else ())


def _chosen(wanted: tuple[int, ...], free: Bits, count: int) -> tuple[int, ...]:
    """`count` of what is free, those that are wanted first; fewer where there are not so many."""
    good = [number for number in wanted if free >> number & 1]
    others = numbers_of(free & ~bits_of(wanted))
    return tuple(sorted((*good, *others)[:count]))
