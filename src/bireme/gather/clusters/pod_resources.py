"""A kubelet's answer to `List` of its pod-resources API (v1): which devices each pod has. Pure.

The answer is in protobuf: fields with numbers, of which a reader takes those that it knows and passes over the others.
Devices are called as their plugin calls them: NVIDIA's by the UUID of a GPU or of an instance, with `::N` behind it
where it gives one out several times; AMD's by the GPU's bus address. What was allocated by a resource claim (DRA) is
named by its driver as it likes, and is not read.
Invariant: a pod has a GPU only by a name that is that GPU's own, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bireme.gather.messages import Device, HeldDevice

METHOD = "/v1.PodResourcesLister/List"
_PODS = 1
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_DEVICES = 2
_IDS = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
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
    return (value for found, value in _fields(message) if found == number)


def _fields(message: bytes) -> Iterable[tuple[int, bytes]]:
    """All that have a length, by their numbers. Raises ValueError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, at = _varint(message, at)
        elif wire == _BYTES:
            length, begin = _varint(message, at)
            at = begin + length
            yield number, message[begin:at]
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown sort {wire}")
    if at != len(message):
        raise ValueError("a message that ends in a field")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    number = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("a number that has no end")
