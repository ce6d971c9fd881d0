"""Whose GPU it was."""

from __future__ import annotations

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Allocation, Device, GresPool, GresShare, NodeShare
from bireme.core.telemetry.attribution import Card, CardHolder, HeldGpu, held_gpus


def node(*devices: Device) -> NodeConfig:
    return NodeConfig(name="n1", cpus=8, gres=(GresPool("gpu", None, len(devices), devices),))


def held(config: NodeConfig, *gres: GresShare, cards: tuple[Card, ...] = ()) -> tuple[HeldGpu, ...]:
    allocation = Allocation(7, 1, "main", (NodeShare("n1", 4, 100, gres=gres),))
    return held_gpus(allocation, {"n1": config}.get, cards)


def gpus(*indices: int) -> GresShare:
    return GresShare("gpu", None, len(indices), indices)


def test_by_the_uuid_that_was_found() -> None:
    config = node(Device(0, uuid="GPU-a"), Device(1, uuid="GPU-b"))
    assert held(config, gpus(1)) == (HeldGpu("n1", "GPU-b", False),)


def test_by_the_number_of_the_device_file() -> None:
    config = node(Device(0, file="/dev/nvidia3"), Device(1, file="/dev/nvidia1"))
    cards = (Card("n1", "GPU-three", 3), Card("n2", "GPU-elsewhere", 1), Card("n1", "GPU-one", 1))
    assert held(config, gpus(0, 1), cards=cards) == (
        HeldGpu("n1", "GPU-three", False),
        HeldGpu("n1", "GPU-one", False),
    )


def test_a_gpu_that_is_only_counted_is_nobodys() -> None:
    cards = (Card("n1", "GPU-a", 0),)
    assert held(node(Device(0)), gpus(0), cards=cards) == ()


def test_parts_are_shared() -> None:
    config = node(Device(0, uuid="GPU-a"), Device(1, uuid="GPU-b"))
    shard = GresShare("shard", None, 2, parts=((1, 2),))
    assert held(config, shard) == (HeldGpu("n1", "GPU-b", True),)


def test_instances_have_no_file_number_of_their_own() -> None:
    config = node(Device(0, file="/dev/nvidia0", uuid="MIG-x"), Device(1, file="/dev/nvidia0", uuid="MIG-y"))
    cards = (Card("n1", "GPU-a", 0), Card("n1", "MIG-x", None), Card("n1", "MIG-y", None))
    assert held(config, gpus(1), cards=cards) == (HeldGpu("n1", "MIG-y", False),)


def test_what_a_kubelet_gave_to_this_start_goes_before_numbers() -> None:
    config = node(Device(0, uuid="GPU-a"), Device(1, uuid="GPU-b"))
    mine, shared, before, others = (
        CardHolder(7, 1, False), CardHolder(7, 1, True), CardHolder(7, 0, False), CardHolder(8, 1, False),
    )  # fmt: skip
    cards = (
        Card("n1", "GPU-a", 0, holders=(before, others)),
        Card("n1", "GPU-b", 1, holders=(mine,)),
        Card("n1", "GPU-c", 2, holders=(others, shared)),
        Card("n2", "GPU-d", 0, holders=(mine,)),
    )
    assert held(config, gpus(0), cards=cards) == (HeldGpu("n1", "GPU-b", False), HeldGpu("n1", "GPU-c", True))
    assert held(config, gpus(0), cards=cards[:1]) == (HeldGpu("n1", "GPU-a", False),), "no kubelet says whose it is"
