"""A switch that took its nodes' links is one finding of the switch, and its nodes are not fenced one by one for it."""

from __future__ import annotations

from bireme.core.faults.detection.switches import judge
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.shelves import HEALINGS
from bireme.core.model.finding.findings import Gravity, Place
from bireme.testing.scenario import Scenario


def looked(world: Scenario, thresholds: Thresholds = Thresholds()) -> None:  # noqa: B008
    for seen in list(judge(world.state.config.topology, FINDINGS.of(world.state).values(), thresholds, world.now)):
        world.report(seen)
    world.settle()


def lose_links(world: Scenario, *nodes: str) -> None:
    for name in nodes:
        world.trouble("nic", Place(node=name), Gravity.DEGRADED, lasts=False)
    looked(world)


def test_three_nodes_and_half_of_those_under_it_make_it_the_switch() -> None:
    world = Scenario("10x8", leaves=["n[1-4]", "n[5-10]"])
    lose_links(world, "n1", "n2", "n5", "n6")
    assert not [key for key in world.findings() if key.startswith("switch")], "two of four are no three"
    lose_links(world, "n3")
    assert world.findings()["switch switch leaf1"] == "broken"
    (finding,) = [each for each in FINDINGS.of(world.state).values() if each.trouble.place.switch]
    assert finding.trouble.title == "3 of 4 nodes under leaf1 have lost their link: it is the switch, not they"
    world.wait(60)
    for name in ("n1", "n2", "n3"):
        world.trouble_gone("nic", Place(node=name))
    looked(world)
    assert "switch switch leaf1" not in world.findings()


def test_its_nodes_are_left_to_people() -> None:
    world = Scenario("40x8", leaves=["n[1-4]", "n[5-40]"])
    world.healing_policy()
    lose_links(world, "n1", "n2", "n3")
    world.trouble("nic", Place(node="n4"), lasts=False)
    world.trouble("nic", Place(node="n5"), lasts=False)
    world.settle()
    assert world.healings() == ["fence-node n4: suggested", "fence-node n5: done"]
    assert "it is the switch" in HEALINGS.of(world.state)[1].latest.text


def test_switched_off_with_the_detector_of_links() -> None:
    world = Scenario("4x8", leaves=["n[1-4]"])
    for name in ("n1", "n2", "n3"):
        world.trouble("nic", Place(node=name), Gravity.DEGRADED, lasts=False)
    looked(world, Thresholds(off=frozenset({"nic"})))
    assert not [key for key in world.findings() if key.startswith("switch")]
