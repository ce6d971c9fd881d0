"""Row `sim`: a whole replay with backfill, in a process of its own: seconds, memory, and how much of a core it had.

Philly's 82,247 jobs where the public traces lie beside the project; else as many generated ones, and the row says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.results import Row, Target
from bench.sizes import Sizes

PHILLY = Path(__file__).resolve().parents[2] / "shared" / "data" / "philly" / "philly_jobs_82247.csv.gz"
GENERATED = "generate:jobs={jobs} seed=1 days=109 arrival=weekly sizes=1:93,2:2,4:2,8:2,16:1 hours=0.5 spread=1.8"

_WATCH = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""Runs in a small process: Linux counts the memory of whoever forked among a child's own."""


def measure(sizes: Sizes) -> Iterator[Row]:
    found = PHILLY.exists()
    workload = str(PHILLY) if found else GENERATED.format(jobs=sizes.sim_jobs)
    name = f"{sizes.sim_jobs:,} {'Philly' if found else 'generated'} jobs with backfill"
    words = ["sim", "run", "-w", workload, "-c", "fit", "-p", "backfill", "--first", str(sizes.sim_jobs), "--json"]
    begun = time.perf_counter()
    command = [sys.executable, "-c", _WATCH, sys.executable, "-m", "bireme", *words]
    watched = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    spent = time.perf_counter() - begun
    cpu_s, memory_kib = json.loads(watched.stdout)
    yield Row("sim", name, spent, "s", target=Target("<", 90), note=f"{cpu_s / spent:.0%} of a core")
    yield Row("sim", f"CPU time, {name}", cpu_s, "s")
    yield Row("sim", f"memory, {name}", memory_kib / 1024, "MiB", target=Target("<", 1024))
