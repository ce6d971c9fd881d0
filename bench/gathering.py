"""Rows of the section `telemetry` about what gathering costs a node: CPU time and memory of its gatherer, as it is.

A real cluster of one node with eight GPUs (`bireme.testing.scripted_nvml`, which answers every question of the list in
the gatherer's own process) and fifty jobs of five processes each, eight of which have a GPU and use it. The gatherer is
the one that the daemon started; it looks every ten seconds, as it does by default. Its CPU time is that of all of its
threads, counted by the kernel in nanoseconds.

What a real driver takes is not in it: NVML's own calls and memory are `tests/gpu/nvml_costs.py`'s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bireme
from bench import bireme_cluster
from bench.bireme_cluster import BiremeCluster
from bench.folders import new_folder
from bench.results import Row, Target
from bench.services_load import until
from bench.sizes import Sizes
from bireme.client.transport import Transport
from bireme.core.telemetry.metrics import about
from bireme.daemon.paths import Paths
from bireme.daemon.telemetry import process

GPUS, JOBS, PROCESSES = 8, 50, 5
MAX_PERCENT = 0.5
MAX_MIB = 30.0
PEAKS = ("gpu_memory_peak", "gpu_power_peak", "gpu_temperature_peak")
"""Made by the gatherer, asked of no card."""

SCRIPT = f"""#!/bin/bash
[ -p "$PIDS/never" ] || mkfifo "$PIDS/never" 2>/dev/null
for _ in {{2..{PROCESSES}}}; do (while :; do read -r -t 3 <> "$PIDS/never"; done) & done
echo $$ > "$PIDS/$SLURM_JOB_ID.new"
mv "$PIDS/$SLURM_JOB_ID.new" "$PIDS/$SLURM_JOB_ID"
wait
"""
"""Its processes wake every three seconds, so that their counters grow as those of real ones do."""


def measure(sizes: Sizes) -> Iterator[Row]:
    folder = new_folder("gathering")
    cards, pids = folder / "cards.json", folder / "pids"
    pids.mkdir(mode=0o777)
    _play(cards, {})
    variables = {
        "BIREME_TELEMETRY_GATHER": "on",
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(cards),
    }
    lines, names = bireme_cluster.this_host(JOBS)
    nodes = (f"GresTypes=gpu\n{lines} Gres=gpu:{GPUS}", names)
    gres = f"Name=gpu File=/dev/nvidia[0-{GPUS - 1}]\n"
    with bireme_cluster.running(nodes, gres=gres, variables=variables) as cluster:
        with_gpus = _start_jobs(cluster, pids)
        _play(cards, dict(enumerate(with_gpus)))
        until(lambda: _is_seen(cluster), f"figures of {GPUS} GPUs and {JOBS} jobs")
        yield from _watched(cluster, sizes.gathering_s)


def _start_jobs(cluster: BiremeCluster, pids: Path) -> list[int]:
    """Pids of the scripts that have a GPU."""
    with bireme.Client(cluster.home) as client:
        environment = {"PIDS": str(pids), "PATH": "/usr/bin:/bin"}
        gpu_jobs = [client.submit(SCRIPT, gres="gpu:1", env=environment) for _ in range(GPUS)]
        client.submit_many([SCRIPT] * (JOBS - GPUS), env=environment)
    until(lambda: len([file for file in pids.iterdir() if file.name.isdigit()]) == JOBS, f"{JOBS} jobs")
    return [int((pids / str(job.id)).read_text()) for job in gpu_jobs]


def _play(file: Path, pid_of: Mapping[int, int]) -> None:
    """Cards that answer everything, each with the process that uses it."""
    values = {each.name: 50.0 for each in about("gpu") if each.name not in PEAKS}
    cards = [
        {
            "uuid": f"GPU-{no:08x}-0000-4a8e-9d2c-5b7f1c3e9a60",
            "bus": f"00000000:{0x17 + no:02X}:00.0",
            "minor": no,
            "values": values,
            "processes": [{"pid": pid_of[no], "memory_mib": 2048, "util": 50}] if no in pid_of else [],
        }
        for no in range(GPUS)
    ]
    file.with_suffix(".new").write_text(json.dumps({"cards": cards, "look_again_s": 1.0}))
    file.with_suffix(".new").replace(file)


def _is_seen(cluster: BiremeCluster) -> bool:
    with Transport(cluster.home) as transport:
        now: dict[str, Any] = transport.get("/v1/telemetry/now")
    used = [gpu for gpu in now["gpus"] if gpu["values"].get("gpu_processes") == 1 and gpu["job_ids"]]
    return len(used) == GPUS and len(now["jobs"]) == JOBS


def _watched(cluster: BiremeCluster, seconds: float) -> Iterator[Row]:
    pid = process.pid_of(Paths(cluster.home).gatherer)
    assert pid is not None, "a gatherer holds its lock"
    before, began = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)  # some of its rounds
    percent = 100 * (cpu_s(pid) - before) / (time.perf_counter() - began)
    of = f"{GPUS} GPUs, {JOBS} jobs"
    details = {"seconds": seconds, "processes": JOBS * PROCESSES}
    yield Row("telemetry", f"gathered each 10 s: {of}, of a core", percent, "%", target=Target("<", MAX_PERCENT),
              details=details)  # fmt: skip
    memory = _memory(pid)
    yield Row("telemetry", f"gatherer of {of}: memory (RSS)", memory["Rss"], "MiB", target=Target("<", MAX_MIB),
              details=memory)  # fmt: skip
    own = memory["Private_Clean"] + memory["Private_Dirty"]
    yield Row("telemetry", f"gatherer of {of}: memory of its own", own, "MiB")


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads that a process has."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _memory(pid: int) -> dict[str, float]:
    """MiB, by the kernel's names: what is resident, and what of it no other process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
