"""Xid errors told twice: once by NVML's events, which are quick, once by the kernel's log, which knows the process.

`Xids` is fed in every round by `watching` and makes one happening of both. Pure.

Invariant: an error that both tell is told once, with the kernel's words; one that only one of them tells is told too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bireme.gather.gpus.source import GpuEvent

SAME_WITHIN_S = 15.0
"""Two tellings of one error are not further apart: the log is read once a round."""


class Xids:
    """What was told lately by one of the two and may still come from the other."""

    def __init__(self) -> None:
        self._one_sided: list[tuple[str, GpuEvent]] = []
        """(who did not tell it yet, the error)."""

    def merge(self, by_nvml: Sequence[GpuEvent], by_kernel: Sequence[GpuEvent], now: float) -> list[GpuEvent]:
        """The Xids of both sources, each told once: those that are new, in the order of their times."""
        self._one_sided = [(who, event) for who, event in self._one_sided if now - event.at <= SAME_WITHIN_S]
        waiting = list(by_nvml)
        found = []
        for event in by_kernel:
            if self._was_told("kernel", event):
                continue
            twin = next((other for other in waiting if _is_same(other, event)), None)
            if twin is not None:
                waiting.remove(twin)
                event = replace(event, at=twin.at, uuid=twin.uuid)
            elif event.kind == "xid":
                self._one_sided.append(("nvml", event))
            found.append(event)
        for event in waiting:
            if not self._was_told("nvml", event):
                self._one_sided.append(("kernel", event))
                found.append(event)
        return sorted(found, key=lambda event: event.at)

    def _was_told(self, by: str, event: GpuEvent) -> bool:
        for pair in self._one_sided:
            if pair[0] == by and _is_same(pair[1], event):
                self._one_sided.remove(pair)
                return True
        return False


def _is_same(one: GpuEvent, other: GpuEvent) -> bool:
    near = abs(one.at - other.at) <= SAME_WITHIN_S
    return near and (one.kind, one.code, one.pci_bus_id) == (other.kind, other.code, other.pci_bus_id)
