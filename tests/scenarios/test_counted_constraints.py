"""Counted constraints: `[a*2&b*1]` gets nodes of each, whatever stands first, and waits where they are not free."""

from __future__ import annotations

import pytest

from bireme.core.placement.features import chosen_for_counts, parse_constraint


@pytest.mark.parametrize(
    ("text", "nodes", "chosen"),
    [
        ("[a*1&b*1]", ["a", "a", "b"], (0, 2)),
        ("[a*1&b*1]", ["a", "a"], None),
        ("[a*1&b*1]", ["a,b", "b"], (0, 1)),  # the only a is not spent on b
        ("[a*1&b*1]", ["b", "a,b"], (0, 1)),
        ("[a*2&b*1]", ["a,b", "a", "a"], (0, 1, 2)),
        ("[a*2&b*1]", ["a,b", "a"], None),
        ("b*1", ["a", "b"], (1,)),
    ],
)
def test_nodes_for_counts(text: str, nodes: list[str], chosen: tuple[int, ...] | None) -> None:
    features = [frozenset(node.split(",")) for node in nodes]
    assert chosen_for_counts(parse_constraint(text).counts(), features) == chosen


@pytest.mark.parametrize(("text", "nodes"), [("[a*2&b*4]", 6), ("a*2&b*4", 4), ("a", 0), ("[a|b]", 0)])
def test_counts_take_so_many_nodes(text: str, nodes: int) -> None:
    assert parse_constraint(text).nodes_counted == nodes
