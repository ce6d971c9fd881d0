"""What this machine gives to containers, tried with a small one that is thrown away: for `bireme doctor`.

Invariant: nothing is left of it, and what breaks is an answer.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bireme.agent.boxes.blueprint import Blueprint
from bireme.agent.boxes.building import CannotBuildError, try_to_build
from bireme.agent.system.capability import Capability
from bireme.agent.system.trying import in_child

_WRITABLE = "this kernel allows overlays to users"


def probe() -> list[Capability]:
    with tempfile.TemporaryDirectory(prefix="bireme-probe-") as folder:
        Path(folder, "etc").mkdir()
        told = in_child(partial(_try, folder))
    if "why" in told:
        why = told["why"]
        return [Capability("containers", False, why), Capability("writable images", False, why)]
    notes: list[str] = told["notes"]
    how = "in user namespaces of your own"
    return [
        Capability("containers", True, how),
        Capability("writable images", not notes, "; ".join(notes) or _WRITABLE),
    ]


def _try(folder: str) -> dict[str, Any]:
    try:
        return {"notes": list(try_to_build(Blueprint(root=folder, remap_root=True)).notes)}
    except (CannotBuildError, OSError) as error:
        return {"why": str(error)}
