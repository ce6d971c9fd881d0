"""How long each call of NVML takes on this machine, and what a round costs: `python -m tests.gpu.nvml_costs`.

Calls are made as the gatherer makes them, in rounds that are some time apart: a driver answers a question that it was
asked a moment ago from memory, so calling in a loop would measure that. CPU time is that of the calling thread, with
what the kernel does for it. Nothing on the card is changed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from typing import Any

import pynvml

from bireme.gather.gpus.nvidia import NvidiaSource
from bireme.gather.gpus.nvidia_questions import FIELDS
from bireme.gather.gpus.watching import Pace

INTERVAL_S = 10.0
ENERGY_EVERY_S = next(field.every_s for field in FIELDS if field.metric == "gpu_energy")
GPUS = 8


class Timed:
    """A library whose calls are timed by their names."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.wall: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def timed(*words: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return found(*words)
            finally:
                self.wall[name].append(time.perf_counter() - wall)
                self.cpu[name].append(time.thread_time() - cpu)

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--apart", type=float, default=1.0, metavar="SECONDS")
    given = parser.parse_args()
    nvml = Timed(pynvml)
    source = NvidiaSource(nvml)
    source.open()
    uuid = source.devices()[0].uuid
    source.sample(uuid)  # finds out what this card answers
    source.processes(uuid)
    nvml.wall.clear()
    nvml.cpu.clear()
    looks = [_timed(lambda: (source.sample(uuid), source.processes(uuid)), given.apart) for _ in range(given.rounds)]
    print(f"{'call':44} {'a round':>7} {'wall ms':>9} {'CPU ms':>9}   (medians of {given.rounds} rounds)")
    for name in sorted(nvml.wall, key=lambda name: -statistics.median(nvml.cpu[name])):
        wall, cpu = (statistics.median(times[name]) * 1e3 for times in (nvml.wall, nvml.cpu))
        print(f"{name:44} {len(nvml.wall[name]) / given.rounds:7.1f} {wall:9.3f} {cpu:9.3f}")
    glances = [_timed(lambda: source.glance(uuid), 1.0) for _ in range(given.rounds)]
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    energy = statistics.median(
        [_timed(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), given.apart) for _ in range(given.rounds)]
    )
    look, glance = statistics.median(looks), statistics.median(glances)
    a_second = GPUS * (look / INTERVAL_S + glance / Pace().glance_s + energy / ENERGY_EVERY_S)
    print(f"a look {look * 1e3:.2f} ms of CPU, a quick one {glance * 1e3:.3f} ms, energy {energy * 1e3:.2f} ms")
    print(f"{a_second * 100:.2f}% of a core for {GPUS} GPUs that are looked at every {INTERVAL_S:.0f} s")
    source.close()


def _timed(call: Any, apart_s: float) -> float:
    time.sleep(apart_s)
    before = time.thread_time()
    call()
    return time.thread_time() - before


if __name__ == "__main__":
    main()
