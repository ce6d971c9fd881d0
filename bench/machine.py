"""Facts about this machine that the other figures rest on: what it is, and what its kernel and disk cost by themselves.

Invariant: nothing here uses Bireme.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bireme import __version__

_LOOP = "for ((i = 0; i < $1; i++)); do bash -c true; done"


def facts() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "cpus": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "bireme": __version__,
        "root": os.geteuid() == 0,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def bash_rate(count: int, loops: int = 2) -> float:
    """`bash -c true` a second, started by `loops` bare bash loops at the same time: the floor of any launcher."""
    each = count // loops
    begun = time.perf_counter()
    running = [subprocess.Popen(["bash", "-c", _LOOP, "floor", str(each)]) for _ in range(loops)]
    for loop in running:
        loop.wait()
    return each * loops / (time.perf_counter() - begun)


def fsync_ms(folder: Path, times: int = 50) -> float:
    """Median of appending one page to a file in `folder` and having it on disk."""
    path = folder / "fsync-probe"
    spent = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(times):
            begun = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - begun)
    path.unlink()
    return statistics.median(spent) * 1000


def python_start_ms(times: int = 10) -> float:
    """Median of a Python that does nothing: no command of ours can answer sooner."""
    return statistics.median(timed([sys.executable, "-c", ""]) for _ in range(times)) * 1000


def timed(command: list[str], env: dict[str, str] | None = None) -> float:
    """Wall seconds of one run, output thrown away. Raises when it fails: a failure is quick and would look good."""
    begun = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def cpu_s_of(home: str) -> float:
    """What the daemon of this home, its agents, their keepers and all that these waited for have used so far."""
    return sum(_used_s(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _names(folder, home))


def _names(process: Path, home: str) -> bool:
    with contextlib.suppress(OSError):
        return home.encode() in (process / "cmdline").read_bytes().split(b"\0")
    return False


def _used_s(process: Path) -> float:
    with contextlib.suppress(OSError):
        words = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0
