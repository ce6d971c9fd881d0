"""What fits where: gangs, GPUs, memory, cores, features, node lists."""

from typing import Any

import pytest

from bireme.core.model.cluster import Settings
from bireme.core.model.events import NodeUpdated
from bireme.core.model.resources import GresRequest
from bireme.testing.scenario import Scenario


def gpus(world: Scenario, label: str) -> dict[str, tuple[int, ...]]:
    allocation = world.job(label).allocation
    assert allocation is not None
    return {share.node: share.gres_indices("gpu") for share in allocation.shares}


def cpus(world: Scenario, label: str) -> list[int]:
    allocation = world.job(label).allocation
    assert allocation is not None
    return [share.cpus for share in allocation.shares]


def test_a_gang_starts_on_all_its_nodes_or_on_none() -> None:
    world = Scenario("4x8")
    world.submit("one", on="n2", cpus=8)
    world.submit("gang", nodes=4)
    world.expect(one="runs n2", gang="waits Resources")
    world.finish("one")
    world.expect(one="COMPLETED", gang="runs n[1-4]")


def test_two_jobs_never_share_a_gpu() -> None:
    world = Scenario("1x8:h100")
    world.submit("three", gpus=3)
    world.submit("five", gpus=5)
    world.submit("one", gpus=1)
    world.expect(three="runs n1", five="runs n1", one="waits Resources")
    assert gpus(world, "three") == {"n1": (0, 1, 2)}
    assert gpus(world, "five") == {"n1": (3, 4, 5, 6, 7)}
    world.finish("three")
    world.expect(three="COMPLETED", one="runs n1")


def test_a_gpu_type_is_found_where_it_is() -> None:
    world = Scenario("1x8:a100+1x8:h100")
    world.submit("typed", gpus="h100:8")
    world.submit("any", gpus=2)
    world.expect(typed="runs n2", any="runs n1")


def test_gpus_of_a_job_are_counted_over_its_nodes() -> None:
    world = Scenario("2x8:h100")
    world.submit("twelve", nodes=2, gpus=12)
    world.expect(twelve="runs n[1-2]")
    assert sum(len(indices) for indices in gpus(world, "twelve").values()) == 12


def test_gpus_that_one_node_cannot_give_come_from_several() -> None:
    world = Scenario("4x8:h100")
    world.submit("twelve", gpus=12, tasks=2)
    world.expect(twelve="runs n[1-2]")


@pytest.mark.parametrize("asked", [{"gpus": 4, "nodes": 2}, {"tasks": 4, "gpus_per_task": 1}])
def test_gpus_of_sockets_hold_for_every_node_whatever_else_counts_them(asked: dict[str, Any]) -> None:
    world = Scenario("2x8:h100", sockets=2)
    world.submit("job", gres_per_socket=(GresRequest("gpu", None, 1),), sockets_per_node=2, **asked)
    world.settle()
    assert gpus(world, "job") == {"n1": (0, 1), "n2": (0, 1)}


def test_gpus_per_task_follow_the_tasks() -> None:
    world = Scenario("2x8:h100")
    world.submit("ranks", nodes=2, tasks=6, gpus_per_task=2)
    world.expect(ranks="runs n[1-2]")
    assert {node: len(found) for node, found in gpus(world, "ranks").items()} == {"n1": 8, "n2": 4}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        # Measured with Slurm 22.05 on nodes of 2 sockets x 4 cores x 2 threads.
        ({"nodes": 2, "tasks": 5}, [4, 2]),
        ({"nodes": 2, "tasks": 6}, [4, 2]),
        ({"nodes": 2, "tasks": 7}, [6, 2]),
        ({"nodes": 3, "tasks": 7}, [4, 2, 2]),
        ({"nodes": 2, "tasks": 6, "cpus_per_task": 2}, [10, 2]),
        ({"nodes": 2, "tasks": 5, "cpus_per_task": 3}, [12, 4]),
        ({"nodes": 4, "tasks": 10, "cpus_per_task": 3}, [16, 10, 4, 4]),
        ({"tasks": 40}, [16, 16, 8]),
        ({"tasks": 4, "ntasks_per_core": 1}, [8]),
        ({"tasks": 3, "ntasks_per_core": 1, "cpus_per_task": 2}, [6]),
        ({"tasks": 6, "ntasks_per_socket": 2}, [4, 2]),
        # A range takes as many nodes as there are tasks for.
        ({"nodes_min": 1, "nodes_max": 3, "tasks": 2}, [2, 2]),
        ({"nodes_min": 1, "nodes_max": 3}, [2, 2, 2]),
        ({"nodes_min": 2, "nodes_max": 3, "cpus_per_task": 4}, [4, 4, 4]),
        ({"nodes_min": 2, "nodes_max": 4, "ntasks_per_node": 2}, [2, 2, 2, 2]),
    ],
)
def test_nodes_are_filled_as_slurm_fills_them(asked: dict[str, Any], given: list[int]) -> None:
    world = Scenario("4x16", threads_per_core=2, sockets=2)
    world.submit("job", **asked)
    world.settle()
    assert cpus(world, "job") == given


