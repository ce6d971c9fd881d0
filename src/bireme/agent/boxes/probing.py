"""What this machine gives to containers, tried with a small one that is thrown away: for `bireme doctor`.

Invariant: nothing is left of it, and what breaks is an answer.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bireme.agent.boxes.blueprint import Blueprint
from bireme.agent.boxes.building import CannotBuildError, try_to_build
from bireme.agent.system.capability import Capability

_WRITABLE = "this kernel allows overlays to users"


def probe() -> list[Capability]:
    with tempfile.TemporaryDirectory(prefix="bireme-probe-") as folder:
        Path(folder, "etc").mkdir()
        told = _in_child(folder)
    if "why" in told:
        why = told["why"]
        return [Capability("containers", False, why), Capability("writable images", False, why)]
    notes: list[str] = told["notes"]
    how = "in user namespaces of your own"
    return [
        Capability("containers", True, how),
        Capability("writable images", not notes, "; ".join(notes) or _WRITABLE),
    ]


def _in_child(folder: str) -> dict[str, Any]:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_fd)
            os.write(write_fd, json.dumps(_try(folder)).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if text else {"why": "the trial process died"}
    return found


def _try(folder: str) -> dict[str, Any]:
    try:
        return {"notes": list(try_to_build(Blueprint(root=folder, remap_root=True)).notes)}
    except (CannotBuildError, OSError) as error:
        return {"why": str(error)}
