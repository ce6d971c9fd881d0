"""Which library the GPUs of this machine are read by: NVIDIA's, AMD's, or none. Called when a gatherer starts.

Libraries are imported when the source is opened, in the thread that keeps it, and only where their drivers are: they
are not small, and most machines have no use for them.

`BIREME_NVML_MODULE` names another module than pynvml: for tests (`bireme.testing.scripted_nvml`), and for nothing else.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Mapping, Sequence

from bireme.gather.gpus import dcgm
from bireme.gather.gpus.amd import AmdSource
from bireme.gather.gpus.nvidia import NvidiaSource
from bireme.gather.gpus.source import DriverGone, GpuEvent, GpuProcess, GpuSource, NoGpus, Values
from bireme.gather.messages import Device

NVML_MODULE = "BIREME_NVML_MODULE"


class Whichever:
    """The source of the first library that finds a driver; looked for anew whenever it is opened without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._chosen: GpuSource = NoGpus()

    def open(self) -> None:
        if isinstance(self._chosen, NoGpus):
            self._chosen = _choose(self._environ)
        self._chosen.open()

    def close(self) -> None:
        self._chosen.close()

    def devices(self) -> Sequence[Device]:
        return self._chosen.devices()

    def sample(self, uuid: str) -> Values:
        return self._chosen.sample(uuid)

    def glance(self, uuid: str) -> Values:
        return self._chosen.glance(uuid)

    def processes(self, uuid: str) -> list[GpuProcess] | None:
        return self._chosen.processes(uuid)

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        return self._chosen.wait_happenings(timeout_s)


def _choose(environ: Mapping[str, str]) -> GpuSource:
    """Raises DriverGone where neither is there."""
    stand_in = environ.get(NVML_MODULE, "")
    if stand_in or _can_load("libnvidia-ml.so.1"):
        return NvidiaSource(importlib.import_module(stand_in or "pynvml"), dcgm=None if stand_in else dcgm.installed())
    if importlib.util.find_spec("amdsmi") is not None:
        try:
            return AmdSource(importlib.import_module("amdsmi"))
        except Exception as error:  # it looks for its C library when it is imported, and says so in many ways
            raise DriverGone(f"amdsmi cannot be imported: {error}") from error
    raise DriverGone("neither NVIDIA's library (libnvidia-ml.so.1) nor amdsmi is installed")


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
