"""What this machine's gatherer measures, for Prometheus: its newest round as a page, also while no daemon lives.

Fed by `gatherer` with every round; served by `serving`. Whose GPU it is only the daemon knows, and says on its page.
Invariant: a round that is too old is not told: a gatherer that hangs is absent, not frozen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bireme import __version__
from bireme.core.telemetry.exported import GpuFigures, Measured, NodeFigures, tell_hardware
from bireme.core.telemetry.metrics import BY_NAME
from bireme.exposition import Page
from bireme.gather.messages import Device, Round

FRESH_S = 90.0
"""Longer than the longest interval."""
COUNTED_S = 150.0
"""So old a counter may be that is not read in every round."""

_Subject = tuple[str, str]
"""Node, and UUID or name."""


def gpu_figures(device: Device, values: dict[str, float]) -> GpuFigures:
    """A GPU with its figures, named as dcgm-exporter names it."""
    return GpuFigures(
        node=device.node,
        uuid=device.uuid,
        index=device.index,
        values=values,
        device=_file(device),
        model=device.model,
        pci_bus_id=device.pci_bus_id,
        driver=device.driver,
        parent=device.parent,
        instance="" if device.gpu_instance is None else str(device.gpu_instance),
        profile=device.profile,
    )


def _file(device: Device) -> str:
    """What its device file is called; empty where that is not known."""
    if device.minor is None:
        return ""
    return f"nvidia{device.minor}" if device.vendor == "nvidia" else f"renderD{device.minor}"


class Newest:
    """The newest round of this machine."""

    def __init__(self) -> None:
        self._devices: Sequence[Device] = ()
        self._figures: dict[_Subject, dict[str, float]] = {}
        self._counted: dict[tuple[_Subject, str], tuple[float, float]] = {}
        """What counters said when they were last read."""
        self._looked_at = 0.0
        self._rounds = 0

    def take(self, told: Round, devices: Sequence[Device]) -> None:
        """A round that was made now."""
        at = time.monotonic()
        found: dict[_Subject, dict[str, float]] = {}
        for frame in told.frames:
            if frame.about not in ("gpu", "node"):
                continue
            for place, id_ in enumerate(frame.ids):
                subject = (frame.node, id_)
                said = {name: column[place] for name, column in frame.columns.items()}
                figures = {name: float(value) for name, value in said.items() if value is not None}
                found[subject] = figures
                for name, value in figures.items():
                    if (metric := BY_NAME.get(name)) is not None and metric.kind == "counter":
                        self._counted[subject, name] = (at, value)
        self._counted = {key: read for key, read in self._counted.items() if at - read[0] <= COUNTED_S}
        for (subject, name), (_, value) in self._counted.items():
            if subject in found:
                found[subject].setdefault(name, value)
        # Whole, and last: a page may be written meanwhile, in another thread.
        self._devices, self._figures, self._looked_at, self._rounds = tuple(devices), found, at, self._rounds + 1

    def text(self) -> str:
        """The page as Prometheus reads it."""
        page = Page()
        what = "The gatherer of this machine, and its release."
        page.family("bireme_gatherer_info", "gauge", what).add(1, {"version": __version__})
        what = "Rounds that it made since it started."
        page.family("bireme_gatherer_rounds_total", "counter", what).add(self._rounds)
        if self._rounds and time.monotonic() - self._looked_at <= FRESH_S:
            tell_hardware(page, self._measured())
        return page.text()

    def _measured(self) -> Measured:
        gpus = [
            gpu_figures(device, found)
            for device in self._devices
            if (found := self._figures.get((device.node, device.uuid)))
        ]
        known = {device.uuid for device in self._devices}
        nodes = [
            NodeFigures(node, found) for (node, id_), found in self._figures.items() if id_ == node and id_ not in known
        ]
        return Measured(gpus, nodes)
