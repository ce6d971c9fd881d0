"""A reservation as a record: what `scontrol show reservation`, `sinfo -T` and the API tell."""

from __future__ import annotations

from typing import Any

from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.state.state import State
from bireme.slurm.hostlist import compress


def reservation_record(state: State, reservation: Reservation, now: float) -> dict[str, Any]:
    nodes = [state.nodes[name].config for name in reservation.nodes if name in state.nodes]
    cpus = sum(node.cpus for node in nodes)
    purges = reservation.has(ReservationFlag.PURGE_COMP)
    return {
        "name": reservation.name,
        "start_time": reservation.begin,
        "end_time": reservation.end,
        "duration_s": int(reservation.end - reservation.begin),
        "node_list": compress(reservation.nodes),
        "node_count": len(reservation.nodes),
        "core_count": sum(node.cpus // node.threads_per_core for node in nodes),
        "features": reservation.features,
        "partition": reservation.partition,
        "flags": [flag.value for flag in reservation.flags],
        "tres": {"cpu": cpus} if cpus else {},
        "users": list(reservation.users),
        "groups": list(reservation.groups),
        "accounts": list(reservation.accounts),
        "state": "ACTIVE" if reservation.active(now) else "INACTIVE",
        "purge_after_s": reservation.purge_after_s if purges else None,
        "max_start_delay_s": reservation.max_start_delay_s,
    }
