"""Real use of GPUs by DCGM, where its host engine runs and its Python bindings are installed: cards without GPM.

Used by `nvidia` for cards that have no GPM (A100 and older). DCGM is asked in a thread of its own: a host engine that
hangs costs these figures and nothing else. The bindings (`DcgmReader`) come with DCGM's packages, not from PyPI.

Invariant: a figure that DCGM has not told in the last `FRESH_S` is absent.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bireme.gather.gpus.source import Values

FRESH_S = 90.0
_EVERY_S = 10.0
_BLANK = 140737488355328.0
"""DCGM's numbers from here on say that there is none."""
_BINDINGS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
FIELDS = {
    1001: ("gpu_engine_active", 100.0),
    1002: ("gpu_sm_active", 100.0),
    1003: ("gpu_sm_occupancy", 100.0),
    1004: ("gpu_tensor_active", 100.0),
    1005: ("gpu_dram_active", 100.0),
    1006: ("gpu_fp64_active", 100.0),
    1007: ("gpu_fp32_active", 100.0),
    1008: ("gpu_fp16_active", 100.0),
    1009: ("gpu_pcie_sent", 1 / 1024),
    1010: ("gpu_pcie_received", 1 / 1024),
    1011: ("gpu_nvlink_sent", 1 / 1024),
    1012: ("gpu_nvlink_received", 1 / 1024),
}
"""DCGM_FI_PROF_*: the metric of each, and how much of its unit one of DCGM's is (shares of 1, bytes a second)."""


class DcgmFields:
    """The latest profiling fields of all GPUs."""

    def __init__(self, connect: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`connect` makes a reader that is asked by `GetLatestGpuValuesAsFieldIdDict`."""
        self._connect = connect
        self._clock = clock
        self._latest: dict[int, tuple[float, Values]] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def latest(self, number: int) -> Values:
        """Of the GPU with this number of NVML's. The first call begins the reading."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_reading, name="dcgm", daemon=True)
            self._thread.start()
        at, values = self._latest.get(number, (0.0, {}))
        return dict(values) if values and self._clock() - at <= FRESH_S else {}

    def stop(self) -> None:
        self._ended.set()

    def _keep_reading(self) -> None:
        reader: Any = None
        while not self._ended.wait(_EVERY_S if reader is not None else 0.0):
            try:
                reader = reader or self._connect()
                self.take(reader.GetLatestGpuValuesAsFieldIdDict())
            except (
                Exception
            ):  # the bindings raise classes of their own, which are not here where they are not installed
                reader = None
                if self._ended.wait(FRESH_S):
                    return

    def take(self, told: dict[int, dict[int, Any]]) -> None:
        """What the reader said: numbers by field by GPU."""
        now = self._clock()
        for number, fields in told.items():
            values = {
                FIELDS[key][0]: float(value) * FIELDS[key][1]
                for key, value in fields.items()
                if key in FIELDS and isinstance(value, int | float) and 0 <= value < _BLANK
            }
            self._latest[number] = (now, values)


def installed() -> DcgmFields | None:
    """None: this machine has no bindings of DCGM."""
    folder = next((folder for folder in _BINDINGS if (Path(folder) / "DcgmReader.py").exists()), None)
    if folder is None:
        return None

    def connect() -> Any:
        if folder not in sys.path:
            sys.path.append(folder)
        reader = importlib.import_module("DcgmReader").DcgmReader
        return reader(fieldIds=list(FIELDS), updateFrequency=int(_EVERY_S * 1e6), fieldGroupName="bireme")

    return DcgmFields(connect)
