"""Reservations that keep their size: REPLACE and REPLACE_DOWN exchange nodes that nobody can start on for idle ones.

Only for reservations of so many nodes (NodeCnt), not of named ones, and only as far as there are idle nodes. Asked by
`reserving.reservations_due`; a node is looked for as when the reservation was made (`orders.py`).
Invariant: an exchange changes neither the number of nodes nor what another reservation has.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.refusals import Refusal, Why
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.placement.features import parse_constraint
from bireme.core.state.state import State


def replenished(state: State, reservation: Reservation, now: float) -> Reservation | None:
    """The reservation with other nodes, or None: it needs none, or there are none."""
    keeps_idle = reservation.has(ReservationFlag.REPLACE)
    keeps_up = keeps_idle or reservation.has(ReservationFlag.REPLACE_DOWN)
    if not keeps_up or reservation.has(ReservationFlag.SPEC_NODES) or not reservation.active(now):
        return None
    useless = [name for name in reservation.nodes if _is_useless(state, name, keeps_idle)]
    partition = state.partitions.get(reservation.partition)
    if not useless or partition is None:
        return None
    taken = reserved_by_others(state, reservation).union(reservation.nodes)
    idle = [
        name
        for name in partition.nodes
        if name not in taken and not _is_useless(state, name, True) and has_features(state, name, reservation.features)
    ]
    leaving = set(useless[: len(idle)])
    chosen = set(reservation.nodes) - leaving | set(idle[: len(leaving)])
    return replace(reservation, nodes=tuple(name for name in partition.nodes if name in chosen)) if leaving else None


def _is_useless(state: State, name: str, when_in_use: bool) -> bool:
    """Down or drained; or in use. A node that left the configuration is not exchanged, as Slurm says."""
    node = state.nodes.get(name)
    if node is None:
        return False
    return not node.schedulable or (when_in_use and bool(state.occupancy.room(name).jobs))


def has_features(state: State, node: str, features: str) -> bool:
    if not features:
        return True
    try:
        return parse_constraint(features).matches(frozenset(state.nodes[node].config.features))
    except ValueError as error:
        raise Refusal(Why.INVALID_FEATURE, str(error)) from None


def reserved_by_others(state: State, made: Reservation) -> set[str]:
    others = (each for each in state.reservations.values() if each.name != made.name)
    return {node for each in others if each.begin < made.end and made.begin < each.end for node in each.nodes}
