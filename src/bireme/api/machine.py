"""What only this machine knows of the nodes that are on it: load, free memory, when it booted, its kernel.

Read when somebody looks at the nodes; nothing is kept. Only for engines whose nodes are all this machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Fields of a NodeRecord. What cannot be read stays unknown."""
    system = os.uname()
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "arch": system.machine,
        "os": f"{system.sysname} {system.release} {system.version}",
        "boot_time": _boot_time(),
        "cpu_load": round(os.getloadavg()[0], 2),
        "memory_free_mib": free // 2**20,
    }


def _boot_time() -> float | None:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
