"""Fences on a real Slurm: a node is drained there with the reason, as Slurm's own operators would, and given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.slurm_attached import Attached, attached


@pytest.fixture(scope="module")
def both() -> Iterator[Attached]:
    with attached(for_everyone=True) as bireme:
        yield bireme


def healings(both: Attached) -> list[dict[str, Any]]:
    return list(json.loads(both.bireme("healings", "--all", "--json").stdout)["healings"])


def of_node(both: Attached, node: str) -> tuple[str, str]:
    """State and reason, as Slurm itself says them."""
    state, _, reason = both.slurm.call("sinfo", "-h", "-N", "-n", node, "-o", "%T|%E").split("\n")[0].partition("|")
    return state, reason


def a_node(both: Attached) -> str:
    return str(both.slurm.call("sinfo", "-h", "-N", "-o", "%N").split("\n")[0])


def test_a_fence_drains_the_node_in_slurm_and_an_undo_resumes_it(both: Attached) -> None:
    node = a_node(both)
    both.bireme("healings", "fence", node, "--reason", "its NIC flaps", "--last-too")
    both.slurm.until(lambda: of_node(both, node)[0].startswith("drain"), "it is drained")
    assert of_node(both, node)[1] == "its NIC flaps"
    both.slurm.until(lambda: "its NIC flaps" in both.run("sinfo", "-R", "-h", "-o", "%E").stdout, "Bireme shows it")
    both.bireme("healings", "undo", str(healings(both)[0]["id"]))
    both.slurm.until(lambda: not of_node(both, node)[0].startswith("drain"), "it is resumed")


def test_who_resumes_it_in_slurm_lifts_the_fence(both: Attached) -> None:
    node = a_node(both)
    both.bireme("healings", "fence", node, "--reason", "again", "--last-too")
    both.slurm.until(lambda: of_node(both, node)[0].startswith("drain"), "it is drained")
    both.slurm.until(lambda: "again" in both.run("sinfo", "-R", "-h", "-o", "%E").stdout, "Bireme has seen it")
    both.slurm.call("scontrol", "update", f"nodename={node}", "state=resume")
    both.slurm.until(lambda: healings(both)[0]["state"] == "undone", "the fence is lifted")
    assert not of_node(both, node)[0].startswith("drain")
