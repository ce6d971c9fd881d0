"""`python -m bench.exposition_writers`: one page for Prometheus by our own writer and by prometheus-client. What
docs/telemetry.md decides by.

The page has the GPUs' metrics alone, of so many GPUs, as both are given them: rows of numbers. prometheus-client (which
Bireme does not need: `pip install prometheus-client`) writes what a collector of its own gives it. CPU time, the median
of five.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from bireme.core.telemetry.exported import GpuFigures, Measured, tell_hardware
from bireme.core.telemetry.metrics import Metric, about
from bireme.exposition import Page

TIMES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.exposition_writers", description=__doc__)
    parser.add_argument("--gpus", type=int, default=1_000)
    given = parser.parse_args()
    metrics = [metric for metric in about("gpu") if metric.prometheus]
    gpus = _gpus(given.gpus, metrics)
    text = _ours(gpus)
    samples = sum(not line.startswith("#") for line in text.splitlines())
    ours = _cpu_ms(lambda: _ours(gpus))
    print(f"{given.gpus:,} GPUs, {samples:,} samples")
    print(f"bireme.exposition      {ours:8.0f} ms")
    if find_spec("prometheus_client") is None:
        print("prometheus-client is not installed: pip install prometheus-client")
        return 1
    theirs = _cpu_ms(_theirs(gpus, metrics))
    print(f"prometheus-client      {theirs:8.0f} ms   {theirs / ours:.1f} times")
    print(f"  and to import it     {_import_ms('prometheus_client'):8.0f} ms, bireme.exposition "
          f"{_import_ms('bireme.exposition'):.0f}")  # fmt: skip
    return 0


def _gpus(number: int, metrics: list[Metric]) -> list[GpuFigures]:
    values = np.random.default_rng(15).uniform(0, 2_000, (number, len(metrics))).round(1).tolist()
    names = [metric.name for metric in metrics]
    return [
        GpuFigures(
            f"n{no // 8}", f"GPU-{no:08x}-4a8e-9d2c-5b7f1c3e9a60", no % 8, dict(zip(names, values[no], strict=True)),
            device=f"nvidia{no % 8}", model="NVIDIA H200", pci_bus_id="00000000:1B:00.0", driver="580.159.03",
        )
        for no in range(number)
    ]  # fmt: skip


def _ours(gpus: list[GpuFigures]) -> str:
    page = Page()
    tell_hardware(page, Measured(gpus))
    return page.text()


def _theirs(gpus: list[GpuFigures], metrics: list[Metric]) -> Callable[[], bytes]:
    client, core = import_module("prometheus_client"), import_module("prometheus_client.core")

    class Collector:
        """Gives the same families as our own page has."""

        def collect(self) -> Iterator[Any]:
            for metric in metrics:
                kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
                family = kind(metric.prometheus, metric.meaning, labels=list(gpus[0].labels))
                for gpu in gpus:
                    family.add_metric([str(value) for value in gpu.labels.values()], gpu.values[metric.name])
                yield family

    registry = client.CollectorRegistry()
    registry.register(Collector())
    return lambda: client.generate_latest(registry)  # type: ignore[no-any-return]


def _cpu_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began))
    return statistics.median(times)


def _import_ms(module: str) -> float:
    code = f"import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return 1e3 * float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
