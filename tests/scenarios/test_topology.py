"""Gangs in the network: leaves, blocks, segments, neighbours, spread jobs, preferred nodes."""

import pytest

from bireme.core.model.refusals import Refusal, Why
from bireme.core.why.running import explain_running
from bireme.testing.scenario import Scenario

HOUR = 3600


def shape(world: Scenario, label: str) -> list[int]:
    """Tasks on each node."""
    allocation = world.job(label).allocation
    assert allocation is not None
    return [share.cpus for share in allocation.shares]


# -- tree --------------------------------------------------------------------------------------------------------------


def test_a_gang_takes_the_smallest_leaf_that_holds_it() -> None:
    world = Scenario("7x8", leaves=["n[1-4]", "n[5-7]"])
    world.submit("two", nodes=2, cpus=8)
    world.submit("four", nodes=4, cpus=8)
    world.expect(two="runs n[5-6]", four="runs n[1-4]")


def test_a_gang_that_spans_leaves_uses_as_few_as_it_can() -> None:
    world = Scenario("9x8", leaves=["n[1-2]", "n[3-5]", "n[6-9]"])
    world.submit("six", nodes=6, cpus=8)
    world.expect(six="runs n[1-2,6-9]")
    answer = explain_running(world.state, world.job("six"))
    assert (answer.leaves, answer.fewest_leaves) == (("leaf1", "leaf3"), 2)


def test_a_gang_says_when_it_is_spread_wider_than_it_could_be() -> None:
    world = Scenario("4x8", leaves=["n[1-2]", "n[3-4]"])
    world.submit("here", on="n1", cpus=8)
    world.submit("there", on="n3", cpus=8)
    world.submit("apart", nodes=2, cpus=8)
    world.expect(here="runs n1", there="runs n3", apart="runs n[2,4]")
    answer = explain_running(world.state, world.job("apart"))
    assert (answer.leaves, answer.fewest_leaves) == (("leaf1", "leaf2"), 1)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_gang_that_a_block_is_made_for_waits_for_one() -> None:
    world = Scenario("8x8", blocks=["n[1-4]", "n[5-8]"], block_sizes=[4, 8])
    world.submit("two", nodes=2, cpus=8)
    world.submit("three", nodes=3, cpus=8)
    world.submit("also three", nodes=3, cpus=8)
    world.expect({"two": "runs n[1-2]", "three": "runs n[5-7]", "also three": "waits Resources"})
    world.finish("two")
    world.expect({"two": "COMPLETED", "also three": "runs n[1-3]"})


def test_a_larger_gang_stays_in_the_smallest_aggregate_that_is_made_for_it() -> None:
    world = Scenario("8x8", blocks=["n[1-2]", "n[3-4]", "n[5-6]", "n[7-8]"], block_sizes=[2, 4])
    world.submit("one", on="n1", cpus=8)
    world.submit("four", nodes=4, cpus=8)
    world.submit("three", nodes=3, cpus=8)
    world.expect(one="runs n1", four="runs n[5-8]", three="runs n[2-4]")


def test_blocks_of_one_gang_are_neighbours_only_within_their_aggregate() -> None:
    world = Scenario("8x8", blocks=["n[1-2]", "n[3-4]", "n[5-6]", "n[7-8]"], block_sizes=[2, 4])
    world.submit("left", on="n[1-2]", nodes=2, cpus=8)
    world.submit("right", on="n[7-8]", nodes=2, cpus=8)
    world.submit("four", nodes=4, cpus=8)
    world.expect(left="runs n[1-2]", right="runs n[7-8]", four="waits Resources")


def test_a_gang_above_every_aggregate_uses_as_few_blocks_as_it_can() -> None:
    world = Scenario("9x8", blocks=["n[1-3]", "n[4-6]", "n[7-9]"], block_sizes=[3])
    world.submit("one", on="n1", cpus=8)
    world.submit("five", nodes=5, cpus=8)
    world.expect(one="runs n1", five="runs n[2-6]")
    assert explain_running(world.state, world.job("five")).leaves == ("block1", "block2")


def test_tasks_without_a_number_of_nodes_may_leave_a_block() -> None:
    world = Scenario("4x8", blocks=["n[1-2]", "n[3-4]"], block_sizes=[2])
    world.submit("tasks", tasks=24)
    world.expect(tasks="runs n[1-3]")


# -- segments ----------------------------------------------------------------------------------------------------------


def test_segments_may_lie_in_different_blocks() -> None:
    world = Scenario("6x8", blocks=["n[1-3]", "n[4-6]"], block_sizes=[3])
    world.submit("four", nodes=4, segment=2, cpus=8)
    world.expect(four="runs n[1-2,4-5]")


def test_a_segment_is_never_cut() -> None:
    world = Scenario("6x8", blocks=["n[1-3]", "n[4-6]"], block_sizes=[3])
    world.submit("here", on="n[1-2]", nodes=2, cpus=8)
    world.submit("four", nodes=4, segment=2, cpus=8)
    world.submit("by ones", nodes=4, segment=1, cpus=8)
    world.expect({"here": "runs n[1-2]", "four": "waits Resources", "by ones": "runs n[3-6]"})