@pytest.mark.parametrize(
    ("nodes", "count", "each"),
    [(2, 6, [4, 2]), (3, 7, [4, 2, 1]), (2, 5, [4, 1])],
)
def test_gpus_of_the_job_fill_the_first_node_and_leave_one_for_the_others(
    nodes: int, count: int, each: list[int]
) -> None:
    world = Scenario("4x4:a100")
    world.submit("job", nodes=nodes, gpus=count)
    world.settle()
    assert [len(found) for found in gpus(world, "job").values()] == each


def test_tasks_are_spread_evenly_where_every_node_brings_its_gpus() -> None:
    world = Scenario("2x8:h100")
    world.submit("ranks", nodes=2, tasks=8, gpus_per_node=4)
    world.settle()
    assert cpus(world, "ranks") == [4, 4]


def test_a_range_of_nodes_takes_what_is_free_now() -> None:
    world = Scenario("3x8:h100")
    world.submit("other", exclusive=True)
    world.submit("wide", nodes_min=1, nodes_max=3)
    world.expect(other="runs n1", wide="runs n[2-3]")


def test_more_gpus_per_task_than_are_free_wait() -> None:
    world = Scenario("1x8:h100")
    world.submit("some", gpus=3)
    world.submit("ranks", tasks=3, gpus_per_task=2)
    world.expect(some="runs n1", ranks="waits Resources")


def test_an_exclusive_job_has_its_node_and_every_device_to_itself() -> None:
    world = Scenario("2x8:h100")
    world.submit("tiny")
    world.submit("alone", exclusive=True)
    world.submit("more", on="n2")
    world.expect(tiny="runs n1", alone="runs n2", more="waits Resources")
    assert gpus(world, "alone") == {"n2": tuple(range(8))}
    assert cpus(world, "alone") == [8]


def test_a_partition_that_does_not_share_gives_whole_nodes() -> None:
    world = Scenario("1x8", partitions={"whole": {"over_subscribe": "EXCLUSIVE"}})
    world.submit("one")
    world.submit("two")
    world.expect(one="runs n1", two="waits Resources")


def test_memory_is_not_given_out_twice() -> None:
    world = Scenario("1x8", memory_mib=1000)
    world.submit("most", mem=800)
    world.submit("rest", mem=300)
    world.expect(most="runs n1", rest="waits Resources")
    world.finish("most")
    world.expect(most="COMPLETED", rest="runs n1")


def test_without_a_word_on_memory_a_job_takes_all_of_the_node() -> None:
    world = Scenario("1x8", memory_mib=1000)
    world.submit("one")
    world.submit("two", mem=1)
    world.expect(one="runs n1", two="waits Resources")


def test_memory_per_cpu_grows_with_the_cpus() -> None:
    world = Scenario("1x8", memory_mib=1000)
    world.submit("job", cpus=4, mem_per_cpu=100)
    world.expect(job="runs n1")
    assert world.state.occupancy.room("n1").memory_mib == 600


