"""Row `sim`: a whole replay with backfill, in a process of its own: seconds, memory, and how much of a core it had.

Philly's 82,247 jobs where the public traces lie beside the project; else as many generated ones, and the row says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.results import Row, Target
from bench.sizes import Sizes

PHILLY = Path(__file__).resolve().parents[2] / "shared" / "data" / "philly" / "philly_jobs_82247.csv.gz"
GENERATED = "generate:jobs={jobs} seed=1 days=109 arrival=weekly sizes=1:93,2:2,4:2,8:2,16:1 hours=0.5 spread=1.8"


def measure(sizes: Sizes) -> Iterator[Row]:
    found = PHILLY.exists()
    workload = str(PHILLY) if found else GENERATED.format(jobs=sizes.sim_jobs)
    name = f"{sizes.sim_jobs:,} {'Philly' if found else 'generated'} jobs with backfill"
    words = ["sim", "run", "-w", workload, "-c", "fit", "-p", "backfill", "--first", str(sizes.sim_jobs), "--json"]
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "bireme", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    spent = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"the simulation ended with {child.returncode}")
    busy = (used.ru_utime + used.ru_stime) / spent
    yield Row("sim", name, spent, "s", target=Target("<", 90), note=f"{busy:.0%} of a core")
    yield Row("sim", f"CPU time, {name}", used.ru_utime + used.ru_stime, "s")
    yield Row("sim", f"memory, {name}", used.ru_maxrss / 1024, "MiB", target=Target("<", 1024))