def test_segments_use_few_blocks() -> None:
    world = Scenario("12x8", blocks=["n[1-4]", "n[5-8]", "n[9-12]"], block_sizes=[4])
    world.submit("one", on="n5", cpus=8)
    world.submit("eight", nodes=8, segment=2, cpus=8)
    world.expect(one="runs n5", eight="runs n[1-4,9-12]")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"nodes": 3, "segment": 2}, "3 node(s) cannot be cut into segments of 2: ask for a multiple (--nodes)"),
        ({"nodes": 4, "segment": 4}, "--segment=4 is more than a base block has: 2 nodes"),
    ],
)
def test_segments_that_cannot_be_are_refused(options: dict[str, int], hint: str) -> None:
    world = Scenario("4x8", blocks=["n[1-2]", "n[3-4]"], block_sizes=[2, 4])
    with pytest.raises(Refusal) as refused:
        world.submit("job", **options)
    assert refused.value.why is Why.REQUESTED_TOPO_CONFIG_UNAVAILABLE
    assert (refused.value.message, refused.value.hint) == ("Requested topology configuration is not available", hint)


def test_without_blocks_segments_mean_nothing() -> None:
    world = Scenario("3x8")
    world.submit("job", nodes=3, segment=2)
    world.expect(job="runs n[1-3]")


# -- neighbours, spread, preference ------------------------------------------------------------------------------------


def test_contiguous_nodes_are_neighbours() -> None:
    world = Scenario("6x8")
    world.submit("third", on="n3", cpus=8)
    world.submit("apart", nodes=3, cpus=8, contiguous=True)
    world.expect(third="runs n3", apart="runs n[4-6]")
    world.submit("pair", nodes=2, cpus=8, contiguous=True)
    world.expect(pair="runs n[1-2]")


def test_a_contiguous_job_waits_for_neighbours() -> None:
    world = Scenario("3x8")
    world.submit("middle", on="n2", cpus=8)
    world.submit("pair", nodes=2, cpus=8, contiguous=True)
    world.expect(middle="runs n2", pair="waits Resources")
    world.finish("middle")
    world.expect(middle="COMPLETED", pair="runs n[1-2]")


def test_contiguous_nodes_hold_the_tasks_together() -> None:
    world = Scenario("5x4")
    world.submit("some", on="n2", cpus=4)
    world.submit("tasks", tasks=10, contiguous=True)
    world.expect(some="runs n2", tasks="runs n[3-5]")


def test_contiguous_nodes_lie_under_one_leaf_if_they_can() -> None:
    world = Scenario("4x8", leaves=["n[1-2]", "n[3-4]"])
    world.submit("first", on="n1", cpus=8)
    world.submit("pair", nodes=2, cpus=8, contiguous=True)
    world.expect(first="runs n1", pair="runs n[3-4]")


def test_a_spread_job_takes_as_many_nodes_as_it_has_tasks() -> None:
    world = Scenario("4x8", leaves=["n[1-2]", "n[3-4]"])
    world.submit("wide", tasks=4, spread=True)
    world.expect(wide="runs n[1-4]")
    assert shape(world, "wide") == [1, 1, 1, 1]


def test_tasks_of_a_spread_job_are_dealt_evenly() -> None:
    world = Scenario("3x8")
    world.submit("even", nodes=2, tasks=6, spread=True)
    world.submit("filled", nodes=2, tasks=6)
    world.settle()
    assert shape(world, "even") == [3, 3]
    assert shape(world, "filled") != [3, 3]


def test_preferred_nodes_are_tried_first_and_then_the_others() -> None:
    world = Scenario("3x8", features={"n3": ("fast",)})
    world.submit("first", cpus=8, prefer="fast")
    world.submit("second", cpus=8, prefer="fast")
    world.expect(first="runs n3", second="runs n1")


def test_what_is_preferred_stands_in_for_the_constraint() -> None:
    world = Scenario("3x8", features={"n2": ("slow",), "n3": ("fast",)})
    world.submit("first", cpus=8, prefer="fast", constraint="slow")
    world.submit("second", cpus=8, prefer="fast", constraint="slow")
    world.submit("third", cpus=8, prefer="fast", constraint="slow")
    world.expect(first="runs n3", second="runs n2", third="waits Resources")


@pytest.mark.parametrize(
    ("shape_asked", "runs_on"),
    [({"sockets_per_node": 2}, "n[1-2]"), ({"ntasks_per_socket": 2}, "n1"), ({"ntasks_per_socket": 1}, "n[1-2]")],
)
def test_sockets_bound_what_a_node_takes(shape_asked: dict[str, int], runs_on: str) -> None:
    world = Scenario("2x8", sockets=2)
    world.submit("job", tasks=4 if "ntasks_per_socket" in shape_asked else 16, **shape_asked)
    world.expect(job=f"runs {runs_on}")
