"""Where gangs stand in the network, against every other place they could have had."""

from __future__ import annotations

from itertools import combinations, groupby

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.placement.fabric import build_fabric
from bireme.testing.scenario import Scenario
from bireme.testing.worlds import build_cluster

sizes_of_leaves = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def groups(sizes: list[int]) -> list[str]:
    """Nodes n1, n2, ... dealt to groups of these sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [f"n[{end - size + 1}-{end}]" for size, end in zip(sizes, ends)]


def group_of(sizes: list[int]) -> list[int]:
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def placed(world: Scenario, label: str) -> list[int]:
    allocation = world.job(label).allocation
    return [] if allocation is None else sorted(int(name[1:]) - 1 for name in allocation.node_names)


def with_busy(world: Scenario, busy: set[int]) -> list[int]:
    """Fills these nodes; the rest is free."""
    count = len(world.state.nodes)
    for node in sorted(busy):
        if node < count:
            world.submit(f"busy{node}", on=f"n{node + 1}", cpus=1)
    world.settle()
    return [node for node in range(count) if node not in busy]


@settings(max_examples=150, deadline=None)
@given(sizes_of_leaves, st.sets(st.integers(0, 8)), st.integers(1, 9))
def test_a_gang_touches_no_more_leaves_than_it_must(sizes: list[int], busy: set[int], wanted: int) -> None:
    world = Scenario(f"{sum(sizes)}x1", leaves=groups(sizes))
    free = with_busy(world, busy)
    if wanted > sum(sizes):
        return
    world.submit("gang", nodes=wanted)
    world.settle()
    nodes, leaf = placed(world, "gang"), group_of(sizes)
    assert bool(nodes) == (len(free) >= wanted)
    if nodes:
        fewest = min(len({leaf[node] for node in choice}) for choice in combinations(free, wanted))
        assert len({leaf[node] for node in nodes}) == fewest


@settings(max_examples=150, deadline=None)
@given(sizes_of_leaves, st.sets(st.integers(0, 8)), st.integers(1, 3), st.integers(1, 3))
def test_segments_are_found_if_there_are_any_and_never_cut(
    sizes: list[int], busy: set[int], segment: int, count: int
) -> None:
    wanted, block = segment * count, group_of(sizes)
    if segment > min(sizes) or sum(size // segment for size in sizes) < count:
        return
    world = Scenario(f"{sum(sizes)}x1", blocks=groups(sizes))
    free = with_busy(world, busy)
    world.submit("gang", nodes=wanted, segment=segment)
    world.settle()
    nodes = placed(world, "gang")
    whole = [choice for choice in combinations(free, wanted) if in_segments(choice, block, segment)]
    assert bool(nodes) == bool(whole)
    if nodes:
        assert in_segments(tuple(nodes), block, segment)
        fewest = min(len({block[node] for node in choice}) for choice in whole)
        assert len({block[node] for node in nodes}) == fewest


def in_segments(nodes: tuple[int, ...], block: list[int], segment: int) -> bool:
    return all(len(list(members)) % segment == 0 for _, members in groupby(nodes, lambda node: block[node]))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7), st.sets(st.integers(0, 6)), st.integers(1, 7))
def test_neighbours_are_found_if_there_are_any(count: int, busy: set[int], wanted: int) -> None:
    world = Scenario(f"{count}x1")
    free = with_busy(world, busy)
    if wanted > count:
        return
    world.submit("gang", nodes=wanted, contiguous=True)
    world.settle()
    nodes = placed(world, "gang")
    assert bool(nodes) == any(set(range(start, start + wanted)) <= set(free) for start in range(count))
    assert not nodes or nodes == list(range(nodes[0], nodes[0] + wanted))


@settings(max_examples=100, deadline=None)
@given(sizes_of_leaves, st.sampled_from([(), (1,), (1, 2), (2, 4), (1, 4)]), st.booleans())
def test_every_group_of_a_level_lies_in_one_of_the_next(
    sizes: list[int], block_sizes: tuple[int, ...], tree: bool
) -> None:
    named = {"leaves": groups(sizes)} if tree else {"blocks": groups(sizes), "block_sizes": block_sizes}
    config = build_cluster(f"{sum(sizes) + 1}x1", **named)  # one node is nowhere
    fabric = build_fabric(config.topology, config.nodes)
    for lower, upper in zip(fabric.levels, fabric.levels[1:]):
        for group in np.unique(lower.group_of):
            assert len(np.unique(upper.group_of[lower.group_of == group])) == 1
    assert all(int(level.group_of.max()) < len(level.names) for level in fabric.levels)
