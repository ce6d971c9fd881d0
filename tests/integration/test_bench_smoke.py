"""The benchmarks run from end to end and produce every row. How fast anything is, is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slurm_cluster import missing

ROOT = Path(__file__).parents[2]

ROWS = {
    "launch": ("floor", "array, 1 node", "script of bash", "virtual nodes"),
    "submit": ("sbatch, median", "sbatch, 99th percentile", "one by one", "submit_many"),
    "squeue": ("pending jobs", "--version"),
    "crowd": ("listing, p99", "submitting, p99", "half-sent requests", "four million", "agent's socket", "pid file"),
    "restart": ("first ping", "memory"),
    "services": (
        *("from zero", "one is killed", "a node is killed", "the daemon is killed", "an update is rolled out"),
        *("load doubles", "CPU of daemon and router", "CPU of agents"),
    ),
    "telemetry": (
        "written: 1,000 GPUs",
        "a sample",
        "read: one metric",
        "series",
        "gathered each",
        "p99 of others' pings",
    ),
    "diagnose": ("errors in its middle", "a GiB", "64 ranks"),
    "containers": ("a task in a cached image", "tasks in one image"),
    "images": ("unpacked, gzip",),
    "fences": ("a report to its fence", "GPUs fenced", "nodes drained"),
    "router": ("idle: CPU", "from zero", "out of order", "beside nginx"),
    "much": ("scancel -u: an array", "first ping", "in the history", "last tenth to the first"),
}
MAY_BE_NOTHING = (
    "gained",
    "gains",
    "last tenth to the first",
    "idle: CPU",
    "out of order",
    "not measured",
    "more than outside",
    "the router's CPU",
    "failed requests",
)
"""The second is a ratio of CPU times, which the kernel counts in hundredths of a second: of two jobs often none."""


BESIDE_SLURM = ("array of", "queue of", "sbatch, median")


@pytest.mark.skipif(bool(missing()), reason=f"no Slurm to measure beside: {missing()}")
def test_the_rows_beside_slurm_are_ratios_and_name_both_configurations(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--only", "slurm", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["name"]: row for row in document["rows"]}
    for name in BESIDE_SLURM:
        assert any(name in known and row["ratio"] > 0 for known, row in rows.items()), f"no row for {name!r}"
    assert "SchedulerParameters=defer" in done.stdout
    assert "NodeName=" in document["facts"]["bireme_conf"]
    assert "SchedulerType=" in document["facts"]["slurm_conf"]


def test_every_row_is_produced(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--no-slurm", "--only", ",".join(ROWS), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "bench.json").read_text())
    for section, names in ROWS.items():
        produced = [row for row in document["rows"] if row["section"] == section]
        nothing = [row["name"] for row in produced if row["value"] <= 0]
        assert all(any(word in name for word in MAY_BE_NOTHING) for name in nothing), nothing
        for name in names:
            assert any(name in row["name"] for row in produced), f"{section}: no row for {name!r}"
            assert name in done.stdout
    assert document["facts"]["cpus"]
    assert "NodeName=" in document["facts"]["bireme_conf"]
