"""A kubelet's answer to `List` of its pod-resources API (v1): which devices each pod has. Pure.

Devices are called as their plugin calls them: NVIDIA's by the UUID of a GPU or of an instance, with `::N` behind it
where it gives one out several times; AMD's by the GPU's bus address. What was allocated by a resource claim (DRA) is
named by its driver as it likes, and is not read, as all fields that later releases add.
Invariant: a pod has a GPU only by a name that is that GPU's own, whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.gather.messages import Device, HeldDevice
from bireme.protobuf import BYTES, fields

METHOD = "/v1.PodResourcesLister/List"
_PODS = 1
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_DEVICES = 2
_IDS = 2
_REPLICA = "::"


def held_devices(answer: bytes, devices: Sequence[Device]) -> list[HeldDevice]:
    """Those of these GPUs and instances that pods have. Raises ValueError for what is no such answer."""
    by_id = {device.pci_bus_id: device.uuid for device in devices if device.pci_bus_id and not device.parent}
    by_id |= {device.uuid: device.uuid for device in devices}
    found: dict[HeldDevice, None] = {}
    for pod in _texts(answer, _PODS):
        holder = f"{_first(pod, _NAMESPACE)}/{_first(pod, _NAME)}"
        for container in _texts(pod, _CONTAINERS):
            for given in _texts(container, _DEVICES):
                for id in _texts(given, _IDS):
                    name, replica, _ = id.decode().partition(_REPLICA)
                    if name in by_id:
                        found[HeldDevice(uuid=by_id[name], holder=holder, shared=bool(replica))] = None
    return sorted(found, key=lambda held: (held.uuid, held.holder))


def _first(message: bytes, number: int) -> str:
    return next(_texts(message, number), b"").decode()


def _texts(message: bytes, number: int) -> Iterator[bytes]:
    """The fields with this number, which are texts or messages."""
    for found, kind, value in fields(message):
        if (found, kind) == (number, BYTES):
            assert isinstance(value, bytes), "as its kind says"
            yield value