@pytest.mark.parametrize(("asked", "held"), [(1, 2), (2, 2), (3, 4)])
def test_whole_cores_are_given_where_the_cluster_counts_cores(asked: int, held: int) -> None:
    world = Scenario("1x8", threads_per_core=2)
    world.submit("job", cpus=asked)
    world.expect(job="runs n1")
    assert cpus(world, "job") == [held]


def test_single_threads_are_given_where_the_cluster_counts_cpus() -> None:
    settings = Settings(select_by_core=False, memory_is_consumable=False)
    world = Scenario("1x8", threads_per_core=2, settings=settings)
    world.submit("job", cpus=3)
    world.expect(job="runs n1")
    assert cpus(world, "job") == [3]


def test_without_hyperthreads_a_task_gets_a_core_for_each_cpu() -> None:
    world = Scenario("1x8", threads_per_core=2)
    world.submit("job", cpus=2, hint="nomultithread")
    world.expect(job="runs n1")
    assert cpus(world, "job") == [4]


def test_a_constraint_chooses_the_nodes() -> None:
    world = Scenario("3x8", features={"n2": ("fast",), "n3": ("fast", "big")})
    world.submit("fast", constraint="fast")
    world.submit("both", constraint="fast&big")
    world.submit("either", constraint="slow|big")
    world.expect(fast="runs n2", both="runs n3", either="runs n3")


def test_alternatives_in_brackets_hold_for_all_nodes_together() -> None:
    racks = {"n1": ("r1",), "n2": ("r2",), "n3": ("r1",), "n4": ("r2",)}
    world = Scenario("4x8", features=racks)
    world.submit("one", on="n1", cpus=8)
    world.submit("pair", nodes=2, constraint="[r1|r2]", tasks=16)
    world.expect(one="runs n1", pair="runs n[2,4]")


def test_required_and_excluded_nodes() -> None:
    world = Scenario("4x8")
    world.submit("there", on="n3")
    world.submit("elsewhere", not_on="n[1-3]")
    world.submit("with", nodes=2, on="n4", not_on="n[2-3]")
    world.expect({"there": "runs n3", "elsewhere": "runs n4", "with": "runs n[1,4]"})


def test_a_lower_weight_is_preferred() -> None:
    world = Scenario("2x8", weight=5)
    world.record([NodeUpdated("n2", by_uid=0, weight=1)])
    world.submit("job")
    world.expect(job="runs n2")


def test_tasks_per_node_spread_over_enough_nodes() -> None:
    world = Scenario("4x8")
    world.submit("ranks", tasks=6, ntasks_per_node=2)
    world.expect(ranks="runs n[1-3]")


def test_tasks_go_to_one_node_when_one_holds_them_all() -> None:
    world = Scenario("2x8")
    world.submit("six", on="n1", cpus=6)
    world.submit("four", tasks=4)
    world.expect(six="runs n1", four="runs n2")


def test_tasks_that_no_single_node_holds_are_packed_over_several() -> None:
    world = Scenario("3x8")
    world.submit("ranks", tasks=20)
    world.expect(ranks="runs n[1-3]")
    assert cpus(world, "ranks") == [8, 8, 4]


def test_overcommit_needs_one_cpu_for_all_tasks_of_a_node() -> None:
    world = Scenario("1x8")
    world.submit("seven", cpus=7)
    world.submit("many", tasks=32, overcommit=True)
    world.expect(seven="runs n1", many="runs n1")
    assert cpus(world, "many") == [1]


def test_cpus_per_gpu_grow_with_the_gpus() -> None:
    world = Scenario("1x8:h100")
    world.submit("job", gpus=2, cpus_per_gpu=3)
    world.expect(job="runs n1")
    assert cpus(world, "job") == [6]


@pytest.mark.parametrize("asked", [{"nodes": 2}, {"nodes": 2, "ntasks_per_node": 1}, {"nodes_min": 1, "nodes_max": 2}])
def test_gpus_of_the_whole_job_are_taken_where_they_are(asked: dict[str, int]) -> None:
    """-N2 --gpus=8: the first node has one left, the two behind it have eight."""
    world = Scenario("3x4:h100")
    world.submit("small", gpus=3, on="n1")
    world.expect(small="runs n1")
    world.submit("large", gpus=8, **asked)
    world.expect(large="runs n[2-3]")
