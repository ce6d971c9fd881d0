"""The port to a maker's library: which GPUs there are, what they measure, who uses them, what befell them.

`watching` drives one source with a thread for each card; `nvidia` and `amd` are sources, `NoGpus` is the one of a
machine that has none. Not for finding GPUs when a cluster starts: that is `agent/devices`.

Invariant: what a card does not answer is not in what a source returns: never 0, never None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bireme.gather.messages import Device

Values = dict[str, float]
"""Of metrics about GPUs, by name (`core/telemetry/metrics`); counters as they are counted."""

PEAKS = {
    "gpu_memory_used": "gpu_memory_peak",
    "gpu_power": "gpu_power_peak",
    "gpu_temperature": "gpu_temperature_peak",
}
"""What quick looks between two rounds are made for, and the metric that says the most of it."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU, as the driver lists it."""

    pid: int
    memory_mib: float | None
    """None: the driver does not tell."""
    util: float | None = None
    """Percent of the multiprocessors' time since the last look; None: not measured."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that a library or the kernel told once, of a GPU or (`kernel`) of the machine."""

    at: float
    kind: Literal["xid", "sxid", "kernel"]
    code: int = 0
    uuid: str = ""
    pci_bus_id: str = ""
    """As the kernel writes it (`0000:17:00.0`), where the UUID is not known."""
    pid: int = 0
    text: str = ""
    node: str = ""
    """Where a machine plays several; empty: this machine."""


class DriverGone(Exception):  # noqa: N818  (a state of the world)
    """The library or its driver is not there, or does not work; the text says why. Worth trying again later."""


class DriverChanged(DriverGone):
    """The driver was replaced while its old library is in this process: only a new process can load the new one."""


class GpuLost(Exception):  # noqa: N818
    """This GPU is off the bus, or its driver gave it up."""


class GpuSource(Protocol):
    """A maker's library. Any call may hang for as long as the driver does; those about different cards may be made at
    the same time, but never while `open` or `close` runs."""

    def open(self) -> None:
        """Loads the library anew and looks which GPUs there are. Raises DriverGone."""

    def close(self) -> None:
        """Gives the library back; one that is not open is none's concern."""

    def devices(self) -> Sequence[Device]:
        """All GPUs and MIG instances, an instance after its GPU; `node` is empty. Raises DriverGone."""

    def sample(self, uuid: str) -> Values:
        """All that is measured of one, now. Raises GpuLost."""

    def glance(self, uuid: str) -> Values:
        """What is cheap enough to be asked between rounds: some of `PEAKS`. Raises GpuLost."""

    def processes(self, uuid: str) -> list[GpuProcess] | None:
        """Who uses it now; None: that is not told. Raises GpuLost."""

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        """What happened since the last call; waits for it, not longer than that. Raises DriverGone."""


class NoGpus:
    """The source of a machine without GPUs, or without a library for them."""

    def __init__(self, why: str = "") -> None:
        self.why = why

    def open(self) -> None:
        raise DriverGone(self.why or "no library for GPUs is installed")

    def close(self) -> None:
        """Nothing to give back."""

    def devices(self) -> Sequence[Device]:
        return ()

    def sample(self, uuid: str) -> Values:
        raise GpuLost(uuid)

    def glance(self, uuid: str) -> Values:
        raise GpuLost(uuid)

    def processes(self, uuid: str) -> list[GpuProcess] | None:
        raise GpuLost(uuid)

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        raise DriverGone(self.why)
