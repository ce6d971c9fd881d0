"""Whose GPU processes are: shared GPUs, MPS, MIG instances, and those that are nobody's."""

from __future__ import annotations

from bireme.gather.gpus.attribution import Attributed, Unowned, attribute, servers_among, stray_happenings, use_frames
from bireme.gather.gpus.source import GpuProcess

OWNERS = {11: "7.0.0.0", 12: "7.0.0.0", 21: "8.0.0.0", 31: "9.1.0.3"}


def of(processes: dict[str, list[GpuProcess]], before: Unowned | None = None) -> Attributed:
    return attribute(processes, OWNERS.get, before or Unowned())


def test_two_tasks_on_one_gpu_are_told_apart() -> None:
    found = of({"GPU-0": [GpuProcess(11, 100.0, 30.0), GpuProcess(12, 50.0, 20.0), GpuProcess(21, 400.0, 45.0)]})
    assert found.uses == {("7.0.0.0", "GPU-0"): (150.0, 50.0), ("8.0.0.0", "GPU-0"): (400.0, 45.0)}
    assert found.unowned_mib == {"GPU-0": 0.0}


def test_a_task_on_two_gpus_has_a_share_of_each() -> None:
    found = of({"GPU-0": [GpuProcess(11, 100.0)], "GPU-1": [GpuProcess(11, 300.0)]})
    assert found.uses == {("7.0.0.0", "GPU-0"): (100.0, None), ("7.0.0.0", "GPU-1"): (300.0, None)}


def test_what_is_not_told_of_a_process_is_not_zero() -> None:
    found = of({"GPU-0": [GpuProcess(11, None, None), GpuProcess(21, None, 5.0)]})
    assert found.uses == {("7.0.0.0", "GPU-0"): (None, None), ("8.0.0.0", "GPU-0"): (None, 5.0)}
    (frame,) = use_frames(found, lambda uuid: "node1")
    assert frame.columns == {"use_gpu_util": [None, 5.0]}


def test_instances_of_one_gpu_are_apart() -> None:
    found = of({"MIG-7": [GpuProcess(11, 10.0)], "MIG-9": [GpuProcess(21, 20.0)], "GPU-0": []})
    assert found.uses.keys() == {("7.0.0.0", "MIG-7"), ("8.0.0.0", "MIG-9")}
    assert found.unowned_mib == {"MIG-7": 0.0, "MIG-9": 0.0, "GPU-0": 0.0}


def test_mps_clients_have_owners_and_its_server_is_no_stray() -> None:
    processes = {"GPU-0": [GpuProcess(11, 100.0), GpuProcess(21, 200.0), GpuProcess(99, 30.0)]}
    servers = servers_among(processes, {11: "python3", 21: "python3", 99: "nvidia-cuda-mps"}.__getitem__)
    first = attribute(processes, OWNERS.get, Unowned(), servers)
    again = attribute(processes, OWNERS.get, first.unowned, servers)
    assert again.uses.keys() == {("7.0.0.0", "GPU-0"), ("8.0.0.0", "GPU-0")}
    assert again.unowned_mib == {"GPU-0": 30.0}
    assert again.strays == ()


def test_a_stray_is_told_once_and_only_if_it_stays() -> None:
    processes = {"GPU-0": [GpuProcess(77, 500.0)]}
    first = of(processes)
    assert (first.strays, first.unowned_mib) == ((), {"GPU-0": 500.0})
    second = of(processes, first.unowned)
    assert second.strays == (("GPU-0", 77),)
    third = of(processes, second.unowned)
    assert third.strays == ()
    assert of({"GPU-0": []}, third.unowned).unowned == Unowned({})


def test_a_process_whose_owner_comes_to_be_known_was_no_stray() -> None:
    first = attribute({"GPU-0": [GpuProcess(31, 5.0)]}, lambda pid: None, Unowned())
    assert of({"GPU-0": [GpuProcess(31, 5.0)]}, first.unowned).strays == ()


def test_frames_are_by_node_and_happenings_say_who() -> None:
    processes = {"GPU-0": [GpuProcess(11, 1.0, 2.0)], "GPU-1": [GpuProcess(21, 3.0, 4.0), GpuProcess(77, 500.0)]}
    nodes = {"GPU-0": "a", "GPU-1": "b"}
    found = of(processes, Unowned({("GPU-1", 77): 1}))
    owners = {"7.0.0.0": "a", "8.0.0.0": "b"}
    assert [(frame.node, frame.ids, frame.columns) for frame in use_frames(found, owners.__getitem__)] == [
        ("a", ["7.0.0.0@GPU-0"], {"use_gpu_memory": [1.0], "use_gpu_util": [2.0]}),
        ("b", ["8.0.0.0@GPU-1"], {"use_gpu_memory": [3.0], "use_gpu_util": [4.0]}),
    ]
    (told,) = stray_happenings(found, processes, nodes.__getitem__, lambda pid: "python3", 9.0)
    assert (told.kind, told.node, told.uuid, told.pid) == ("stray", "b", "GPU-1", 77)
    assert told.text == "python3 has 500 MiB and belongs to no job"
