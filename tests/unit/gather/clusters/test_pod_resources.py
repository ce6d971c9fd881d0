"""What a kubelet's answer says of which pods have which GPUs."""

from __future__ import annotations

import pytest

from bireme.gather.clusters.pod_resources import held_devices
from bireme.gather.messages import Device, HeldDevice

GPU = Device(uuid="GPU-a", node="n1", index=0, pci_bus_id="0000:17:00.0")
OTHER = Device(uuid="GPU-b", node="n1", index=1)
PART = Device(uuid="MIG-x", node="n1", index=1, parent="GPU-b", pci_bus_id="0000:65:00.0")


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def field(number: int, value: bytes | str | int) -> bytes:
    """As protobuf writes it."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    text = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(text)) + text


def pod(name: str, *ids: str, namespace: str = "team") -> bytes:
    """With one container that has these devices, beside fields that are of no interest here."""
    topology = field(3, field(1, field(1, 7)))
    devices = field(1, "nvidia.com/gpu") + b"".join(field(2, id) for id in ids) + topology
    container = field(1, "main") + field(2, devices) + field(3, varint(300)) + field(5, field(1, "claimed"))
    sidecar = field(1, "logs")
    return field(1, field(1, name) + field(2, namespace) + field(3, sidecar) + field(3, container))


def held(uuid: str, holder: str, *, shared: bool = False) -> HeldDevice:
    return HeldDevice(uuid=uuid, holder=holder, shared=shared)


def test_whole_gpus_and_instances_by_their_uuids() -> None:
    answer = pod("train-0", "GPU-a") + pod("train-0", "MIG-x", namespace="other") + pod("web")
    assert held_devices(answer, [GPU, OTHER, PART]) == [held("GPU-a", "team/train-0"), held("MIG-x", "other/train-0")]


def test_a_gpu_that_is_given_out_in_parts_is_shared() -> None:
    answer = pod("one", "GPU-a::0", "GPU-a::1") + pod("two", "GPU-a::2")
    assert held_devices(answer, [GPU]) == [
        held("GPU-a", "team/one", shared=True),
        held("GPU-a", "team/two", shared=True),
    ]


def test_by_the_bus_address_of_a_gpu_but_not_of_an_instance() -> None:
    answer = pod("rocm", "0000:17:00.0", "0000:65:00.0")
    assert held_devices(answer, [GPU, PART]) == [held("GPU-a", "team/rocm")]


def test_other_devices_are_nobodys_gpus() -> None:
    assert held_devices(pod("net", "mlx5_0", "GPU-a0", "GPU-") + pod("gone", "GPU-z"), [GPU, OTHER]) == []
    assert held_devices(b"", [GPU]) == []


WHOLE = pod("train-0", "GPU-a")


NOT_TEXT = field(1, field(1, b"\xff") + field(3, field(2, field(2, "GPU-a"))))


@pytest.mark.parametrize("answer", [WHOLE[:-1], WHOLE[:-9], b"\x0b", b"\xff" * 12, b"\x0a\xff\xff", NOT_TEXT])
def test_what_is_no_such_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (whatever it says)
        held_devices(answer, [GPU])


def test_fields_of_later_releases_are_passed_over() -> None:
    later = field(9, "text") + varint(10 << 3 | 1) + bytes(8) + varint(11 << 3 | 5) + bytes(4) + field(200, 2**40)
    assert held_devices(later + WHOLE + later, [GPU]) == [held("GPU-a", "team/train-0")]
