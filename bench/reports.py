"""Rows of the section `telemetry` about reports of many: a week of fifty thousand runs on eight GPUs each, all in the
history with digests, asked for as `bireme report` asks.

One real job runs; its record is written into the history again and again with other ids, users and times, and to each a
digest, while no daemon runs. Then one starts, and is asked: the CPU time that the answer takes it, how much its memory
grows at its peak, and how long somebody else, who asks something small all the time, waits for an answer meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bireme
from bench import bireme_cluster
from bench.bireme_cluster import BiremeCluster
from bench.gathering import cpu_s
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.client.transport import Transport
from bireme.core.telemetry.digest import Digest, GpuDigest, Level, Spread, StepDigest
from bireme.daemon.paths import Paths
from bireme.ports import HistoryQuery, HistoryRow
from bireme.store.journal import SqliteStore
from bireme.store.series.store import SqliteSeries

GPUS, USERS, ACCOUNTS = 8, 100, 10
DAY_S = 86_400
DAYS = 7
MAX_S = 10.0
MAX_MIB = 64.0
_USUAL_S = 3.0
_AT_ONCE = 5_000


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(4)) as cluster:
        with bireme.Client(cluster.home) as client:
            client.submit("#!/bin/bash\n").wait()
        cluster.stop()
        _write(cluster, sizes.report_runs)
        pid = cluster.start()
        yield from _asked(cluster, pid, sizes.report_runs)


def _write(cluster: BiremeCluster, runs: int) -> None:
    paths, now = Paths(cluster.home), time.time()
    store = SqliteStore(paths.journal)
    (record,) = store.finished(HistoryQuery())
    record |= {"tres_allocated": {"cpu": 64, "mem": 256_000, "node": 1, "billing": 64, "gres/gpu": GPUS}}
    chance = random.Random(15)
    series = SqliteSeries(paths.series)
    for first in range(0, runs, _AT_ONCE):
        rows, digests = [], []
        for no in range(first, min(runs, first + _AT_ONCE)):
            end = now - chance.random() * DAYS * DAY_S
            elapsed = chance.randrange(60, 20_000)
            own = {
                "job_id": 1_000 + no, "name": f"train-{no % 500}", "user_name": f"user{no % USERS}",
                "user_id": 10_000 + no % USERS, "account": f"group{no % ACCOUNTS}", "submit_time": end - elapsed - 60,
                "eligible_time": end - elapsed - 60, "start_time": end - elapsed, "end_time": end, "elapsed_s": elapsed,
            }  # fmt: skip
            rows.append(HistoryRow(1_000 + no, None, end - elapsed - 60, 0, record | own))
            digests.append(_digest(1_000 + no, int(record.get("generation") or 1), end - elapsed, end, chance))
        store.append([], rows)
        series.keep_digests(digests)
        series.flush()
    store.close()
    series.close()


def _digest(job_id: int, generation: int, start: float, end: float, chance: random.Random) -> Digest:
    def gpu(no: int) -> GpuDigest:
        use = Level(100 * chance.random(), 100.0)
        return GpuDigest(
            "n1", f"GPU-{job_id:08x}-{no:04x}-4a8e-9d2c-5b7f1c3e9a60", False, end - start, end - start, "gpu_sm_active",
            use, 60.0, use, use, Level(40_000, 60_000), 81_000.0, 1e6,
        )  # fmt: skip

    names = ("cpu_s", "memory_mib", "pages", "read_kib", "written_kib", "gpu_util", "gpu_memory_mib")
    figures = {name: Spread(1.0, "n1", 0, 9.0, "n1", 7, 40.0, 8) for name in names}
    steps = tuple(StepDigest(step, figures) for step in (-5, 0))
    return Digest(job_id, generation, start, end, tuple(map(gpu, range(GPUS))), steps, Level(30, 64), Level(9e4, 1e5))


def _asked(cluster: BiremeCluster, pid: int, runs: int) -> Iterator[Row]:
    with Transport(cluster.home, patience_s=60.0) as transport:
        transport.get("/v1/ping")
        transport.get("/v1/report", {"start": time.time() - 1})  # what is loaded once
        before = _peak_mib(pid)
        usual = _Pings(cluster.home)
        time.sleep(_USUAL_S)  # what they wait while nobody asks for a report
        usual_ms = usual.end()
        waits, began, cpu_before = _Pings(cluster.home), time.perf_counter(), cpu_s(pid)
        told = transport.get("/v1/report", {"start": time.time() - 8 * DAY_S, "jobs": 20}, timeout_s=600.0)
        wall_s, spent = time.perf_counter() - began, cpu_s(pid) - cpu_before
        beside_ms = waits.end()
    assert told["total"]["starts"] >= runs, told["total"]
    assert told["total"]["measured"] >= runs - 200, told["total"]
    of = f"report of {runs:,} runs with {GPUS} GPUs"
    yield Row("telemetry", f"{of}: CPU time", spent, "s", target=Target("<", MAX_S), details={"wall_s": wall_s})
    yield Row("telemetry", f"{of}: memory that the daemon gains", _peak_mib(pid) - before, "MiB",
              target=Target("<", MAX_MIB))  # fmt: skip
    yield Row("telemetry", f"{of}: p99 of others' pings", beside_ms, "ms", usual_ms)


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmHWM")


class _Pings:
    """Somebody else, who asks something small all the time."""

    def __init__(self, home: str) -> None:
        self._home, self._times = home, [0.0]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Transport(self._home, patience_s=60.0) as transport:
            while not self._over.wait(0.01):
                began = time.perf_counter()
                transport.get("/v1/ping")
                self._times.append(1e3 * (time.perf_counter() - began))

    def end(self) -> float:
        """What one in a hundred took, in ms."""
        self._over.set()
        self._thread.join()
        return sorted(self._times)[int(0.99 * len(self._times))]
