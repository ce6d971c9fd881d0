"""How jobs ended before this daemon began, as the detector of lemons counts them, from records of the history.

Invariant: counts what `keeper` counts of ends that it sees itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bireme.core.faults.detection import lemon
from bireme.core.faults.detection.lemon import End
from bireme.slurm.hostlist import expand


def ends_of(records: Iterable[Mapping[str, Any]]) -> list[End]:
    found = []
    for record in records:
        if record["state"] not in lemon.COUNTED or record.get("start_time") is None:
            continue
        nodes = tuple(expand(record.get("node_list") or ""))
        if 0 < len(nodes) <= lemon.WIDEST:
            failed = record["state"] in lemon.FAILED
            user, name = record.get("user_name") or "", record.get("name") or ""
            found.append(End(float(record["end_time"]), user, name, nodes, failed))
    return found
