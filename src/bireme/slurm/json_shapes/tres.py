"""Amounts of TRES in --json: `[{"type": "gres", "name": "gpu", "id": 1001, "count": 4}, ...]`.

Used by the shapes of accounting. The ids of what every cluster has are Slurm's; what a cluster adds is numbered from
1001 on. Invariant: within a document, one TRES has one id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bireme.slurm.json_shapes.envelope import Shape

_EVERYWHERE = {"cpu": 1, "mem": 2, "energy": 3, "node": 4, "billing": 5, "fs/disk": 6, "vmem": 7, "pages": 8}
_FIRST_ADDED = 1001


def tres_ids(names: Iterable[str]) -> dict[str, int]:
    """By name, for a document that names these; of GRES, a kind stands before its types."""
    added = sorted(set(names).difference(_EVERYWHERE))
    return _EVERYWHERE | {name: _FIRST_ADDED + place for place, name in enumerate(added)}


def tres_list(tres: Mapping[str, Any] | None, ids: Mapping[str, int]) -> list[Shape]:
    """TRES as a list, in the order of their ids."""
    shapes: list[Shape] = []
    for name, count in sorted((tres or {}).items(), key=lambda entry: ids[entry[0]]):
        kind, _, rest = name.partition("/")
        shapes.append({"type": kind, "name": rest, "id": ids[name], "count": count})
    return shapes
